"""TRL's tools and environments as Paceline's environments.

| TRL's                              | here                                                                           |
|------------------------------------|--------------------------------------------------------------------------------|
| `tools`                            | one environment, `tools`; with an `environment_factory` they are in each        |
| a factory                          | an environment by its class's name, whose public methods are tools              |
| a dict of factories                | the column `environment` chooses one by its key, and `reset` is not given it    |
| -                                  | addresses of the command line's `--environment` in place of a factory           |
| an object for each slot of a batch | the same: made once, and reset for each episode                                 |
| plain functions in the main thread | the same, one after another, each turn within a deadline; where all are async,  |
|                                    | conversations go on side by side                                                |
| `str(result)`, `{"error": ...}`    | the same texts; an error of the connection is a failure of the environment      |
| `get_reward`                       | the reward of the episode, under the class's name                               |
| a call that cannot be read         | the same: text, with which the conversation ends                                |
"""

import inspect
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.chat.messages import row_tools
from paceline.chat.tools import tool_schema
from paceline.compat.trl.slots import Slot, SlotPool, call, wait_for, within
from paceline.environments import AgentTurn, Environment, EnvironmentSpec, Observation
from paceline.environments.hosting.results import TooLate
from paceline.environments.objects import NO_TOOLS, opening_of, reward_of, row_for, tool_methods
from paceline.environments.resolving import specs as specs_of
from paceline.environments.tools import FAILURES, CallError, Functions, Tool, ToolEnvironment
from paceline.episodes.conversations import ENVIRONMENT, refuse_plain_text
from paceline.errors import ConfigError, DataError, first_line
from paceline.types import Task

