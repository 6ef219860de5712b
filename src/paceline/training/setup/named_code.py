"""Code that a run directory names, and whether it may run: the directory may have come from somebody else.

Code runs if the command names it, or if this user has run it before: the same text at the same place, from a file of
the same content. What a command names is noted in a file of the user's own, which no run directory can bring along.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from importlib.machinery import PathFinder
from pathlib import Path

from paceline.base_directory import base_directory, import_path, local_path
from paceline.checkpoints.existing_runs import is_run
from paceline.config.reading import (
    Option,
    base_name,
    find_option,
    is_code,
    option_name,
    options,
    parse_value,
    served_model,
    values_of,
)
from paceline.config.sampling import NAMED_ENVIRONMENT
from paceline.config.sections import JUDGE, MODEL, NAMED, SANDBOXES, Config
from paceline.errors import ConfigError

RECORDED_BY_PACELINE = ("identity.json", "journal.jsonl", "evals.jsonl")
"""Files that mark a directory as a run's or a measurement's, where the head of its options is gone."""
HARMLESS_ENVIRONMENTS = ("calculator", "python", "search", "guess", "nim", "reasoning_gym")
"""Environments that run no code but the package's; every other one does."""
RUN_BY_NAME = ("mcp", "harness", "verifiers", "gymnasium", "textarena", "skyrl_gym", "openenv", "python")
"""First words of addresses of commands and of packages."""
FUNCTIONS = ("reward_funcs", "eval_reward_func", "filter_func", "advantage", "bound", "environment")
"""Options that take functions or classes of one's own, besides other texts."""
_MODULE_END = re.compile(r"[:/(]")
NAMES_NO_CODE = frozenset(
    (
        *("model", "lora_targets", "lora_parameters", "lora_settings", "lr_scheduler", "dataset_split", "eval_split"),
        "prompt_column",
        *("answer_column", "system_prompt", "chat_template_kwargs", "stop", "offload", "vllm_memory", "output_dir"),
        *("report_to", "project", "rollout_func"),
    )
)
"""Options that take any text, none of which is code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedCode:
    """Code, or a service that takes its place, as an option names it."""

    option: str
    text: str

    @property
    def flag(self) -> str:
        """The words by which a command names it."""
        return f"--{self.option.replace('_', '-')} {shlex.quote(self.text)}"


def _grader(name: str) -> bool:
    """Return True for a function of somebody's own, and for a judge at an address, which may be sent a key."""
    if ":" not in name:
        return False
    from paceline.rewards.resolving import BUILT_IN

    base = base_name(name)
    return served_model(name) is None if base.startswith(JUDGE) else base not in BUILT_IN


def _environment(entry: str) -> bool:
    base, _, argument = _address(entry).partition(":")
    return base not in HARMLESS_ENVIRONMENTS or (base == "python" and argument == "none")


def _address(entry: str) -> str:
    match = NAMED_ENVIRONMENT.fullmatch(entry)
    return entry if match is None else match["address"]


def _dataset(entry: str) -> bool:
    from paceline.data.tasksets import PREFIX  # loads numpy, which explaining does without

    match = NAMED.fullmatch(entry)
    return (entry if match is None else match["address"]).startswith(PREFIX)


READERS: Mapping[str, Callable[[str], bool]] = {
    "trust_remote_code": lambda value: value == "True",
    "reward_funcs": lambda name: not name.startswith(MODEL) and _grader(name),
    "eval_reward_func": _grader,
    "filter_func": _grader,
    "advantage": is_code,
    "bound": is_code,
    "environment": _environment,
    "dataset": _dataset,
    "eval_dataset": _dataset,
    "sandbox": lambda value: value not in SANDBOXES or value == "none",
    "cluster": lambda value: value not in ("True", "False", "auto"),
}
"""Tests of whether a value of an option is code, or leads to where code runs."""
MEASURED = frozenset({"trust_remote_code", "eval_reward_func", "environment", "dataset", "eval_dataset", "sandbox"})
"""Options whose code a measurement runs."""


def takes_text(option: Option) -> bool:
    """Return True if an option takes a text that is not one of a few words."""
    kinds = (option.item_type,) if option.item_type is not None else option.kinds
    return option.takes_code or (not option.choices and str in kinds)


def code_named_by(values: Mapping[str, object]) -> tuple[NamedCode, ...]:
    """Return the code that options name, in their order; a text option that nobody has classified counts as code."""
    named = []
    for option in options():
        if option.name not in values or not (takes_text(option) or option.name in READERS):
            continue
        value = values[option.name]
        items = value if isinstance(value, tuple | list) else [] if value is None else [value]
        unknown = option.name not in READERS and option.name not in NAMES_NO_CODE
        names_code = READERS.get(option.name, lambda text, unknown=unknown: unknown)
        named += [NamedCode(option=option.name, text=str(item)) for item in items if names_code(str(item))]
    return tuple(named)


