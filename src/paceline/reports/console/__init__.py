"""What a person sees in the terminal: one screen during a run, a sentence per event above it.

__init__.py  the display of a run: the screen on a terminal, plain lines in a log file
screen.py    the state of a run as its parts have reported it; the screen as text, with bars and small curves
"""

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from textwrap import wrap
from typing import IO, Any, Self, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.live_render import LiveRender
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from paceline.metrics.alarms import RULES
from paceline.metrics.definitions import Record
from paceline.reports.console.screen import RunProgress, measurement, screen, stage_words
from paceline.runtime.activity import ACTIVITY, Phase
from paceline.runtime.shown_text import STEERING, OwnOutput, encodable

QUIET_SECONDS = 10.0
"""Without a terminal, least seconds between two lines of progress."""
SILENT_SECONDS = 60.0
"""Without a terminal, seconds without a line after which a run prints how far it is within a step."""
REDRAWS_PER_SECOND = 4
LOG_FORMATS = ("text", "json")
UNBROKEN = "\0"
"""Placeholder for the spaces of a command, at which no line is broken."""


def open_console(*, log_format: str | None = None, quiet: bool = False) -> Console:
    """A console on standard output; in a notebook plain lines, though its kernel poses as a terminal with colours.

    Args:
        log_format: `text` prints lines as into a file, on a terminal too; `json` makes an object of each.
        quiet: print nothing.
    """
    if quiet:
        return PlainConsole(quiet=True, force_terminal=False)  # nothing is drawn, and nobody else's output goes through
    if log_format is not None:
        return PlainConsole(file=JsonLog() if log_format == "json" else None, force_terminal=False)
    return PlainConsole(force_jupyter=False, force_terminal=False) if Console().is_jupyter else PlainConsole()


class PlainConsole(Console):
    """A console that removes control characters from the text that it is given."""

    def __init__(self, *, file: IO[str] | None = None, stderr: bool = False, **settings: Any) -> None:
        """`settings` are those of `rich.console.Console`."""
        output = cast(IO[str], OwnOutput("stderr" if stderr else "stdout"))
        super().__init__(file=output if file is None else file, stderr=stderr, **settings)

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not STEERING.search(segment.text):
                yield segment
            else:  # left out: lines are laid out as if they had no width
                yield Segment(STEERING.sub("", segment.text), segment.style)


def now() -> str:
    """The time of day with its zone, as ISO 8601 has it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


class JsonLog(io.StringIO):
    """Text to lines of JSON on standard output: `{"time": ..., "event": "message", "message": ...}` for each line."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = ""

    @override
    def write(self, text: str, /) -> int:
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        for line in lines:
            if line.strip():
                self.event("message", message=line.rstrip())
        return len(text)

    def event(self, name: str, **what: Any) -> None:
        """Write one object."""
        fields = {"time": now(), "event": name, **what}
        line = json.dumps(fields, ensure_ascii=False)
        if encodable(line, sys.stdout) != line:
            line = json.dumps(fields)
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    @override
    def flush(self) -> None:
        sys.stdout.flush()


def json_log(console: Console) -> JsonLog | None:
    """Return the JSON log that a console writes; None for a console with plain text."""
    return console.file if isinstance(console.file, JsonLog) else None


def tell(console: Console, sentence: str, *, indent: str = "") -> None:
    """Print a sentence: on a terminal broken between words, and never within a command in backticks; else as it is.

    `indent` begins each line but the first.
    """
    for part in sentence.split("\n"):
        lines = broken(part, console.width, indent=indent) if console.is_terminal else [part]
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def broken(sentence: str, width: int, *, indent: str = "") -> list[str]:
    """Break a sentence into lines; a command or a path that is longer than a line stays whole.

    >>> broken("go on with `paceline train --resume runs/a` later", 30)
    ['go on with', '`paceline train --resume runs/a`', 'later']
    """
    parts = sentence.split("`")
    parts[1::2] = [part.replace(" ", UNBROKEN) for part in parts[1::2]]
    lines = wrap(
        "`".join(parts), max(width, 20), break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
    )
    return [line.replace(UNBROKEN, " ") for line in lines] or [""]


