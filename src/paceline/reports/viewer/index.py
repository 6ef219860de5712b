"""All columns of a run to one object for the page: numbers in columns, texts that repeat themselves once."""

from collections.abc import Iterable, Mapping, Sequence

from paceline.reports.page.samples import distinctive
from paceline.reports.viewer.columns import CompletionColumns
from paceline.reports.viewer.suspicion import RULES

LABEL = 160
"""Characters of a prompt in the list."""
DIGITS = 6
"""Decimals of a number in the index; the values of tokens keep all."""

REASONS: Mapping[str, str] = {
    "zero_deviation": "All rewards of its group are equal, so no completion is better than another: the group counts "
    "in the step's averages and has no gradient.",
    "filtered": "The mean of its group lies outside --filter-range: the group is no part of the step.",
    "surplus": "Its group was sampled in excess (--oversampling), and the step was full without it.",
    "no_reward": "No reward function gave it a number, so it is not trained on.",
    "reward_failed": "A reward function failed on it, so its rewards are not known and it is not trained on; a failed "
    "grader is no wrong answer.",
    "truncated": "It was cut at the greatest length, and --mask-truncated leaves such completions out.",
}
"""Why a completion was dropped, in the words of the page."""


def index_of(parts: Sequence[CompletionColumns], marks: Sequence[int]) -> dict[str, object]:
    """What the page lists and filters. `marks` has, of each completion in order, the rules of `RULES` that hold."""
    tasks = {pair: at for at, pair in enumerate(dict.fromkeys(_tasks(parts)))}
    finish, dropped = _Words(), _Words()
    names = list(dict.fromkeys(name for part in parts for name in part.of_functions))
    return {
        "sets": list(dict.fromkeys(part.part.set_name for part in parts)),
        "parts": [
            {
                "key": part.part.key,
                "set": part.part.set_name,
                "step": part.part.step,
                "groups": len(part.sizes),
                "rows": len(part.rewards),
            }
            for part in parts
        ],
        "tasks": [task for task, _ in tasks],
        "labels": [_label(text) for text in distinctive([prompt for _, prompt in tasks])],
        "group_task": [tasks[pair] for pair in _tasks(parts)],
        "group_size": [size for part in parts for size in part.sizes],
        "reward": _rounded(value for part in parts for value in part.rewards),
        "advantage": _rounded(value for part in parts for value in part.advantages),
        "tokens": [count for part in parts for count in part.tokens],
        "finish": [finish.number(word) for part in parts for word in part.finish],
        "dropped": [-1 if word is None else dropped.number(word) for part in parts for word in part.dropped],
        "marks": list(marks),
        "functions": {
            name: _rounded(
                value for part in parts for value in part.of_functions.get(name, (None,) * len(part.rewards))
            )
            for name in names
        },
        "finish_words": finish.words,
        "dropped_words": dropped.words,
        "dropped_reasons": [REASONS.get(word, "") for word in dropped.words],
        "rules": [list(rule) for rule in RULES.items()],
        "unreadable": sum(part.unreadable for part in parts),
    }


class _Words:
    """Numbers for words, from 0 in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    @property
    def words(self) -> list[str]:
        return list(self._numbers)


def _tasks(parts: Sequence[CompletionColumns]) -> Iterable[tuple[str, str]]:
    return (pair for part in parts for pair in zip(part.tasks, part.prompts, strict=True))


def _label(text: str) -> str:
    # what a template puts around the question is left out already; a few of its marks may remain
    return " ".join(text[: 4 * LABEL].split())[:LABEL]


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, DIGITS) for value in values]
