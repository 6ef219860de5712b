"""argv to named options, and a help page from the options' own docstrings."""

import argparse
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from paceline.base_directory import named_path
from paceline.config.reading import Option, option_name, options, section_classes, suggest
from paceline.errors import ConfigError

FLAG = re.compile(r"--?[A-Za-z][\w-]*(?:=.*)?", re.DOTALL)
"""Pattern of a flag; any other word that begins with a hyphen is a value: `-1e-4`, `-->`."""
USUAL = frozenset(
    (
        *("model", "dtype", "device", "deterministic"),
        *("lora_rank", "lora_alpha"),
        *("dataset", "eval_dataset", "eval_split", "system_prompt", "enable_thinking", "max_prompt_length"),
        *("long_prompts", "dataset_size", "on_bad_row"),
        *("reward_funcs", "reward_weights", "sandbox"),
        *("num_generations", "max_completion_length", "temperature", "stop"),
        *("environment", "max_turns", "max_turn_length", "max_observation_length"),
        *("engine", "concurrent_sequences", "vllm_memory"),
        *("preset", "advantage", "reward_aggregation", "overlong_share", "filter_func"),
        *("beta",),
        *("optimizer", "learning_rate", "lr_schedule", "warmup_steps", "min_lr_ratio", "num_minibatches"),
        *("eval_steps", "eval_size", "eval_reward_func"),
        *("output_dir", "prompts_per_step", "max_steps", "save_steps", "stop_grace", "seed", "report_to"),
        *("cluster", "num_producers", "num_consumers", "max_staleness", "on_new_weights", "max_restarts"),
        *("zero_stage", "sampling_ranks"),
    )
)
"""Options on the short help page: those that the README, the recipes and the examples use."""
VALUE = "\0"
"""Mark in front of such a value, which argparse would take for a flag."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandFlag:
    """A flag of a command that is no option of the configuration, for example `--config FILE`."""

    name: str
    metavar: str = ""
    """Its value on the help page; empty for a switch, which takes none."""
    help: str
    several: bool = False
    """True if it takes more than one value."""


CONFIG = CommandFlag(
    name="config", metavar="FILE", help="YAML file with options, one `option: value` per line; flags beside it win."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """The flags of a command."""

    name: str
    usage: str
    summary: str
    flags: tuple[CommandFlag, ...]
    options: tuple[Option, ...]


class HelpAsked(Exception):
    """A command was given `--help`; the text is its help page, which `main` prints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedArguments:
    """Result of parsing a command's argv."""

    flags: dict[str, Any]
    """Values of the command's own flags that were given, for example `{"config": "run.yaml"}`; a list for `several`."""
    options: dict[str, object]
    """Options of the configuration: a text, or a list of texts for an option that takes several."""


def parse(command: Command, argv: Sequence[str]) -> ParsedArguments:
    """Parse a command's argv. Underscores equal hyphens; of a repeated flag the last counts.

    Raises:
        ConfigError: an unknown flag, a flag without its value, or a value without a flag.
        HelpAsked: the help page is asked for.
    """
    words = list[str]()
    for word in argv:
        if FLAG.fullmatch(word):
            flag, equals, value = word.partition("=")
            words.append(flag.replace("_", "-") + equals + value)
        else:
            words.append(f"{VALUE}{word}" if word.startswith("-") else word)
    try:
        namespace, unknown = _parser(command).parse_known_args(words)
    except argparse.ArgumentError as error:
        flag = (error.argument_name or "").split("/")[-1]
        raise ConfigError(f"{flag} needs a value; `paceline {command.name} --help all` says which") from None
    if unknown:
        raise ConfigError(_unknown(command, unknown[0].removeprefix(VALUE)))
    texts: dict[str, Any] = {name: _unmarked(value) for name, value in vars(namespace).items()}
    flags = {flag.name: texts[flag.name] for flag in command.flags if flag.name in texts}
    chosen = {option.name: texts[option.name] for option in command.options if option.name in texts}
    if (which := texts.get("help")) not in (None, "", "all"):
        raise ConfigError(f"--help takes nothing, or all for every option, got {which!r}")
    if which is not None:
        raise HelpAsked(help_page(command, which))
    return ParsedArguments(flags=flags, options=chosen)


def port_of(text: str) -> int:
    """Read the value of `--port`; raises ConfigError where it is no number of a port."""
    if not text.isdecimal() or int(text) > 65535:
        raise ConfigError(f"--port must be a whole number from 0 to 65535, got {text!r}; 0 takes one that is free")
    return int(text)


