"""The screen of a run: what its parts have reported, and the same as text, by the terminal's size."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple

from rich.text import Text
from typing_extensions import override

from paceline.metrics.definitions import Record
from paceline.metrics.learning import Learning, Verdict
from paceline.reports.format import duration, gibibytes
from paceline.runtime.activity import Phase, Progress

CURVE_POINTS = 40
"""Points of the reward curve, over all steps."""
PACE_STEPS = 20
"""Latest steps, whose time predicts that of the others; evaluations and checkpoints between them count."""
ALMOST = 0.99
"""Largest share of sampling that counts as done by its tokens while completions have not ended."""


class PhaseRecord(NamedTuple):
    """Latest report of a phase.

    One is made for every position that is decoded, so it is a tuple: a frozen dataclass takes three times as long.
    """

    done: int
    of: int
    tokens: int
    started: float
    ended: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A phase as it is now."""

    done: int
    of: int
    tokens: int
    seconds: float
    """Seconds since it began, or from its beginning to its end."""
    share: float
    """Share of the work that is done, as far as is known."""

    @property
    def is_over(self) -> bool:
        """Return True once all of it is done."""
        return self.done >= self.of

    @property
    def to_go(self) -> float | None:
        """Estimate the seconds left at the current pace; None while too little is done."""
        return None if self.is_over or self.share < 0.02 else self.seconds * (1 - self.share) / self.share


