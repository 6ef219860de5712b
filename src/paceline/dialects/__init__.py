"""Other tools' command lines to Paceline's options: pure, text in, options and notes out.

translation.py   the records of this room, and the border behind which each tool's vocabulary lies
writing.py       options and notes as a command line or a file
colossalchat/    ColossalChat's `rl_example.py`
layouts.py       the names that layouts of several processes have elsewhere
"""

import dataclasses
import re
from collections.abc import Sequence

from paceline.config import build_config
from paceline.dialects.colossalchat import ColossalChat
from paceline.dialects.translation import KINDS, CommandLine, Dialect, Note, Translation
from paceline.dialects.writing import as_comments, as_shell, as_words, as_yaml, without_defaults
from paceline.errors import ConfigError

__all__ = [
    "translate",
    "CommandLine",
    "Dialect",
    "Note",
    "KINDS",
    "Translation",
    "as_comments",
    "as_shell",
    "as_words",
    "as_yaml",
]

DIALECTS: tuple[Dialect, ...] = (ColossalChat(),)
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def translate(words: Sequence[str], *, repair: bool = False) -> Translation:
    """The options that another tool's command line amounts to, those at their defaults left out.

    `words` are the command as a shell splits it, environment assignments before it included. `repair`: numbers that the
    tool itself refuses are replaced by the nearest that it takes; otherwise they are refused here too.

    Raises:
        ConfigError: no known tool's command, a flag or value that it does not have, or options at odds.
    """
    command = read_command(words)
    dialect = next((one for one in DIALECTS if one.recognises(command)), None)
    if dialect is None:
        known = "; ".join(f"{one.name}'s `{one.example}`" for one in DIALECTS)
        start = command.words[0] if command.words else "nothing"
        raise ConfigError(f"`paceline translate` knows {known}, got {start!r}; write the whole command after --")
    found = dialect.translate(command, repair=repair)
    try:
        build_config(found.options)
    except ConfigError as error:
        raise ConfigError(f"what {dialect.name}'s command amounts to is refused: {error}") from None
    return dataclasses.replace(found, options=without_defaults(found.options))


def read_command(words: Sequence[str]) -> CommandLine:
    """Leading assignments and the command behind them.

    >>> read_command(["CUDA_VISIBLE_DEVICES=0,1", "python", "rl_example.py"]).words
    ('python', 'rl_example.py')
    """
    count = next((at for at, word in enumerate(words) if not ASSIGNMENT.fullmatch(word)), len(words))
    environment = dict(word.split("=", 1) for word in words[:count])
    return CommandLine(environment=environment, words=tuple(words[count:]))
