"""The top of the page: the run's name, what it achieved, and its size in five numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape

from paceline.data.extraction.answers import final_answer
from paceline.data.extraction.thinking import prefills_think, visible_text
from paceline.metrics.comparisons import level_of_best, probability
from paceline.metrics.definitions import Record
from paceline.metrics.intervals import Interval
from paceline.metrics.learning import Verdict, judge
from paceline.reports.format import count, duration, percent, points, short
from paceline.reports.page.accounting import total_seconds
from paceline.reports.page.outcome import AccuracyGain, correct, outcome, pairs
from paceline.reports.page.reading import RunRecord, value_at
from paceline.reports.page.scales import Scale
from paceline.reports.page.series import metric, total

_NUMBER = re.compile(r"[-+]?[0-9]{1,100}(?:\.[0-9]{1,100}|/0*[1-9][0-9]{0,99})?")
"""What `Fraction` reads, and no more digits than an answer has: those of a text without end take it long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Shares of the completions that were graded both times and have a gold answer, before and after."""

    num_completions: int
    right: tuple[float, float]
    """As the grader said."""
    right_leniently: tuple[float, float]
    """Those, and the ones that state the gold answer in any form."""
    marked: tuple[float, float]
    """With an answer in a tag, a box or after `####`, right or wrong."""

    @property
    def gain(self) -> float:
        """Return the gain among answers that the grader called right."""
        return self.right[1] - self.right[0]

    @property
    def gain_by_form(self) -> float:
        """The part of `gain` that a lenient grader would not have seen."""
        return self.gain - (self.right_leniently[1] - self.right_leniently[0])


def form_of(both: Sequence[tuple[Record, Record]]) -> Form | None:
    """From the same tasks' completions before and after; None where no task has a gold answer, as of programs."""
    graded = [
        pair for pair in both if all(correct(one) is not None and isinstance(one.get("answer"), str) for one in pair)
    ]
    if not graded:
        return None

    def shares(of: list[list[bool]]) -> tuple[float, float]:
        before, after = (sum(column) / len(graded) for column in zip(*of, strict=True))
        return before, after

    return Form(
        num_completions=len(graded),
        right=shares([[correct(one) is True for one in pair] for pair in graded]),
        right_leniently=shares([[is_right_leniently(one) for one in pair] for pair in graded]),
        marked=shares([[final_answer(_said(one)) is not None for one in pair] for pair in graded]),
    )


def is_right_leniently(record: Record) -> bool:
    """Graded right, or what it says ends on the gold answer, whatever it is marked with; nothing that it thinks counts.

    Answers are the same where their texts or their numbers are. A grader with more mathematics may call more right, and
    what it calls right is right here.
    """
    if correct(record) is True:
        return True
    found = final_answer(_said(record), plain=True)
    return found is not None and _normal(found) == _normal(str(record["answer"]))


def _said(record: Record) -> str:
    prompt = str(record["prompt"]) if "prompt" in record else ""
    completion = str(record["completion"]) if "completion" in record else ""
    return visible_text(completion, prefilled=prefills_think(prompt))


def _normal(answer: str) -> str | Fraction:
    """A number as its value, `1,200` as `1200`; any other text without case and without spaces around."""
    text = " ".join(answer.split()).rstrip(".").casefold()
    number = text.replace("\N{MINUS SIGN}", "-").replace(",", "").removeprefix("$")
    return Fraction(number) if _NUMBER.fullmatch(number) else text


_ENDS = '<div class="ends" aria-hidden="true"><span>0 %</span><span>100 %</span></div>'


def headline(run: RunRecord) -> str:
    """Name and state of the run, before and after, and the facts below."""
    found = outcome(run)
    shown = _outcome(found) + form_note(form_of(pairs(run))) if found is not None else _reward_only(run)
    identity = " &middot; ".join(
        f"{escape(key)} <b>{escape(str(run.config[key]))}</b>" for key in ("model", "dataset") if key in run.config
    )
    return (
        f'<header class="top"><div class="name"><h1>{escape(run.path.resolve().name)}</h1>{_state(run)}</div>'
        f'<p class="identity">{identity}</p>{verdict_line(run)}{shown}{_facts(run)}</header>'
    )


def _state(run: RunRecord) -> str:
    if run.summary is not None and run.summary.get("finished") is True:
        return '<span class="state done">finished</span>'
    last = run.metrics[-1]["step"] if run.metrics else 0
    planned = f" of {run.config['max_steps']}" if run.config.get("max_steps") else ""
    return f'<span class="state">not finished, step {escape(f"{last}{planned}")}</span>'


def _outcome(found: AccuracyGain) -> str:
    lead = f"Accuracy on {escape(found.set_name)}, {count(found.num_tasks, 'held-out task')}"
    sides = _side("before" if found.first_step == 0 else f"step {found.first_step}", found.before, "from")
    if found.after is None:
        return f'<p class="lead">{lead}</p><div class="numbers">{sides}</div>{_strip(found)}'
    sides += (
        f'<span class="arrow" aria-hidden="true">&rarr;</span>{_side(f"step {found.last_step}", found.after, "to")}'
    )
    return f'<p class="lead">{lead}</p><div class="numbers">{sides}{_gain(found)}</div>{_test(found)}{_strip(found)}'


