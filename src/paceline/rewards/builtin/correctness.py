"""Right or wrong by the gold answer: what every function that compares answers shares."""

from collections.abc import Callable, Sequence

from paceline.data.extraction.thinking import OPEN_THINK, prefill, prefills_think, visible_text
from paceline.errors import RewardError
from paceline.rewards.maths.equality import EqualityVerdict
from paceline.rewards.maths.verdicts import begin_verdicts, math_outcomes, unverifiable
from paceline.types import Task

Find = Callable[[str, str], str | None]
"""From the prompt and the completion to the answer that it states; None: it states none."""

Correctness = float | RewardError | None
"""1.0 or 0.0; why the grader failed; None: no gold answer to compare with."""

WRONG_ANSWER = "none of this is an answer"
JUNK = ("", "I am not sure.", "<answer></answer>", r"\boxed{}", "####")
"""Completions that state no answer, whatever the question."""
_THOUGHT = "Worked out."


def said(prompt: str, completion: str) -> str:
    """The completion without its thinking, which the prompt may have opened."""
    return visible_text(completion, prefilled=prefills_think(prompt))


def correctness(
    find: Find, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[str | None]
) -> list[Correctness]:
    """1.0 where the answer found equals the gold answer, else 0.0; None where there is no gold answer."""
    pairs = _pairs(find, prompts, completions, answers)
    outcomes = iter(math_outcomes([pair for pair in pairs if isinstance(pair, tuple)]))
    return [_judged(next(outcomes)) if isinstance(pair, tuple) else pair for pair in pairs]


def _judged(outcome: EqualityVerdict | RewardError) -> Correctness:
    return outcome if isinstance(outcome, RewardError) else float(outcome.equal)


def begin_correctness(
    find: Find, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[str | None]
) -> None:
    """Start on the comparisons of `correctness` that take time; it returns at once."""
    pairs = _pairs(find, prompts, completions, answers)
    begin_verdicts([pair for pair in pairs if isinstance(pair, tuple)])


def unverifiable_answers(answers: Sequence[str | None]) -> list[int]:
    """Positions of gold answers that nothing but the same text would equal."""
    places = [place for place, answer in enumerate(answers) if not is_blank(answer)]
    return [places[one] for one in unverifiable([answers[place] or "" for place in places])]


def is_blank(answer: str | None) -> bool:
    """Return whether a row has no gold answer."""
    return answer is None or not answer.strip()


def stating(statement: Callable[[str], str]) -> Callable[[Task], str | None]:
    """The completion of a task that states its gold answer so, after some thinking; None without gold answer."""
    return lambda task: (
        None if task.answer is None or is_blank(task.answer) else after_thought(task, statement(task.answer))
    )


def misstating(statement: Callable[[str], str]) -> Callable[[Task], tuple[str, ...]]:
    """Completions that state a wrong answer so, or none."""
    return lambda task: (*JUNK, after_thought(task, statement(WRONG_ANSWER)))


def after_thought(task: Task, statement: str) -> str:
    """A completion that thinks, within `<think>` that the prompt may have opened, and then states this."""
    opening = "" if prefill(task.prompt) else OPEN_THINK
    return f"{opening}{_THOUGHT}</think>{statement}"


def _pairs(
    find: Find, prompts: Sequence[str], completions: Sequence[str], answers: Sequence[str | None]
) -> list[tuple[str, str] | float | None]:
    """Per completion what is to be compared, gold first; a number or None where there is nothing to compare."""
    rows = zip(prompts, completions, answers, strict=True)
    return [_pair(None if is_blank(gold) else gold, find(prompt, completion)) for prompt, completion, gold in rows]


def _pair(gold: str | None, found: str | None) -> tuple[str, str] | float | None:
    if gold is None:
        return None
    return 0.0 if found is None else (gold, found)
