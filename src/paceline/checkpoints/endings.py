"""The end of a run's last attempt, which the attempt itself writes to `ended.json` for every later reader."""

import json
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType

from paceline.checkpoints.run_files import finite_int, json_line, write_or_explain
from paceline.errors import APPENDED, DONE, FAILED, INTERRUPTED, PacelineError, first_line
from paceline.runtime.shown_text import hidden

ENDED = "ended.json"

KINDS = {
    **{"time": int | float, "status": int, "step": int, "sentence": str},
    **{"traceback": str | NoneType, "resume": str | NoneType},
}
"""Keys of the file, and what each holds."""

LATEST = 253_402_300_800
"""Seconds from 1970 to the year 10000, the first that `datetime` cannot hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How an attempt ended: its status, its step and one sentence."""

    time: float
    """Seconds since 1970."""
    status: int
    """Exit status, as the command line has it: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    step: int
    """Steps completed."""
    sentence: str
    traceback: str | None
    """Traceback of an unexpected error or of one in the user's code, with what that code printed."""
    resume: str | None
    """Command or argument that resumes the run; None if it finished."""

    @property
    def is_finished(self) -> bool:
        """Return True if the run finished: nothing is left to resume."""
        return self.resume is None


def ending_of(
    error: BaseException | None, *, step: int, resume: str, interrupt: str | None = None, signal: str | None = None
) -> Ending:
    """Describe the end of an attempt after `step` steps.

    Args:
        error: exception that ended it; None at its regular end.
        step: steps completed.
        resume: command or argument that resumes the run.
        interrupt: name of the signal that stopped it between two steps, with a checkpoint.
        signal: name of the signal received, whatever it led to.

    >>> ending_of(None, interrupt="SIGTERM", step=3, resume="`paceline train --resume runs/a`").sentence
    'SIGTERM after step 3, with a checkpoint'
    """
    status, trace = INTERRUPTED, ""
    if isinstance(error, PacelineError):
        sentence, *appended = APPENDED.split(str(error), maxsplit=1)
        status, trace = error.exit_status, "".join(appended)
    elif isinstance(error, Exception | GeneratorExit):
        status, sentence = FAILED, f"{type(error).__name__}: {first_line(error)}"
        trace = "".join(traceback.format_exception(error)).strip()
    elif interrupt is not None:
        sentence = f"{interrupt} after step {step}, with a checkpoint"
    elif error is None:
        status, sentence = DONE, f"finished after step {step}"
    elif isinstance(error, SystemExit) and signal is None:
        status = error.code if isinstance(error.code, int) else FAILED
        sentence = f"the program called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        sentence = "; ".join(map(str, error.args)) if isinstance(error, KeyboardInterrupt) else ""
        sentence = sentence or f"{signal or 'interrupted'}, before the step in hand was done"
    return Ending(
        time=time.time(),
        status=status,
        step=step,
        sentence=hidden(" ".join(sentence.split())),
        traceback=hidden(trace) or None,
        resume=None if error is None and interrupt is None else resume,
    )


def write_ending(directory: Path, ending: Ending) -> None:
    """Write `ended.json`; StorageError if the disk refuses."""
    write_or_explain(directory / ENDED, json_line(asdict(ending)))


def read_ending(directory: Path) -> Ending | None:
    """Read `ended.json`; None without the file, or where its content is damaged."""
    file = directory / ENDED
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8", errors="replace"), parse_int=finite_int)
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(record, dict) and all(
        name in record and isinstance(record[name], kind) for name, kind in KINDS.items()
    )
    if not is_whole or not 0 <= record["time"] < LATEST:
        return None
    return Ending(**{name: record[name] for name in KINDS})
