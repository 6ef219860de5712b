"""The top of the page: the run's name, what it achieved, and its size in five numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from html import escape

from paceline.chat.thinking import prefills_think, visible_text
from paceline.data.extraction.answers import final_answer
from paceline.errors import INTERRUPTED
from paceline.metrics.comparisons import level_of_best, probability
from paceline.metrics.definitions import Record
from paceline.metrics.intervals import Interval
from paceline.metrics.learning import Verdict, judge
from paceline.reports.format import count, duration, percent, points, short
from paceline.reports.page.accounting import total_seconds
from paceline.reports.page.figures import Scale
from paceline.reports.page.outcome import AccuracyGain, correct, outcome, pairs
from paceline.reports.page.reading import RunRecord, value_at
from paceline.reports.page.series import metric, total

_NUMBER = re.compile(r"[-+]?[0-9]{1,100}(?:\.[0-9]{1,100}|/0*[1-9][0-9]{0,99})?")
"""What `Fraction` reads, and no more digits than an answer has: those of a text without end take it long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """Shares of the completions that were graded both times and have a gold answer, before and after."""

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
    """From the same tasks' completions before and after; None where no task has a gold answer, as of programs, or where
    environments say what is right."""
    graded = [
        pair
        for pair in both
        if all(
            correct(one) is not None and isinstance(one.get("answer"), str) and "judged_by" not in one for one in pair
        )
    ]
    if not graded:
        return None

    def shares(of: list[list[bool]]) -> tuple[float, float]:
        before, after = (sum(column) / len(graded) for column in zip(*of, strict=True))
        return before, after

    return Form(
        right=shares([[correct(one) is True for one in pair] for pair in graded]),
        right_leniently=shares([[is_right_leniently(one) for one in pair] for pair in graded]),
        marked=shares([[final_answer(_said(one)) is not None for one in pair] for pair in graded]),
    )


def is_right_leniently(record: Record) -> bool:
    """Graded right, or what it says ends on the gold answer, whatever it is marked with; nothing that it thinks counts.

    A completion that was cut at the limit has no end, so there only a marked answer counts.
    Answers are the same where their texts or their numbers are. A grader with more mathematics may call more right, and
    what it calls right is right here.
    """
    if correct(record) is True:
        return True
    is_cut = "finish_reason" in record and record["finish_reason"] == "length"
    found = final_answer(_said(record), plain=not is_cut)
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


def headline(run: RunRecord) -> str:
    """Name and state of the run, its verdict, before and after, and its size."""
    name, last = escape(run.path.resolve().name), run.metrics[-1]["step"] if run.metrics else 0
    planned = f" of {run.config['max_steps']}" if run.config.get("max_steps") else ""
    if run.has_finished:
        state = '<span class="state done">finished</span>'
    else:
        word, style = ("running", "") if run.broken_off is None else (_end_word(run), " broken")
        state = f'<span class="state{style}">{word}, step {escape(f"{last}{planned}")}</span>'
    identity = " &middot; ".join(
        f"{escape(key)} <b>{escape(str(run.config[key]))}</b>" for key in ("model", "dataset") if key in run.config
    )
    verdict = ""
    if run.metrics:
        judged = verdict_of(run)
        but = f"; but {escape('; but '.join(judged.but))}" if judged.but else ""
        style = {"yes": "yes", "no": "no", "too early": "early"}[judged.word]
        verdict = (
            f'<p class="verdict {style}">Learning: <b>{judged.word}</b>, because {escape(judged.because)}{but}.</p>'
        )
    found = outcome(run)
    shown = _before_and_after(found) + form_note(form_of(pairs(run))) if found is not None else _rewards(run)
    facts = "".join(
        f"<div><dt>{label}</dt><dd>{text}</dd></div>"
        for label, text in (
            ("steps", f"{len(run.metrics):,}"),
            ("completions", f"{total(run.metrics, 'rollouts'):,.0f}"),
            ("tokens generated", short(total(run.metrics, "tokens_generated"))),
            ("wall time", duration(total_seconds(run))),
        )
    )
    return (
        f'<header class="top"><div class="name"><h1>{name}</h1>{state}</div>'
        f'<p class="identity">{identity}</p>{ending_band(run)}{verdict}{shown}<dl class="facts">{facts}</dl></header>'
    )


def _end_word(run: RunRecord) -> str:
    if run.ending is None or run.ending.is_finished:
        return "broken off"
    return "interrupted" if run.ending.status == INTERRUPTED else "failed"


