"""One self-contained HTML file about a run: no server, nothing loaded from elsewhere.

At its top are the run's name and state, its verdict, accuracy before and after, and its size. `curves.py` has the
sections with charts.
"""

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline.checkpoints.journal import read_journal
from paceline.checkpoints.run_directory import IMAGES
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from paceline.errors import INTERRUPTED, CheckpointError, ConfigError
from paceline.metrics.alarms import RULES
from paceline.metrics.comparisons import level_of_best, probability
from paceline.metrics.definitions import Record
from paceline.metrics.learning import Verdict, judge
from paceline.metrics.statistics import Interval
from paceline.objective.formula import Line, objective
from paceline.reports.format import count, duration, percent, points, short
from paceline.reports.images import is_image_name, thumbnail
from paceline.reports.page import curves
from paceline.reports.page.figures import Scale
from paceline.reports.page.outcome import AccuracyGain, Form, fates, first_set, form_of, outcome, pairs
from paceline.reports.page.reading import RunRecord, dropped_counts, metric, read_run, total, total_seconds, value_at
from paceline.runtime.whole_files import write_whole


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


_MOST = 8
"""Most stretches of an alarm that are named; the rest are counted."""
_MOST_IMAGES = 8
"""Images on the page, at most: 2 MB of it."""


def stretches(metrics: Sequence[Record]) -> list[tuple[str, int, int]]:
    """Alarms with the first and the last of the steps in a row at which they held, in the order of the first."""
    ended: list[tuple[str, int, int]] = []
    open_since: dict[str, int] = {}
    last = 0
    for record in [*metrics, {"step": 0, "alarms": []}]:  # the end closes what is still active
        alarms = record.get("alarms")
        active = [name for name in alarms if isinstance(name, str)] if isinstance(alarms, list) else []
        over = [name for name in open_since if name not in active]
        ended += [(name, open_since.pop(name), last) for name in over]
        last = record["step"]
        for name in active:
            open_since.setdefault(name, last)
    return sorted(ended, key=lambda stretch: stretch[1])


def alarm_list(run: RunRecord) -> str:
    """Alarms that were active, at which steps, what they mean and what to do; empty without any."""
    by_name: dict[str, list[str]] = {}
    for name, first, last in stretches(run.metrics):
        by_name.setdefault(name, []).append(f"step {first:,}" if first == last else f"steps {first:,} to {last:,}")
    rules, items = {rule.name: rule for rule in RULES}, ""
    for name, parts in by_name.items():
        more = f" and {count(len(parts) - _MOST, 'more stretch', 'more stretches')}" if len(parts) > _MOST else ""
        # a newer version's rule may be unknown here
        about = f"<p>{escape(rules[name].meaning)}; {escape(rules[name].remedy)}.</p>" if name in rules else ""
        items += f"<li><b>{escape(name)}</b>: {', '.join(parts[:_MOST])}{more}{about}</li>"
    return f'<ul class="alarms">{items}</ul>' if items else ""


def completions(run: RunRecord) -> str:
    """How many held-out tasks changed sides, and the command that shows every completion."""
    if not run.rollout_files and not run.completion_files:
        return ""
    counts = fates(pairs(run))
    tiles = "".join(
        f'<div class="tile"><b>{number:,}</b><span>{words}</span></div>' for words, number in counts.items()
    )
    lead = f"<p>Tasks of {escape(str(first_set(run)))}, before and after training:</p>"
    held_out = f'{lead}<div class="tiles">{tiles}</div>' if any(counts.values()) else ""
    directory = str(run.config.get("output_dir") or run.path.resolve().name)
    command = f"<code>{escape(f'paceline rollouts {shlex.quote(directory)}')}</code>"
    return f"{held_out}<p>To search and read every completion, with its group and its tokens: {command}</p>"


def images(run: RunRecord) -> str:
    """Small copies of the first images of the newest step; nothing for a run without images."""
    entries, _ = read_journal(run.path / "journal.jsonl")
    named = entries[max(entries)].get("images") if entries else None
    hashes = [name for name in named if is_image_name(name)] if isinstance(named, list) else []
    if not hashes:
        return ""
    shown = ""
    for number, name in enumerate(hashes[:_MOST_IMAGES], start=1):
        copy = thumbnail(run.path / IMAGES, name)
        picture = f'<img src="{copy["source"]}" alt="image {number}">' if "source" in copy else ""
        caption = f"{copy['width']} &times; {copy['height']}" if "source" in copy else escape(str(copy["missing"]))
        shown += f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
    some = count(min(len(hashes), _MOST_IMAGES), "image")
    lead = f"<p>The first {some} of {len(hashes):,} in the prompts of step {max(entries):,}:</p>"
    return f'{lead}<div class="images">{shown}</div>'


def dropped(run: RunRecord) -> str:
    """Everything that was filtered, cut, failed or unreadable, counted."""
    rows = "".join(
        f'<tr{"" if number else " class=zero"}><th scope="row">{escape(what)}</th><td>{number:,.0f}</td>'
        f"<td>{percent(number / of) if of else ''}</td></tr>"
        for what, number, of in dropped_counts(run)
    )
    lead = "<p>Nothing leaves a run without being counted. Shares are of all prompts or all completions.</p>"
    return f'{lead}<table class="counts"><tbody>{rows}</tbody></table>'


