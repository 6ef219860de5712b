"""Completions as HTML, two by two. Everything a model or a dataset wrote is escaped here."""

from collections.abc import Sequence
from html import escape

from paceline.metrics.definitions import Record
from paceline.reports.format import count, short
from paceline.reports.page.outcome import correct
from paceline.reports.page.reading import value_at
from paceline.reports.page.samples import TextPair, distinctive, is_right

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
