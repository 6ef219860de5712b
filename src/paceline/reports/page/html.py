"""One self-contained HTML file about a run: no server, nothing loaded from elsewhere."""

import base64
import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline.checkpoints.run_files import write_whole
from paceline.config.building import build_config
from paceline.config.flat_yaml import parse_yaml
from paceline.errors import CheckpointError, ConfigError
from paceline.metrics.alarms import RULES
from paceline.metrics.definitions import Record
from paceline.objective.formula import Line, objective
from paceline.reports.format import count, percent
from paceline.reports.page import curves
from paceline.reports.page.headline import headline
from paceline.reports.page.outcome import fates, first_set, pairs
from paceline.reports.page.reading import RunRecord, read_run
from paceline.reports.page.series import dropped_counts

_MOST = 8
"""Most stretches of an alarm that are named; the rest are counted."""


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
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n{body}\n<footer class="colophon">{footer}</footer>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
