"""Translates another tool's command line, or a shell script with one, to Paceline's options."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType

from paceline.compat.commands.colossalchat import from_colossalchat
from paceline.compat.commands.evaluating import ASSIGNMENT
from paceline.compat.commands.launching import PYTHON, started, unwrapped
from paceline.compat.commands.shell import inline_script, read_shell, script_of, training_command
from paceline.compat.commands.swift import from_swift
from paceline.compat.commands.translation import (
    CommandReader,
    ForeignCommand,
    Note,
    ReadText,
    Translation,
    no_files,
    without_defaults,
)
from paceline.compat.commands.trl import from_trl
from paceline.config.building import build_config
from paceline.errors import ConfigError

COMMAND_READERS = (
    CommandReader(
        "ColossalChat", "python rl_example.py --dataset D --model M -t 4 -i 4 -b vllm ...", from_colossalchat
    ),
    CommandReader("ms-swift", "swift rlhf --rlhf_type grpo --model M --dataset D ...", from_swift),
    CommandReader("TRL", "trl grpo --model_name_or_path M --dataset_name D ...", from_trl),
)
REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
COPY, ORIGINAL = "NPROC_PER_NODE", "nproc_per_node"
"""ms-swift's examples set the first from the second on one line, where the shell expands it to nothing."""


def translate(
    words: Sequence[str],
    *,
    repair: bool = False,
    read: ReadText = no_files,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Translation:
    """Translate another tool's command line: the options that it gives, and those that differ from our defaults.

    `words` are the command as a shell splits it, environment assignments before it included, or a shell script with
    such a command. `repair`: numbers that the tool itself refuses are replaced by the nearest that it takes; otherwise
    they are refused here too. `read`: returns the text of a file that the command names. `environment`: variables set
    where the command would run. ConfigError for an unknown command, flag or value, or for options in contradiction.
    """
    command, notes = _command(words, read, environment)
    for reader in COMMAND_READERS:
        translation = reader.translate(command, repair)
        if translation is None:
            continue
        try:
            build_config(translation.options)
        except ConfigError as error:
            raise ConfigError(f"{reader.name}'s command asks for options that are refused: {error}") from None
        translation.options = without_defaults(translation.options, explicit=translation.explicit)
        translation.notes += notes
        return translation
    _refuse_script(command)
    known = "; ".join(f"{known_reader.name}'s `{known_reader.example}`" for known_reader in COMMAND_READERS)
    start = command.words[0] if command.words else "nothing"
    raise ConfigError(f"`paceline translate` knows {known}, got {start!r}; write the whole command after --")


def _refuse_script(command: ForeignCommand) -> None:
    """Raise ConfigError for a Python script without flags: it needs its import changed and no translation."""
    words = started(command).words
    if words[:1] and PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = words[1:]
    if len(words) == 1 and words[0].endswith(".py"):
        raise ConfigError(
            f"{words[0]} is Python and no command; where it calls TRL's GRPOTrainer, change the import to "
            "`from paceline import GRPOConfig, GRPOTrainer` and start it as before"
        )


def _command(words: Sequence[str], read: ReadText, environment: Mapping[str, str]) -> tuple[ForeignCommand, list[Note]]:
    """Return the command, that of the shell script if the words run one, and notes on its other parts."""
    plain, wrappers = unwrapped(words)
    command, notes = read_command(plain), list[Note]()
    script, inline = script_of(command.words), inline_script(command.words)
    if script is not None or inline is not None:
        path, arguments = script or ("the script of -c", inline[1] if inline else ())
        text = read(path) if inline is None else inline[0]
        before = {**environment, **command.environment}
        chosen, others = training_command(read_shell(text, arguments=arguments, environment=before), path)
        plain, more = unwrapped(chosen.words)
        within = read_command(plain)
        environments = {**command.environment, **chosen.environment, **within.environment}
        command, wrappers = ForeignCommand(environment=environments, words=within.words), wrappers + more
        text = "is not run, and no option comes of it"
        notes = [Note("idle", f"{path}, line {other.line}: {other.start}", text) for other in others]
    text = "is left out: the new command runs where it is typed; write this in front of it where it is needed"
    notes += [Note("changed", wrapper, text) for wrapper in wrappers]
    return dataclasses.replace(command, read=read, inherited=environment), notes


def read_command(words: Sequence[str]) -> ForeignCommand:
    """Split leading assignments from the command; a variable among the values refers to an earlier one.

    >>> read_command(["CUDA_VISIBLE_DEVICES=0,1", "python", "rl_example.py"]).words
    ('python', 'rl_example.py')
    """
    count = next((i for i, word in enumerate(words) if not ASSIGNMENT.match(word)), len(words))
    environment = dict[str, str]()
    for word in words[:count]:
        name, _, value = word.partition("=")
        environment[name] = REFERENCE.sub(lambda match: environment.get(match[1] or match[2], match[0]), value)
    if COPY in environment and ORIGINAL in environment:
        original = environment.pop(ORIGINAL)
        environment[COPY] = environment[COPY] or original
    return ForeignCommand(environment=environment, words=tuple(words[count:]))
