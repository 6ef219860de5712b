"""`mcp:COMMAND`: the tools of a server that speaks the Model Context Protocol over its standard input and output.

| the server                                      | the observation                                                   |
|-------------------------------------------------|-------------------------------------------------------------------|
| returns text, or resources as text              | the texts, joined by newlines                                     |
| returns structured content alone                | it as JSON                                                        |
| says that the call is an error                  | the text, as a failed call                                        |
| refuses the arguments                           | `Error: NAME failed: ITS MESSAGE`, as a failed call               |
| returns an image, sound or other binary content | nothing: the environment has failed                               |
| ends, hangs or breaks the protocol              | nothing: the environment has failed                               |

Each episode has a server of its own, started at the first call, which finds the episode's seed in the variable
`PACELINE_SEED`. Besides it gets what the package `mcp` takes for safe to inherit: PATH, HOME and their like; the
command `env NAME=VALUE SERVER` gives it more. Its tools are asked for once, before the first step.
"""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

from paceline.base_directory import base_directory
from paceline.chat.call_records import properties_of
from paceline.config.packages import install_command
from paceline.environments.tools import CallError, Tool
from paceline.errors import ConfigError, EnvironmentFailure, first_line

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

START_SECONDS = 60.0
CALL_SECONDS = 600.0
"""Seconds for one call, where nothing else ends the wait before."""
END_SECONDS = 10.0  # Seconds for a server to end: the package closes its input, then kills it, within six
SHOWN_STDERR = 300  # Characters of a server's last words in an error

_DIES_WITH_US = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"  # PR_SET_PDEATHSIG, which outlives exec
    "if os.getppid() == int(sys.argv[1]): os.execvp(sys.argv[2], sys.argv[2:])\n"
)
"""Program that becomes the server, after asking the kernel to kill it with the thread that started it."""

Schema = Mapping[str, Any]
"""Schema of a tool, as chat templates show it."""

Connect = Callable[[int, TextIO], "Client"]
"""Makes a client, which is not connected yet, of an episode's seed and a file for what the server writes to stderr."""


class McpTools:
    """`Toolset` of a server's tools, with a server of its own."""

    def __init__(self, connect: Connect, name: str, listed: Sequence[Schema] | None = None) -> None:
        """`name` is the server's in errors; `listed` are the schemas of its tools, if they are known already."""
        self._connect, self._name = connect, name
        self._server: _Server | None = None
        self._seed, self._is_closed = 0, False
        self._lock = threading.Lock()
        self.tools: Sequence[Tool] = () if listed is None else self._made(listed)

    def begin(self, seed: int) -> None:
        """Start an episode; asks for the tools if they are not known."""
        self._seed = seed
        if not self.tools:
            self.tools = self._made(self._started().schemas)

    def close(self) -> None:
        """End the server; a call that waits for it fails."""
        with self._lock:
            server, self._is_closed = self._server, True
        if server is not None:
            server.close()

    def _made(self, schemas: Sequence[Schema]) -> Sequence[Tool]:
        return [listed_tool(schema["function"], partial(self._call, schema["function"]["name"])) for schema in schemas]

    def _started(self) -> "_Server":
        with self._lock:
            if self._is_closed:
                raise EnvironmentFailure(f"MCP server {self._name}: its episode is over")
            if self._server is None:
                self._server = _Server(partial(self._connect, self._seed), self._name)
            server = self._server
        server.wait()
        return server

    def _call(self, tool: str, /, **arguments: Any) -> str:
        return self._started().call(tool, arguments)


def by_command(command: str) -> Connect:
    """Return what connects to a server that this command starts."""

    def connect(seed: int, log: TextIO) -> "Client":
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        words = ["-S", "-E", "-s", "-c", _DIES_WITH_US, str(os.getpid()), *shlex.split(command)]
        server = StdioServerParameters(
            command=sys.executable, args=words, env={"PACELINE_SEED": str(seed)}, cwd=base_directory()
        )
        return Client(stdio_client(server, errlog=log))

    return connect


def words_of(command: str, *, address: str) -> list[str]:
    """Return the words of a command whose program is there; raises ConfigError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"--environment {address}: the command cannot be read ({error})", remedies=["close its quotes"]
        ) from error
    # a program with a slash is looked for where the server is started, any other on PATH
    program = str(base_directory() / words[0]) if words and "/" in words[0] else "".join(words[:1])
    if shutil.which(program) is None:
        raise ConfigError(
            f"--environment {address}: there is no program {words[0] if words else ''!r}",
            remedies=["check PATH", "give the program's whole path"],
        )
    return words


def check_command(command: str) -> None:
    """Check that the command can be started and that the package is there; nothing is started.

    Raises:
        ConfigError: one of them is missing.
    """
    words_of(command, address=f"mcp:{command}")
    if find_spec("mcp") is None:
        raise ConfigError(
            f"--environment mcp:{command}: the package mcp is not installed", remedies=[install_command("mcp")]
        )


def listed_tools(command: str) -> Sequence[Schema]:
    """Start the server, ask it for the schemas of its tools, and end it.

    Raises:
        ConfigError: it cannot be started, or has no tools.
    """
    try:
        server = _Server(partial(by_command(command), 0), command)
        server.wait()
        server.close()
    except EnvironmentFailure as error:
        raise ConfigError(f"--environment mcp:{command}: {error}", remedies=["try the command in a shell"]) from error
    if not server.schemas:
        raise ConfigError(f"--environment mcp:{command}: the server has no tools", remedies=["check its arguments"])
    return server.schemas


def listed_schema(name: str, description: str, parameters: Mapping[str, Any]) -> Schema:
    """Return the schema of a tool that a server lists, as chat templates show it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def listed_tool(function: Mapping[str, Any], call: Callable[..., Any]) -> Tool:
    """Make a tool of what a server says of it.

    The server checks types, and whether it takes arguments of other names, unless it says that; and which it needs,
    where it does not say so as JSON schemas do.
    """
    parameters = function["parameters"]
    is_schema = isinstance(parameters, Mapping)
    is_closed = is_schema and parameters.get("additionalProperties") is False
    required = parameters.get("required") if is_schema else None
    return Tool(
        name=function["name"],
        call=call,
        arguments=tuple(properties_of(parameters)) if is_closed else None,
        required=tuple(name for name in required if isinstance(name, str))
        if isinstance(required, list | tuple)
        else (),
    )


