"""Who watches a run, one for each door, and what a watcher may ask for. Here the command line's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.checkpoints.finding import Checkpoint
from paceline.metrics.definitions import Record
from paceline.reports.console import RunDisplay
from paceline.reports.trackers.opening import Trackers, flat_numbers
from paceline.training.reporting import RunningReport
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.training.setup.evaluators import EvalResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """What should happen before the next step: first the evaluation, then the checkpoint, then the end."""

    evaluate: bool = False
    save: bool = False
    stop: bool = False

    def __or__(self, other: "Requests") -> "Requests":
        return Requests(
            evaluate=self.evaluate or other.evaluate, save=self.save or other.save, stop=self.stop or other.stop
        )


class Observer(Protocol):
    """Is told what happens, in the order in which it happens; changes nothing but by its requests."""

    def begin(self, steps_done: int) -> Requests:
        """Note that the run starts, or continues after `steps_done` steps."""

    def step_begin(self, number: int) -> None:
        """Step 1, 2, ... starts."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Requests:
        """A step is done and written down."""

    def evaluated(self, results: Sequence[EvalResult]) -> Requests:
        """Every held-out set was measured with the weights as they are."""

    def saved(self, checkpoint: Checkpoint) -> Requests:
        """A checkpoint is on disk."""

    def notify(self, sentence: str) -> None:
        """Something that a person should know."""

    def end(self) -> None:
        """No step follows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """Schedule from the options: evaluate at the start, every `eval_steps` and at the end; save every `save_steps`."""

    eval_steps: int
    save_steps: int
    total_steps: int

    def at_start(self, steps_done: int) -> Requests:
        """Request an evaluation of a new run; a resumed one was evaluated when it started."""
        return Requests(evaluate=steps_done == 0)

    def after(self, number: int) -> Requests:
        """What is due after step `number`."""
        last = number == self.total_steps
        return Requests(evaluate=last or is_due(number, self.eval_steps), save=is_due(number, self.save_steps))


def is_due(number: int, every: int) -> bool:
    """Return True if something is due after this step that happens every `every` steps (0: never)."""
    return every > 0 and number % every == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """Shows a run on a terminal and on its page, sends its numbers to the trackers, keeps the options' timetable."""

    display: RunDisplay
    trackers: Trackers
    """Closed by the caller, also when a step fails."""
    timetable: Timetable
    report: RunningReport

    def begin(self, steps_done: int) -> Requests:
        """The screen stands and the trackers are open already."""
        return self.timetable.at_start(steps_done)

    def step_begin(self, number: int) -> None:
        """Shown when it ends."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Requests:
        """The screen or a line, the step's numbers, the page, and what is due."""
        self.display.step(record)
        self.trackers.log(flat_numbers({"train": record}), record["step"])
        self.report.refresh()
        return self.timetable.after(record["step"])

    def evaluated(self, results: Sequence[EvalResult]) -> Requests:
        """One sentence per set, its numbers under its name, and the page."""
        for one in results:
            self.display.say(one.describe())
            record = one.record()
            self.display.evaluation(record)
            self.trackers.log(flat_numbers({"eval": {one.name: record}}), one.step)
        self.report.refresh()
        return Requests()

    def saved(self, checkpoint: Checkpoint) -> Requests:
        """Checkpoints come and go unseen."""
        return Requests()

    def notify(self, sentence: str) -> None:
        """One line above the screen."""
        self.display.say(sentence)

    def end(self) -> None:
        """The display closes by itself."""
