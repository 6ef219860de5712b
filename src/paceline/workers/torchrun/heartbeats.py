"""Liveness of the ranks: the first rank and every other exchange heartbeats and report how they end.

A thread listens while the main thread works, and turns bad news into an exception there. If the main thread cannot be
interrupted, as in a collective that waits for a lost rank, the process is ended.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Self

from paceline.errors import ERRORS, PacelineError, ProcessLost, TrainingError
from paceline.models.parallel.process_group import RankLost
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.interrupts import Interrupt
from paceline.runtime.shown_text import hidden
from paceline.runtime.watchdog import write_stacks

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats."""
ERROR_BEATS = 2
"""Beats to wait for this rank's own error before another rank's is raised; mostly they are the same."""
CULPRIT_BEATS = 5
"""Beats to wait for the culprit's name when a rank has only lost touch with others."""
STOP_BEATS = 5
"""Beats that the main thread has to stop before the process is ended."""
WORDS = 8192
"""Longest error text, in characters."""
LATEST = 200
"""Longest text on a rank's latest activity, in characters."""
FRAMES = 20
"""Number of innermost traceback frames to report."""


class Ended(BaseException):
    """The first rank has ended the run with an exit status, or is gone."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class PeerHeartbeats:
    """Heartbeats with ranks whose end is also the end of this one, for the duration of the context."""

    def __init__(
        self,
        peers: Mapping[int, Connection],
        *,
        limit: float,
        force: Callable[[BaseException], None],
        beat: float = HEARTBEAT_SECONDS,
    ) -> None:
        """Take channels by rank, whose other ends are PeerHeartbeats too; only the first rank has more than one.

        A rank counts as lost after `limit` seconds without a heartbeat; they are `beat` seconds apart. `force` ends the
        process if the main thread does not stop; it is called with the reason.
        """
        self._peers, self._limit, self._force, self._beat = dict(peers), limit, force, beat
        self._silent, self._heartbeats = dict.fromkeys(peers, 0), dict[int, int]()
        self._candidates = list[tuple[float, BaseException]]()
        self._verdict: BaseException | None = None
        self._known, self._interrupt = threading.Event(), Interrupt()
        self._telling = threading.Lock()
        self._wake, self._waker = Pipe(duplex=False)
        self._thread = threading.Thread(target=self._listen, name="heartbeats", daemon=True)

    def __enter__(self) -> Self:
        self._interrupt.open()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()
        self._waker.close()
        self._thread.join()
        self._interrupt.close()

    def leave(self) -> None:
        """Stop interrupting: the main thread is on its way out."""
        self._interrupt.over.set()

    def tell_end(self, status: int) -> None:
        """Tell the others that the run is over, with this exit status."""
        self._tell({"end": status})

    def ask_for_stacks(self, folder: Path) -> None:
        """Have the others write stack dumps into a folder that all ranks share; they get two beats for it."""
        for rank in list(self._peers):
            self._tell({"write_stacks": str(folder.absolute() / f"rank-{rank}.txt")}, [rank])
        self._known.wait(2 * self._beat)

    def tell_failure(self, error: BaseException) -> None:
        """Report the error that ends this rank to the first rank, which prints it and ends all.

        The report has its sentence if the error is deliberate, else its traceback too.
        """
        if isinstance(error, PacelineError):
            self._tell({"failed": type(error).__name__, "sentence": hidden(str(error))[:WORDS]})
        else:
            trace = hidden("".join(traceback.format_exception(error, limit=-FRAMES)))
            sentence = hidden(f"{type(error).__name__}: {error}")[:WORDS]
            self._tell({"failed": "", "sentence": f"{sentence}\n{trace[:WORDS]}"})

    def verdict(self, seconds: float) -> BaseException | None:
        """Reason why the run is over, waiting up to `seconds` for it; None if there is none."""
        self._known.wait(seconds)
        return self._verdict

    def raise_verdict(self, seconds: float = 0.0) -> None:
        """Raise the reason why the run is over, waiting up to `seconds` for it; it is raised once, here or by a signal.

        What is on its way out is left alone: a second one would replace the sentence that tells how to go on.
        """
        self._interrupt.raise_here(self.verdict(seconds))

    def _tell(self, words: Mapping[str, Any], ranks: Collection[int] | None = None) -> None:
        """Send a message to some ranks, or to all for None."""
        message = json.dumps(words).encode()
        with self._telling:  # the work tells how it ends, the thread that it is alive
            for rank, channel in list(self._peers.items()):
                with suppress(OSError):  # one that is gone knows what it needs to
                    if ranks is None or rank in ranks:
                        channel.send_bytes(message)

    def _listen(self) -> None:
        next_beat = time.monotonic()
        while self._verdict is None:
            due = min([next_beat, *(at for at, _ in self._candidates)])
            ready = wait([*self._peers.values(), self._wake], timeout=max(0.0, due - time.monotonic()))
            if self._wake in ready:
                return
            for rank in [rank for rank, channel in self._peers.items() if channel in ready]:
                self._hear(rank)
            now = time.monotonic()
            if now >= next_beat:
                # counted in beats of this process: one that was stopped itself has not waited meanwhile
                next_beat = now + self._beat
                self._tell({"heartbeat": ACTIVITY.count, "latest": ACTIVITY.latest[:LATEST]})
                for rank in list(self._peers):
                    self._silent[rank] += 1
                    if self._silent[rank] * self._beat > self._limit:
                        self._lose(rank, f"rank {rank} gave no sign of life for {self._limit:g} s")
            decided = [error for at, error in sorted(self._candidates, key=lambda candidate: candidate[0]) if at <= now]
            if decided:
                self._verdict = decided[0]
        self._known.set()
        self._interrupt.insist(self._verdict, seconds=STOP_BEATS * self._beat, force=self._force)

    def _hear(self, rank: int) -> None:
        try:
            words = json.loads(self._peers[rank].recv_bytes(24 * WORDS))
        except (EOFError, OSError):
            del self._peers[rank]
            self._lose(rank, f"rank {rank} is gone")
            return
        self._silent[rank] = 0
        if "end" in words:
            self._propose(0, Ended(words["end"]))
        elif "write_stacks" in words:
            with suppress(OSError):  # the folder may be another machine's
                write_stacks(Path(words["write_stacks"]))
        # the first rank's own is none of theirs: each would take the other's answer for progress
        elif "heartbeat" in words and rank > 0 and words["heartbeat"] != self._heartbeats.get(rank):
            self._heartbeats[rank] = words["heartbeat"]
            ACTIVITY.beat(f"rank {rank}", words["latest"])
        elif "failed" in words:
            if words["failed"] == RankLost.__name__:
                self._propose(CULPRIT_BEATS, ProcessLost(f"rank {rank}: {words['sentence']}"))
                return
            # of the class that it had there
            kind, failed = ERRORS.get(words["failed"], TrainingError), "" if words["failed"] else " failed"
            self._propose(ERROR_BEATS, kind(f"rank {rank}{failed}: {words['sentence']}"))

    def _lose(self, rank: int, sentence: str) -> None:
        self._propose(0, ProcessLost(sentence) if rank else Ended(PacelineError.exit_status))

    def _propose(self, beats: int, error: BaseException) -> None:
        self._candidates.append((time.monotonic() + beats * self._beat, error))


def end_leader(verdict: BaseException) -> None:
    """Print the reason and end this process, whose main thread is stuck."""
    sentence, newline, trace = str(verdict).partition("\n")
    remedy = "; `--resume` continues from the last checkpoint" if isinstance(verdict, ProcessLost) else ""
    print(f"paceline: {sentence}{remedy}{newline}{trace}", file=sys.stderr, flush=True)
    os._exit(getattr(verdict, "exit_status", PacelineError.exit_status))


def end_follower(verdict: BaseException) -> None:
    """End this process, whose main thread is stuck."""
    os._exit(verdict.status if isinstance(verdict, Ended) else PacelineError.exit_status)
