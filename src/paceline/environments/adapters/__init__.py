"""Adapters to environments of other packages: `--environment PACKAGE:NAME(parameter=value, ...)`.

reasoning_gym.py  tasks of reasoning-gym, with further attempts after a wrong answer
gymnasium.py      environments of Gymnasium whose observations and actions are text, words or numbers
textarena.py      games of TextArena for one player
skyrl_gym.py      text environments of SkyRL-Gym, for rows with what they grade by
openenv.py        environments of OpenEnv, on a server or served here
verifiers.py      environments of verifiers, which bring their own loop

Each adapter imports its package when a run begins, never before. Every conversation has a process of its own: these
packages draw from global generators, and nobody has bounded what their code does with a text.
"""

import importlib.metadata
import io
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from paceline.config.packages import install_command
from paceline.config.reading import base_name, parameter_texts
from paceline.config.sections import json_or_text
from paceline.environments import Environment
from paceline.environments.hosting.processes import seed_generators
from paceline.environments.hosting.results import attempt
from paceline.errors import ConfigError

TRIED_SEED = 1
TRIED_TASK = {"messages": ({"role": "user", "content": "Play."},)}

Parameters = Mapping[str, Any]
Load = Callable[[str, Parameters], Callable[[], Environment]]
"""Imports the package and returns what makes an episode's environment, for a name and its parameters.

Raises ConfigError where the name or a parameter is wrong; its sentence continues `--environment ADDRESS: `.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A package whose environments can be used."""

    package: str
    """Name on the package index, and of the extra that brings it."""
    example: str
    """A name behind the colon."""
    load: Load
    needs_rows: bool = False
    """True if it plays a dataset's rows: nothing can be begun without one."""
    tools: Callable[[str, Parameters], Sequence[Mapping[str, Any]]] | None = None
    """Returns the JSON schemas of an environment's tools, if it has some, for what `load` takes; None: none has."""


class Adapted:
    """One environment of a package: an address, read; the package itself is imported at first use."""

    def __init__(self, adapter: Adapter, address: str, text: str | None, *, flag: str) -> None:
        """`text` stands behind the colon of the address.

        Raises:
            ConfigError: the name is missing, the brackets are not well-formed, or the package is not installed.
        """
        self.label = f"{flag} {address}"
        """How refusals begin: option and address."""
        self.name = base_name(text or "")
        if not self.name:
            form = f"{address.partition(':')[0]}:"
            raise ConfigError(f"{self.label}: it needs a name: {form}NAME; for example {form}{adapter.example}")
        try:
            number = importlib.metadata.version(adapter.package)
        except importlib.metadata.PackageNotFoundError as error:
            raise ConfigError(
                f"{self.label} needs the package {adapter.package}; `{install_command(adapter.package)}`"
            ) from error
        texts = parameter_texts(text or "", label=self.label, error=ConfigError)
        parameters = {key: json_or_text(value) for key, value in texts.items()}
        self.version = f"{adapter.package} {number}"
        """Name and version of the package."""
        self._needs_rows = adapter.needs_rows
        self._maker = cache(partial(adapter.load, self.name, parameters))
        self._tools = cache(partial(adapter.tools or (lambda *_: ()), self.name, parameters))

    def make(self) -> Environment:
        """Make the environment of one episode."""
        return self._maker()()

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Return the JSON schemas of its tools; empty: it has none.

        Raises:
            ConfigError: there is no such environment, or it does not say.
        """
        tools, failure = attempt(self._tools)
        if failure is not None:
            raise ConfigError(f"{self.label}: {failure}")
        return tuple(tools)

    def prepare(self) -> None:
        """Load the package, and begin one game twice: what does not begin, or not alike, is refused.

        Raises:
            ConfigError: there is no such environment, it needs something else, or its games cannot be repeated.
        """
        with _generators_kept(), redirect_stdout(io.StringIO()):
            openings, failure = attempt(self._begun_twice)
        if isinstance(openings, ConfigError):
            raise ConfigError(f"{self.label}: {openings}") from openings
        if failure is not None:
            raise ConfigError(f"{self.label}: it cannot begin ({failure}); take another environment, or mend this one")
        if openings[0] != openings[1]:
            raise ConfigError(
                f"{self.label}: it begins differently each time for the same seed, so the conversations of a group "
                "would not play the same game; take another environment"
            )

    def _begun_twice(self) -> list[Any] | ConfigError:
        try:
            make = self._maker()
            return [None if self._needs_rows else _opening(make()) for _ in range(2)]
        except ConfigError as error:
            return error


def seed_of(task: Mapping[str, Any], seed: int) -> int:
    """Return the seed of a game: that of the row, as the dataset `seeds` has it, else the episode's."""
    return int(task["seed"]) if "seed" in task else seed


def _opening(environment: Environment) -> Any:
    seed_generators(TRIED_SEED)
    opening = environment.begin(TRIED_TASK, TRIED_SEED)
    environment.close()
    return opening


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the global generators of this process as they were."""
    state, numpy = random.getstate(), sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