def configuration(run: RunRecord) -> str:
    """The objective as a formula, and the resolved configuration, folded."""
    if not run.config_text:
        return ""
    try:
        lines = objective(build_config(parse_yaml(run.config_text, "config.yaml")))
        formula = f"<h3>The objective, minimised</h3>{as_list(lines)}"
    except ConfigError:  # a damaged file, or one of a version with other options: the page still shows the file
        formula = ""
    options = count(len(run.config), "line")
    return f"{formula}<details><summary>config.yaml, {options}</summary><pre>{escape(run.config_text)}</pre></details>"


_INDEXED = re.compile(r"\b([A-Za-z]+)_t\b")
_NAMES = re.compile(r"\b(A|R|r|p|q|tau|rho)\b")
_TIMES, _MINUS = " * ", re.compile(r"(?<![\w)])-(?=[\w(])| - ")
_GREEK = {"tau": "&tau;", "rho": "&rho;"}


def as_list(lines: Iterable[Line]) -> str:
    """One term and its definition per line. The text stays as it is; only signs and letters are set otherwise.

    >>> as_list([Line(symbol="kl_t", text="2 * log(p_t / q_t) - A")])  # doctest: +NORMALIZE_WHITESPACE
    '<dl class="formula"><dt>kl<sub>t</sub></dt><dd>2 &middot; log(<i>p<sub>t</sub></i> / <i>q<sub>t</sub></i>)
    &minus; <i>A</i></dd></dl>'
    """

    def italic(match: re.Match[str]) -> str:
        name = match[0]
        if match.string[: match.start()].endswith(("<i>", "<", "&")):  # set already, or a letter of a tag or an entity
            return name
        return f"<i>{_GREEK.get(name, name)}</i>"

    rows = ""
    for line in lines:
        symbol = _INDEXED.sub(r"\1<sub>t</sub>", escape(line.symbol))
        text = _MINUS.sub(lambda match: " &minus; " if match[0] == " - " else "&minus;", escape(line.text))
        text = _INDEXED.sub(r"<i>\1<sub>t</sub></i>", text.replace(_TIMES, " &middot; "))
        rows += f"<dt>{symbol}</dt><dd>{_NAMES.sub(italic, text)}</dd>"
    return f'<dl class="formula">{rows}</dl>'


# Shown by the script, without which they would do nothing.
TOOLS = (
    '<div class="tools" role="group" aria-label="Charts" hidden><div id="zooming">'
    '<button type="button" id="reset" disabled>Show all steps</button><output id="range"></output>'
    '<span id="how">Drag over a chart to zoom into these steps in all of them; double click or Escape shows all. '
    "Keys: arrows, Home and End move over steps, + and - zoom.</span></div>"
    '<button type="button" id="theme" data-theme="system">Theme: system</button></div>'
)


def write_report(run: Path) -> Path:
    """Write `report.html` into the run directory `run` and return its path; a running run keeps running.

    Raises:
        CheckpointError: `run` holds no run, or cannot be written.
    """
    page = render(read_run(run))
    report = run / "report.html"
    try:
        write_whole(report, page.encode("utf-8", "replace"))
    except OSError as error:
        raise CheckpointError(
            f"{report} cannot be written ({error.strerror}); make the run directory writable or copy it elsewhere"
        ) from error
    return report


def render(run: RunRecord) -> str:
    """The page as text; a section with nothing to say is left out. The same records give the same bytes."""
    sections = (
        ("Alarms", alarm_list(run)),
        ("Learning", curves.learning(run)),
        ("Completions and signal", curves.lengths_and_signal(run)),
        ("Conversations", curves.conversations(run)),
        ("Optimisation", curves.optimisation(run)),
        ("Time", curves.time(run)),
        ("Completions", completions(run)),
        ("Images", images(run)),
        ("Dropped or failed", dropped(run)),
        ("Configuration", configuration(run)),
    )
    main = "".join(f"<section><h2>{escape(title)}</h2>{body}</section>" for title, body in sections if body)
    name = escape(run.path.resolve().name)
    version = f" {escape(str(run.config['paceline_version']))}" if "paceline_version" in run.config else ""
    # the script says when it was drawn, by the file's own time: the records have none
    when = "" if run.has_finished or run.broken_off is not None else '<span id="written"></span>'
    footer = f"Drawn from the files of {name} by Paceline{version}.{when}"
    return document(f"{name} &middot; Paceline", f"{headline(run)}{TOOLS}<main>{main}</main>", footer)


def document(title: str, body: str, footer: str) -> str:
    """A page around its content, all of which is HTML already, with the style and the script of charts."""
    folder = files("paceline.reports.page")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # Only this very script may run and nothing may be fetched, whatever text a model managed to put on the page.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n{body}\n<footer class="colophon">{footer}</footer>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
