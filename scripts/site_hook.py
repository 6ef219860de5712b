"""What mkdocs calls while it builds the site: adds the pages that are made from the code, and the rest of the nav.

A page of `docs/` that `mkdocs.yml` does not name stands under "More": a new page is never missing, and never hidden.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from site_pages import pages

GROUPS = {"Rewards": "rewards/", "Presets": "presets/"}
"""Part of the nav to the folder of the generated pages that it gets."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages, and name every page in the nav."""
    made = pages()
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    assert config.nav is not None, "mkdocs.yml has a nav"
    for entry in config.nav:
        for title, below in entry.items():
            if title in GROUPS:
                below += [path for path in made if path.startswith(GROUPS[title])]
    named = set(_paths(config.nav))
    rest = [file.src_uri for file in files.documentation_pages() if file.src_uri not in named]
    if rest:
        config.nav.append({"More": rest})
    return files


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