def ending_band(run: RunRecord) -> str:
    """How a run that did not finish ended, when, with which exit status, and how it goes on; else nothing."""
    sentence, ending = run.broken_off, run.ending
    if sentence is None:
        return ""
    if ending is None or ending.is_finished:
        return f'<div class="ended"><p>{escape(sentence)}.</p></div>'
    when = f"{datetime.fromtimestamp(ending.time, UTC):%Y-%m-%d %H:%M:%S} UTC"
    facts = f"{when}, after step {ending.step:,}, exit status {ending.status}"
    if ending.resume is not None:
        facts += f"; to go on: {ending.resume.strip('`')}"
    trace = ""
    if ending.traceback is not None:
        trace = f'<details><summary>where</summary><pre tabindex="0">\n{escape(ending.traceback)}</pre></details>'
    return f'<div class="ended"><p>{escape(sentence)}</p><p class="note">{escape(facts)}</p>{trace}</div>'


def _before_and_after(found: AccuracyGain) -> str:
    def side(style: str, when: str, strong: str, below: str) -> str:
        head = f'<span class="when">{when}</span><strong>{strong}</strong>'
        return f'<div class="side {style}">{head}<span>{below}</span></div>'

    def accuracy(style: str, when: str, of: Interval) -> str:
        return side(style, when, percent(of.value), f"95 % interval {100 * of.low:.1f} to {100 * of.high:.1f}")

    numbers = accuracy("from", "before" if found.first_step == 0 else f"step {found.first_step}", found.before)
    if found.after is not None:
        numbers += '<span class="arrow" aria-hidden="true">&rarr;</span>'
        numbers += accuracy("to", f"step {found.last_step}", found.after)
    if (gain := found.difference) is not None:
        spread = f"percentage points, {points(gain.low)} to {points(gain.high)}"
        numbers += side("gain", "difference", points(gain.value), spread).replace("-", "&minus;")
    # tasks that changed sides and the p-value; where an earlier evaluation was higher, what that is worth
    test = ""
    if (changed := found.comparison) is not None:
        sides = f"{count(changed.gained, 'task')} gained, {changed.lost:,} lost"
        test = f"{sides}; exact McNemar test: {probability(changed.p_value)}."
        if found.best_step != found.last_step:
            test += (
                f" Best of {found.looks} evaluations was step {found.best_step}; picking it needs "
                f"p < {level_of_best(found.looks):.2g}."
            )
        test = f'<p class="note">{escape(test)}</p>'
    # both intervals on one axis from 0 to 100 %
    x = Scale(low=0, high=1, start=10, end=990)
    marks = "".join(
        f'<path class="whisker {style}" d="M{x(one.low):.1f} 14H{x(one.high):.1f}"/>'
        f'<circle class="{style}" cx="{x(one.value):.1f}" cy="14" r="7"/>'
        for style, one in (("from", found.before), ("to", found.after))
        if one is not None
    )
    return (
        f'<p class="lead">Accuracy on {escape(found.set_name)}, {count(found.num_tasks, "held-out task")}</p>'
        f'<div class="numbers">{numbers}</div>{test}'
        f'<svg class="strip" viewBox="0 0 1000 28" aria-hidden="true"><path class="rail" d="M10 14H990"/>{marks}</svg>'
        '<div class="ends" aria-hidden="true"><span>0 %</span><span>100 %</span></div>'
    )


def _rewards(run: RunRecord) -> str:
    rewards = [value for value in metric(run.metrics, "reward_mean").values if value is not None]
    if not rewards:
        return '<p class="lead">No step has finished yet.</p>'
    return (
        '<p class="lead">Mean training reward; nothing was measured on held-out tasks</p><div class="numbers">'
        f'<div class="side from"><span class="when">first</span><strong>{short(rewards[0])}</strong></div>'
        '<span class="arrow" aria-hidden="true">&rarr;</span>'
        f'<div class="side to"><span class="when">newest</span><strong>{short(rewards[-1])}</strong></div></div>'
    )


def form_note(form: Form | None) -> str:
    """How much of the gain is form, in points that add up; nothing where answers cannot be read."""
    if form is None:
        return ""
    read = (
        f"Read leniently, where an answer counts however it is marked, accuracy went from "
        f"{percent(form.right_leniently[0])} to {percent(form.right_leniently[1])}: of the {points(form.gain)} points, "
        f"{points(form.gain_by_form)} are form and {points(form.gain - form.gain_by_form)} are other answers. "
        f"{percent(form.marked[0])} of the completions marked an answer before, {percent(form.marked[1])} after."
    )
    return f'<p class="lenient">{escape(read)}</p>'


def verdict_of(run: RunRecord) -> Verdict:
    """The word and why; steps and evaluations without the rules' numbers, as of a damaged file, are left out."""

    def has(record: Record, *keys: str) -> bool:
        return all(value_at(record, key) is not None for key in keys)

    def may_lack(record: Record, key: str) -> bool:
        return key in record and record[key] in (None, value_at(record, key))

    steps = [
        record
        for record in run.metrics
        if has(record, "learning_rate", "updates", "prompts", "groups_zero_deviation")
        and may_lack(record, "reward_mean")
        and may_lack(record, "grad_norm")
        and isinstance(record.get("alarms"), list)
    ]
    return judge(steps, [record for record in run.evals if has(record, "accuracy", "ci_low", "ci_high")])