ROW = "paceline_row"
"""Column of a task with its whole row; functions of TRL's kind get its columns by a parameter of this name."""
TOOLS = "tools"
"""Name of the environment that has the tools alone."""
Tools = Sequence[Callable[..., Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenEnvironments:
    """Environments made of `tools` and `environment_factory`; false without any."""

    specs: Mapping[str, EnvironmentSpec] = field(default_factory=dict)
    """By the name that rows call it by."""
    tools: Tools = ()
    """Every function that some conversation may call, methods of environments among them."""
    offered: Mapping[str, Tools] = field(default_factory=dict)
    """The functions of each environment of a factory, by the names of `specs`."""
    pools: Mapping[str, SlotPool] = field(default_factory=dict)
    """Objects of each factory, by the same names."""
    kinds: Mapping[str, type] = field(default_factory=dict)
    """Classes that give rewards, by the name of the reward; of an address, `Environment`."""
    are_chosen: bool = False
    """True: the column `environment` of each row names one."""
    own_data: bool = False
    """True: an environment may write the prompts, so that rows need none."""
    in_use: list["Checkout"] = field(default_factory=list)
    """Checkouts of the episodes since this was last cleared, in their order."""
    addresses: tuple[str, ...] = ()
    """Addresses that the environments come from; empty: they are objects of the program."""

    def __bool__(self) -> bool:
        return bool(self.specs)

    @property
    def options(self) -> tuple[str, ...]:
        """Value of the option `environment`."""
        return self.addresses or tuple(self.specs)

    @property
    def objects(self) -> list[Any]:
        """Environments of the present step's episodes; [] with tools alone."""
        return [loan.slot.inner for loan in self.in_use if loan.slot is not None and loan.slot.inner is not None]

    def tools_of(self, columns: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
        """Return the JSON schemas of a row's tools.

        Raises:
            DataError: it names no environment.
        """
        if not self.specs:
            return row_tools(columns)
        if not self.are_chosen:
            return [tool for spec in self.specs.values() for tool in spec.tools]
        name = columns.get(ENVIRONMENT)
        if name not in self.specs:
            raise DataError(
                f"the column `environment` of a row has {name!r}, which is not among the environments of "
                f"environment_factory: {', '.join(self.specs)}; correct the row, or add the environment"
            )
        return self.specs[str(name)].tools

    def check(self, tasks: Sequence[Task]) -> None:
        """Refuse rows whose prompt is plain text (DataError): a conversation goes on from messages."""
        refuse_plain_text(tasks, "goes on from messages; make it a list of messages")


NO_ENVIRONMENTS = GivenEnvironments()


def given_environments(tools: Any, factory: Any, *, seconds: float, sandbox: str = "auto") -> GivenEnvironments:
    """Make environments of a trainer's arguments; each factory is called once to look at its object, for at most so
    many `seconds`.

    Raises:
        ConfigError: something else than functions, a tool without types or docstring, an object without `reset`; an
            address that leads nowhere, or one beside tools.
    """
    shared = _functions(tools)
    if isinstance(factory, str | list | tuple) and factory:
        return _by_address([factory] if isinstance(factory, str) else factory, shared, sandbox)
    if factory is None:
        if not shared:
            return NO_ENVIRONMENTS
        in_use = list[Checkout]()
        program = Program(tools=shared, seconds=seconds)
        spec = EnvironmentSpec(
            name=TOOLS,
            make=_never,
            reserve=partial(_reserve, SlotPool(lambda: None), in_use, program, program.environment_class(None)),
            tools=tuple(map(tool_schema, shared)),
            is_instant=not program.is_async(None),
        )
        return GivenEnvironments(specs={TOOLS: spec}, tools=shared, in_use=in_use)
    are_chosen = isinstance(factory, Mapping)
    factories = dict(factory) if are_chosen else {"": factory}
    wrong = [make for make in factories.values() if not callable(make)]
    if not factories or wrong or not all(isinstance(name, str) for name in factories):
        raise ConfigError(
            "environment_factory must be a class or function that makes an environment, a dict of them by name, or "
            f"addresses such as 'guess:5', got {factory!r}"
        )
    in_use, names, specs = list[Checkout](), dict[type, str](), dict[str, EnvironmentSpec]()
    functions, kinds = list(shared), dict[str, type]()
    offered, pools = dict[str, Tools](), dict[str, SlotPool]()
    program = Program(tools=shared, left_out=(ENVIRONMENT,) if are_chosen else (), seconds=seconds)
    for key, make in factories.items():
        pool = SlotPool(make)
        inner = _first(pool, make, seconds)
        kind = type(inner)
        if not inspect.isfunction(getattr(kind, "reset", None)):
            raise ConfigError(
                f"environment_factory made a {kind.__name__}, which must define a callable `reset` to begin an episode"
            )
        same = sum(other.__name__ == kind.__name__ for other in names if other is not kind)
        name = names.setdefault(kind, kind.__name__ if not same else f"{kind.__name__}_{same + 1}")
        methods = [getattr(inner, method.__name__) for method in tool_methods(kind)]
        functions += [method for method in methods if method not in functions]
        if has_reward := inspect.isfunction(getattr(kind, "get_reward", None)):
            kinds[name] = kind
        offered[key or name], pools[key or name] = (*shared, *methods), pool
        specs[key or name] = EnvironmentSpec(
            name=name,
            make=_never,
            reserve=partial(_reserve, pool, in_use, program, program.environment_class(kind)),
            tools=tuple(map(tool_schema, (*shared, *methods))),
            is_instant=not program.is_async(kind),
            has_reward=has_reward,
        )
    return GivenEnvironments(
        specs=specs,
        tools=functions,
        offered=offered,
        pools=pools,
        kinds=kinds,
        are_chosen=are_chosen,
        own_data=True,
        in_use=in_use,
    )


def _by_address(addresses: Sequence[Any], tools: Tools, sandbox: str) -> GivenEnvironments:
    """Make the environments that the command line makes of the same addresses."""
    for address in addresses:
        if not isinstance(address, str):
            raise ConfigError(f"environment_factory must have addresses alone in a list, got {address!r}; give a dict")
    if tools:
        raise ConfigError(
            f"tools must be None with addresses in environment_factory, got {tools[0].__name__}; give its address "
            "too, as 'file.py:function'"
        )
    specs = specs_of(addresses, sandbox=sandbox)
    return GivenEnvironments(
        specs=specs,
        kinds={spec.name: Environment for spec in specs.values() if spec.has_reward},
        are_chosen=len(specs) > 1,
        addresses=tuple(addresses),
    )


def environment_reward(kind: Any) -> Callable[..., Any]:
    """Return the reward function that TRL makes of a class's `get_reward`; None for environments of other classes."""

    def get_reward(environments: Sequence[Any], **others: Any) -> list[Any]:
        return [environment.get_reward() if type(environment) is kind else None for environment in environments]

    get_reward.__name__ = kind.__name__
    return get_reward


def _functions(tools: Any) -> list[Callable[..., Any]]:
    functions = [] if tools is None else [*tools] if isinstance(tools, list | tuple) else [tools]
    for index, function in enumerate(functions):
        if not callable(function):
            raise ConfigError(f"tools[{index}] must be a function, got a {type(function).__name__}")
    names = [function.__name__ for function in functions if hasattr(function, "__name__")]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"tools must be functions of different names, got {', '.join(sorted(repeated))} twice")
    return functions


def _first(pool: SlotPool, factory: Callable[[], Any], seconds: float) -> Any:
    """Make the object of the first slot, to look at it."""
    slot = pool.take()
    try:
        with within(seconds):
            return slot.make()
    except TooLate:
        reason = f"it took more than {seconds:g} seconds"
        raise ConfigError(f"environment_factory {factory!r} cannot be called ({reason})") from None
    except Exception as error:
        raise ConfigError(
            f"environment_factory {factory!r} cannot be called ({type(error).__name__}: {first_line(error)})"
        ) from error
    finally:
        pool.give_back(slot)


@dataclass(slots=True)
class Checkout:
    """Object that an episode has checked out."""

    slot: Slot | None = None
    """Slot of the last attempt to begin it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """Code of a program that all episodes share."""

    tools: Tools
    """Functions beside an object's own methods."""
    left_out: Sequence[str] = ()
    """Columns that `reset` does not get."""
    seconds: float
    """Deadline of one turn's plain functions."""

    def environment_class(self, kind: type | None) -> "type[SlotEnvironment]":
        """Return the environment of an episode around an object of this class."""
        return AsyncSlotEnvironment if self.is_async(kind) else SlotEnvironment

    def is_async(self, kind: type | None) -> bool:
        """True if every function that an episode of this class may call is async."""
        hooks = [getattr(kind, name) for name in NO_TOOLS if kind is not None and hasattr(kind, name)]
        methods = [] if kind is None else tool_methods(kind)
        return all(map(inspect.iscoroutinefunction, (*self.tools, *methods, *hooks)))


def _reserve(
    pool: SlotPool, in_use: list[Checkout], program: Program, environment_class: "type[SlotEnvironment]"
) -> Callable[[], Environment]:
    """Return what lends a slot to each attempt of an episode, until nothing refers to the attempt's environment."""
    loan = Checkout()
    in_use.append(loan)

    def lend() -> Environment:
        loan.slot = slot = pool.take()
        environment = environment_class(slot, program)
        weakref.finalize(environment, pool.give_back, slot).atexit = False
        return environment

    return lend


def _never() -> Environment:
    raise AssertionError("environments of a program are reserved")


class SlotEnvironment:
    """`Environment` of one episode around the object of a slot, all in the thread that asks."""

    def __init__(self, slot: Slot, program: Program) -> None:
        self._slot, self._program = slot, program
        self._calls = ToolEnvironment([])

    @property
    def inner(self) -> Any:
        """The program's own object; None: there are tools alone."""
        return self._slot.inner

    def begin(self, task: Mapping[str, Any], seed: int) -> Any:
        """Reset the object; returns the text or the messages that it adds to the prompt."""
        with self._slot.within(self._program.seconds):
            self._open(task, seed, wait_for)
            return None if self.inner is None else opening_of(call(self.inner.reset, **self._row(task, seed)))

    def observe(self, turn: AgentTurn) -> Observation | Awaitable[Observation]:
        """Carry out the turn's calls; one that cannot be read is text, and ends the conversation."""
        if turn.malformed is not None:
            return Observation(done=True)
        with self._slot.within(self._program.seconds):
            return self._calls.observe(turn)

    def close(self) -> float | None:
        """End the episode; returns the object's reward, if it gives one."""
        if not self._gives_reward:
            return None
        with self._slot.within(self._program.seconds):
            return reward_of(call(self.inner.get_reward))

    @property
    def _gives_reward(self) -> bool:
        return self.inner is not None and hasattr(type(self.inner), "get_reward")

    def _open(self, task: Mapping[str, Any], seed: int, wait: Callable[[Awaitable[Any]], Any] | None) -> None:
        inner = self._slot.make()
        methods = [] if inner is None else [getattr(inner, method.__name__) for method in tool_methods(type(inner))]
        callable_here = Functions(())
        callable_here.tools = [_as_tool(function) for function in (*self._program.tools, *methods)]
        self._calls = ToolEnvironment([callable_here], wait)
        self._calls.begin(task, seed)

    def _row(self, task: Mapping[str, Any], seed: int) -> Mapping[str, Any]:
        row = {name: value for name, value in task.get(ROW, task).items() if name not in self._program.left_out}
        return row_for(self.inner.reset, row, seed)


class AsyncSlotEnvironment(SlotEnvironment):
    """`Environment` of one episode whose functions are all async: episodes go on side by side on one event loop."""

    async def begin(self, task: Mapping[str, Any], seed: int) -> Any:
        """Reset the object; returns the text or the messages that it adds to the prompt."""
        self._open(task, seed, None)
        return None if self.inner is None else opening_of(await self.inner.reset(**self._row(task, seed)))

    async def observe(self, turn: AgentTurn) -> Observation:
        """Carry out the turn's calls; one that cannot be read is text, and ends the conversation."""
        if turn.malformed is not None:
            return Observation(done=True)
        observation = self._calls.observe(turn)
        return await observation if inspect.isawaitable(observation) else observation

    async def close(self) -> float | None:  # type: ignore[override] # either may be awaited
        """End the episode; returns the object's reward, if it gives one."""
        return reward_of(await self.inner.get_reward()) if self._gives_reward else None


def _as_tool(function: Callable[..., Any]) -> Tool:
    """Make a tool that responds in TRL's words."""

    def plain(**arguments: Any) -> str:
        with _in_trls_words():
            return _text(call(function, **arguments))

    async def awaited(**arguments: Any) -> str:
        with _in_trls_words():
            return _text(await function(**arguments))

    return Tool(name=function.__name__, call=awaited if inspect.iscoroutinefunction(function) else plain)


@contextmanager
def _in_trls_words() -> Iterator[None]:
    try:
        yield
    except (*FAILURES, CallError):
        raise
    except Exception as error:
        raise CallError(str({"error": str(error)})) from error


def _text(result: Any) -> str:
    """Return the text of a result; of parts of a message's content, their text."""
    parts = result if isinstance(result, list) and result else []
    if not parts or not all(isinstance(part, Mapping) and "type" in part for part in parts):
        return str(result)
    if any(part["type"] != "text" for part in parts):
        raise ValueError("images, audio and video are not supported")
    return "".join(str(part["text"]) for part in parts)
