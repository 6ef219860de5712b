"""What the full score of a function is, and what is more than nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.rewards.audit.subjects import Attempt
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.scoring.scores import score
from paceline.types import Completion

CHARACTERS = 4_000_000  # Limit on the total length of the completions of one call


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """An attempt with what it earned."""

    attempt: Attempt
    score: float | None
    """None: not this function's task, or it failed."""
    failed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Grader:
    """A reward function by its name, with the seconds that one call of it may take."""

    name: str
    function: RewardFunction
    timeout: float

    def grade(self, attempts: Sequence[Attempt]) -> tuple[list[Scored], str | None]:
        """Every attempt's score, and the first failure, where there is one.

        Raises:
            RewardError: the function does not return one number or None per completion.
        """
        scored, failure = list[Scored](), None
        for part in _parts(attempts):
            # Token ids are the bytes of a text, as those of the prompt are; reward functions see no logprobs.
            completions = [
                Completion(
                    token_ids=tuple(attempt.text.encode("utf-8", "surrogatepass")),
                    logprobs=(),
                    finish_reason="stop",
                    text=attempt.text,
                    policy_version=0,
                )
                for attempt in part
            ]
            tasks = [attempt.subject.task for attempt in part]
            scores = score({self.name: self.function}, tasks, completions, timeout=self.timeout)
            failed = set(scores.failed[self.name])
            for place, (attempt, value) in enumerate(zip(part, scores.values[self.name], strict=True)):
                scored.append(Scored(attempt=attempt, score=value, failed=place in failed))
            failure = failure or scores.culprit
        return scored, failure


def _parts(attempts: Sequence[Attempt]) -> Iterator[list[Attempt]]:
    """In calls of a bounded size: a list of token ids takes eight times the room of its text."""
    part, length = list[Attempt](), 0
    for attempt in attempts:
        if part and length + len(attempt.text) > CHARACTERS:
            yield part
            part, length = [], 0
        part.append(attempt)
        length += len(attempt.text)
    if part:
        yield part


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
    # An honest completion earned something above 0, or above what an empty one gets.
    earned = [
        one
        for one in honest
        if one.score is not None and one.score > min(0.0, nothing.get(one.attempt.subject.task.task_id, 0.0))
    ]
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
