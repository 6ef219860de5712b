"""The page: its files as they are in `page/`, and what a browser may do with it.

The scripts are plain ones that are loaded in order, and no modules, which browsers refuse to load from a directory.
"""

from importlib.resources import files
from typing import Literal

SCRIPTS = (
    *("source.js", "columns.js", "filters.js", "search.js", "words.js", "values.js"),
    *("difference.js", "list.js", "tokens.js", "detail.js", "controls.js", "main.js"),
)
"""In the order in which they build on each other."""
ASSETS = ("page.css", *SCRIPTS)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""Only the page's own files are loaded and run, whatever text a model managed to put into a completion."""


def asset(name: str) -> bytes:
    """One of `ASSETS`."""
    return files("paceline.reports.viewer").joinpath("page", name).read_bytes()


def page(documents: Literal["server", "files"]) -> bytes:
    """The document that loads the rest; `documents`: where its data come from."""
    scripts = "".join(f'<script src="page/{name}" defer></script>\n' for name in SCRIPTS)
    text = asset("page.html").decode()
    for mark, value in (("POLICY", POLICY), ("DOCUMENTS", documents), ("SCRIPTS", scripts)):
        text = text.replace(f"<!--{mark}-->", value)
    return text.encode()