class RunProgress(Progress):
    """Progress of a run: written by its workers from any thread, read by the display from another.

    So attributes that the display reads are replaced as a whole and never changed.
    """

    def __init__(self, *, name: str, total_steps: int, done: int, clock: Callable[[], float]) -> None:
        """`done`: steps before this attempt."""
        self.name, self.total_steps, self.steps_done = name, total_steps, done
        self.what = "start"
        """Current phase of the run."""
        self.has_ended = False
        self.record: Record | None = None
        """Record of the last step."""
        self.rewards = tuple[float, ...]()
        """Means over equally many steps each, at most `CURVE_POINTS`."""
        self.expected_length: float | None = None
        """Tokens of a completion before the first step has ended: a mean or the limit; None: not known."""
        self.accuracies = dict[str, tuple[Record, Record]]()
        """The first and the newest evaluation of each held-out set."""
        self._clock, self._since, self._phases = clock, clock(), dict[Phase, PhaseRecord]()
        self._all_rewards, self._learning = list[float](), Learning()
        self.verdict = self._learning.verdict()
        self._marks = deque[tuple[int, float]](maxlen=PACE_STEPS + 1)

    @override
    def begin(self, what: str) -> None:
        # what goes on beside the steps, such as sampling ahead, is not over with them
        still = {name: phase for name, phase in self._phases.copy().items() if phase.ended is None}
        self.what, self._since, self._phases = what, self._clock(), still

    def end(self, what: str) -> None:
        """Mark the run as ended; the phases of the last step stay as they ended."""
        self.what, self._since, self.has_ended = what, self._clock(), True

    @override
    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        phases = self._phases
        before = phases.get(name)
        started = self._clock() if before is None or not (done or tokens) else before.started
        phases[name] = PhaseRecord(done, of, tokens, started, self._clock() if done >= of else None)

    def step(self, record: Record) -> None:
        """Record the end of a step."""
        self._see(record)
        self._marks.append((record["step"], self._clock()))

    def evaluation(self, record: Record) -> None:
        """Record the evaluation of a held-out set."""
        self._learning.evaluation(record)
        if "accuracy" in record:
            first, _ = self.accuracies.get(record["set"], (record, record))
            self.accuracies = {**self.accuracies, record["set"]: (first, record)}
        self.verdict = self._learning.verdict()

    def recall(self, steps: Iterable[Record], evals: Iterable[Record]) -> None:
        """Take in the records of a resumed run's earlier attempts, which do not count for the pace."""
        for record in steps:
            self._see(record)
        for record in evals:
            self.evaluation(record)

    def _see(self, record: Record) -> None:
        self.steps_done, self.record = record["step"], record
        if record["reward_mean"] is not None:
            self._all_rewards.append(record["reward_mean"])
            # means of neighbours, each of equally many but the last
            size, rewards = -(-len(self._all_rewards) // CURVE_POINTS), self._all_rewards
            parts = [rewards[start : start + size] for start in range(0, len(rewards), size)]
            self.rewards = tuple(sum(part) / len(part) for part in parts)
        self._learning.step(record)
        self.verdict = self._learning.verdict()

    @property
    def seconds(self) -> float:
        """Seconds since `what` began."""
        return self._clock() - self._since

    @property
    def to_go(self) -> float | None:
        """Seconds to the last step; None: no step has ended yet."""
        now, marks = self._clock(), list(self._marks)
        if not marks:
            return None
        (first, started), (last, ended) = marks[0], marks[-1]
        assert self.record is not None  # a mark is a step's
        pace = (ended - started) / (last - first) if last > first else self.record["clock"]["total"]
        return max(0.0, (self.total_steps - last) * pace - (now - ended))

    @property
    def stages(self) -> Mapping[Phase, Stage]:
        """Phases that have been reported."""
        now, stages, length = self._clock(), dict[Phase, Stage](), self.expected_length
        if self.record is not None:
            length = self.record["completion_length_mean"]
        for name, (done, of, tokens, started, ended) in self._phases.copy().items():
            share = done / of if of else 1.0
            if name == "generate" and share < 1 and length:
                # completions end late and together: until then their tokens say more, against the expected length
                share = max(share, min(tokens / (of * length), ALMOST))
            seconds = (now if ended is None else ended) - started
            stages[name] = Stage(done=done, of=of, tokens=tokens, seconds=seconds, share=share)
        return stages


LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#@"


def bar(share: float, width: int, *, ascii_only: bool) -> tuple[str, str]:
    """The part of a bar that is done and the part that is not, together `width` characters.

    >>> bar(0.5, 5, ascii_only=False)
    ('━━╸', '──')
    """
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    whole, half = divmod(halves, 2)
    line, end = ("#", "-") if ascii_only else ("━", "╸")
    done = line * whole + end * half
    return done, (" " if ascii_only else "─") * (width - whole - half)


def curve(values: Sequence[float], *, ascii_only: bool) -> str:
    """One character per value, from the lowest of them to the highest; a flat line where all are equal.

    >>> curve([0.0, 1.0, 7.0], ascii_only=False)
    '▁▂█'
    """
    if not values:
        return ""
    levels = ASCII_LEVELS if ascii_only else LEVELS
    low, high = min(values), max(values)
    top = len(levels) - 1
    return "".join(levels[round(top * (value - low) / (high - low)) if high > low else 0] for value in values)


def fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts, from the first on, as fit; a comma between them.

    >>> fitting(["131 of 256", "21,300 tokens/s", "2 s to go"], 30)
    '131 of 256, 21,300 tokens/s'
    """
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


LABEL = 10
"""Characters before a line's first number."""
PHASES: tuple[Phase, ...] = ("generate", "reward", "update")
"""Phases of a step. Each has a line at all times, so that nothing jumps."""
MEASURED = PHASES[:2]
"""Phases of an evaluation."""
VERDICT_LINES = 3
MOST_SETS = 2
"""Most held-out sets with a line; the report has all."""
WORD_STYLES = {"yes": "green", "no": "red", "too early": "yellow"}
NONE = "-"


def screen(run: RunProgress, *, width: int, height: int, memory: int | None, ascii_only: bool) -> Text:
    """Draw at most `height` - 1 lines of at most `width` characters. `memory`: bytes in use, None: not known.

    A terminal that is too low first loses the blank lines, then what stands lowest; a narrow one loses ends of lines.
    """
    record = run.record
    steps = [f"{run.steps_done} of {run.total_steps}"]
    if (to_go := run.to_go) is not None:
        steps.append(f"{duration(to_go, 0)} to go")
    bars = [
        _barred("steps", run.steps_done / run.total_steps, steps, width, ascii_only),
        *_phases(run, PHASES, width, ascii_only),
    ]
    # what it learns
    reward = NONE if record is None or record["reward_mean"] is None else f"{record['reward_mean']:.3f}"
    held_out = [_accuracy(*both) for both in list(run.accuracies.values())[:MOST_SETS]] or [NONE]
    learning = [
        _line("reward", reward.ljust(8), (curve(run.rewards, ascii_only=ascii_only), "cyan")),
        *(_line("held-out", words) for words in held_out),
        *_verdict(run.verdict, width),
    ]
    # numbers, two to a line
    cells, room = _numbers(run, memory), max(0, width // 2 - LABEL - 1)
    numbers = [
        _line(left, f"{value[:room]:<{room + 1}}") + _line(right, beside[:room])
        for (left, value), (right, beside) in zip(cells[::2], cells[1::2], strict=True)
    ]
    alarms = () if record is None else record["alarms"]
    numbers.append(_line("alarms", (", ".join(alarms), "bold red") if alarms else "none"))
    head = [_title(run, width), *bars]
    lines = [*head, Text(), *learning, Text(), *numbers]
    if len(lines) >= height:
        lines = [*head, *learning, *numbers][: max(1, height - 1)]
    return _joined(lines, width, ascii_only)


def measurement(run: RunProgress, *, width: int, ascii_only: bool) -> Text:
    """Three lines for a model that is measured outside a run: what is measured, and its two phases."""
    return _joined([_title(run, width), *_phases(run, MEASURED, width, ascii_only)], width, ascii_only)


def stage_words(stage: Stage, to_go: str = "{} to go") -> Iterable[str]:
    """Parts done, tokens per second, and the duration, or `to_go` with the remaining time."""
    yield f"{stage.done:,} of {stage.of:,}"
    if stage.tokens and stage.seconds > 0:
        yield f"{stage.tokens / stage.seconds:,.0f} tokens/s"
    if stage.is_over:
        yield f"{stage.seconds:.1f} s"
    elif stage.to_go is not None:
        yield to_go.format(duration(stage.to_go, 0))


def _title(run: RunProgress, width: int) -> Text:
    """Draw the name at the left, and the current phase with its duration at the right."""
    now = run.what if run.has_ended else f"{run.what}, {duration(run.seconds, 0)}"
    room = max(0, width - len(now) - 2)
    name = run.name if len(run.name) <= room else run.name[len(run.name) - room :]
    return Text.assemble((name, "bold"), " " * max(0, width - len(name) - len(now)), now)


def _phases(run: RunProgress, phases: Iterable[Phase], width: int, ascii_only: bool) -> Iterable[Text]:
    stages = run.stages
    for phase in phases:
        stage = stages.get(phase)
        share, words = (0.0, [NONE]) if stage is None else (stage.share, list(stage_words(stage)))
        yield _barred(phase, share, words, width, ascii_only)


def _joined(lines: Sequence[Text], width: int, ascii_only: bool) -> Text:
    for line in lines:
        line.truncate(width, overflow="crop" if ascii_only else "ellipsis")
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _line(name: str, *rest: str | tuple[str, str]) -> Text:
    return Text.assemble((name.ljust(LABEL), "bold"), *rest)


def _barred(name: str, share: float, parts: Sequence[str], width: int, ascii_only: bool) -> Text:
    size = min(40, max(10, width - 56))
    done, left = bar(share, size, ascii_only=ascii_only)
    text = fitting(parts, width - LABEL - size - 2)
    return _line(name, (done, "cyan"), (left, "bright_black"), f"  {text}")


def _accuracy(first: Record, newest: Record) -> str:
    low, value, high = (100 * newest[key] for key in ("ci_low", "accuracy", "ci_high"))
    began = "" if newest is first else f", began with {100 * first['accuracy']:.1f} %"
    return f"{value:.1f} % [{low:.1f}, {high:.1f}] after step {newest['step']}{began}, {newest['set']}"


def _verdict(verdict: Verdict, width: int) -> list[Text]:
    """Draw the verdict in a fixed number of lines."""
    sentence = verdict.describe().removeprefix("learning: ")
    first, *others = wrap(sentence, max(20, width - LABEL), max_lines=VERDICT_LINES, placeholder=" ...")
    word, rest = first[: len(verdict.word)], first[len(verdict.word) :]
    shown = [_line("learning", (word, f"bold {WORD_STYLES[verdict.word]}"), rest)]
    shown += [Text(" " * LABEL + line) for line in others]
    return shown + [Text()] * (VERDICT_LINES - len(shown))


def _numbers(run: RunProgress, memory: int | None) -> list[tuple[str, str]]:
    """Name and value, in the order of reading."""

    def nats(value: float | None, per: str = "/token") -> str:
        return NONE if value is None else f"{value:.3g} nats{per}"

    used, record = NONE if memory is None else gibibytes(memory), run.record
    if record is None:
        names = ("length", "KL", "entropy", "mismatch", "speed")
        return [*((name, NONE) for name in names), ("memory", used)]
    cut = f", {100 * record['truncated_fraction']:.0f} % cut" if record["truncated_fraction"] else ""
    return [
        ("length", f"{record['completion_length_mean']:.0f} tokens{cut}"),
        ("KL", nats(record["kl"]) if "kl" in record else "not measured"),
        ("entropy", nats(record["entropy"])),
        ("mismatch", nats(record["logprob_mismatch_mean"], "")),
        ("speed", f"{record['clock']['tokens_per_second']:,.0f} tokens/s"),
        ("memory", used),
        *_of_conversations(record),
    ]


def _of_conversations(record: Record) -> Iterable[tuple[str, str]]:
    """Two more cells of a run whose completions are conversations."""
    if "turns_mean" not in record:
        return
    yield "turns", f"{record['turns_mean']:.1f}, most {record['turns_max']}"
    failed = sum(record["episode_ends"].get(end, 0) for end in ("failed", "timed_out"))
    yield "waiting", f"{record['environment_seconds']:.3g} s of environments" + (f", {failed} failed" if failed else "")