def before_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments of a command into what stands before its first flag, and the rest.

    >>> before_flags(["runs/a", "--format", "gguf"])
    (['runs/a'], ['--format', 'gguf'])
    """
    operands = list(takewhile(lambda word: not word.startswith("-"), argv))
    return operands, list(argv[len(operands) :])


def parse_behind_run(command: Command, argv: Sequence[str], *, form: str) -> tuple[Path, ParsedArguments]:
    """Parse a command that takes a run directory before its flags.

    Raises:
        ConfigError, HelpAsked: as `parse`, or there is no directory; the sentence shows `form`, the right usage.
    """
    directory, words = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    arguments = parse(command, words)
    if directory is None:
        raise ConfigError(f"{command.name} needs a run directory first; write `paceline {command.name} {form}`")
    return named_path(directory), arguments


def directories(argv: Sequence[str], *, command: str, form: str, at_most: int | None = None) -> list[Path]:
    """Return the directories of a command that takes nothing else, at least one; `form` is their usage text.

    Raises:
        ConfigError: an option, no directory, or more than `at_most`.
    """
    flags = [word for word in argv if word.startswith("-")]
    if flags:
        raise ConfigError(f"there is no option {flags[0]}; `paceline {command} {form}` takes directories only")
    if not argv:
        raise ConfigError(f"{command} needs a run directory; write `paceline {command} runs/NAME`")
    if at_most is not None and len(argv) > at_most:
        raise ConfigError(f"{command} takes {form}, got {len(argv)} directories; leave out {argv[at_most]}")
    return [named_path(word) for word in argv]


def help_page(command: Command, which: str = "all") -> str:
    """Return the help page: the flags of a command by section, with meaning and default.

    For another `which` than "all", a page of more options than `USUAL` has these alone, each with its first sentence.
    """
    if which == "all" or len(command.options) <= len(USUAL):
        return _parser(command).format_help()
    others = [option for option in command.options if option.name not in USUAL]
    usual = [
        replace(option, help=f"{option.help.split('. ')[0].removesuffix('.')}.")
        for option in command.options
        if option.name in USUAL
    ]
    page = _parser(replace(command, options=tuple(usual))).format_help()
    return f"{page}\n`paceline {command.name} --help all` says more, and shows the {len(others)} other options.\n"


def _parser(command: Command) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage=command.usage,
        description=command.summary,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    general = parser.add_argument_group("this command")
    shown = "Show this page; all: every option, with its full description."
    general.add_argument("-h", "--help", nargs="?", const="", metavar="all", help=shown)
    for flag in command.flags:
        kind: dict[str, Any] = {"action": "store_const", "const": "true"}
        if flag.metavar:
            kind = {"nargs": "+" if flag.several else None, "metavar": flag.metavar}
        general.add_argument(f"--{flag.name.replace('_', '-')}", help=_escaped(flag.help), **kind)
    for section, section_class in section_classes().items():
        section_options = [option for option in command.options if option.section == section]
        if section_options:
            group = parser.add_argument_group(section, _escaped(inspect.getdoc(section_class) or ""))
            for option in section_options:
                _add(group, option)
    return parser


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    words = {bool: "true|false", int: "N", float: "X", str: "TEXT"}
    kinds = (option.item_type,) if option.item_type else option.kinds
    if option.required:
        default = "(no default)"
    elif isinstance(option.default, tuple):
        default = f"(default: {' '.join(map(str, option.default)) or 'none'})"
    elif option.default is None or isinstance(option.default, bool):
        default = f"(default: {str(option.default).lower()})"
    else:
        default = f"(default: {option.default})"
    code = ["FILE.py:FUNCTION"] if option.takes_code else []
    group.add_argument(
        option.flag,
        nargs="+" if option.item_type else "?" if option.is_switch else None,
        const="true" if option.is_switch and not option.item_type else None,
        metavar="|".join([*option.choices, *code] or [words[kind] for kind in kinds]),
        help=_escaped(f"{option.help} {default}"),
    )


def _escaped(text: str) -> str:
    """Escape `%`, which argparse formats, also in descriptions."""
    return " ".join(text.split()).replace("%", "%%")


def _unmarked(value: object) -> object:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    return value.removeprefix(VALUE) if isinstance(value, str) else value


def _unknown(command: Command, word: str) -> str:
    if not FLAG.fullmatch(word):
        return f"{word!r} stands alone; write `--option {word}`, or put quotes around a value with spaces"
    flag = word.partition("=")[0]
    name = option_name(flag.lstrip("-"))
    if name in {option.name for option in options()} - {option.name for option in command.options}:
        return f"{flag} is no option of `paceline {command.name}`, only of training; leave it out"
    names = [option.name for option in command.options] + [option.name for option in command.flags]
    otherwise = f"`paceline {command.name} --help all` lists all"
    if command.name == "train":
        otherwise += ", and `paceline translate -- COMMAND` reads a command of TRL, ms-swift or ColossalChat"
    near = suggest(name, names, form=lambda right: f"--{right.replace('_', '-')}", otherwise=otherwise)
    return f"there is no option {flag}; {near}"
