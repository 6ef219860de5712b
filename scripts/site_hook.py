"""What mkdocs calls while it builds the site: adds the pages that are made from the code, and the rest of the nav.

A page of `docs/` that `mkdocs.yml` does not name stands under "More": a new page is never missing, and never hidden.
A link to a file outside `docs/`, which the site does not have, becomes the file's name.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from site_pages import pages

GROUPS = {"Rewards": "rewards/", "Presets": "presets/", "Decisions": "decisions/"}
"""Part of the nav to the folder whose pages it gets."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and name every page in the nav."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    assert config.nav is not None, "mkdocs.yml has a nav"
    for title, below in list(_parts(config.nav)):
        if title in GROUPS:
            below += [path for path in _unnamed(files, config.nav) if path.startswith(GROUPS[title])]
    rest = _unnamed(files, config.nav)
    if rest:
        config.nav.append({"More": rest})
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace links that lead out of `docs/` by their text, and those to the notebook by its page."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        leads_out = posixpath.normpath(posixpath.join(folder, link[2])).startswith("../")
        return link[1] if leads_out else link[0]

    if page.file.src_uri != "tutorial.md":
        markdown = markdown.replace("](tutorial.ipynb)", "](tutorial.md)")
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", shown, markdown)


def _unnamed(files: Files, nav: object) -> list[str]:
    """The pages that a nav does not name."""
    named = set(_paths(nav))
    return [file.src_uri for file in files.documentation_pages() if file.src_uri not in named]


def _parts(nav: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The parts of a nav with what is in them, however deep."""
    for entry in nav:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, list):
                yield title, below
                yield from _parts(below)


def _paths(nav: object) -> Iterator[str]:
    """The pages of a nav, however deep."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from _paths(below)
    elif isinstance(nav, list):
        for entry in nav:
            yield from _paths(entry)
