"""Verdict on whether a run is learning, with its reason, from the records so far. Pure.

The verdict may be asked for after every step and evaluation, so each rule's probability of error is over a whole run.
docs/watching.md says how often a run that cannot learn was called one that does."""

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from paceline.metrics.alarms import RULES
from paceline.metrics.alarms import WINDOW as STANDING
from paceline.metrics.definitions import Record
from paceline.metrics.statistics import Z, mean_and_variance

SHORTEST = 6
"""Smallest window in steps: with fewer, the standard deviation itself is a guess."""
LONGEST = 50
"""Largest window in steps: a reward that breaks down late shows after this many, however long the run was good."""
FAR = 5.0
"""Standard errors by which the reward must have moved. One look would need 3, but a run is looked at after every step,
and at first the standard error comes from 6 steps."""
CHANCE = 0.05
"""Probability that any evaluation of an unchanged model counts as a change."""
ENOUGH = 30
"""Steps after which a run without a visible change counts as not learning: its windows then have 10 steps."""

Word = Literal["yes", "no", "too early"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The word, its reason, and remarks."""

    word: Word
    because: str
    but: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the verdict in one sentence."""
        return f"learning: {'; but '.join([f'{self.word}, because {self.because}', *self.but])}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """Change of a number from its first to its latest window."""

    before: float
    now: float
    error: float
    """Standard error of the difference."""
    limit: float
    """Standard errors above which a difference is not chance."""

    @property
    def least(self) -> float:
        """Smallest difference that would count."""
        return self.limit * self.error

    @property
    def direction(self) -> int:
        """1 for a rise, -1 for a fall, 0 if the change may be chance."""
        change = self.now - self.before
        return 0 if abs(change) <= self.least else 1 if change > 0 else -1


def reward_shift(rewards: Sequence[float]) -> Shift | None:
    """Compare the mean rewards of a run's first and last steps, one number per step.

        w = min(n // 3, LONGEST) steps at either end;  error = sqrt((s_first^2 + s_last^2) / w)

    with s^2 the sample variance of the steps' means, which includes how much the prompts of steps differ. A third at
    either end estimates a slope nearly as well as a fit to all steps, and also shows a reward that rose and then broke
    down. Source: M. S. Bartlett, Biometrics 5 (1949), 207-212. None: too few steps.

    >>> shift = reward_shift([0, 1, 0, 1, 0, 1] * 2 + [9, 10, 9, 10, 9, 10])
    >>> shift.before, shift.now, round(shift.error, 4), shift.direction
    (0.5, 9.5, 0.3162, 1)
    """
    window = min(len(rewards) // 3, LONGEST)
    if window < SHORTEST:
        return None
    (before, first), (now, last) = mean_and_variance(rewards[:window]), mean_and_variance(rewards[-window:])
    return Shift(before=before, now=now, error=math.sqrt((first + last) / window), limit=FAR)


def accuracy_shift(evals: Sequence[Record], *, sets: int) -> Shift | None:
    """Compare the newest evaluation of a set with its first one, both with `accuracy`, `ci_low` and `ci_high`.

    Look j of a set may be wrong with probability CHANCE / (sets j (j + 1)). Over all looks of all `sets`, however many,
    this adds up to CHANCE. Both evaluations share their tasks and so their difficulty, which makes the error of two
    independent ones an upper bound. The summary's paired test finds smaller differences. None: there is no second one
    yet."""
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
    """Running verdict on a run's steps and evaluations."""

    def __init__(self) -> None:
        self._steps = 0
        self._rewards = list[float]()
        self._last = deque[Record](maxlen=STANDING)
        self._standstill = 0
        """Latest steps in a row that could not change the policy."""
        self._evals = dict[str, list[Record]]()

    def step(self, record: Record) -> None:
        """Add a step."""
        self._steps += 1
        self._last.append(record)
        left_policy_unchanged = 0 in (record["learning_rate"], record["updates"], record["grad_norm"])
        self._standstill = self._standstill + 1 if left_policy_unchanged else 0
        if record["reward_mean"] is not None:
            self._rewards.append(record["reward_mean"])

    def evaluation(self, record: Record) -> None:
        """Add an evaluation. One without an accuracy, such as of a reward model, has no effect."""
        if "accuracy" in record:
            self._evals.setdefault(record["set"], []).append(record)

    def verdict(self) -> Verdict:
        """Return the verdict on all records so far."""
        # current problems, whatever was learnt before
        stands = self._standstill >= STANDING
        remarks = [f"{_why_unchanged(self._last)}, in the last {self._standstill} steps"] if stands else []
        active = self._last[-1]["alarms"] if self._last else ()
        meanings = {rule.name: rule.meaning for rule in RULES}
        remarks += [f"alarm {name}: {meanings[name]}" for name in active if name in meanings]
        if stands and self._standstill == self._steps:
            return Verdict(word="no", because=f"{_why_unchanged(self._last)}, in all {self._steps} steps so far")
        # what has moved: held-out accuracy counts for more than the reward
        shifts = {name: accuracy_shift(evals, sets=len(self._evals)) for name, evals in self._evals.items()}
        sets = {name: shift for name, shift in shifts.items() if shift is not None}
        reward = reward_shift(self._rewards)
        risen = [_accuracy(name, shift) for name, shift in sets.items() if shift.direction > 0]
        fallen = [_accuracy(name, shift) for name, shift in sets.items() if shift.direction < 0]
        if risen:
            lost = [_reward(reward)] if reward is not None and reward.direction < 0 else []
            return Verdict(word="yes", because=" and ".join(risen), but=(*fallen, *lost, *remarks))
        if fallen:
            gained = [_reward(reward)] if reward is not None and reward.direction > 0 else []
            return Verdict(word="no", because=" and ".join(fallen), but=(*gained, *remarks))
        unmoved = [_unmoved("held-out accuracy", shift, 100, " %") + f" ({n})" for n, shift in sets.items()]
        if reward is not None and reward.direction:
            word: Word = "yes" if reward.direction > 0 else "no"
            return Verdict(word=word, because=_reward(reward), but=(*unmoved, *remarks))
        # neither has moved
        if stands:
            return Verdict(word="no", because=remarks[0], but=tuple(remarks[1:]))
        if reward is None:
            have = f"{len(self._rewards)} of the {3 * SHORTEST} steps needed have a reward so far"
            return Verdict(word="too early", because=have, but=tuple(remarks))
        shown = ", and ".join([_unmoved("the reward", reward, 1, ""), *unmoved])
        return Verdict(word="no" if self._steps >= ENOUGH else "too early", because=shown, but=tuple(remarks))


def judge(steps: Iterable[Record], evals: Iterable[Record]) -> Verdict:
    """Return the verdict on all records of `metrics.jsonl` and `evals.jsonl`."""
    learning = Learning()
    for record in steps:
        learning.step(record)
    for record in evals:
        learning.evaluation(record)
    return learning.verdict()


def _why_unchanged(steps: Collection[Record]) -> str:
    if all(record["learning_rate"] == 0 for record in steps):
        return "the learning rate is 0"
    if all(record["groups_zero_deviation"] == record["prompts"] for record in steps):
        return "the completions of each prompt have equal rewards"
    if all(record["updates"] == 0 for record in steps):
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
