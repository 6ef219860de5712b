"""Watches a run's metrics: skipped updates, alarms, memory that ran out. Warns, or stops the run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.errors import CheckpointError, TrainingError
from paceline.metrics.alarms import AlarmChange, AlarmState
from paceline.metrics.definitions import METRICS, OPTIONAL, Record
from paceline.training.learner.stats import UpdateStats

MOST_SKIPPED = 3
"""Skipped updates in a row at which a run stops: one may be chance, three are not."""
NOT_FINITE = "loss or gradient was not finite"


def refuse_other_records(path: Path, records: Sequence[Record]) -> None:
    """Refuse to resume a run whose records lack a metric that this version reads, as another version wrote them.

    Raises:
        CheckpointError: a record lacks a metric; the sentence names step and metric.
    """
    for record in records:
        missing = sorted(METRICS.keys() - OPTIONAL - record.keys())
        if missing:
            raise CheckpointError(
                f"--resume {path}: step {record['step']} of metrics.jsonl has no {missing[0]}, as another version "
                "wrote it; resume with that version, or start a new run from a checkpoint's model/"
            )


class Guards:
    """Skipped updates and alarms over all steps of a run, including those before it was resumed."""

    def __init__(self, past: Sequence[Record] = ()) -> None:
        """`past`: records of the steps before the run was resumed."""
        self._alarms = AlarmState(past)
        self._in_a_row: int = past[-1]["skipped_in_a_row"] if past else 0
        self._changes = list[AlarmChange]()

    def counted(self, stats: UpdateStats) -> UpdateStats:
        """Return a step's statistics, with skipped updates counted over earlier steps too."""
        self._in_a_row = stats.skipped_in_a_row + (0 if stats.updates else self._in_a_row)
        return replace(stats, skipped_in_a_row=self._in_a_row)

    def see(self, record: Record) -> tuple[str, ...]:
        """Take a step's numbers; returns the names of the alarms that are active after it."""
        self._changes = self._alarms.see(record)
        return self._alarms.active

    def sentences(self, number: int, stats: UpdateStats) -> list[str]:
        """Return sentences for the user on this step's changes."""
        lines = [change.describe() for change in self._changes]
        if stats.micro_batches_halved:
            lines.append(
                f"memory ran out in step {number}: the step was repeated, and from here on micro-batches have at most "
                f"{stats.micro_batch_tokens} tokens"
            )
        if stats.updates_skipped:
            lines.append(
                f"step {number}: {stats.updates_skipped} of {stats.updates_skipped + stats.updates} updates skipped, "
                f"as {NOT_FINITE}; the weights are as they were"
            )
        return lines

    def check(self, number: int, kept: Path) -> None:
        """Stop the run after too many skipped updates, before it is saved. `kept`: file of the step's rollouts.

        Raises:
            TrainingError: too many updates in a row were skipped.
        """
        if self._in_a_row >= MOST_SKIPPED:
            raise TrainingError(
                f"{self._in_a_row} updates in a row up to step {number} were skipped, as {NOT_FINITE}",
                remedies=["lower --learning-rate", f"look for an extreme number in {kept}"],
                then="--resume continues from the last checkpoint",
            )
