"""Top of the page: the run's name and state, its verdict, accuracy before and after, and its size."""

from datetime import UTC, datetime
from html import escape

from paceline.errors import INTERRUPTED
from paceline.metrics.comparisons import level_of_best, probability
from paceline.metrics.definitions import Record
from paceline.metrics.learning import Verdict, judge
from paceline.metrics.statistics import Interval
from paceline.reports.format import count, duration, percent, points, short
from paceline.reports.page.figures import Scale
from paceline.reports.page.outcome import AccuracyGain, Form, form_of, outcome, pairs
from paceline.reports.page.reading import RunRecord, value_at
from paceline.reports.page.series import metric, total, total_seconds


def headline(run: RunRecord) -> str:
    """Draw the top of the page."""
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
    result = outcome(run)
    shown = _before_and_after(result) + form_note(form_of(pairs(run))) if result is not None else _rewards(run)
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
    """Say how and when an unfinished run ended, with which exit status, and how to resume it; else nothing."""
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


def _before_and_after(result: AccuracyGain) -> str:
    def side(style: str, when: str, strong: str, below: str) -> str:
        head = f'<span class="when">{when}</span><strong>{strong}</strong>'
        return f'<div class="side {style}">{head}<span>{below}</span></div>'

    def accuracy(style: str, when: str, of: Interval) -> str:
        return side(style, when, percent(of.value), f"95 % interval {100 * of.low:.1f} to {100 * of.high:.1f}")

    numbers = accuracy("from", "before" if result.first_step == 0 else f"step {result.first_step}", result.before)
    if result.after is not None:
        numbers += '<span class="arrow" aria-hidden="true">&rarr;</span>'
        numbers += accuracy("to", f"step {result.last_step}", result.after)
    if (gain := result.difference) is not None:
        spread = f"percentage points, {points(gain.low)} to {points(gain.high)}"
        numbers += side("gain", "difference", points(gain.value), spread).replace("-", "&minus;")
    # tasks that changed sides and the p-value; where an earlier evaluation was higher, what that is worth
    test = ""
    if (changed := result.comparison) is not None:
        sides = f"{count(changed.gained, 'task')} gained, {changed.lost:,} lost"
        test = f"{sides}; exact McNemar test: {probability(changed.p_value)}."
        if result.best_step != result.last_step:
            test += (
                f" Best of {result.looks} evaluations was step {result.best_step}; picking it needs "
                f"p < {level_of_best(result.looks):.2g}."
            )
        test = f'<p class="note">{escape(test)}</p>'
    # both intervals on one axis from 0 to 100 %
    x = Scale(low=0, high=1, start=10, end=990)
    marks = "".join(
        f'<path class="whisker {style}" d="M{x(measured.low):.1f} 14H{x(measured.high):.1f}"/>'
        f'<circle class="{style}" cx="{x(measured.value):.1f}" cy="14" r="7"/>'
        for style, measured in (("from", result.before), ("to", result.after))
        if measured is not None
    )
    return (
        f'<p class="lead">Accuracy on {escape(result.set_name)}, {count(result.num_tasks, "held-out task")}</p>'
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
    """Split the gain into form and other answers, in points that add up; nothing where answers cannot be read."""
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
    """Judge whether the run learns; records without the rules' numbers, as of a damaged file, are left out."""

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
