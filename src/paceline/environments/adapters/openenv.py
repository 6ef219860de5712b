"""`openenv:URL(parameter=value, ...)`, `openenv:PACKAGE(...)`: an environment of OpenEnv, on a server or served here.

`PACKAGE` is an installed environment. Its application `PACKAGE.server.app:app`, or the one that `openenv:module:NAME`
or `openenv:file.py:NAME` names, is served in each conversation's own process, on a free port of this machine. The
parameters are given to `reset`, and the episode's seed with them.

| an action has                         | the action of a turn                                                        |
|---------------------------------------|-----------------------------------------------------------------------------|
| the name of a tool and its arguments  | each of its calls, as in `environments/tools.py`; without one it is the end |
| one field of text                     | all of the turn, without thinking                                           |
| one field that is one of some words   | its last word that is one of them, in either case                           |
| one field of a number                 | its last number                                                             |
| several fields, or another one        | its last JSON object                                                        |

Fields with a default are left out where another is needed.

| the action                    | what the model reads                                    | reward of the turn |
|-------------------------------|---------------------------------------------------------|--------------------|
| is carried out                | the observation: one field as it is, several with names | that of the step   |
| ends the episode              | the same; the episode is done                           | that of the step   |
| cannot be read, or is refused | `That is no action.` and its form; counted, and no step | 0                  |
| fails, or gets no response    | nothing: the environment has failed                     | none               |

The episode's reward is the sum of the turns', 0 without any. Messages of the protocol have no ids, so a connection on
which a response is late is never used again: the next response would be that one.
"""

import functools
import json
import math
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from paceline.chat.thinking import visible_text
from paceline.environments import AgentTurn, Observation
from paceline.environments.adapters import Adapter, Parameters, seed_of
from paceline.environments.builtin.games import behind_prompt, last_number, said
from paceline.environments.builtin.mcp import listed_schema, listed_tool
from paceline.environments.tools import CallError, Functions, ToolEnvironment
from paceline.errors import ConfigError, EnvironmentFailure, first_line
from paceline.http.client import HttpCallError, HttpClient
from paceline.runtime.own_code import own_module

HOST = "127.0.0.1"
CALL_SECONDS = 600.0
"""Seconds for one response of a server, where nothing else ends the wait before."""
LARGEST_SCHEMA = 16 << 20  # Bytes
END_SECONDS = 10.0  # Seconds for a server of this process to end
NO_ACTION = "That is no action."
TOOL_FIELDS = {"type", "tool_name", "arguments"}
"""Fields of an action that calls a tool."""


