"""The state of a run for a screen: the progress that its parts report, and the records of steps and evaluations."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from paceline.metrics.definitions import Record
from paceline.metrics.learning import Learning
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
