"""The command line's observer: screen, page, trackers, and the timetable of the options."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.metrics.definitions import Record
from paceline.reports.console import RunDisplay
from paceline.reports.trackers.opening import Trackers, flat_numbers
from paceline.runtime.devices import choose_device, used_memory
from paceline.training.reporting import RunningReport
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.training.run import Requests, Run
from paceline.training.setup.evaluators import EvalResult


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
        evaluate, save = (every > 0 and number % every == 0 for every in (self.eval_steps, self.save_steps))
        return Requests(evaluate=evaluate or number == self.total_steps, save=save)


class CommandLine:
    """Shows a run on a terminal and on its page, sends its numbers to the trackers, keeps the options' timetable."""

    def __init__(self, console: Console, config: Config, directory: Path, *, total_steps: int, done: int) -> None:
        """`done` of `total_steps` steps are behind. Within `with` the screen stands, and an error draws the page."""
        memory = None if config.cluster.cluster else partial(used_memory, choose_device(config.model))
        self.display = RunDisplay(console, name=str(directory), total_steps=total_steps, done=done, memory=memory)
        self.report = RunningReport(directory, notify=self.notify)
        self._timetable = Timetable(
            eval_steps=config.evaluation.eval_steps, save_steps=config.loop.save_steps, total_steps=total_steps
        )
        self._trackers = Trackers(opened=())
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        self._shown.enter_context(self.report)
        self._shown.enter_context(self.display)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.__exit__(kind, error, trace)

    def start(self, run: Run, trackers: Trackers) -> None:
        """Show what the run has come to."""
        self._trackers = trackers
        self.display.watched.recall(run.run_dir.metrics(), run.run_dir.evals())

    def begin(self, steps_done: int) -> Requests:
        """The screen stands and the trackers are open already."""
        return self._timetable.at_start(steps_done)

    def step_begin(self, number: int) -> None:
        """Shown when it ends."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Requests:
        """The screen or a line, the step's numbers, the page, and what is due."""
        self.display.step(record)
        self._trackers.log(flat_numbers({"train": record}), record["step"])
        self.report.refresh()
        return self._timetable.after(record["step"])

    def evaluated(self, results: Sequence[EvalResult]) -> Requests:
        """One sentence per set, its numbers under its name, and the page."""
        for one in results:
            self.notify(one.describe())
            record = one.record()
            self.display.evaluation(record)
            self._trackers.log(flat_numbers({"eval": {one.name: record}}), one.step)
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
