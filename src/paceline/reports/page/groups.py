"""Whole groups of completions from the run's beginning, middle and end, folded: what the advantages compared."""

from collections.abc import Sequence
from html import escape

from paceline.metrics.definitions import Record
from paceline.reports.format import count, short
from paceline.reports.page.cards import card, prompt_of
from paceline.reports.page.reading import value_at
from paceline.reports.page.samples import by_task, distinctive

GROUPS = 2
"""Groups shown of each moment: enough to see that one is no exception."""


def moments(steps: Sequence[int]) -> list[tuple[str, int]]:
    """The first, the middle and the last of the steps, under these names; of fewer than three, those there are.

    >>> moments([1, 2, 3, 4, 5]), moments([7, 9])
    ([('Early', 1), ('Middle', 3), ('Late', 5)], [('Early', 7), ('Late', 9)])
    """
    if len(steps) < 2:
        return [("Early", step) for step in steps]
    middle = [("Middle", steps[len(steps) // 2])] if len(steps) > 2 else []
    return [("Early", steps[0]), *middle, ("Late", steps[-1])]


def telling(rollouts: Sequence[Record], limit: int = GROUPS) -> list[list[Record]]:
    """The groups whose rewards differ most, as the loss weighs them; of equals the first."""
    groups = by_task(rollouts)
    return sorted(groups, key=_spread, reverse=True)[:limit]


def group_folds(groups: Sequence[Sequence[Record]], *, grader: str) -> str:
    """One fold per group: the prompt and its rewards outside, the completions from the best to the worst inside."""
    questions = distinctive([str(group[0]["prompt"]) for group in groups])
    return "".join(_fold(group, question, grader) for group, question in zip(groups, questions, strict=True))


def _fold(group: Sequence[Record], question: str, grader: str) -> str:
    ordered = sorted(group, key=_reward, reverse=True)
    rewards = ", ".join(_said(one) for one in ordered)
    head = f"{escape(question or str(group[0]['prompt']))}"
    about = f'<span class="note">{count(len(group), "completion")}, rewards {escape(rewards)}</span>'
    names = [f"sample {one['sample']}" if "sample" in one else f"completion {i}" for i, one in enumerate(ordered, 1)]
    cards = "".join(card(one, name, grader) for one, name in zip(ordered, names, strict=True))
    return f'<details class="group"><summary>{head}{about}</summary>{prompt_of(group[0], question)}{cards}</details>'


def _reward(record: Record) -> float:
    reward = value_at(record, "reward")
    return float("-inf") if reward is None else reward


def _said(record: Record) -> str:
    reward = value_at(record, "reward")
    return "none" if reward is None else short(reward)


def _spread(group: Sequence[Record]) -> float:
    rewards = [reward for one in group if (reward := value_at(one, "reward")) is not None]
    if not rewards:
        return 0.0
    mean = sum(rewards) / len(rewards)
    return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
