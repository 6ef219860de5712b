"""What a person sees in the terminal: one screen during a run, a sentence per event above it.

__init__.py  the display of a run: the screen on a terminal, plain lines in a log file
watching.py  what a run has told so far, kept for the screen
screen.py    the screen as text, with bars and small curves, from what was told and the size of the terminal
"""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text
from typing_extensions import override

from paceline.metrics.definitions import Record
from paceline.reports.console.screen import measurement, screen, stage_words
from paceline.reports.console.watching import Watched
from paceline.runtime.activity import ACTIVITY, Phase

QUIET_SECONDS = 10.0
"""Without a terminal, progress is printed at most this often."""
REDRAWS_PER_SECOND = 4


def open_console() -> Console:
    """A console on standard output; in a notebook plain lines, though its kernel poses as a terminal with colours."""
    console = Console()
    return Console(force_jupyter=False, force_terminal=False) if console.is_jupyter else console


class RunDisplay:
    """Shows a run: a screen that redraws itself on a terminal, plain lines in a log file."""

    def __init__(
        self,
        console: Console,
        *,
        name: str,
        total_steps: int,
        done: int,
        memory: Callable[[], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`done` steps of `total_steps` are behind; `memory`: bytes in use, None: not known."""
        self.watched = Watched(name=name, total_steps=total_steps, done=done, clock=clock)
        """What is shown: a `Progress`, to which the run's parts report."""
        self._console, self._clock, self._memory = console, clock, memory
        self._last_line = clock()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(
            console=console, refresh_per_second=REDRAWS_PER_SECOND, vertical_overflow="crop", get_renderable=self.frame
        )

    def __enter__(self) -> Self:
        ACTIVITY.displays.append(self.watched)
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        ACTIVITY.displays.remove(self.watched)
        if self._is_live:
            self._live.stop()

    def frame(self) -> Text:
        """The screen as it is now."""
        (width, height), ascii_only = self._console.size, self._console.options.ascii_only
        memory = None if self._memory is None else self._memory()
        return screen(self.watched, width=width, height=height, memory=memory, ascii_only=ascii_only)

    def say(self, sentence: str) -> None:
        """One line above the screen."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def evaluation(self, record: Record) -> None:
        """Show an evaluation's record."""
        self.watched.evaluation(record)

    def step(self, record: Record) -> None:
        """Show a step's record (`metrics.METRICS`)."""
        self.watched.step(record)
        now, total = self._clock(), self.watched.total_steps
        if not self._is_live and (now - self._last_line >= QUIET_SECONDS or record["step"] == total):
            self._last_line = now
            # the few numbers that tell whether it learns, and how fast
            reward = "none" if record["reward_mean"] is None else f"{record['reward_mean']:.3f}"
            clock, length = record["clock"], record["completion_length_mean"]
            self.say(
                f"step {record['step']:>4} of {total}  reward {reward}  length {length:.0f}  "
                f"{clock['tokens_per_second']:,.0f} tokens/s  {clock['total']:.2f} s/step"
            )


class MeasurementDisplay(Watched):
    """Shows how far the measurement of a model is: bars on a terminal, else a line every `QUIET_SECONDS`."""

    def __init__(
        self, console: Console, *, name: str, longest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`longest`: most tokens of a completion, by which the time to go is at most what it is said to be."""
        super().__init__(name=name, total_steps=1, done=0, clock=clock)
        self.expected_length = longest
        self.has_begun = False
        """False while rewards are tried on made-up completions, which is no part of the measurement."""
        self._console, self._last_line = console, clock()
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        # nothing of it stays: the number that it leads to is printed
        self._live = Live(
            console=console,
            refresh_per_second=REDRAWS_PER_SECOND,
            get_renderable=self.frame,
            transient=True,
            redirect_stdout=not console.stderr,  # what a program prints for another stays apart
        )

    def __enter__(self) -> Self:
        ACTIVITY.displays.append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        ACTIVITY.displays.remove(self)
        self._live.stop()

    def frame(self) -> Text:
        """The bars as they are now."""
        return measurement(self, width=self._console.width, ascii_only=self._console.options.ascii_only)

    def say(self, sentence: str) -> None:
        """One line above the bars."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @override
    def begin(self, what: str) -> None:
        super().begin(what)
        self.has_begun = True
        if self._is_live:
            self._live.start()

    @override
    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        super().phase(name, done, of, tokens=tokens)
        now = self._clock()
        if not self._is_live and self.has_begun and now - self._last_line >= QUIET_SECONDS:
            self._last_line = now
            self.say(f"{self.what}: {name} {', '.join(stage_words(self.stages[name], 'at most {} to go'))}")
