"""From the addresses of `--environment` to environments: built-in names, and code of the user's own.

Tools are put together into one environment, called `tools` if there are several; `NAME=ADDRESS` gives another name.
Nothing here imports torch, but for schemas of the user's own tools, which come last.
"""

import functools
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from paceline.config.reading import is_code
from paceline.environments import Environment, EnvironmentSpec
from paceline.environments.builtin import calculator, guess, nim, search
from paceline.environments.builtin import mcp as servers
from paceline.environments.builtin import python as interpreters
from paceline.environments.objects import ObjectEnvironment, tool_methods
from paceline.environments.schemas import check_tool, tool_schema
from paceline.environments.tools import Functions, ToolEnvironment, Toolset
from paceline.errors import ConfigError
from paceline.runtime.own_code import file_of_code, nearest, own_function

FLAG = "--environment"
TOOLS = "tools"
"""Name of an environment of several tools."""
MOST_NUMBER = 1_000_000  # Largest N of a game
SEVERAL = "give several environments, or tools that belong apart, names: NAME=ADDRESS"

Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One address: a tool, or several that belong together, or an environment."""

    address: str
    """The address, such as another process takes it."""
    name: str
    """Name of the environment where it is the only part."""
    toolset: Callable[[], Toolset] | None = None
    """Makes the tools of one episode; None: it is an environment."""
    environment: Callable[[], Environment] | None = None
    """Makes the environment of one episode; None: it is a tool."""
    schemas: Callable[[], Schemas] = tuple
    prepare: Callable[[], object] = tuple
    """Loads what all episodes of a process share."""
    is_instant: bool = False
    own_process: bool = False
    is_whole: bool = False
    """True if the address itself makes the environment, in any process."""
    has_reward: bool = False
    decides: tuple[str | bytes, ...] = ()
    """What decides its answers, beside the address."""
    settings: Mapping[str, str] = field(default_factory=dict)


def specs(addresses: Sequence[str], *, sandbox: str = "auto") -> Mapping[str, EnvironmentSpec]:
    """Return the environments of a run by name.

    `sandbox` is the level of the sandbox in which `python` runs, where its address names none.

    Raises:
        ConfigError: an address leads nowhere, two environments or tools have one name, or a tool says too little.
    """
    grouped: dict[str, list[_Part]] = {}
    for name, parts in _groups(addresses, sandbox):
        if name in grouped:
            raise ConfigError(f"{FLAG}: two environments are called {name!r}", remedies=[SEVERAL])
        grouped[name] = parts
    return {name: _spec(name, parts, sandbox) for name, parts in grouped.items()}


class EnvironmentMaker:
    """Makes an environment in another process: by the addresses of its tools, or by its own."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], list[_Part]] = {}

    def prepare(self, addresses: Sequence[str], sandbox: str) -> None:
        """Load what all episodes share: code of the user's own, as it is now, and indexes of documents."""
        for part in self._resolved(addresses, sandbox):
            part.prepare()

    def __call__(self, addresses: Sequence[str], sandbox: str) -> Environment:
        """Make the environment of one episode."""
        return _made(self._resolved(addresses, sandbox))

    def _resolved(self, addresses: Sequence[str], sandbox: str) -> list[_Part]:
        key = (sandbox, *addresses)
        if key not in self._parts:
            self._parts[key] = [_part(address, sandbox) for address in addresses]
        return self._parts[key]


environment = EnvironmentMaker()
"""What `EnvironmentSpec.address` of code by name leads to."""


def spec_of_tools(functions: Sequence[Callable[..., Any]], name: str = TOOLS) -> EnvironmentSpec:
    """Return the environment of functions that a program gives; they run in its own process.

    Raises:
        ConfigError: one is no tool, or two have one name.
    """
    for function in functions:
        check_tool(function)
    schemas = tuple(tool_schema(function) for function in functions)
    _check_names(name, schemas)
    return EnvironmentSpec(
        name=name,
        make=lambda: ToolEnvironment([Functions(functions)]),
        tools=schemas,
        digest=_digest([json.dumps(schemas)]),
        settings={"tools": ", ".join(one["function"]["name"] for one in schemas)},
    )


def spec_of_environment(factory: Callable[[], Any], name: str = "") -> EnvironmentSpec:
    """Return the environment of a class or function that a program gives; it runs in its own process.

    Its name is that of the class. A function is called once, to see what it makes.

    Raises:
        ConfigError: what it makes is no environment.
    """
    kind = factory if isinstance(factory, type) else type(factory())
    part = _of_class(kind, factory, address=name or kind.__name__)
    return _spec(name or kind.__name__, [part], "")