def allow_named_code(
    config: Config,
    file: Path | None,
    command: Mapping[str, object],
    *,
    runs: Collection[str] = READERS,
    override: Collection[str] = (),
    output_dir: Path | None = None,
) -> None:
    """Refuse code that a run directory names and this user neither names nor has run; note what the command names.

    Args:
        config: the options that are about to be used.
        file: where they came from; None: from the command alone.
        command: the options that the command names itself.
        runs: options whose code the command runs.
        override: options whose files may have other content than when this user ran them.
        output_dir: directory of the run, where the command begins or resumes one.

    Raises:
        ConfigError: the sentence holds what to read and what to say.
    """
    run = None if file is None else run_around(file)
    values = {option_name(key): parse_value(find_option(key), value) for key, value in command.items()}
    named = code_named_by(values)
    used = [code for code in code_named_by(values_of(config)) if code.option in runs]
    trusted = [code for code in used if run is None or code in named]
    where, known = output_dir or run or Path(), ran_before()
    for code in used:
        if code in trusted:
            continue
        address, content = _identity(code, where)
        if code.option == "trust_remote_code":
            raise ConfigError(
                f"{file} asks to run the Python code that comes with --model {config.model.model}, and a run directory "
                "may be another's; read that code, and say --trust-remote-code with this command too"
            )
        if (address, content) in known:
            continue
        if code.option in override and address in {known_address for known_address, _ in known}:
            trusted.append(code)
            continue
        if address in {known_address for known_address, _ in known}:
            raise ConfigError(
                f"{file} names code that has changed since you ran it, so that it would compute something else: "
                f"{code.option} {code.text}; a run directory may be another's, so read that code, and say {code.flag} "
                f"with this command too, or with --resume --override {code.option}"
            )
        function = _own_function(code)
        if function is not None and _file_of(function[0]) is None:
            raise ConfigError(
                f"{file} names code that is not found: {code.option} {code.text}; install its package or check "
                f"PYTHONPATH; a run directory may be another's, so if you know that code, say {code.flag} with this "
                "command too"
            )
        raise ConfigError(
            f"{file} names code that you have not run from there, or that has changed since: {code.option} "
            f"{code.text}; a run directory may be another's, so read that code, and say {code.flag} with this "
            "command too"
        )
    _note([_identity(code, where) for code in trusted if code.option != "trust_remote_code"], known)


def run_around(file: Path) -> Path | None:
    """Return the run, or the measurement, that a file of options is part of."""
    for folder in dict.fromkeys((file.parent.absolute(), file.resolve().parent)):
        if any((folder / name).exists() for name in RECORDED_BY_PACELINE):
            return folder
        if (around := next((parent for parent in (folder, *folder.parents) if is_run(parent)), None)) is not None:
            return around
    return None


# --- what this user has run


def _record() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "paceline" / "code-run"


def ran_before() -> frozenset[tuple[str, str]]:
    """Return place and content, hashed, of the code that this user's commands have named; empty where the record may
    be another's."""
    try:
        descriptor = os.open(_record(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, RuntimeError):
        return frozenset()
    with open(descriptor, encoding="ascii", errors="replace") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return frozenset()
        pairs = [line.split() for line in file]
    return frozenset((pair[0], pair[1]) for pair in pairs if len(pair) == 2)


def _note(identities: Collection[tuple[str, str]], known: Collection[tuple[str, str]]) -> None:
    new = [identity for identity in dict.fromkeys(identities) if identity not in known]
    if not new:
        return
    # without a place for it the code has to be named again with each command, which says so
    with suppress(OSError, RuntimeError):
        _record().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(_record(), flags, 0o600)
        try:
            os.write(descriptor, "".join(f"{address} {content}\n" for address, content in new).encode())
        finally:
            os.close(descriptor)


def _identity(code: NamedCode, run: Path) -> tuple[str, str]:
    """Return hashes of the address of code, with its name, and of its content; nothing is imported or run."""
    function = _own_function(code)
    if function is not None:
        file = _file_of(function[0])
        if file is not None:
            return _hash(f"{file.resolve()}:{function[1]}"), _content(file)
        return _hash(f"{run.resolve()} {code.option} {code.text}"), _hash("")
    base, _, behind = _address(code.text).partition(":")
    if code.option in ("environment", "dataset", "eval_dataset") and base in RUN_BY_NAME:
        # what it does depends on the directory where it starts, and on the files and modules among its words
        words = [word.strip("'\"") for word in behind.split()]
        modules = [_MODULE_END.split(word)[0].replace("-", "_") for word in words]
        files = [local_path(word) for word in words] + [_module_file(module) for module in modules]
        contents = " ".join(_content(file) for file in files if file is not None and file.is_file())
        return _hash(f"{base_directory()} {code.text}"), _hash(contents)
    return _hash(f"{run.resolve()} {code.option} {code.text}"), _hash("")


def _own_function(code: NamedCode) -> tuple[str, str] | None:
    """Return the file or module of a function or class and its name in it, split as `own_function` does; None: the
    text is of another kind, such as an address."""
    target = code.text
    if code.option not in FUNCTIONS or target.startswith((JUDGE, MODEL)):
        return None
    if code.option == "environment":
        target = _address(target)
        base, _, behind = target.partition(":")
        if base == "harness" and not behind.startswith("command:"):
            target = behind
        elif base in RUN_BY_NAME:
            return None
    where, _, name = target.rpartition(":")
    return where, name


def _file_of(where: str) -> Path | None:
    """Return the file that a function is loaded from; None: there is none."""
    file = local_path(where) if where.endswith(".py") else _module_file(where)
    return file if file is not None and file.is_file() else None


def _module_file(name: str) -> Path | None:
    """Return the file that a module of this name would be imported from, without an import; None: it has none, or
    another in the processes of this one, whose relative entries of `sys.path` begin at the base directory."""
    files = {_found_on(path, name) for path in (sys.path, import_path(sys.path))}
    return files.pop() if len(files) == 1 else None


def _found_on(path: list[str], name: str) -> Path | None:
    places: list[str] | None = path
    file = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return None
        places = None if spec.submodule_search_locations is None else [*spec.submodule_search_locations]
        file = spec.origin if spec.has_location else None
    return None if file is None else Path(file).resolve()


def _content(file: Path) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
