"""The page: its files in `page/`, a server of them on this machine alone, and a directory that opens without one.

The scripts are plain ones, as browsers refuse to load modules from a directory. There each document is a script that
hands over a text of JSON; escapes stand for all characters beyond ASCII, so that no completion is part of a program.
"""

import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Literal

from typing_extensions import override

from paceline.checkpoints.run_files import holds_something
from paceline.errors import ConfigError
from paceline.http.events import HttpRefusal
from paceline.http.server import LOOPBACK, LOOPBACK_NAMES, HttpExchange, HttpResponse, HttpServer
from paceline.reports.viewer.documents import Documents

SCRIPTS = (
    *("source.js", "columns.js", "filters.js", "search.js", "words.js", "values.js"),
    *("difference.js", "list.js", "tokens.js", "conversation.js", "detail.js", "controls.js", "main.js"),
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
    """Return the document that loads the rest; `documents`: where its data come from."""
    scripts = "".join(f'<script src="page/{name}" defer></script>\n' for name in SCRIPTS)
    text = asset("page.html").decode()
    for mark, value in (("POLICY", POLICY), ("DOCUMENTS", documents), ("SCRIPTS", scripts)):
        text = text.replace(f"<!--{mark}-->", value)
    return text.encode()


def export(documents: Documents, out: Path, *, on_document: Callable[[int], None] = lambda done: None) -> Path:
    """Write everything below `out` and return the page's path; `on_document` is called with the number written.

    Raises:
        ConfigError: `out` holds something already, or cannot be written.
    """
    try:
        if holds_something(out):
            raise ConfigError(f"--static {out} is not empty; give a directory that does not exist yet")
        for folder in (out / "page", out / "data"):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ASSETS:
            (out / "page" / name).write_bytes(asset(name))
        images = 0
        for done, name in enumerate(documents.names(), start=1):
            document = LEFT_OUT if name.startswith("image-") and images > MOST_IMAGE_BYTES else documents.get(name)
            assert document is not None  # it is one of the names
            images += len(str(document.get("source", "")))
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


MOST_IMAGE_BYTES = 64 << 20
"""Bytes of images in a directory, at most and but for the last one: about a thousand of them."""
LEFT_OUT: dict[str, object] = {
    "missing": f"left out, as the images of a directory take at most {MOST_IMAGE_BYTES >> 20} MiB; `paceline rollouts` "
    "without --static shows it"
}
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_DATA = re.compile(r"data/([a-z0-9-]{1,80})\.json")


class PageServer(HttpServer):
    """Shows the page until it is shut down, to whoever has its whole address: the secret is its first part."""

    def __init__(self, documents: Documents, port: int) -> None:
        """Listen; `port` 0: on any that is free.

        Raises:
            ConfigError: the port is taken, or not for this user.
        """
        self.documents = documents
        self.secret = secrets.token_urlsafe(16)
        try:
            super().__init__((LOOPBACK, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--port {port} cannot be listened on ({error}); give another one, or 0 for any that is free"
            ) from error
        self.hosts = [f"{name}:{self.server_port}" for name in LOOPBACK_NAMES]

    @property
    def url(self) -> str:
        """Address of the page, with its secret."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"

    @override
    def authorize(self, exchange: HttpExchange) -> bool:
        start, slash, _ = exchange.route.removeprefix("/").partition("/")
        if not hmac.compare_digest(start.encode("utf-8", "replace"), self.secret.encode()) or not slash:
            raise HttpRefusal("take the whole address that `paceline rollouts` printed", status=HTTPStatus.NOT_FOUND)
        return True

    @override
    def respond(self, exchange: HttpExchange) -> None:
        if exchange.command != "GET":
            raise HttpRefusal("a page is only read", status=HTTPStatus.NOT_IMPLEMENTED)
        content_type, body = content(self.documents, exchange.route.removeprefix("/").partition("/")[2])
        exchange.send(HttpResponse(content_type=content_type, body=body, headers=HEADERS))

    @override
    def error_response(self, refusal: HttpRefusal) -> HttpResponse:
        return replace(super().error_response(refusal), headers=HEADERS)


def content(documents: Documents, path: str) -> tuple[str, bytes]:
    """Return type and content of a `path` below the secret, which never names a file; raises HttpRefusal."""
    if path == "":
        return "text/html; charset=utf-8", page("server")
    folder, _, name = path.partition("/")
    if folder == "page" and name in ASSETS:
        return TYPES[name.rpartition(".")[2]], asset(name)
    named = _DATA.fullmatch(path)
    body = documents.encoded(named[1]) if named else None
    if body is None:
        raise HttpRefusal("there is nothing under this address", status=HTTPStatus.NOT_FOUND)
    return "application/json", body