def _groups(addresses: Sequence[str], sandbox: str) -> Iterable[tuple[str, list[_Part]]]:
    """Yield name and parts of each environment: several parts are tools."""
    named: dict[str, list[_Part]] = {}
    unnamed = list[_Part]()
    for given in addresses:
        match = re.match(r"([A-Za-z_][\w-]*)=(.*)", given, re.DOTALL)
        part = _part(match[2] if match else given, sandbox)
        if match:
            named.setdefault(match[1], []).append(part)
        elif part.toolset is None:
            yield part.name, [part]
        else:
            unnamed.append(part)
    if unnamed:
        yield (unnamed[0].name if len(unnamed) == 1 else TOOLS), unnamed
    for name, parts in named.items():
        if len(parts) > 1 and any(part.toolset is None for part in parts):
            raise ConfigError(f"{FLAG}: {name!r} names an environment and something else", remedies=[SEVERAL])
        yield name, parts


def _made(parts: Sequence[_Part]) -> Environment:
    if parts[0].environment is not None:
        return parts[0].environment()
    return ToolEnvironment([part.toolset() for part in parts if part.toolset is not None])


def _spec(name: str, parts: Sequence[_Part], sandbox: str) -> EnvironmentSpec:
    schemas = tuple(schema for part in parts for schema in part.schemas())
    _check_names(name, schemas)
    own_process = any(part.own_process for part in parts)
    address, arguments = "", dict[str, Any]()
    if own_process and parts[0].is_whole:
        address = parts[0].address
    elif own_process:
        address = f"{__name__}:environment"
        arguments = {"addresses": [part.address for part in parts], "sandbox": sandbox}
    decides = [one for part in parts for one in (part.address, *part.decides)]
    settings = {key: value for part in parts for key, value in part.settings.items()}
    if schemas:
        settings = {"tools": ", ".join(one["function"]["name"] for one in schemas), **settings}
    return EnvironmentSpec(
        name=name,
        make=functools.partial(_made, parts),
        address=address,
        arguments=arguments,
        tools=schemas,
        is_instant=all(part.is_instant for part in parts),
        own_process=own_process,
        has_reward=any(part.has_reward for part in parts),
        digest=_digest([*decides, json.dumps(schemas)]),
        settings=settings,
    )


def _check_names(name: str, schemas: Schemas) -> None:
    names = [schema["function"]["name"] for schema in schemas]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise ConfigError(f"{FLAG}: environment {name!r} has two tools called {twice!r}", remedies=[SEVERAL])


def _digest(decides: Iterable[str | bytes]) -> str:
    digest = blake2b(digest_size=16)
    for one in decides:
        data = one if isinstance(one, bytes) else one.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


# --- built-in names


def _part(address: str, sandbox: str) -> _Part:
    """Return what an address leads to.

    Raises:
        ConfigError: nothing, or what it takes is wrong.
    """
    base, colon, argument = address.partition(":")
    if base in BUILT_IN:
        return BUILT_IN[base](address, argument if colon else None, sandbox)
    if is_code(address):
        return _own(address)
    remedies = [f"choose from {', '.join(BUILT_IN)}", "give your own as file.py:NAME or module:NAME"]
    raise ConfigError(f"{FLAG} {address}: there is no such environment{nearest(base, BUILT_IN)}", remedies=remedies)


def _calculator(address: str, argument: str | None, sandbox: str) -> _Part:
    _refuse_argument(address, argument)
    return _Part(
        address=address,
        name=address,
        toolset=lambda: Functions([calculator.calculator]),
        schemas=lambda: [calculator.SCHEMA],
        is_instant=True,
    )


def _python(address: str, argument: str | None, sandbox: str) -> _Part:
    level = sandbox if argument is None else argument
    interpreters.check_level(level, address="python")
    limits, version = interpreters.LIMITS, f"{sys.version_info.major}.{sys.version_info.minor}"
    each = f"{limits.seconds:g} s of processor time per call, {limits.memory_mb} MiB"
    return _Part(
        address=f"python:{level}",
        name="python",
        toolset=functools.partial(interpreters.python_tool, level),
        schemas=lambda: [interpreters.SCHEMA],
        decides=(version, each),
        settings={"python": f"Python {version}, sandbox {level}, {each}"},
    )


def _search(address: str, argument: str | None, sandbox: str) -> _Part:
    folder = Path(_needed(address, argument, "a folder of documents: search:FOLDER")).expanduser()
    count = len(search.documents(folder))
    return _Part(
        address=address,
        name="search",
        toolset=functools.partial(search.SearchTool, str(folder)),
        schemas=lambda: [search.SCHEMA],
        prepare=functools.partial(search.index_of, folder),
        decides=(search.digest_of(folder),),
        settings={"search": f"{count} document{'s' * (count != 1)} in {folder}"},
    )


def _guess(address: str, argument: str | None, sandbox: str) -> _Part:
    most = _number(address, argument, default=guess.DEFAULT_MOST, least=2)
    make = functools.partial(guess.Guess, most)
    return _Part(address=f"guess:{most}", name="guess", environment=make, is_instant=True, has_reward=True)


