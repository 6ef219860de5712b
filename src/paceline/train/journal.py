"""Rollouts on their way to disk before they count, and those that an earlier attempt has left there.

A step's rollouts are written while it is trained on already, in a thread of their own; nothing of the step is written
down elsewhere before they are committed. So a crash loses only what was being sampled: the run that goes on reads what
is committed, and never samples it again.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import StorageError
from paceline.rollouts import batch_about, restorable_records, restored_batch, restored_groups
from paceline.rundir import Committed, RunDir
from paceline.train.feed import Feed
from paceline.train.produced import Handover, Produced
from paceline.types import RolloutGroup, Task

WRITE_SECONDS = 600.0
"""That a step waits for its rollouts to be on disk."""


def of_these_tasks(committed: Committed, feed: Feed) -> Committed:
    """The committed steps up to the first whose prompts are not those that the data order has there."""
    feed = replace(feed)
    for count, entry in enumerate(committed.entries):
        drawn = feed.take(entry["groups"])
        if feed.position != entry["position"] or _fingerprint(task for task, _ in drawn) != entry["prompts"]:
            fault = f"the rollouts from step {entry['step']} on are of other prompts than the dataset has: made again"
            return Committed(entries=committed.entries[:count], faults=(*committed.faults, fault))
    return committed


class Journal:
    """The rollouts of a run's steps, in order: each is read where it is committed, else made and committed."""

    def __init__(self, run_dir: RunDir, feed: Feed, committed: Committed) -> None:
        """`committed` steps are the next ones of the run, of the tasks that `feed` gives next: see `of_these_tasks`."""
        self._run_dir = run_dir
        self._entries = {entry["step"]: entry for entry in committed.entries}
        self._feed = replace(feed)
        self.again = len(self._entries)
        """Steps whose rollouts are used again."""
        self.position: int = committed.entries[-1]["position"] if committed.entries else feed.position
        """Where the data order stands behind them."""
        self._writing: _Writing | None = None
        self._is_closed = False

    def produce(self, number: int, make: Callable[[int], Produced]) -> Produced:
        """The rollouts of a step, from disk or made now."""
        found = self.find(number)
        if found is None:
            found = make(number)
            self.commit(number, found)
        return found

    def find(self, number: int) -> Produced | None:
        """The rollouts of a step that were committed before this attempt, once."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return None
        groups = restored_groups(self._run_dir.rollouts(number))
        # the tasks as the dataset has them: with all columns
        drawn = self._feed.take(len(groups))
        return _produced(entry, [replace(group, task=task) for group, (task, _) in zip(groups, drawn, strict=True)])

    def commit(self, number: int, produced: Produced) -> None:
        """Begin to write a step's rollouts, after those before it are on disk.

        Raises:
            StorageError: the disk refused those before it.
        """
        self.settle()
        if not self._is_closed:
            self._writing = _Writing(lambda: _write(self._run_dir, number, produced))

    def settle(self) -> None:
        """Wait until everything that was begun is on disk.

        Raises:
            StorageError: the disk refused, or took too long.
        """
        writing = self._writing
        if writing is not None:
            writing.settle()

    def close(self) -> None:
        """Begin to write nothing any more, and wait for what is under way: who waits for a result has its error."""
        self._is_closed = True
        if self._writing is not None:
            self._writing.join()


@dataclass(slots=True)
class _Writing:
    """One call in a thread of its own."""

    work: Callable[[], None]
    _failure: BaseException | None = field(init=False, default=None)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._do, name="journal", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        self.join()
        if self._thread.is_alive():
            raise StorageError(
                f"rollouts were not on disk after {WRITE_SECONDS:.0f} s; look at the disk, then --resume the run"
            )
        if self._failure is not None:
            raise self._failure

    def join(self) -> None:
        self._thread.join(WRITE_SECONDS)

    def _do(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001 - not swallowed: whoever settles gets it
            self._failure = failure


def _write(run_dir: RunDir, number: int, produced: Produced) -> None:
    about = {
        "position": produced.position,
        "groups": len(produced.batch.groups),
        "prompts": _fingerprint(group.task for group in produced.batch.groups),
        "seconds": produced.seconds,
        "weights": {"seconds": produced.handover.seconds, "bytes": produced.handover.nbytes},
        **batch_about(produced.batch),
    }
    run_dir.commit_rollouts(number, restorable_records(produced.batch.groups), about)


def _fingerprint(tasks: Iterable[Task]) -> str:
    """Of tasks in their order, by name and prompt."""
    named = [[task.task_id, *task.prompt_ids] for task in tasks]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _produced(entry: dict[str, Any], groups: Sequence[RolloutGroup]) -> Produced:
    weights = entry["weights"]
    return Produced(
        batch=restored_batch(entry, groups),
        position=entry["position"],
        seconds=entry["seconds"],
        handover=Handover(seconds=weights["seconds"], nbytes=weights["bytes"]),
    )
