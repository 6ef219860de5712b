"""What one address of `--environment` leads to: a built-in name, or code of the user's own.

Nothing here imports torch, but for schemas of the user's own tools, which come last.
"""

import functools
import importlib.metadata
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, cast

from paceline.base_directory import local_path
from paceline.chat.tools import check_tool, tool_schema
from paceline.config.reading import is_code
from paceline.environments import Environment
from paceline.environments.adapters import Adapted, Adapter, gymnasium, openenv, skyrl_gym, textarena, verifiers
from paceline.environments.adapters import reasoning_gym as gym_tasks
from paceline.environments.agent_program import AgentProgram
from paceline.environments.builtin import calculator, games, search
from paceline.environments.builtin import mcp as servers
from paceline.environments.builtin import python as interpreters
from paceline.environments.harness import Harness, check_program, run_command
from paceline.environments.objects import ObjectEnvironment, tool_methods
from paceline.environments.tools import FixedTools, Functions, Toolset, tools_text
from paceline.errors import ConfigError
from paceline.runtime.own_code import file_of_code, nearest, own_function
from paceline.sandbox.kept_memory import KEPT_MB, shared_mb

FLAG = "--environment"
MOST_NUMBER = 1_000_000  # Largest N of a game

Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AddressPart:
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
    """Loads what all episodes of a process share; raises what every episode would fail with."""
    is_instant: bool = False
    own_process: bool = False
    has_reward: bool = False
    decides: tuple[str | bytes, ...] = ()
    """What decides its observations, beside the address."""
    package: str = ""
    """Name and version of the installed package that has its code; empty: none has."""
    settings: Mapping[str, str] = field(default_factory=dict)


# --- built-in names


def part_of(address: str, sandbox: str) -> AddressPart:
    """Return what an address leads to.

    Raises:
        ConfigError: nothing, or what it takes is wrong.
    """
    base, colon, argument = address.partition(":")
    if base in BUILT_IN:
        return BUILT_IN[base](address, argument if colon else None, sandbox)
    is_near = bool(nearest(base, BUILT_IN)) and not base.endswith(".py") and find_spec(base.partition(".")[0]) is None
    if is_code(address) and not is_near:
        return _own(address)
    remedies = [f"choose from {', '.join(BUILT_IN)}", "give your own as file.py:NAME or module:NAME"]
    raise ConfigError(f"{FLAG} {address}: there is no such environment{nearest(base, BUILT_IN)}", remedies=remedies)


def _calculator(address: str, argument: str | None, sandbox: str) -> AddressPart:
    _refuse_argument(address, argument)
    return AddressPart(
        address=address,
        name=address,
        toolset=lambda: Functions([calculator.calculator]),
        schemas=lambda: [calculator.SCHEMA],
        is_instant=True,
    )


def _python(address: str, argument: str | None, sandbox: str) -> AddressPart:
    level = sandbox if argument is None else argument
    interpreters.check_level(level, address=address)
    limits, version = interpreters.LIMITS, f"{sys.version_info.major}.{sys.version_info.minor}"
    each = f"{limits.seconds:g} s of processor time and {limits.memory_mb} MiB per call, {KEPT_MB} MiB between calls"
    together = f"of all conversations together {shared_mb():,} MiB, a quarter of this machine's memory"
    return AddressPart(
        address=f"python:{level}",
        name="python",
        toolset=functools.partial(interpreters.python_tool, level),
        schemas=lambda: [interpreters.SCHEMA],
        prepare=functools.partial(interpreters.sandbox_of, level),
        decides=(version, each),
        settings={"python": f"Python {version}, sandbox {level}, {each}, {together}"},
    )


def _search(address: str, argument: str | None, sandbox: str) -> AddressPart:
    folder = local_path(_needed(address, argument, "a folder of documents: search:FOLDER"))
    count = len(search.documents(folder))
    return AddressPart(
        address=address,
        name="search",
        toolset=functools.partial(search.SearchTool, str(folder)),
        schemas=lambda: [search.SCHEMA],
        prepare=functools.partial(search.index_of, folder),
        decides=(search.digest_of(folder),),
        settings={"search": f"{count} document{'s' * (count != 1)} in {folder}"},
    )


def _guess(address: str, argument: str | None, sandbox: str) -> AddressPart:
    most = _number(address, argument, default=games.MOST_TO_GUESS, least=2)
    make = functools.partial(games.Guess, most)
    return AddressPart(address=f"guess:{most}", name="guess", environment=make, is_instant=True, has_reward=True)


def _nim(address: str, argument: str | None, sandbox: str) -> AddressPart:
    most = _number(address, argument, default=games.MOST_STONES, least=games.LEAST_STONES)
    make = functools.partial(games.Nim, most)
    return AddressPart(address=f"nim:{most}", name="nim", environment=make, is_instant=True, has_reward=True)


def _mcp(address: str, argument: str | None, sandbox: str) -> AddressPart:
    command = _needed(address, argument, "the command of a server: mcp:COMMAND")
    servers.check_command(command)
    known = list[Schemas]()

    def schemas() -> Schemas:
        if not known:
            known.append(servers.listed_tools(command))
        return known[0]

    return AddressPart(
        address=address,
        name="mcp",
        toolset=lambda: servers.McpTools(servers.by_command(command), command, *known),
        schemas=schemas,
    )


