"""The page: its files in `page/`, a server of them on this machine alone, and a directory that opens without one.

The scripts are plain ones, as browsers refuse to load modules from a directory. There each document is a script that
hands over a text of JSON; escapes stand for all characters beyond ASCII, so that no completion is part of a program.

Every process of the machine may connect to a loopback port, and a page of the web may have its own name lead there
(DNS rebinding). So a request is answered only where its path begins with the secret, and its Host is this server's.
"""

import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Literal

from paceline.checkpoints.run_files import holds_something
from paceline.errors import ConfigError
from paceline.reports.viewer.documents import Documents
from paceline.runtime.connections import BoundedServer, StrictRequests

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
    """The document that loads the rest; `documents`: where its data come from."""
    scripts = "".join(f'<script src="page/{name}" defer></script>\n' for name in SCRIPTS)
    text = asset("page.html").decode()
    for mark, value in (("POLICY", POLICY), ("DOCUMENTS", documents), ("SCRIPTS", scripts)):
        text = text.replace(f"<!--{mark}-->", value)
    return text.encode()


def export(documents: Documents, out: Path, *, on_document: Callable[[int], None] = lambda done: None) -> Path:
    """Write everything below `out` and return the page's path; `on_document` is told how many are written.

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


ADDRESS = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_DATA = re.compile(r"data/([a-z0-9-]{1,80})\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a request gets."""

    status: HTTPStatus
    content_type: str = "text/plain; charset=utf-8"
    body: bytes = b""


def answer_to_stranger(path: str, host: str | None, *, secret: str, port: int) -> Answer | None:
    """The answer to a GET of `path` under the header Host, where it does not show the secret; None: it does."""
    if host not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
        return _refusal(HTTPStatus.MISDIRECTED_REQUEST, "this server answers under its own address only")
    start, slash, _ = path.removeprefix("/").partition("?")[0].partition("/")
    if not hmac.compare_digest(start.encode("utf-8", "replace"), secret.encode()) or not slash:
        return _refusal(HTTPStatus.NOT_FOUND, "take the whole address that `paceline rollouts` printed")
    return None


def answer(documents: Documents, path: str) -> Answer:
    """The answer to a GET of a `path` that shows the secret. No part of it ever names a file."""
    rest = path.removeprefix("/").partition("?")[0].partition("/")[2]
    if rest == "":
        return Answer(status=HTTPStatus.OK, content_type="text/html; charset=utf-8", body=page("server"))
    folder, _, name = rest.partition("/")
    if folder == "page" and name in ASSETS:
        return Answer(status=HTTPStatus.OK, content_type=TYPES[name.rpartition(".")[2]], body=asset(name))
    named = _DATA.fullmatch(rest)
    body = documents.encoded(named[1]) if named else None
    if body is None:
        return _refusal(HTTPStatus.NOT_FOUND, "there is nothing under this address")
    return Answer(status=HTTPStatus.OK, content_type="application/json", body=body)


class PageServer(BoundedServer):
    """Answers until it is shut down."""

    def __init__(self, documents: Documents, port: int) -> None:
        """Listen; `port` 0: on any that is free.

        Raises:
            ConfigError: the port is taken, or not for this user.
        """
        self.documents = documents
        self.secret = secrets.token_urlsafe(16)
        try:
            super().__init__((ADDRESS, port), _Requests)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--port {port} cannot be listened on ({error}); give another one, or 0 for any that is free"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is, with its secret."""
        return f"http://{ADDRESS}:{self.server_port}/{self.secret}/"


class _Requests(StrictRequests):
    server: PageServer
    protocol_version = "HTTP/1.0"  # a connection for each request

    def do_GET(self) -> None:
        refused = answer_to_stranger(
            self.path, self.headers.get("Host"), secret=self.server.secret, port=self.server.server_port
        )
        self.at.is_known = refused is None
        self.at.give(None)
        found = answer(self.server.documents, self.path) if refused is None else refused
        self.send_response(found.status)
        for name, value in {**HEADERS, "Content-Type": found.content_type}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        self.wfile.write(found.body)


def _refusal(status: HTTPStatus, sentence: str) -> Answer:
    return Answer(status=status, body=f"{sentence}\n".encode())
