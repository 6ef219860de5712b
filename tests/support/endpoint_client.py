"""A client of the endpoint without a library: one connection for each request, which may be closed early."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Client:
    """What a program of the tests asks with."""

    base_url: str
    api_key: str

    def send(
        self, path: str, body: Any, headers: Mapping[str, str] = {}, method: str = "POST"
    ) -> http.client.HTTPConnection:
        """Send a request and return its connection, which has an answer some time; `body` bytes go as they are."""
        where = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, where.path + path, data, {"Authorization": f"Bearer {self.api_key}", **headers})
        return connection

    def ask(self, path: str, body: Any, headers: Mapping[str, str] = {}, method: str = "POST") -> tuple[int, Any]:
        """Return status and body of the answer."""
        connection = self.send(path, body, headers, method)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, json.loads(data)

    def chat(self, messages: list, **fields: Any) -> dict[str, Any]:
        """Return the answer to messages; raises Refused where they are."""
        status, body = self.ask("/chat/completions", {"model": "policy", "messages": messages, **fields})
        if status != 200:
            raise Refused(body["error"]["message"])
        return body

    def say(self, messages: list, **fields: Any) -> dict[str, Any]:
        """Add the model's message to messages, and return it."""
        message = self.chat(messages, **fields)["choices"][0]["message"]
        messages.append(message)
        return message


class Refused(Exception):
    """An answer that is an error."""


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


def system(content: str) -> dict[str, Any]:
    """A system message."""
    return {"role": "system", "content": content}


def result(call: Mapping[str, Any], content: str) -> dict[str, Any]:
    """The result of a call of the model."""
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def tool(name: str, **properties: str) -> dict[str, Any]:
    """The schema of a tool with arguments of these types."""
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}
