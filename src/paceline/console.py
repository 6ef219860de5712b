"""What a person sees in the terminal while a run goes on: a live line per step, a sentence per event, a table."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paceline.intervals import Interval

QUIET_SECONDS = 10.0
"""Without a terminal, a step is printed at most this often."""


class RunDisplay:
    """Prints a run's progress; a bar that redraws itself on a terminal, plain lines in a log file."""

    def __init__(self, console: Console, *, total_steps: int, done: int) -> None:
        self._console = console
        self._last_line = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("train", total=total_steps, completed=done, numbers="")
        self._total = total_steps

    def __enter__(self) -> "RunDisplay":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def say(self, sentence: str) -> None:
        """One line above the bar."""
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """Show a step's record (`metrics.METRICS`)."""
        numbers = step_line(record)
        self._bar.update(self._task, completed=record["step"], numbers=numbers)
        now, last = time.monotonic(), record["step"] == self._total
        if not self._console.is_terminal and (now - self._last_line >= QUIET_SECONDS or last):
            self._last_line = now
            self.say(f"step {record['step']:>4} of {self._total}  {numbers}")


def step_line(record: Mapping[str, Any]) -> str:
    """The few numbers of a step that tell whether it learns, and how fast."""
    reward = "none" if record["reward_mean"] is None else f"{record['reward_mean']:.3f}"
    return (
        f"reward {reward}  length {record['completion_length_mean']:.0f}  "
        f"{record['clock']['tokens_per_second']:,.0f} tokens/s  {record['clock']['total']:.2f} s/step"
    )


def percent(interval: Interval) -> str:
    """An accuracy with its interval.

    >>> percent(Interval(value=0.252, low=0.219, high=0.288))
    '25.2 % [21.9, 28.8]'
    """
    return f"{100 * interval.value:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def points(interval: Interval) -> str:
    """A difference of accuracies with its interval.

    >>> points(Interval(value=0.71, low=0.67, high=0.75))
    '+71.0 points [+67.0, +75.0]'
    """
    return f"{100 * interval.value:+.1f} points [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def print_time_split(console: Console, clock: Mapping[str, float]) -> None:
    """Where the time of a run went, as a table."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for phase, seconds in clock.items():
        if phase != "total":
            table.add_row(phase, f"{seconds:.1f} s", f"{100 * seconds / max(clock['total'], 1e-9):.0f} %")
    console.print(table)
