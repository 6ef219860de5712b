"""One self-contained HTML file about a run: no server, nothing loaded from elsewhere."""

import base64
import hashlib
import os
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline.errors import CheckpointError
from paceline.reports.page import sections
from paceline.reports.page.headline import headline
from paceline.reports.page.reading import RunRecord, read_run

_SECTIONS = (
    sections.alarms,
    sections.learning,
    sections.lengths_and_signal,
    sections.optimisation,
    sections.time,
    sections.held_out_samples,
    sections.training_samples,
    sections.training_groups,
    sections.dropped,
    sections.configuration,
)

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
    """The page as text. The same records give the same bytes."""
    style, script = _asset("page.css"), _asset("page.js")
    # Only this very script may run and nothing may be fetched, whatever text a model managed to put on the page.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_sha256(script)}'"
    body = headline(run) + _TOOLS + "<main>" + "".join(section(run) for section in _SECTIONS) + "</main>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(run.path.resolve().name)} &middot; Paceline</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n{body}\n<footer class="colophon">{_colophon(run)}</footer>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _colophon(run: RunRecord) -> str:
    version = f" {escape(str(run.config['paceline_version']))}" if "paceline_version" in run.config else ""
    ended = run.summary is not None
    when = "" if ended else '<span id="written"></span>'  # by the file's own time: the records have none
    return f"Drawn from the files of {escape(run.path.resolve().name)} by Paceline{version}.{when}"


def _asset(name: str) -> str:
    return files("paceline.reports.page").joinpath(name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