def _harness(address: str, argument: str | None, sandbox: str) -> AddressPart:
    target = _needed(address, argument, "a program: harness:file.py:FUNCTION, harness:module:FUNCTION")
    kind, _, command = target.partition(":")
    if kind == "command":
        words = servers.words_of(command, address=address)
        make = functools.partial(Harness, functools.partial(run_command, words))
    else:
        program = AgentProgram(target, flag=FLAG)
        check_program(program.function, label=f"{FLAG} {address}")
        make = functools.partial(Harness, program.function, variables=os.environ, load=program.load)
    return AddressPart(
        address=address,
        name=kind if kind == "command" else target.rpartition(":")[2],
        environment=make,
        own_process=True,
        has_reward=True,
        decides=() if kind == "command" else _source(target),
        package="" if kind == "command" else _package(target),
        settings={"harness": "a program that asks for turns by OpenAI's interface, each episode with a key of its own"},
    )


def _of_package(adapter: Adapter, address: str, argument: str | None, sandbox: str) -> AddressPart:
    adapted = Adapted(adapter, address, argument, flag=FLAG)
    module = re.split(r"[:/]", adapted.name)[0].replace("-", "_")
    return AddressPart(
        address=address,
        name=address.partition(":")[0] if "://" in adapted.name else re.split(r"[/:]", adapted.name)[-1],
        environment=adapted.make,
        schemas=adapted.tools,
        prepare=adapted.prepare,
        own_process=True,
        has_reward=True,
        decides=_source(adapted.name) if ".py:" in adapted.name else (),
        package=", ".join(dict.fromkeys(filter(None, (adapted.version, _package(f"{module}:"))))),
        settings={adapted.name: f"of {adapted.version}, in a process for each conversation"},
    )


BUILT_IN: Mapping[str, Callable[[str, str | None, str], AddressPart]] = {
    "calculator": _calculator,
    "python": _python,
    "search": _search,
    "guess": _guess,
    "nim": _nim,
    "mcp": _mcp,
    "harness": _harness,
    "reasoning_gym": functools.partial(_of_package, gym_tasks.ADAPTER),
    "gymnasium": functools.partial(_of_package, gymnasium.ADAPTER),
    "textarena": functools.partial(_of_package, textarena.ADAPTER),
    "skyrl_gym": functools.partial(_of_package, skyrl_gym.ADAPTER),
    "verifiers": functools.partial(_of_package, verifiers.ADAPTER),
    "openenv": functools.partial(_of_package, openenv.ADAPTER),
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


def _own(address: str) -> AddressPart:
    function = own_function(address, flag=FLAG, error=ConfigError)
    kind = _kind(function)
    if kind is not None:
        return _part_of_class(kind, function, address)
    check_tool(function)
    return AddressPart(
        address=address,
        name=function.__name__,
        toolset=functools.partial(Functions, [function]),
        schemas=lambda: [tool_schema(function)],
        own_process=True,
        decides=_source(address),
        package=_package(address),
    )


def _kind(function: Callable[..., Any]) -> type | None:
    """Return the class of the environments that this makes; None: it is a function, and so a tool.

    A function that makes environments says so by its return type.
    """
    if isinstance(function, type):
        return function
    if isinstance(function, functools.partial):
        return _kind(function.func)
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
    is_made = isinstance(returned, type) and (hasattr(returned, "begin") or hasattr(returned, "reset"))
    return cast(type, returned) if is_made else None


def _part_of_class(kind: type, make: Callable[[], Any], address: str) -> AddressPart:
    """Return the part of a class of environments: with `begin`, `observe` and `close`, or with `reset`."""
    needed = [
        parameter.name
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"{FLAG} {address}: it cannot be made without {', '.join(needed)}",
            remedies=[f"name a function without arguments that makes it: def make() -> {kind.__name__}"],
        )
    missing = [name for name in ("begin", "observe", "close") if not hasattr(kind, name)]
    if not missing:
        environment, tools = make, getattr(kind, "tools", ())
        if tools:
            environment = functools.partial(FixedTools, make, tools_text(tools))
        has_reward = bool(getattr(kind, "has_reward", True))
    elif hasattr(kind, "reset"):
        environment, tools = (lambda: ObjectEnvironment(make())), tool_methods(kind)
        has_reward = hasattr(kind, "get_reward")
    else:
        renamed = ["rename its method answer to observe"] if hasattr(kind, "answer") and "observe" in missing else []
        raise ConfigError(
            f"{FLAG} {address}: the class {kind.__name__} has no {', '.join(missing)}",
            remedies=[*renamed, "an environment has begin, observe and close", "by TRL's contract it has reset"],
        )
    for tool in tools:
        if not isinstance(tool, Mapping):
            check_tool(tool)
    return AddressPart(
        address=address,
        name=kind.__name__ if isinstance(make, type) else address.rpartition(":")[2],
        environment=environment,
        schemas=lambda: [tool if isinstance(tool, Mapping) else tool_schema(tool) for tool in tools],
        own_process=True,
        has_reward=has_reward,
        decides=_source(address),
        package=_package(address),
    )


def _source(address: str) -> tuple[bytes, ...]:
    """Return the file that code comes from, as far as it is one."""
    file = file_of_code(address)
    return () if file is None or not file.is_file() else (file.read_bytes(),)


def _package(address: str) -> str:
    """Return name and version of the installed package that a module belongs to."""
    where = address.rpartition(":")[0]
    if where.endswith(".py"):
        return ""
    names = importlib.metadata.packages_distributions().get(where.partition(".")[0], ())
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names)))
