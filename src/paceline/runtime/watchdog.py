"""End a run that makes no progress, and record where every thread stands.

Only the process with the loop has a watchdog: one in every process would end those that wait for the one that hangs.

A thread watches the activity of the process. If it stands still for too long, the thread writes a report into the run
directory. The report has the last event of each actor, the length of each queue, and all stacks, also of other
processes. Then it raises in the main thread; if that does not help, it ends the process.

If C code hangs while holding the interpreter's lock, no Python thread runs. For this case a timer of `faulthandler`,
which needs no lock, is renewed again and again; it writes the stacks to stderr and exits.
"""

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Self

from paceline.errors import PacelineError, TrainingError
from paceline.runtime.activity import ACTIVITY, Activity
from paceline.runtime.interrupts import Interrupt

GRACE_SECONDS = 30.0
"""Seconds for the main thread to unwind after the error is raised; then the process is ended."""
LOOKS = 20
"""Checks within the limit; they are never more than `MOST_SECONDS` apart."""
MOST_SECONDS = 5.0


class Watchdog:
    """Context manager in the main thread that allows at most `limit` seconds without a sign of progress."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: float,
        activity: Activity = ACTIVITY,
        grace: float = GRACE_SECONDS,
        force: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`folder`: directory of the report. `force`: ends the process; None: prints the reason and exits."""
        self._folder, self._limit, self._activity, self._grace = folder, limit, activity, grace
        self._force = force or end_process
        self._interrupt = Interrupt()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._interrupt.open()
        self._activity.beat("run", "begins")
        self._set_last_resort()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._interrupt.over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._interrupt.close()

    def _watch(self) -> None:
        pause = min(self._limit / LOOKS, MOST_SECONDS)
        still, seen, looked = 0.0, -1, time.monotonic()
        while not self._interrupt.over.wait(pause):
            now = time.monotonic()
            # counted by this thread: a process that was suspended has not stood still meanwhile
            still = 0.0 if self._activity.count != seen else still + min(now - looked, 2 * pause)
            seen, looked = self._activity.count, now
            if still >= self._limit:
                break
            self._set_last_resort()
        else:
            return
        faulthandler.cancel_dump_traceback_later()
        report = write_report(self._folder, self._activity, limit=self._limit)
        verdict = TrainingError(
            f"nothing has happened for --step-timeout {self._limit:g} s, at last {self._activity.latest}",
            remedies=[f"{report} has where every thread stood"],
            then="--resume continues from the last checkpoint",
        )
        self._interrupt.insist(verdict, seconds=self._grace, force=self._force)

    def _set_last_resort(self) -> None:
        if sys.__stderr__ is not None:
            seconds = self._limit + self._grace
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__.fileno())


def write_report(folder: Path, activity: Activity, *, limit: float) -> Path:
    """Write the report of a standstill, with the stacks of other processes that respond; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "report.txt"
    lines = [f"no sign of progress for {limit:g} s", "", "last event of each actor:", *activity.events()]
    lines += ["", "what waits where:", *activity.waiting(), "", "threads of this process:", ""]
    report.write_text("\n".join(lines))
    write_stacks(report)
    for dump in activity.stack_dumps.values():
        dump(folder)
    return report


def write_stacks(file: Path) -> None:
    """Append the stacks of this process to a file: the main thread first, then at most a hundred others.

    `faulthandler` omits further threads, and would come to the main thread, the oldest, last.
    """
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    with file.open("a") as stream:
        stream.write("main thread (most recent call last):\n")
        traceback.print_stack(main, file=stream)
        stream.write("\n")
        stream.flush()
        faulthandler.dump_traceback(file=stream.fileno())


def end_process(verdict: BaseException) -> None:
    """Print why the process ends, and end it without unwinding."""
    print(f"paceline: {verdict}", file=sys.stderr, flush=True)
    os._exit(PacelineError.exit_status)
