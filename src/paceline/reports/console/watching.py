"""What a run has told so far, kept for a screen: a `Progress`, and the records of steps and evaluations."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from paceline.metrics.definitions import Record
from paceline.metrics.learning import Learning, Verdict
from paceline.runtime.activity import Phase, Progress

CURVE_POINTS = 40
"""Points of the reward curve, over all steps."""
PACE_STEPS = 20
"""The last ones, whose time says how long the others will take, with the evaluations and checkpoints between them."""
ALMOST = 0.99
"""Tokens may say so much of sampling to be done, and no more, while completions have not ended."""


class Told(NamedTuple):
    """What was last told of a phase.

    It is made for every position that is decoded, so it is a tuple: a frozen dataclass takes three times as long.
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
    """Since it began, or from its beginning to its end."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """The first and the newest evaluation of a held-out set."""

    first: Record
    newest: Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A run at one moment."""

    name: str
    step: int
    """Steps completed."""
    total_steps: int
    what: str
    """Current phase of the run and `seconds` since it began."""
    seconds: float
    to_go: float | None
    """Seconds to the last step; None: no step has ended yet."""
    stages: Mapping[Phase, Stage]
    record: Record | None
    """Record of the last step."""
    rewards: tuple[float, ...]
    """Means over equally many steps each, at most `CURVE_POINTS`."""
    accuracies: tuple[Accuracy, ...]
    verdict: Verdict


class Watched(Progress):
    """Progress of a run: written by its workers from any thread, read by the display from another.

    So what is read is replaced as a whole and never changed.
    """

    def __init__(self, *, name: str, total_steps: int, done: int, clock: Callable[[], float]) -> None:
        """`done` steps are behind."""
        self.name, self.total_steps = name, total_steps
        self._clock, self._step = clock, done
        self._what, self._since = "start", clock()
        self._told = dict[Phase, Told]()
        self._record: Record | None = None
        self._rewards, self._means = list[float](), tuple[float, ...]()
        self._accuracies = dict[str, Accuracy]()
        self._learning = Learning()
        self._verdict = self._learning.verdict()
        self._marks = deque[tuple[int, float]](maxlen=PACE_STEPS + 1)

    @override
    def begin(self, what: str) -> None:
        # what goes on beside the steps, such as sampling ahead, is not over with them
        still = {name: told for name, told in self._told.copy().items() if told.ended is None}
        self._what, self._since, self._told = what, self._clock(), still

    @override
    def phase(self, name: Phase, done: int, of: int, *, tokens: int = 0) -> None:
        told = self._told
        before = told.get(name)
        started = self._clock() if before is None or not (done or tokens) else before.started
        told[name] = Told(done, of, tokens, started, self._clock() if done >= of else None)

    def step(self, record: Record) -> None:
        """A step has ended."""
        self._see(record)
        self._marks.append((record["step"], self._clock()))

    def evaluation(self, record: Record) -> None:
        """A held-out set was measured."""
        self._learning.evaluation(record)
        if "accuracy" in record:
            before = self._accuracies.get(record["set"])
            found = Accuracy(first=record if before is None else before.first, newest=record)
            self._accuracies = {**self._accuracies, record["set"]: found}
        self._verdict = self._learning.verdict()

    def recall(self, steps: Iterable[Record], evals: Iterable[Record]) -> None:
        """Recall what a resumed run did before; it says nothing about the current pace."""
        for record in steps:
            self._see(record)
        for record in evals:
            self.evaluation(record)

    def seen(self) -> Seen:
        """All of it, as it is now."""
        now, told, marks, to_go = self._clock(), self._told, list(self._marks), None
        if marks:
            (first, started), (last, ended) = marks[0], marks[-1]
            assert self._record is not None  # a mark is a step's
            pace = (ended - started) / (last - first) if last > first else self._record["clock"]["total"]
            to_go = max(0.0, (self.total_steps - last) * pace - (now - ended))
        return Seen(
            name=self.name,
            step=self._step,
            total_steps=self.total_steps,
            what=self._what,
            seconds=now - self._since,
            to_go=to_go,
            stages={name: self._stage(name, one, now) for name, one in told.copy().items()},
            record=self._record,
            rewards=self._means,
            accuracies=tuple(self._accuracies.values()),
            verdict=self._verdict,
        )

    def _see(self, record: Record) -> None:
        self._step, self._record = record["step"], record
        if record["reward_mean"] is not None:
            self._rewards.append(record["reward_mean"])
            self._means = binned(self._rewards, CURVE_POINTS)
        self._learning.step(record)
        self._verdict = self._learning.verdict()

    def _stage(self, name: Phase, told: Told, now: float) -> Stage:
        share = told.done / told.of if told.of else 1.0
        if name == "generate" and share < 1 and self._record is not None:
            # completions end late and together: until then their tokens say more, against the last step's length
            expected = told.of * self._record["completion_length_mean"]
            share = max(share, min(told.tokens / expected, ALMOST)) if expected else share
        seconds = (now if told.ended is None else told.ended) - told.started
        return Stage(done=told.done, of=told.of, tokens=told.tokens, seconds=seconds, share=share)


def binned(values: Sequence[float], most: int) -> tuple[float, ...]:
    """Reduce values to means of neighbours, each of equally many but the last.

    >>> binned([1, 3, 5, 7, 9], most=3)
    (2.0, 6.0, 9.0)
    """
    size = -(-len(values) // most) or 1
    parts = (values[start : start + size] for start in range(0, len(values), size))
    return tuple(sum(part) / len(part) for part in parts)