class OpenEnvSession:
    """A connection to a server, of one episode."""

    def __init__(self, server: Any) -> None:
        """`server`: its address, or an application to serve."""
        from openenv.core.generic_client import GenericEnvClient

        self._server = None if isinstance(server, str) else ServedApplication(server)
        self._url = server if self._server is None else self._server.url
        self._client = GenericEnvClient(base_url=self._url, message_timeout_s=CALL_SECONDS).sync()

    def action_schema(self) -> Mapping[str, Any]:
        """Ask for the JSON schema of an action, references resolved; its properties are those that a turn may set."""
        address = f"{self._url.rstrip('/')}/schema"
        try:
            reply = HttpClient(self._url).call(
                address, seconds=CALL_SECONDS, limit=LARGEST_SCHEMA, follow_redirects=True
            )
            if not reply.is_success or reply.body is None:
                raise HttpCallError(f"status {reply.status}", was_sent=True)
            schema = json.loads(reply.body)["action"]
        except (HttpCallError, ValueError, KeyError) as error:
            raise EnvironmentFailure(f"the server {self._url} does not say what an action is ({error})") from error
        kinds = {f"#/$defs/{name}": definition for name, definition in schema.get("$defs", {}).items()}
        fields = {
            name: {**kinds.get(field.get("$ref"), {}), **field}
            for name, field in schema.get("properties", {}).items()
            if name != "metadata"
        }
        return {**schema, "properties": fields}

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the package's client and return its result.

        Raises:
            CallError: the server refuses an action as invalid.
            EnvironmentFailure: it fails, or does not respond.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            return getattr(self._client, method)(*arguments, **named)
        except RuntimeError as error:  # the server's own words
            if "VALIDATION_ERROR" in str(error):
                raise CallError(NO_ACTION) from error
            reason = first_line(error)
        except (OSError, TimeoutError, ConnectionClosed) as error:
            reason = f"the server {self._url} does not respond ({first_line(error)})"
        # a full one says so, or closes before that is read
        remedy = "; give it room for all conversations of a step (max_concurrent_envs)" if method == "reset" else ""
        raise EnvironmentFailure(f"{reason}{remedy}")

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Ask for the tools; returns their schemas as chat templates show them."""
        listed = self.ask("step", {"type": "list_tools"}).observation["tools"]
        return [listed_schema(tool["name"], tool["description"], tool["input_schema"]) for tool in listed]

    def close(self) -> None:
        """End the connection, and the server that is served for it."""
        with ExitStack() as stack:
            if self._server is not None:
                stack.callback(self._server.close)
            self._client.close()


class ServedApplication:
    """An application that is served on a free port of this machine, in a thread."""

    def __init__(self, application: Any) -> None:
        import uvicorn

        self._socket = socket.create_server((HOST, 0))  # it listens from here on: the client need not wait
        self.url = f"http://{HOST}:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(application, log_config=None, log_level="critical"))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="openenv", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(END_SECONDS)
        self._socket.close()


class ActionForm:
    """How an action is said in words, by the schema of actions."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        fields: Mapping[str, Any] = schema["properties"]
        needed = [name for name in fields if name in schema.get("required", ())] or list(fields)
        self._name = needed[0] if len(needed) == 1 else ""
        field = fields.get(self._name, {})
        words = field.get("enum", ())
        self._words = {word.lower(): word for word in words if isinstance(word, str)}
        self._kind = "word" if self._words and len(self._words) == len(words) else field.get("type", "object")
        about = f": {field['description']}" if "description" in field else "."
        names = ", ".join(f"{name} ({_about(fields[name])})" for name in needed)
        self.instruction = {
            "string": f"Action: a text, {self._name}{about}",
            "word": f"Actions: {', '.join(words)}.",
            "integer": f"Action: a whole number, {self._name}{about}",
            "number": f"Action: a number, {self._name}{about}",
        }.get(self._kind, f"Action: a JSON object with {names}.")

    def read(self, text: str) -> Mapping[str, Any] | None:
        """Return the action that a text means; None: it means none."""
        if self._kind == "string":
            return {self._name: text} if text else None
        if self._kind == "word":
            longest = sorted(map(re.escape, self._words), key=len, reverse=True)
            matches: Sequence[Any] = re.findall(rf"(?<!\w)(?:{'|'.join(longest)})(?!\w)", text.lower())
            return {self._name: self._words[matches[-1]]} if matches else None
        if self._kind == "integer":
            number = last_number(text)
            return None if number is None else {self._name: number}
        if self._kind == "number":
            matches = re.findall(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", text)
            value = float(matches[-1]) if matches else math.inf
            return {self._name: value} if math.isfinite(value) else None
        return last_object(text)


def last_object(text: str) -> Mapping[str, Any] | None:
    """Return the last JSON object of a text; None if there is none.

    >>> last_object('{"a": 1} or rather {"a": {"b": 2}}'), last_object("{a}")
    ({'a': {'b': 2}}, None)
    """
    latest, at, decoder = None, text.find("{"), json.JSONDecoder()
    while at >= 0:
        try:
            latest, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # no object, or one in more others than Python reads
            end = at + 1
        at = text.find("{", end)
    return latest


def _about(field: Mapping[str, Any]) -> str:
    kind = str(field.get("type", "any value"))
    return f"{kind}: {field['description']}" if "description" in field else kind


def shown(observation: Mapping[str, Any]) -> str:
    """Return an observation as text: its only field as it is, several with their names; what is null says nothing.

    >>> shown({"board": "x.o", "hint": None}), shown({"board": "x.o", "moves": [2]})
    ('x.o', 'board: x.o\\nmoves: [2]')
    """
    fields = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in observation.items()
        if value is not None
    }
    return "\n".join(fields.values() if len(fields) == 1 else (f"{name}: {text}" for name, text in fields.items()))