def _nim(address: str, argument: str | None, sandbox: str) -> _Part:
    most = _number(address, argument, default=nim.DEFAULT_MOST, least=nim.LEAST)
    make = functools.partial(nim.Nim, most)
    return _Part(address=f"nim:{most}", name="nim", environment=make, is_instant=True, has_reward=True)


def _mcp(address: str, argument: str | None, sandbox: str) -> _Part:
    command = _needed(address, argument, "the command of a server: mcp:COMMAND")
    servers.check_command(command)
    known = list[Schemas]()

    def schemas() -> Schemas:
        if not known:
            known.append(servers.listed_tools(command))
        return known[0]

    return _Part(
        address=address,
        name="mcp",
        toolset=lambda: servers.McpTools(servers.by_command(command), command, *known),
        schemas=schemas,
    )


BUILT_IN: Mapping[str, Callable[[str, str | None, str], _Part]] = {
    "calculator": _calculator,
    "python": _python,
    "search": _search,
    "guess": _guess,
    "nim": _nim,
    "mcp": _mcp,
}
"""Makers of parts by the first word of an address; called with the address, what follows its colon, and the sandbox."""


def _refuse_argument(address: str, argument: str | None) -> None:
    if argument is not None:
        base = address.partition(":")[0]
        raise ConfigError(f"{FLAG} {address}: {base} takes nothing behind a colon", remedies=[f"write {base}"])


def _needed(address: str, argument: str | None, what: str) -> str:
    if not argument:
        raise ConfigError(f"{FLAG} {address}: it needs {what}")
    return argument


def _number(address: str, argument: str | None, *, default: int, least: int) -> int:
    if argument is None:
        return default
    if not re.fullmatch(r"\d{1,7}", argument) or not least <= int(argument) <= MOST_NUMBER:
        base = address.partition(":")[0]
        raise ConfigError(
            f"{FLAG} {address}: the number must lie in [{least}, {MOST_NUMBER}]", remedies=[f"write {base}:{default}"]
        )
    return int(argument)


# --- code of the user's own


def _own(address: str) -> _Part:
    found = own_function(address, flag=FLAG, error=ConfigError)
    kind = _kind(found)
    if kind is not None:
        return _of_class(kind, found, address=address, own_process=True)
    check_tool(found)
    return _Part(
        address=address,
        name=found.__name__,
        toolset=functools.partial(Functions, [found]),
        schemas=lambda: [tool_schema(found)],
        own_process=True,
        decides=_source(address),
    )


def _kind(found: Callable[..., Any]) -> type | None:
    """Return the class of the environments that this makes; None: it is a function, and so a tool.

    A function that makes environments says so by its return type.
    """
    if isinstance(found, type):
        return found
    if isinstance(found, functools.partial):
        return _kind(found.func)
    try:
        returned = typing.get_type_hints(found).get("return")
    except (NameError, TypeError):
        return None
    is_made = isinstance(returned, type) and (hasattr(returned, "begin") or hasattr(returned, "reset"))
    return cast(type, returned) if is_made else None


def _of_class(kind: type, make: Callable[[], Any], *, address: str, own_process: bool = False) -> _Part:
    """Return the part of a class of environments: with `begin`, `answer` and `close`, or with `reset`."""
    needed = [
        one.name
        for one in inspect.signature(make).parameters.values()
        if one.default is inspect.Parameter.empty
        and one.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"{FLAG} {address}: it cannot be made without {', '.join(needed)}",
            remedies=[f"name a function without arguments that makes it: def make() -> {kind.__name__}"],
        )
    missing = [name for name in ("begin", "answer", "close") if not hasattr(kind, name)]
    is_whole = not missing
    if is_whole:
        environment, tools = make, getattr(kind, "tools", ())
        has_reward = bool(getattr(kind, "has_reward", True))
    elif hasattr(kind, "reset"):
        environment, tools = (lambda: ObjectEnvironment(make())), tool_methods(kind)
        has_reward = hasattr(kind, "get_reward")
    else:
        raise ConfigError(
            f"{FLAG} {address}: the class {kind.__name__} has no {', '.join(missing)}",
            remedies=["an environment has begin, answer and close", "by TRL's contract it has reset"],
        )
    for one in tools:
        if not isinstance(one, Mapping):
            check_tool(one)
    return _Part(
        address=address,
        name=kind.__name__ if isinstance(make, type) else address.rpartition(":")[2],
        environment=environment,
        schemas=lambda: [one if isinstance(one, Mapping) else tool_schema(one) for one in tools],
        own_process=own_process,
        is_whole=is_whole,
        has_reward=has_reward,
        decides=_source(address) if own_process else (),
    )


def _source(address: str) -> tuple[bytes, ...]:
    """Return the file that code comes from, as far as it is one."""
    file = file_of_code(address)
    return () if file is None or not file.is_file() else (file.read_bytes(),)
