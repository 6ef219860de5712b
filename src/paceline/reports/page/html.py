"""One self-contained HTML file about a run: no server, nothing loaded from elsewhere."""

import base64
import hashlib
import os
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline.errors import CheckpointError
from paceline.reports.page import curves, samples
from paceline.reports.page.headline import headline
from paceline.reports.page.outcome import first_set
from paceline.reports.page.reading import RunRecord, read_run
from paceline.reports.page.sections import alarm_list, configuration, dropped

# Shown by the script, without which they would do nothing.
_TOOLS = (
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
    report, temporary = run / "report.html", run / ".report.html.new"
    try:
        temporary.write_bytes(page.encode("utf-8", "replace"))
        os.replace(temporary, report)
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
        ("Optimisation", curves.optimisation(run)),
        ("Time", curves.time(run)),
        (f"Held-out tasks, before and after: {first_set(run)}", samples.held_out_samples(run)),
        ("Training completions, early and late", samples.training_samples(run)),
        ("Groups of completions", samples.training_groups(run)),
        ("Dropped or failed", dropped(run)),
        ("Configuration", configuration(run)),
    )
    main = "".join(f"<section><h2>{escape(title)}</h2>{body}</section>" for title, body in sections if body)
    name = escape(run.path.resolve().name)
    version = f" {escape(str(run.config['paceline_version']))}" if "paceline_version" in run.config else ""
    # the script says when it was drawn, by the file's own time: the records have none
    when = "" if run.summary is not None else '<span id="written"></span>'
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
        f"<title>{name} &middot; Paceline</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n{headline(run)}{_TOOLS}<main>{main}</main>\n"
        f'<footer class="colophon">Drawn from the files of {name} by Paceline{version}.{when}</footer>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
