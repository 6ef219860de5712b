"""Environments in processes of their own: a warm parent for each environment, a fork per episode.

`ProcessHost` is the trainer's side, called from the loop of `Hosts`; `load` is what runs in those processes.
"""

import asyncio
import contextlib
import functools
import inspect
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paceline.environments import AgentTurn, Environment, EnvironmentSpec, ModelReply, ToolCall
from paceline.environments.hosting.results import Method, TooLate, attempt, awaited, checked
from paceline.errors import ConfigError
from paceline.processes.forking import Result, Serve, plain
from paceline.processes.starting import HostFailure
from paceline.processes.warm_parent import Fork, WarmParents
from paceline.runtime.own_code import own_module

LOAD = "paceline.environments.hosting.processes:load"


class ProcessHost:
    """One environment in a process of its own."""

    def __init__(self, spec: EnvironmentSpec, parents: WarmParents) -> None:
        self.started = time.perf_counter()
        self._spec, self._parents = spec, parents
        self._fork: Fork | None = None
        self.printed: tuple[str, ...] = ()

    async def call(self, method: Method, arguments: tuple[Any, ...], seconds: float) -> Result:
        """Call a method in its process, which `begin` forks; see `Host`."""
        data = _request(arguments)
        if method == "begin":
            self._fork = await self._parents.fork(_request((self._spec.name, self._spec.address, self._spec.arguments)))
        assert self._fork is not None  # nothing is asked of an environment that is gone
        self.started = time.perf_counter()
        try:
            async with asyncio.timeout(seconds):
                value, failure = await self._fork.call(method, data)
        except TimeoutError:
            await self.end(seconds=0)
            raise TooLate from None
        return (None, failure) if failure is not None else attempt(partial(checked, self._spec.name, method, value))

    async def end(self, *, seconds: float) -> None:
        """Kill it, after so many seconds at most in which it may close itself."""
        fork, self._fork = self._fork, None
        if fork is None:
            return
        try:
            if seconds > 0:
                with contextlib.suppress(TimeoutError, HostFailure):
                    async with asyncio.timeout(seconds):
                        await fork.call("close", "[]")
        finally:
            self.printed = (await self._parents.end(fork)).printed


def _request(arguments: tuple[Any, ...]) -> str:
    try:
        return json.dumps(arguments, default=plain)
    except (TypeError, ValueError, RecursionError) as error:
        columns = [
            name
            for argument in arguments
            if isinstance(argument, Mapping)
            for name, value in argument.items()
            if not _is_json(value)
        ]
        what = f"{columns[0]!r} among what it is given" if columns else "what it is given"
        raise HostFailure(
            f"{what} cannot be written as JSON for its process ({error}); remove it, or make it text"
        ) from error


def _is_json(value: Any) -> bool:
    return attempt(partial(json.dumps, value, default=plain))[1] is None


def load(code: tuple[str, str, dict[str, Any]]) -> tuple[Callable[[], Serve] | None, str | None]:
    """Load an environment by its name, address and arguments, in the process that episodes are forked from."""
    name, address, arguments = code
    make, failure = attempt(_loaded, address, arguments)
    return (None if failure is not None else lambda: _Episode(name, make).call), failure


def _loaded(address: str, arguments: dict[str, Any]) -> Callable[[], Environment]:
    """Return what makes the environment, and let it prepare what all episodes share."""
    where, _, attribute = address.rpartition(":")
    module = own_module(where, label=address, error=ConfigError)
    try:
        factory: Any = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise ConfigError(f"{address}: there is no {attribute!r} in it") from error
    if not isinstance(factory, type) and hasattr(factory, "prepare"):  # of a class it would be a method of its objects
        factory.prepare(**arguments)
    return functools.partial(factory, **arguments)


class _Episode:
    """An environment in its process, and the event loop of its async methods."""

    def __init__(self, name: str, make: Callable[[], Environment]) -> None:
        self._name, self._make, self._runner = name, make, asyncio.Runner()
        self._environment: Environment | None = None

    def call(self, method: str, arguments: list[Any]) -> Result:
        """Call a method; returns what `attempt` does, the value checked."""
        return attempt(self._call, method, arguments)

    def _call(self, method: Method, arguments: list[Any]) -> Any:
        if method == "begin":
            seed_generators(arguments[1])
            self._environment = self._make()
            seed_generators(arguments[1])  # also those of what has been imported by now
        elif method == "observe":
            fields: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in arguments[0].items()
            }
            fields["calls"] = tuple(ToolCall(**call) for call in fields["calls"])
            arguments = [(ModelReply if "num_read" in fields else AgentTurn)(**fields)]
        value = getattr(self._environment, method)(*arguments)
        if inspect.isawaitable(value):
            value = self._runner.run(awaited(value))
        return checked(self._name, method, value)


def seed_generators(seed: int) -> None:
    """Seed global generators by the episode: what an environment draws must not depend on the warm parent."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