def _side(when: str, accuracy: Interval, style: str) -> str:
    return (
        f'<div class="side {style}"><span class="when">{when}</span><strong>{percent(accuracy.value)}</strong>'
        f"<span>95 % interval {100 * accuracy.low:.1f} to {100 * accuracy.high:.1f}</span></div>"
    )


def _gain(found: AccuracyGain) -> str:
    gain = found.difference
    if gain is None:
        return ""
    return (
        f'<div class="side gain"><span class="when">difference</span><strong>{points(gain.value)}</strong>'
        f"<span>percentage points, {points(gain.low)} to {points(gain.high)}</span></div>"
    ).replace("-", "&minus;")


def _test(found: AccuracyGain) -> str:
    """Tasks that changed sides and the test's p-value; where an earlier evaluation was higher, what that is worth."""
    changed = found.comparison
    if changed is None:
        return ""
    sides = f"{count(changed.gained, 'task')} gained, {changed.lost:,} lost"
    sentence = f"{sides}; exact McNemar test: {probability(changed.p_value)}."
    if found.best_step != found.last_step:
        sentence += (
            f" Step {found.best_step} was the highest of {found.looks} evaluations; chosen for that, it counts as "
            f"better from p < {level_of_best(found.looks):.2g} on."
        )
    return f'<p class="note">{escape(sentence)}</p>'


def form_note(form: Form | None) -> str:
    """How much of the gain is form, in points that add up; nothing where answers cannot be read."""
    if form is None:
        return ""
    ability = form.gain - form.gain_by_form
    read = (
        f"Read leniently, where an answer counts however it is marked, accuracy went from "
        f"{percent(form.right_leniently[0])} to {percent(form.right_leniently[1])}: of the {points(form.gain)} points, "
        f"{points(form.gain_by_form)} are form and {points(ability)} are other answers. "
        f"{percent(form.marked[0])} of the completions marked an answer before, {percent(form.marked[1])} after."
    )
    return f'<p class="lenient">{escape(read)}</p>'


def _strip(found: AccuracyGain) -> str:
    """Both intervals on one axis from 0 to 100 %."""
    x = Scale(low=0, high=1, start=10, end=990)
    marks = "".join(
        f'<path class="whisker {style}" d="M{x(side.low):.1f} 14H{x(side.high):.1f}"/>'
        f'<circle class="{style}" cx="{x(side.value):.1f}" cy="14" r="7"/>'
        for style, side in (("from", found.before), ("to", found.after))
        if side is not None
    )
    rail = '<path class="rail" d="M10 14H990"/>'
    return f'<svg class="strip" viewBox="0 0 1000 28" aria-hidden="true">{rail}{marks}</svg>{_ENDS}'


def _reward_only(run: RunRecord) -> str:
    rewards = [value for value in metric(run.metrics, "reward_mean").values if value is not None]
    if not rewards:
        return '<p class="lead">No step has finished yet.</p>'
    return (
        '<p class="lead">Mean training reward; nothing was measured on held-out tasks</p><div class="numbers">'
        f'<div class="side from"><span class="when">first</span><strong>{short(rewards[0])}</strong></div>'
        '<span class="arrow" aria-hidden="true">&rarr;</span>'
        f'<div class="side to"><span class="when">newest</span><strong>{short(rewards[-1])}</strong></div></div>'
    )


def _facts(run: RunRecord) -> str:
    tokens, seconds = total(run.metrics, "tokens_generated"), total_seconds(run)
    facts = (
        ("steps", f"{len(run.metrics):,}"),
        ("completions", f"{total(run.metrics, 'rollouts'):,.0f}"),
        ("tokens generated", short(tokens)),
        ("wall time", duration(seconds)),
    )
    return (
        '<dl class="facts">' + "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts) + "</dl>"
    )


_OF_A_STEP = ("learning_rate", "updates", "prompts", "groups_zero_deviation")
_OF_AN_EVALUATION = ("accuracy", "ci_low", "ci_high")


def verdict_of(run: RunRecord) -> Verdict:
    """The word and why; steps and evaluations without the rules' numbers, as of a damaged file, are left out."""
    return judge(
        [record for record in run.metrics if _is_step(record)],
        [record for record in run.evals if all(value_at(record, key) is not None for key in _OF_AN_EVALUATION)],
    )


def verdict_line(run: RunRecord) -> str:
    """The verdict for the top of the page; nothing before there is a step."""
    if not run.metrics:
        return ""
    found = verdict_of(run)
    but = f"; but {escape('; but '.join(found.but))}" if found.but else ""
    style = {"yes": "yes", "no": "no", "too early": "early"}[found.word]
    return f'<p class="verdict {style}">Learning: <b>{found.word}</b>, because {escape(found.because)}{but}.</p>'


def _is_step(record: Record) -> bool:
    """Return True for a step with all numbers of the rules; reward and gradient norm may be null."""
    numbers = all(value_at(record, key) is not None for key in _OF_A_STEP)
    nullable = all(
        key in record and record[key] in (None, value_at(record, key)) for key in ("reward_mean", "grad_norm")
    )
    return numbers and nullable and isinstance(record.get("alarms", []), list)
