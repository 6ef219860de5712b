"""What the full score of a function is, and what is more than nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.rewards.audit.grading import Scored
from paceline.rewards.function import BuiltIn, RewardFunction

ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """What a score is worth."""

    full: Mapping[str, float]
    """By task, the full score, where tasks differ."""
    default: float | None
    """Full score of all other tasks; None: unknown."""
    nothing: Mapping[str, float]
    """By task, what an empty completion earns."""
    origin: str
    """Where the full score is known from, for a person."""

    @property
    def highest(self) -> float | None:
        """The highest full score; None: unknown."""
        return max(self.full.values(), default=self.default)

    def is_full(self, one: Scored) -> bool:
        """Return whether it scored full."""
        full = self.full.get(one.attempt.subject.task.task_id, self.default)
        return one.score is not None and full is not None and one.score >= full - ROUNDING

    def is_something(self, one: Scored) -> bool:
        """Return whether it scored above 0 and above an empty completion."""
        nothing = max(0.0, self.nothing.get(one.attempt.subject.task.task_id, 0.0))
        return one.score is not None and one.score > nothing + ROUNDING


def measuring(
    function: RewardFunction, honest: Sequence[Scored], tried: Sequence[Scored], promised: Sequence[str]
) -> Measure:
    """The measure of a function, from what the gold answers (`honest`) and the attacks (`tried`) earned.

    The full score is a built-in function's maximum; where that depends on length, the least that the gold answer
    earns in a form that the function promises to take. Of another function it is what the gold answer earns in the
    form that earns most, or for rows with test cases a program that knows the outputs by heart; where neither earns
    anything, the highest score that was seen.
    """
    nothing = _by_task([one for one in tried if not one.attempt.text], max)
    if isinstance(function, BuiltIn) and (function.gold is not None or not promised):
        return Measure(full={}, default=function.maximum, nothing=nothing, origin="the most that it gives")
    earned = [one for one in honest if _is_earned(one, nothing)]
    if isinstance(function, BuiltIn):
        full = _by_task([one for one in earned if one.attempt.wrapping in promised], min)
    else:
        full = _by_task(earned, max)
    if full:
        return Measure(full=full, default=max(full.values()), nothing=nothing, origin="what the gold answer scores")
    highest = max((one.score for one in tried if one.score is not None), default=None)
    is_known = highest is not None and highest > max([0.0, *nothing.values()])
    origin = "the highest score seen; the gold answer scored no more than nothing" if is_known else "unknown"
    return Measure(full={}, default=highest if is_known else None, nothing=nothing, origin=origin)


def _by_task(scored: Iterable[Scored], choose: Callable[[float, float], float]) -> dict[str, float]:
    """One score per task: the largest or the smallest."""
    found: dict[str, float] = {}
    for one in scored:
        if one.score is not None:
            task_id = one.attempt.subject.task.task_id
            found[task_id] = choose(one.score, found.get(task_id, one.score))
    return found


def _is_earned(one: Scored, nothing: Mapping[str, float]) -> bool:
    """Return whether an honest completion earned anything: above 0, or above what an empty one gets."""
    return one.score is not None and (one.score > 0 or one.score > nothing.get(one.attempt.subject.task.task_id, 0.0))