class OpenEnvSteps:
    """`Environment` around a session whose actions are said in words, or are calls of tools."""

    def __init__(self, server: Any, parameters: Parameters) -> None:
        self._server, self._parameters = server, parameters
        self._session: OpenEnvSession | None = None
        self._form: ActionForm | None = None
        self._tools: ToolEnvironment | None = None
        """None: actions are said in words."""
        self._gained: float | None = None
        self._is_done = False
        """Rewards of the turn's steps, and whether one of them has ended the episode."""
        self._total = 0.0

    def begin(self, task: Mapping[str, Any], seed: int) -> str | None:
        """Reset; returns what is seen first, and the form of an action that is said in words."""
        with ExitStack() as stack:
            stack.callback(self.close)
            self._session = session = OpenEnvSession(self._server)
            schema = session.action_schema()
            first = session.ask("reset", **{**self._parameters, "seed": seed_of(task, seed)})
            lines = [shown(first.observation)]
            if takes_tools(schema):
                functions = Functions(())
                functions.tools = [
                    listed_tool(tool["function"], functools.partial(self._call, tool["function"]["name"]))
                    for tool in session.tools()
                ]
                self._tools = ToolEnvironment([functions])
                self._tools.begin(task, seed)
            else:
                self._form = ActionForm(schema)
                lines.append(self._form.instruction)
            stack.pop_all()
        text = "\n".join(filter(None, lines))
        return behind_prompt(task, text) if text else None

    def observe(self, turn: AgentTurn) -> Observation:
        """Take a step, or one for each call, as the tables at the top of this file say."""
        self._gained = None
        if self._tools is not None:
            observation = self._tools.observe(turn)
            assert isinstance(observation, Observation)
            return replace(observation, reward=self._gained, done=observation.done or self._is_done)
        assert self._form is not None
        action = self._form.read(visible_text(turn.content).strip())
        try:
            if action is None:
                raise CallError(NO_ACTION)
            text = shown(self._step(action))
        except CallError as error:
            return said(f"{error} {self._form.instruction}", calls=1, failed_calls=1)
        return said(text, reward=self._gained, done=self._is_done, calls=1)

    def close(self) -> float:
        """End the session; returns the sum of the rewards."""
        if self._session is not None:
            self._session.close()
        return self._total

    def _step(self, action: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take a step and note its reward; returns the observation."""
        assert self._session is not None
        result = self._session.ask("step", action)
        if result.reward is not None:
            self._gained = (self._gained or 0.0) + float(result.reward)
            self._total += float(result.reward)
        self._is_done = self._is_done or bool(result.done)
        observation: Mapping[str, Any] = result.observation
        return observation

    def _call(self, name: str, /, **arguments: Any) -> Any:
        observation = self._step({"type": "call_tool", "tool_name": name, "arguments": arguments})
        if (error := observation.get("error")) is not None:
            raise CallError(f"Error: {name} failed: {error['message']}")
        value = observation.get("result")
        return value["data"] if isinstance(value, Mapping) and "data" in value else value


def takes_tools(schema: Mapping[str, Any]) -> bool:
    """Return True if actions are calls of tools: they have no field but those of a call."""
    return set(schema["properties"]) <= TOOL_FIELDS


def _server_of(name: str) -> Any:
    """Return the address of a server, or the application of an installed environment."""
    if "://" in name:
        if urlsplit(name).scheme not in ("http", "https"):
            raise ConfigError("the address of a server must begin with http:// or https://")
        return name
    from fastapi import FastAPI

    where, _, attribute = name.rpartition(":") if ":" in name else (f"{name}.server.app", "", "app")
    module = own_module(where, label=f"its application {where}:{attribute}", error=ConfigError)
    if not hasattr(module, attribute):
        raise ConfigError(f"there is no {attribute!r} in {where}; name its application as module:NAME")
    application = getattr(module, attribute)
    return application if isinstance(application, FastAPI) else application()


def load(name: str, parameters: Parameters) -> Callable[[], OpenEnvSteps]:
    """Return what makes the episodes of an environment; see `adapters.Load`."""
    server = _server_of(name)
    return lambda: OpenEnvSteps(server, parameters)


def tools(name: str, parameters: Parameters) -> Sequence[Mapping[str, Any]]:
    """Return the schemas of its tools; empty: actions are said in words."""
    session = OpenEnvSession(_server_of(name))
    try:
        return session.tools() if takes_tools(session.action_schema()) else ()
    finally:
        session.close()


ADAPTER = Adapter(package="openenv-core", example="http://localhost:8000", load=load, tools=tools)
