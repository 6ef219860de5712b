"""Completions to scores, at the border where a reward function may fail."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.rewards.audit.attempts import Attempt
from paceline.rewards.function import RewardFunction
from paceline.rewards.scoring.scores import score
from paceline.types import Completion

CHARACTERS = 4_000_000
"""Limit on the total length of the completions of one call."""


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
            some, why = self._grade(part)
            scored += some
            failure = failure or why
        return scored, failure

    def _grade(self, attempts: Sequence[Attempt]) -> tuple[list[Scored], str | None]:
        tasks = [attempt.subject.task for attempt in attempts]
        completions = [_completion(attempt.text) for attempt in attempts]
        scores = score({self.name: self.function}, tasks, completions, timeout=self.timeout)
        failed = set(scores.failed[self.name])
        scored = [
            Scored(attempt=attempt, score=value, failed=place in failed)
            for place, (attempt, value) in enumerate(zip(attempts, scores.values[self.name], strict=True))
        ]
        return scored, scores.culprit


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


def _completion(text: str) -> Completion:
    """Its token ids are the bytes of the text, as those of the prompt are; reward functions see no logprobs."""
    token_ids = tuple(text.encode("utf-8", "surrogatepass"))
    return Completion(token_ids=token_ids, logprobs=(), finish_reason="stop", text=text, policy_version=0)
