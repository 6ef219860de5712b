"""Whether a run is learning, in one word and why: rules on what it has written down so far. Pure.

The word may be asked for after every step and every evaluation, so each rule has a chance of error over a whole run and
not over one look. docs/learning.md says how often a run that cannot learn was called one that does.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

from paceline.metrics.alarms import RULES
from paceline.metrics.alarms import WINDOW as STANDING
from paceline.metrics.intervals import Z

Record = Mapping[str, Any]
"""A step's numbers, by the names of `metrics.METRICS`; or an evaluation's, as in `evals.jsonl`."""

SHORTEST = 6
"""Steps whose mean is held to that of as many others, at least: of fewer, the standard deviation itself is a guess."""
LONGEST = 50
"""And at most: a reward that breaks down late is seen after so many steps, however long the run was good."""
FAR = 5.0
"""Standard errors by which the reward must have moved. One look would do with 3; a run is looked at after every step,
and at first the standard error comes from 6 steps."""
CHANCE = 0.05
"""That a model which does not change is called changed by any of a run's evaluations."""
ENOUGH = 30
"""Steps after which a run that shows nothing is called one that does not learn: its windows have 10 steps then."""

Word = Literal["yes", "no", "too early"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The word, the reason for it, and what a person should know beside it."""

    word: Word
    because: str
    but: tuple[str, ...] = ()

    def describe(self) -> str:
        """One sentence."""
        return f"learning: {'; but '.join([f'{self.word}, because {self.because}', *self.but])}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """How far a number is now from where it began."""

    before: float
    now: float
    error: float
    """Standard error of the difference."""
    limit: float
    """Standard errors from which on a difference is no chance."""

    @property
    def least(self) -> float:
        """The smallest difference that would count."""
        return self.limit * self.error

    @property
    def direction(self) -> int:
        """1: has risen; -1: has fallen; 0: not to be told from chance."""
        change = self.now - self.before
        return 0 if abs(change) <= self.least else 1 if change > 0 else -1


def reward_shift(rewards: Sequence[float]) -> Shift | None:
    """The mean rewards of a run's first steps against those of its last, one number per step.

        w = min(n // 3, LONGEST) steps at either end;  error = sqrt((s_first^2 + s_last^2) / w)

    with s^2 the sample variance of the steps' means: what one step's prompts are easier than another's is in it. A
    third at either end tells a line's slope nearly as well as a fit to all steps does, and also tells of a reward that
    rose and then broke down. Source: M. S. Bartlett, Biometrics 5 (1949), 207-212. None: too few steps.

    >>> shift = reward_shift([0, 1, 0, 1, 0, 1] * 2 + [9, 10, 9, 10, 9, 10])
    >>> shift.before, shift.now, round(shift.error, 4), shift.direction
    (0.5, 9.5, 0.3162, 1)
    """
    window = min(len(rewards) // 3, LONGEST)
    if window < SHORTEST:
        return None
    (before, first), (now, last) = _moments(rewards[:window]), _moments(rewards[-window:])
    return Shift(before=before, now=now, error=math.sqrt((first + last) / window), limit=FAR)


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample variance of at least two numbers."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def accuracy_shift(evals: Sequence[Record], *, sets: int) -> Shift | None:
    """The newest evaluation of a set against its first one, both with `accuracy`, `ci_low` and `ci_high`.

    Look j of a set may be wrong with probability CHANCE / (sets j (j + 1)), which adds up to CHANCE over all looks of
    all `sets`, however many there will be. Both evaluations are of the same tasks, whose difficulty they share, so the
    error of two independent ones is more than theirs: the summary's paired test finds smaller differences. None: there
    is no second one yet.
    """
    looks = len(evals) - 1
    if looks < 1:
        return None
    first, last = evals[0], evals[-1]
    errors = [(record["ci_high"] - record["ci_low"]) / (2 * Z) for record in (first, last)]
    chance = CHANCE / (sets * looks * (looks + 1))
    return Shift(
        before=first["accuracy"],
        now=last["accuracy"],
        error=math.hypot(*errors),
        limit=NormalDist().inv_cdf(1 - chance / 2),
    )


class Learning:
    """Steps and evaluations in, a verdict out, at any time."""

    def __init__(self) -> None:
        self._steps = 0
        self._rewards = list[float]()
        self._last = deque[Record](maxlen=STANDING)
        self._standstill = 0
        """Steps up to the last one that could not change the policy."""
        self._evals = dict[str, list[Record]]()

    def step(self, record: Record) -> None:
        """One more step."""
        self._steps += 1
        self._last.append(record)
        self._standstill = self._standstill + 1 if _changes_nothing(record) else 0
        if record["reward_mean"] is not None:
            self._rewards.append(record["reward_mean"])

    def evaluation(self, record: Record) -> None:
        """One more evaluation. One without an accuracy, such as of a reward model, says nothing here."""
        if "accuracy" in record:
            self._evals.setdefault(record["set"], []).append(record)

    def verdict(self) -> Verdict:
        """What all of it says."""
        if 0 < self._steps == self._standstill and self._steps >= STANDING:
            return Verdict(word="no", because=f"{_standing(self._last)}, in all {self._steps} steps so far")
        found = {name: accuracy_shift(evals, sets=len(self._evals)) for name, evals in self._evals.items()}
        sets = {name: shift for name, shift in found.items() if shift is not None}
        reward, remarks = reward_shift(self._rewards), self._remarks()
        risen = [_accuracy(name, shift) for name, shift in sets.items() if shift.direction > 0]
        fallen = [_accuracy(name, shift) for name, shift in sets.items() if shift.direction < 0]
        if risen:
            lost = [_reward(reward)] if reward is not None and reward.direction < 0 else []
            return Verdict(word="yes", because=" and ".join(risen), but=(*fallen, *lost, *remarks))
        if fallen:
            gained = [_reward(reward)] if reward is not None and reward.direction > 0 else []
            return Verdict(word="no", because=" and ".join(fallen), but=(*gained, *remarks))
        unmoved = tuple(_unmoved("held-out accuracy", shift, 100, " %") + f" ({n})" for n, shift in sets.items())
        if reward is not None and reward.direction:
            word: Word = "yes" if reward.direction > 0 else "no"
            return Verdict(word=word, because=_reward(reward), but=(*unmoved, *remarks))
        return self._nothing_to_see(reward, unmoved, remarks)

    def _nothing_to_see(self, reward: Shift | None, unmoved: Sequence[str], remarks: Sequence[str]) -> Verdict:
        """The verdict where neither reward nor accuracy has moved."""
        if self._standstill >= STANDING:
            return Verdict(word="no", because=remarks[0], but=tuple(remarks[1:]))
        if reward is None:
            have = f"{len(self._rewards)} {'step' if len(self._rewards) == 1 else 'steps'} with a reward so far"
            return Verdict(word="too early", because=f"{have} of {3 * SHORTEST} that can show it", but=tuple(remarks))
        shown = [_unmoved("the reward", reward, 1, ""), *unmoved]
        word: Word = "no" if self._steps >= ENOUGH else "too early"
        return Verdict(word=word, because=", and ".join(shown), but=tuple(remarks))

    def _remarks(self) -> tuple[str, ...]:
        """What is wrong just now, whatever was learnt before."""
        lines = []
        if self._standstill >= STANDING:
            lines.append(f"{_standing(self._last)}, in the last {self._standstill} steps")
        # steps of older versions have no alarms
        active = self._last[-1].get("alarms") or () if self._last else ()
        meanings = {rule.name: rule.meaning for rule in RULES}
        return (*lines, *(f"alarm {name}: {meanings[name]}" for name in active if name in meanings))


def judge(steps: Iterable[Record], evals: Iterable[Record]) -> Verdict:
    """The verdict on all records of a run, as `metrics.jsonl` and `evals.jsonl` have them."""
    learning = Learning()
    for record in steps:
        learning.step(record)
    for record in evals:
        learning.evaluation(record)
    return learning.verdict()


def _changes_nothing(record: Record) -> bool:
    """Whether a step left the policy as it was, by its own numbers."""
    return 0 in (record["learning_rate"], record["updates"], record["grad_norm"])


def _standing(last: Iterable[Record]) -> str:
    """Why a policy does not change, of steps that did not change it."""
    records = list(last)
    if all(record["learning_rate"] == 0 for record in records):
        return "the learning rate is 0"
    if all(record["groups_zero_deviation"] == record["prompts"] for record in records):
        return "the completions of each prompt have equal rewards"
    if all(record["updates"] == 0 for record in records):
        return "no update was made"
    return "the gradient is 0 or no update was made"


def _accuracy(name: str, shift: Shift) -> str:
    verb = "rose" if shift.direction > 0 else "fell"
    return f"held-out accuracy {verb} from {100 * shift.before:.1f} % to {100 * shift.now:.1f} % ({name})"


def _reward(shift: Shift) -> str:
    return f"the reward {'rose' if shift.direction > 0 else 'fell'} from {shift.before:.3f} to {shift.now:.3f}"


def _unmoved(what: str, shift: Shift, scale: float, unit: str) -> str:
    digits = 1 if unit else 3
    before, now, least = (f"{scale * value:.{digits}f}{unit}" for value in (shift.before, shift.now, shift.least))
    return f"{what} went from {before} to {now}, where less than {least} may be chance"
