"""The page as a directory that opens from disk: every document becomes a script that hands over a text of JSON.

A page that was opened from a directory may load scripts from there, and nothing else. So that a completion never is
part of a program, a script holds one call with two texts in ASCII: escapes stand for all other characters.
"""

import json
from collections.abc import Callable
from pathlib import Path

from paceline.errors import ConfigError
from paceline.reports.viewer.documents import Documents
from paceline.reports.viewer.pages import ASSETS, asset, page


def export(documents: Documents, out: Path, *, on_document: Callable[[int], None] = lambda done: None) -> Path:
    """Write everything below `out` and return the page's path; `on_document` is told how many are written.

    Raises:
        ConfigError: `out` holds something already, or cannot be written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--static {out} is not empty; give a directory that does not exist yet")
        for folder in (out / "page", out / "data"):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ASSETS:
            (out / "page" / name).write_bytes(asset(name))
        for done, name in enumerate(documents.names(), start=1):
            document = documents.get(name)
            assert document is not None  # it is one of the names
            (out / "data" / f"{name}.js").write_bytes(script(name, document))
            on_document(done)
        # last: a page is there only where all that it asks for is
        (out / "index.html").write_bytes(page("files"))
    except OSError as error:
        raise ConfigError(f"--static {out} cannot be written ({error.strerror}); give another directory") from error
    return out / "index.html"


def script(name: str, document: dict[str, object]) -> bytes:
    """A document as a call of the page's `receive`.

    >>> script("texts-rollouts-000001", {"completions": ["</script>é"]})
    b'receive("texts-rollouts-000001", "{\\\\"completions\\\\":[\\\\"</script>\\\\u00e9\\\\"]}");\\n'
    """
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return f"receive({json.dumps(name)}, {json.dumps(text)});\n".encode("ascii")
