"""A judge's service on this machine that answers as a test says, over real sockets."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
BLOCK = re.compile(r"\[begin (\w+) ([^\]]+)\]\n(.*?)\n\[end \1\]", re.DOTALL)
USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def said(content: object, *, finish_reason: str = "stop", **message: object) -> Body:
    """A response of the chat interface; what is no text is written as JSON."""
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": USAGE}


def score(number: int) -> Body:
    return said({"reason": "so it is", "score": number})


def texts(body: Body) -> dict[str, str]:
    """The blocks of a request, by name."""
    return {name: text for _, name, text in BLOCK.findall(body["messages"][1]["content"])}


class ScriptedJudge:
    """`respond` gets the number of the call, from 0, and its body; it returns a status, a body and headers, or does
    all itself with the handler that it gets."""

    def __init__(self, respond: Callable[[int, Body], Any], *, port: int = 0, models: int = 200) -> None:
        self.bodies: list[Body] = []
        self.keys: list[str | None] = []
        self.released = threading.Event()
        lock, judge = threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(models, {"data": [{"id": "tiny"}]})

            def do_POST(self) -> None:
                assert self.path == "/v1/chat/completions"
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(judge.bodies)
                    judge.bodies.append(body)
                    judge.keys.append(self.headers.get("Authorization"))
                given = respond(number, body)
                if callable(given):
                    given(self)
                elif isinstance(given, dict):
                    self.reply(200, given)
                else:
                    self.reply(*given)

            def reply(self, status: int, body: object, **headers: str) -> None:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Say nothing of a caller that has hung up."""

        self.server = Server(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def __enter__(self) -> "ScriptedJudge":
        return self

    def __exit__(self, *raised: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def asked(self) -> Counter[str]:
        """How often each text was asked about."""
        return Counter(json.dumps(body["messages"]) for body in self.bodies)