class _Server:
    """A connection to a server, held by a task in the thread that has all of them."""

    def __init__(self, connect: Callable[[TextIO], "Client"], name: str) -> None:
        """Begin to start the server; see `wait`."""
        self._connect, self._name = connect, name
        self._loop = _event_loop()
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (`_hold` closes it)
        self._ready = Future[tuple["Client", Sequence[Schema]]]()
        self._closing, self._ended = asyncio.Event(), threading.Event()
        self._waiting = set[Future["CallToolResult"]]()
        self._held = asyncio.run_coroutine_threadsafe(self._hold(), self._loop)

    def wait(self) -> None:
        """Wait until it has started and told its tools.

        Raises:
            EnvironmentFailure: it does not start, or ends early.
        """
        try:
            self._client, self.schemas = self._ready.result(START_SECONDS)
        except (Exception, CancelledError) as error:
            failure = self._failure("did not start", error)
            self.close()
            raise failure from error

    async def _hold(self) -> None:
        """Keep the connection for as long as it is wanted: one task must open and close it."""
        try:
            async with self._connect(self._said) as client:
                self._ready.set_result((client, await _schemas(client)))
                await self._closing.wait()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (whatever a library makes of it)
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._ended.set()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its text.

        Raises:
            CallError: the call was wrong, in the server's words.
            EnvironmentFailure: the server ended or hangs, or responded with what is no text.
        """
        from mcp import MCPError
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

        asked = self._client.call_tool(tool, dict(arguments), read_timeout_seconds=CALL_SECONDS)
        waiting = asyncio.run_coroutine_threadsafe(asked, self._loop)
        self._waiting.add(waiting)
        if self._closing.is_set():
            waiting.cancel()
        try:
            result = waiting.result(CALL_SECONDS + END_SECONDS)
        except (Exception, CancelledError) as error:
            if isinstance(error, MCPError) and error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                raise CallError(f"Error: {tool} failed: {first_line(error)}") from error
            raise self._failure(f"failed in {tool}", error) from error
        finally:
            self._waiting.discard(waiting)
        text = _text(result, tool)
        if result.is_error:
            raise CallError(text)
        return text

    def close(self) -> None:
        """End the server with all that waits for it; may be called from any thread, and again."""
        self._loop.call_soon_threadsafe(self._closing.set)
        if not self._ready.done():
            self._held.cancel()
        for waiting in tuple(self._waiting):
            waiting.cancel()
        if self._ended.wait(END_SECONDS):
            self._said.close()

    def _failure(self, what: str, error: BaseException) -> EnvironmentFailure:
        with contextlib.suppress(ValueError):  # closed by another thread
            self._said.seek(0)
            last = " ".join(self._said.read().split())[-SHOWN_STDERR:]
            return EnvironmentFailure(f"MCP server {self._name} {what}: {_reason(error)}{f' ({last})' if last else ''}")
        return EnvironmentFailure(f"MCP server {self._name} {what}: {_reason(error)}")


async def _schemas(client: "Client") -> Sequence[Schema]:
    """Ask for the schemas of all tools."""
    schemas, cursor = list[Schema](), None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            schemas.append(listed_schema(tool.name, tool.description or "", tool.input_schema))
        cursor = page.next_cursor
        if cursor is None:
            return schemas


def _text(result: "CallToolResult", tool: str) -> str:
    """Return the text of a result.

    Raises:
        EnvironmentFailure: a part of it is no text.
    """
    from mcp_types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents

    parts = list[str]()
    for block in result.content:
        if isinstance(block, TextContent):
            parts.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
            parts.append(block.resource.text)
        elif isinstance(block, ResourceLink):
            parts.append(str(block.uri))
        else:
            raise EnvironmentFailure(f"tool {tool}: its result has {block.type} content, but only text can be read")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _reason(error: BaseException) -> str:
    """Return the first line of an error, of the first one in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return "no response in time" if isinstance(error, TimeoutError) else first_line(error)


_LOOPS = dict[int, asyncio.AbstractEventLoop]()
_STARTING = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process for all servers, in a thread that lives as long as the process."""
    with _STARTING:
        if os.getpid() not in _LOOPS:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="mcp", daemon=True).start()
            _LOOPS[os.getpid()] = loop
        return _LOOPS[os.getpid()]
