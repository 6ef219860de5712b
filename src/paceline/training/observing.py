"""The command line's observer: screen, page, trackers, and the timetable of the options.

The page is written anew as often as is nearly free.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.config.sections import Config
from paceline.errors import CheckpointError, first_line
from paceline.metrics.definitions import Record
from paceline.reports.console import RunDisplay
from paceline.reports.page.html import write_report
from paceline.reports.trackers import Trackers, flat_numbers
from paceline.runtime.devices import choose_device, used_memory
from paceline.training.evaluation import EvalResult
from paceline.training.rollouts.rounds import RolloutBatch
from paceline.training.run import Requests, Run

LEAST_SECONDS = 30.0
"""Least seconds between two pages, so that a reload shows something new."""
LARGEST_SHARE = 0.01
"""Largest share of the run's time that pages may take: reading a long run's files takes seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """Schedule from the options: evaluate at the start, every `eval_steps` and at the end; save every `save_steps`."""

    eval_steps: int
    save_steps: int
    total_steps: int

    def at_start(self, steps_done: int) -> Requests:
        """Request an evaluation of a new run; a resumed one has it."""
        return Requests(evaluate=steps_done == 0)

    def after(self, number: int) -> Requests:
        """Request what is due after step `number`."""
        evaluate, save = (every > 0 and number % every == 0 for every in (self.eval_steps, self.save_steps))
        return Requests(evaluate=evaluate or number == self.total_steps, save=save)


def draw_page(directory: Path, write: Callable[[Path], Path] = write_report) -> Path | str:
    """Write a run's page; returns its path, or a sentence on why there is none.

    A border: a page is drawn of whatever numbers a run has come to, and nothing of the run depends on it, so no error
    of drawing may end a training of days.
    """
    try:
        return write(directory)
    except CheckpointError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - printed, and `paceline report` raises it
        return (
            f"{type(error).__name__} while drawing it: {first_line(error)}; `paceline report {directory}` shows where"
        )


class RunningReport:
    """Writes `report.html` at the first call, then whenever it is due."""

    def __init__(
        self,
        directory: Path,
        *,
        notify: Callable[[str], None],
        write: Callable[[Path], Path] = write_report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`notify` gets a sentence on a page that cannot be written: no run ends for its page."""
        self._directory, self._notify, self._write, self._clock = directory, notify, write, clock
        self._due: float | None = None
        self._fault = ""

    def refresh(self) -> None:
        """Write a page if one is due."""
        if self._due is None or self._clock() >= self._due:
            self.write()

    def write(self) -> None:
        """Write a page of the run as it stands. The same fault is reported once."""
        started = self._clock()
        page = draw_page(self._directory, self._write)
        if isinstance(page, str) and page != self._fault:
            self._fault = page
            self._notify(f"the run goes on without its page: {page}")
        ended = self._clock()
        self._due = ended + max(LEAST_SECONDS, (ended - started) / LARGEST_SHARE)


class CommandLine:
    """Shows a run on a terminal and on its page, sends its numbers to the trackers, keeps the options' timetable."""

    def __init__(
        self,
        console: Console,
        config: Config,
        directory: Path,
        *,
        total_steps: int,
        done: int,
        name: str = "",
        reword: Callable[[str], str] = str,
    ) -> None:
        """Begin after `done` of `total_steps` steps. The screen is open within `with`.

        `name` is how the run's user names `directory`; empty: by its path.

        `reword` puts a sentence that names options into the words of the entry point.
        """
        self._reword = reword
        memory = None if config.cluster.cluster else partial(used_memory, choose_device(config.model))
        self.display = RunDisplay(
            console, name=name or str(directory), total_steps=total_steps, done=done, memory=memory
        )
        self.report = RunningReport(directory, notify=self.notify)
        self._timetable = Timetable(
            eval_steps=config.evaluation.eval_steps, save_steps=config.loop.save_steps, total_steps=total_steps
        )
        self._trackers = Trackers(opened=())

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.__exit__(kind, error, trace)

    def start(self, run: Run, trackers: Trackers) -> None:
        """Show the plan of the run and its past records."""
        self._trackers = trackers
        self.display.plan(asdict(run.inputs.plan))
        self.display.progress.recall(run.run_dir.metrics(), run.run_dir.evals())

    def begin(self, steps_done: int) -> Requests:
        """The screen and the trackers are open already."""
        return self._timetable.at_start(steps_done)

    def step_begin(self, number: int) -> None:
        """A step is shown when it ends."""

    def step_end(self, record: Record, batch: RolloutBatch) -> Requests:
        """Show and track the step's numbers, refresh the page, and request what is due."""
        self.display.step(record)
        self._trackers.log(flat_numbers({"train": record}), record["step"])
        self.report.refresh()
        return self._timetable.after(record["step"])

    def evaluated(self, results: Sequence[EvalResult]) -> Requests:
        """Show a sentence per set, track its numbers under its name, and refresh the page."""
        for result in results:
            record = result.record()
            self.display.evaluation(record, self._reword(result.describe()))
            self._trackers.log(flat_numbers({"eval": {result.name: record}}), result.step)
        self.report.refresh()
        return Requests()

    def saved(self, checkpoint: Checkpoint) -> Requests:
        """Checkpoints are not shown."""
        return Requests()

    def notify(self, sentence: str) -> None:
        """Print a line above the screen."""
        self.display.say(self._reword(sentence))

    def end(self) -> None:
        """The display closes by itself."""
