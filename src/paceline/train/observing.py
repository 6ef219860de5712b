"""Who watches a run, and what a watcher may ask for: the terminal, trackers, the timetable, a program's callbacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.checkpoint import Checkpoint
from paceline.console import RunDisplay
from paceline.rollouts import RolloutBatch
from paceline.trackers import Trackers, flat_numbers
from paceline.train.measuring import Measurement

Record = Mapping[str, Any]
"""A step's numbers, by the names of `metrics.METRICS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What should happen before the next step: first the evaluation, then the checkpoint, then the end."""

    evaluate: bool = False
    save: bool = False
    stop: bool = False

    def __or__(self, other: "Wishes") -> "Wishes":
        return Wishes(
            evaluate=self.evaluate or other.evaluate, save=self.save or other.save, stop=self.stop or other.stop
        )


class Observer(Protocol):
    """Is told what happens, in the order in which it happens; changes nothing but by its wishes."""

    def begin(self, steps_done: int) -> Wishes:
        """The run starts, or goes on after `steps_done` steps."""

    def step_begin(self, number: int) -> None:
        """Step 1, 2, ... starts."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Wishes:
        """A step is done and written down."""

    def evaluated(self, measurements: Sequence[Measurement]) -> Wishes:
        """Every held-out set was measured with the weights as they are."""

    def saved(self, checkpoint: Checkpoint) -> Wishes:
        """A checkpoint is on disk."""

    def tell(self, sentence: str) -> None:
        """Something that a person should know."""

    def end(self) -> None:
        """No step follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """The options' own schedule: evaluate at the start, every so many steps and at the end; save every so many."""

    eval_steps: int
    save_steps: int
    total_steps: int

    def begin(self, steps_done: int) -> Wishes:
        """A run that goes on was evaluated when it started."""
        return Wishes(evaluate=steps_done == 0)

    def step_begin(self, number: int) -> None:
        """Nothing is due before a step."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Wishes:
        """What is due after this step."""
        number = record["step"]
        last = number == self.total_steps
        return Wishes(evaluate=last or is_due(number, self.eval_steps), save=is_due(number, self.save_steps))

    def evaluated(self, measurements: Sequence[Measurement]) -> Wishes:
        """Numbers change no timetable."""
        return Wishes()

    def saved(self, checkpoint: Checkpoint) -> Wishes:
        """Nor does a checkpoint."""
        return Wishes()

    def tell(self, sentence: str) -> None:
        """For people."""

    def end(self) -> None:
        """Nothing is left to do."""


def is_due(number: int, every: int) -> bool:
    """Whether something done every so many steps (0: never) is due after this one."""
    return every > 0 and number % every == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OnTerminal:
    """Shows a run to a person."""

    display: RunDisplay

    def begin(self, steps_done: int) -> Wishes:
        """The bar stands already."""
        return Wishes()

    def step_begin(self, number: int) -> None:
        """Shown when it ends."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Wishes:
        """The live line."""
        self.display.step(record)
        return Wishes()

    def evaluated(self, measurements: Sequence[Measurement]) -> Wishes:
        """One sentence per set."""
        for measurement in measurements:
            self.display.say(measurement.describe())
        return Wishes()

    def saved(self, checkpoint: Checkpoint) -> Wishes:
        """Checkpoints come and go unseen."""
        return Wishes()

    def tell(self, sentence: str) -> None:
        """One line above the bar."""
        self.display.say(sentence)

    def end(self) -> None:
        """The display closes by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OnTrackers:
    """Sends a run's numbers to the trackers of `--report-to`."""

    trackers: Trackers

    def begin(self, steps_done: int) -> Wishes:
        """They are open already."""
        return Wishes()

    def step_begin(self, number: int) -> None:
        """No number yet."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Wishes:
        """The step's numbers."""
        self.trackers.log(flat_numbers({"train": record}), record["step"])
        return Wishes()

    def evaluated(self, measurements: Sequence[Measurement]) -> Wishes:
        """Each set under its name."""
        for measurement in measurements:
            self.trackers.log(flat_numbers({"eval": {measurement.name: measurement.record()}}), measurement.step)
        return Wishes()

    def saved(self, checkpoint: Checkpoint) -> Wishes:
        """No number."""
        return Wishes()

    def tell(self, sentence: str) -> None:
        """Trackers draw numbers."""

    def end(self) -> None:
        """Closed by whoever opened them, also when a step fails."""