class FittedLive(Live):
    """A live display that erases all of its last frame, also where a narrower terminal has broken its lines."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        overflow = self.vertical_overflow
        self._live_render = FittedRender(self.get_renderable(), self.console, overflow)


class FittedRender(LiveRender):
    """Render hook that counts the rows of the last frame at the terminal's present width."""

    def __init__(self, renderable: RenderableType, console: Console, overflow: Any) -> None:
        super().__init__(renderable, vertical_overflow=overflow)
        self._console = console
        self._widths = [0]

    def _fit(self) -> None:
        if self._shape is not None:
            width = max(self._console.width, 1)
            self._shape = self._shape[0], sum(max(1, -(-cells // width)) for cells in self._widths)

    @override
    def position_cursor(self) -> Control:
        self._fit()
        return super().position_cursor()

    @override
    def restore_cursor(self) -> Control:
        self._fit()
        return super().restore_cursor()

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [0]
        for segment in super().__rich_console__(console, options):
            if getattr(segment, "text", "") == "\n":
                widths.append(0)
            else:
                widths[-1] += getattr(segment, "cell_length", 0)
            yield segment
        self._widths = widths


class LoggedProgress(RunProgress):
    """Progress of a run that prints a sentence into a log file once nothing was printed for `every` seconds."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        every: float,
        to_go: str,
        name: str,
        total_steps: int,
        done: int,
        clock: Callable[[], float],
    ) -> None:
        """`to_go`: format of the remaining time."""
        super().__init__(name=name, total_steps=total_steps, done=done, clock=clock)
        self.is_logged = False
        self.last_line = clock()
        """Time of the latest printed line."""
        self._say, self._every, self._to_go = say, every, to_go

    @override
    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        super().phase(name, done, of, tokens=tokens)
        now = self._clock()
        if self.is_logged and now - self.last_line >= self._every:
            self.last_line = now
            self._say(f"{self.what}: {name} {', '.join(stage_words(self.stages[name], self._to_go))}")


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
        time_of_day: Callable[[], str] = now,
    ) -> None:
        """`done`: steps before this attempt; `memory`: returns the bytes in use, None: not known."""
        self.progress = LoggedProgress(
            self.say,
            every=SILENT_SECONDS,
            to_go="{} to go",
            name=name,
            total_steps=total_steps,
            done=done,
            clock=clock,
        )
        """Progress that is shown; the run's parts report to it."""
        self._console, self._clock, self._memory, self._now = console, clock, memory, time_of_day
        self._last_line = clock()
        self._is_live = console.is_terminal and not console.is_dumb_terminal and not console.quiet
        self.progress.is_logged = not self._is_live
        self._live = FittedLive(
            console=console, refresh_per_second=REDRAWS_PER_SECOND, vertical_overflow="crop", get_renderable=self.frame
        )

    def __enter__(self) -> Self:
        ACTIVITY.displays.append(self.progress)
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        is_done = exception[0] is None and self.progress.steps_done == self.progress.total_steps
        self.progress.end("done" if is_done else "stopped")
        ACTIVITY.displays.remove(self.progress)
        if self._is_live:
            self._live.stop()

    def frame(self) -> Text:
        """The screen as it is now."""
        (width, height), ascii_only = self._console.size, self._console.options.ascii_only
        memory = None if self._memory is None else self._memory()
        return screen(self.progress, width=width, height=height, memory=memory, ascii_only=ascii_only)

    def say(self, sentence: str) -> None:
        """A sentence above the screen; without one a line that begins with the time, or several."""
        if (log := json_log(self._console)) is not None:
            log.event("message", message=sentence)
        else:
            stamp = "" if self._is_live else f"{self._now()}  "
            tell(self._console, "\n".join(f"{stamp}{line}" for line in sentence.split("\n")))
        self.progress.last_line = self._clock()

    def plan(self, plan: Record) -> None:
        """Log the sizes of a step and of the run as JSON; text logs have them in sentences."""
        if (log := json_log(self._console)) is not None:
            log.event("plan", done=self.progress.steps_done, of=self.progress.total_steps, **plan)

    def evaluation(self, record: Record, sentence: str) -> None:
        """Show an evaluation's record, and the sentence on it."""
        self.progress.evaluation(record)
        if (log := json_log(self._console)) is None:
            self.say(sentence)
            return
        log.event("evaluation", message=sentence, **record)
        self.progress.last_line = self._clock()

    def step(self, record: Record) -> None:
        """Show a step's record (`metrics.METRICS`)."""
        before = () if self.progress.record is None else self.progress.record["alarms"]
        self.progress.step(record)
        self._log_alarms(before, record)
        now, total = self._clock(), self.progress.total_steps
        if not self._is_live and (now - self._last_line >= QUIET_SECONDS or record["step"] == total):
            self._last_line = self.progress.last_line = now
            # the few numbers that tell whether it learns, and how fast
            reward = "none" if record["reward_mean"] is None else f"{record['reward_mean']:.3f}"
            clock, length = record["clock"], record["completion_length_mean"]
            if (log := json_log(self._console)) is not None:
                log.event(
                    "step",
                    step=record["step"],
                    of=total,
                    reward_mean=record["reward_mean"],
                    completion_length_mean=length,
                    tokens_per_second=clock["tokens_per_second"],
                    seconds=clock["total"],
                )
                return
            self.say(
                f"step {record['step']:>4} of {total}  reward {reward}  length {length:.0f}  "
                f"{clock['tokens_per_second']:,.0f} tokens/s  {clock['total']:.2f} s/step"
            )

    def _log_alarms(self, before: Sequence[str], record: Record) -> None:
        """Log each alarm that this step begins or ends."""
        if (log := json_log(self._console)) is None:
            return
        for rule in RULES:
            holds = rule.name in record["alarms"]
            if holds != (rule.name in before):
                what = {"alarm": rule.name, "holds": holds, "meaning": rule.meaning, "remedy": rule.remedy}
                log.event("alarm", step=record["step"], **what)


class MeasurementDisplay(LoggedProgress):
    """Shows how far the measurement of a model is: bars on a terminal, else a line every `QUIET_SECONDS`."""

    def __init__(
        self, console: Console, *, name: str, longest: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`longest`: most tokens of a completion, from which the remaining time is estimated as an upper bound."""
        super().__init__(
            self.say, every=QUIET_SECONDS, to_go="at most {} to go", name=name, total_steps=1, done=0, clock=clock
        )
        self.expected_length = longest
        self._console = console
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        # nothing of it stays: the number that it leads to is printed
        self._live = FittedLive(
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
        """A sentence above the bars."""
        tell(self._console, sentence)

    @override
    def begin(self, what: str) -> None:
        super().begin(what)
        # until then rewards are tried on made-up completions, which is no part of the measurement
        self.is_logged = not self._is_live
        if self._is_live:
            self._live.start()
