"""`verifiers:ID(option=value, ...)`: an environment of verifiers 0.4, whose own rollout asks the episode's endpoint.

Its taskset, program, tools, limits and rewards are used as they are; `data/tasksets.py` says what the options mean.

| the package's rollout                              | becomes                                                       |
|----------------------------------------------------|---------------------------------------------------------------|
| asks its client for a turn                         | a request of the endpoint: see `environments/harness.py`      |
| ends, by itself or at a limit of its own           | the reward: the sum of its rewards by weight, None without    |
| is refused a turn beyond the run's limits          | the same, if its program ends as at a full context; else none |
| ends by an error of a program, a tool or a reward  | a failed episode, with the error                              |

A row has the task's `index` in the taskset.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.data.tasksets import open_environment
from paceline.environments.adapters import Adapter, Parameters
from paceline.environments.harness import Harness
from paceline.errors import EnvironmentFailure

KEY = "PACELINE_API_KEY"
"""Variable with the episode's key, which no program of the package inherits; others may be a judge's."""
INDEX = "index"


class TasksetRollout:
    """The program of one episode: the package's own rollout of a task."""

    def __init__(self, environment: Any, tasks: list[Any] | None) -> None:
        """`tasks` are those of the taskset; None: it has no end."""
        self._environment, self._tasks = environment, tasks
        self.variables = dict[str, str]()
        """Variables that the endpoint would have set for a program that reads them."""

    async def play(self, task: Mapping[str, Any], base_url: str, api_key: str) -> float | None:
        """Play the task of a row; returns the sum of its rewards, None where nothing was rewarded.

        Raises:
            EnvironmentFailure: the row names no task, or the rollout ended by an error.
        """
        from verifiers.v1.clients import EvalClientConfig, ModelContext
        from verifiers.v1.runtimes import subprocess as local
        from verifiers.v1.types import SamplingConfig

        chosen = self._task(task)
        local.CACHE_DIR = Path(tempfile.gettempdir())  # the episode's own: what is left in it goes with it
        here = {name: self.variables[name] for name in ("NO_PROXY", "no_proxy")}
        os.environ.update(here | {KEY: api_key})
        client = EvalClientConfig(base_url=base_url, api_key_var=KEY)
        context = ModelContext(client=client, model="policy", sampling=SamplingConfig())
        async with self._environment.serving():
            (slot,) = self._environment.slots(chosen)
            episode = await self._environment.run_slot(slot, context)
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            reason = f"{errors[-1].type}: {errors[-1].message}" if errors else "it does not say why"
            raise EnvironmentFailure(f"the rollout failed ({reason:.500})")
        rewards = [reward.value for trace in episode.traces for reward in trace.rewards.values() if reward is not None]
        return float(sum(rewards)) if rewards else None

    def _task(self, row: Mapping[str, Any]) -> Any:
        if INDEX not in row:
            raise EnvironmentFailure(
                f"the row has no column {INDEX!r}, the number of a task; leave --dataset out, or give it this address"
            )
        index = int(row[INDEX])
        tasks = self._environment.taskset if self._tasks is None else self._tasks
        for task in islice(tasks, index, None):
            return task
        raise EnvironmentFailure(f"the taskset has no task {index}, which the row's column {INDEX!r} names")


def load(name: str, parameters: Parameters) -> Callable[[], Harness]:
    """Return what makes the episodes of an environment; see `adapters.Load`."""
    environment = open_environment(name, parameters)
    tasks = list(environment.taskset) if environment.taskset.bounded else None
    _use_own_interpreter()

    def make() -> Harness:
        rollout = TasksetRollout(environment, tasks)
        return Harness(rollout.play, variables=rollout.variables)

    return make


def _use_own_interpreter() -> None:
    """Run the package's conversation program with this interpreter, which has all that it imports.

    `uv` would make an environment for it otherwise, from the network.
    """
    from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
    from verifiers.v1.runtimes.subprocess import SubprocessRuntime

    source = CHAT_PROGRAM_SOURCE.encode()
    path = Path(SubprocessRuntime.scripts_dir) / f"{hashlib.sha256(source).hexdigest()}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(source)
    os.replace(file.name, path)  # another process may do the same
    SubprocessRuntime._interpreters[str(path)] = sys.executable


ADAPTER = Adapter(package="verifiers", example="textarena", load=load, needs_rows=True)
