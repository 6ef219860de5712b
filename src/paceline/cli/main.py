"""The command `paceline`: commands to their modules, errors to one sentence and an exit status.

0 done    1 the run failed    2 wrong usage    130 interrupted
"""

import atexit
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from paceline import __version__
from paceline.base_directory import held_base, working_directory
from paceline.cli.arguments import HelpAsked
from paceline.config.reading import suggest
from paceline.errors import APPENDED, DONE, INTERRUPTED, ConfigError, PacelineError
from paceline.runtime.shown_text import encodable, hidden, visible

COMMANDS = (
    *("train", "eval", "plan", "explain", "report", "rollouts"),
    *("export", "serve", "chat", "replay", "audit", "translate", "doctor"),
)
"""Modules of this package with `run(argv)`, imported on use so that none waits for another's libraries."""

HELP = """Fine-tune language models with group-relative reinforcement learning on rewards
that a program can verify.

To begin:
  paceline train                the embedded model, on a CPU, in a minute
  paceline doctor               what this machine can do, and what it lacks
To train on data of your own; options also in a file, by --config FILE:
  paceline train --model M --dataset D [--option value ...]
  paceline train --resume RUN   resume a run from its last checkpoint
Before that, with the same options:
  paceline plan                 batches, steps, memory; nothing is loaded
  paceline explain              the objective as a formula, origins of options
  paceline audit                which known cheats score under a reward function
  paceline translate -- COMMAND another tool's command as one of these
To look at a run, during it and after:
  paceline report RUN           what happened, as a page; of several, a table
  paceline rollouts RUN         every completion, to read in a browser
  paceline replay RUN --step N  what another objective would have made of a step
To use what was trained:
  paceline eval --model M       accuracy with its interval
  paceline chat --model M       a conversation in the terminal, also with tools
  paceline serve --model M      an endpoint by OpenAI's interface
  paceline export RUN [FOLDER]  a checkpoint's model, as transformers loads it

`paceline COMMAND --help` shows its usual options, `--help all` every one.
`paceline --version` prints the version.
Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted (see --resume).
"""

QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables that libraries read at import, set unless the user has set them."""


def main(argv: list[str] | None = None) -> int:
    """Run `paceline` with these arguments, by default the process's own; returns the exit status."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if argv is None:
        atexit.register(_silence_libraries)  # registered first, so called last
    words = sys.argv[1:] if argv is None else argv
    # a run continues after the reader of its output, such as `head`, has ended
    originals = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = TerminalStream(originals[0]), TerminalStream(originals[1])
    try:
        return exit_status(lambda: _dispatch(words))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = originals


def _silence_libraries() -> None:
    """Drop what C libraries write to standard error after Python has ended, such as nanobind's report of leaks in
    torch: it looks like a crash, and no user can act on it."""
    sys.stderr.flush()
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    os.close(devnull)


def exit_status(command: Callable[[], int]) -> int:
    """Run a command and return its status; a PacelineError or an interrupt becomes one line on stderr.

    Any other exception is a fault of Paceline: it keeps its traceback, and Python ends with status 1.
    """
    try:
        return command()
    except HelpAsked as page:
        print(page, end="")
        return DONE
    except PacelineError as error:
        sentence, *appended = APPENDED.split(hidden(str(error)), maxsplit=1)
        _say(sentence)
        for lines in appended:
            print(lines, file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt as interrupt:
        _say("; ".join(["interrupted", *map(str, interrupt.args)]))
        return INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return DONE
    if argv[0] == "--version":
        print(f"paceline {__version__}")
        return DONE
    if argv[0] not in COMMANDS:
        otherwise = f"the commands are {', '.join(COMMANDS)}"
        raise ConfigError(f"there is no command {argv[0]!r}; {suggest(argv[0], COMMANDS, otherwise=otherwise)}")
    with held_base(working_directory()):  # relative names are of this directory, whatever the user's code does
        status: int = importlib.import_module(f"paceline.cli.{argv[0]}").run(argv[1:])
    return status


def _say(sentence: str) -> None:
    print(f"paceline: {' '.join(sentence.split())}", file=sys.stderr)


class TerminalStream:
    """A text stream that escapes control characters, accepts any character, and discards output once the reader is
    gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text with control characters escaped, while there is a reader."""
        self.write_own(visible(text))
        return len(text)

    def write_own(self, text: str) -> int:
        """Write this program's own text unescaped."""
        try:
            return self._stream.write(encodable(text, self._stream))
        except BrokenPipeError:
            self._discard_output()
            return len(text)

    def flush(self) -> None:
        """Flush while there is a reader."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._discard_output()

    def _discard_output(self) -> None:
        # replaces the descriptor: Python flushes the stream's buffer at exit, outside any `try`
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, self._stream.fileno())
        os.close(devnull)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
