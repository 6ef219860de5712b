"""Completions to show: early beside late on prompts as alike as the run has, right ones and wrong ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

from paceline.errors import RewardError
from paceline.metrics.definitions import Record
from paceline.reports.format import count, short
from paceline.reports.page.outcome import Fates, correct
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


LONGEST_HALF = 2000
"""Characters of a completion's beginning and of its end that are shown."""
_VERDICTS = {True: ("right", "&#10003; right"), False: ("wrong", "&#10007; wrong"), None: ("none", "not graded")}


def pair_cards(pairs: Sequence[TextPair], *, before: str, after: str, grader: str) -> str:
    """Pairs of completions under the headings `before` and `after`; a shared prompt is shown once."""
    prompts = [str(record["prompt"]) for pair in pairs for record in (pair.before, pair.after)]
    short_prompts = distinctive(prompts)
    articles = []
    for index, pair in enumerate(pairs):
        questions = short_prompts[2 * index], short_prompts[2 * index + 1]
        shared = prompt_of(pair.before, questions[0]) if pair.same_task else ""
        cards = "".join(
            card(record, heading, grader, "" if pair.same_task else prompt_of(record, question))
            for record, heading, question in zip((pair.before, pair.after), (before, after), questions, strict=True)
        )
        articles.append(f'<article class="pair">{shared}<div class="two">{cards}</div></article>')
    return "".join(articles)


def prompt_of(record: Record, question: str) -> str:
    """The question, its gold answer, and the whole prompt folded where it is more than the question."""
    whole = str(record["prompt"])
    answer = record.get("answer")
    gold = f'<span class="gold">answer <b>{escape(str(answer))}</b></span>' if answer is not None else ""
    fold = (
        f"<details><summary>whole prompt</summary><pre>\n{escape(whole)}</pre></details>" if question != whole else ""
    )
    return f'<div class="prompt"><p class="question">{escape(question or whole)}</p>{gold}{fold}</div>'


def card(record: Record, heading: str, grader: str, prompt: str = "") -> str:
    """One completion with its verdict, its rewards and its size."""
    verdict = correct(record) if "correct" in record else is_right(record, grader)
    style, words = _VERDICTS[verdict]
    text = _cut(str(record["completion"]))
    body = escape(text) if text.strip() else '<em class="blank">(empty)</em>'
    return (
        f'<section class="card {style}"><header><h4>{escape(heading)}</h4><span class="pill">{words}</span></header>'
        f'{prompt}<pre tabindex="0">\n{body}</pre><footer>{_facts(record)}</footer></section>'
    )


def _cut(text: str) -> str:
    """Beginning and end, where the answer stands, of a text that is too long to be one of many on a page."""
    left_out = len(text) - 2 * LONGEST_HALF
    if left_out <= 0:
        return text
    return f"{text[:LONGEST_HALF]}\n[... {left_out:,} characters ...]\n{text[-LONGEST_HALF:]}"


def _facts(record: Record) -> str:
    facts = [
        f"{name} {short(value)}" for name in ("reward", "advantage") if (value := value_at(record, name)) is not None
    ]
    rewards = record["rewards"] if "rewards" in record and isinstance(record["rewards"], dict) else {}
    if len(rewards) > 1:
        facts += [f"{name} {_score(value_at(rewards, name))}" for name in rewards]
    length = value_at(record, "completion_tokens")
    if length is not None:
        facts.append(count(length, "token"))
    if "finish_reason" in record:
        facts.append("cut at the limit" if record["finish_reason"] == "length" else "ended by itself")
    if record.get("dropped") is not None:
        facts.append(f"not trained on: {record['dropped']}".replace("_", " "))
    return "".join(f"<span>{escape(fact)}</span>" for fact in [*facts, *_notes(record)])


def _notes(record: Record) -> list[str]:
    """What graders said of their scores: several of a training completion, one of a held-out one."""
    notes = record["notes"] if "notes" in record and isinstance(record["notes"], dict) else {}
    said = [f"{name}: {note}" for name, note in notes.items()]
    return [*said, str(record["note"])] if record.get("note") is not None else said


def _score(value: float | None) -> str:
    return "none" if value is None else short(value)
