"""Completions to show: early beside late on prompts as alike as the run has, right ones and wrong ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline.errors import RewardError
from paceline.metrics.definitions import Record
from paceline.reports.page.outcome import Fates
from paceline.reports.page.reading import value_at
from paceline.rewards.parameters import base_name
from paceline.rewards.resolving import right_from

_WANTED = ((False, True), (True, True), (False, False), (True, False))
"""Right before, right after: the kinds of pairs, the most telling first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPair:
    """Two completions to read side by side."""

    before: Record
    after: Record

    @property
    def same_task(self) -> bool:
        """Return True if both answer the same prompt."""
        return bool(self.before["task_id"] == self.after["task_id"])


def training_pairs(early: Sequence[Record], late: Sequence[Record], grader: str, limit: int = 4) -> list[TextPair]:
    """Rollouts of an early and a late step, at most `limit` prompts of each and as many kinds as there are."""
    matched = _matched(by_task(early), by_task(late))
    chosen: list[TextPair] = []
    for kind in _WANTED * limit:
        found = next(((b, a) for b, a in matched if _has(b, kind[0], grader) and _has(a, kind[1], grader)), None)
        if found is not None and len(chosen) < limit:
            matched.remove(found)
            chosen.append(TextPair(before=_first(found[0], kind[0], grader), after=_first(found[1], kind[1], grader)))
    return chosen


def held_out_pairs(fates: Fates) -> list[TextPair]:
    """The same tasks before and after: some that were fixed, and one of each other kind."""
    shown = (*fates.fixed[:3], *fates.broken[:1], *fates.still_wrong[:1], *fates.still_right[:1])
    return [TextPair(before=before, after=after) for before, after in shown]


def is_right(record: Record, grader: str) -> bool | None:
    """By the function that grades evaluations where it scored this rollout, else by the first that did.

    A function's score is right from where evaluation by it would count it so; None: no function scored it.
    """
    rewards = record["rewards"] if "rewards" in record and isinstance(record["rewards"], dict) else {}
    for name in (grader, *rewards):
        score = value_at(rewards, name)
        if score is not None:
            return score >= _right_from(name)
    return None


@lru_cache
def _right_from(name: str) -> float:
    try:
        return right_from(name)
    except RewardError:  # of a run of another version, whose function took other parameters
        return right_from(base_name(name))


def distinctive(prompts: Sequence[str]) -> list[str]:
    """Prompts without the beginning and end that all of them share, cut at lines and template marks only.

    >>> distinctive(["Be brief.\\n<user>How much is 1 + 2?<end>", "Be brief.\\n<user>How much is 3 * 4?<end>"])
    ['How much is 1 + 2?', 'How much is 3 * 4?']
    """
    if len(set(prompts)) < 2:
        return list(prompts)
    shared = _shared_start(prompts)
    start = max(shared.rfind("\n"), shared.rfind(">")) + 1
    rests = [prompt[start:] for prompt in prompts]
    tail = _shared_start([rest[::-1] for rest in rests])
    end = max(tail.rfind("\n"), tail.rfind("<")) + 1
    return [rest[: len(rest) - end].strip() for rest in rests]


def _shared_start(texts: Sequence[str]) -> str:
    # What the smallest and the largest text share, all between them share too.
    first, last = min(texts), max(texts)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def by_task(records: Iterable[Record]) -> list[list[Record]]:
    """Rollouts of the same task together, in the order of the tasks' first ones."""
    groups: dict[object, list[Record]] = {}
    for record in records:
        groups.setdefault(record["task_id"], []).append(record)
    return list(groups.values())


def _matched(early: list[list[Record]], late: list[list[Record]]) -> list[tuple[list[Record], list[Record]]]:
    """Each early prompt with the late prompt most like it; each late prompt once."""
    free, matched = list(late), []
    for group in early:
        if free:
            best = max(free, key=lambda other: _likeness(group[0], other[0]))
            free.remove(best)
            matched.append((group, best))
    return matched


def _likeness(one: Record, other: Record) -> float:
    """Above 1 for the same task, else the share of words that two prompts have in common."""
    if one["task_id"] == other["task_id"]:
        return 2.0
    words, others = (set(str(record["prompt"]).split()) for record in (one, other))
    return len(words & others) / max(1, len(words | others))


def _has(group: Sequence[Record], right: bool, grader: str) -> bool:
    return any(is_right(record, grader) is right for record in group)


def _first(group: Sequence[Record], right: bool, grader: str) -> Record:
    return next(record for record in group if is_right(record, grader) is right)
