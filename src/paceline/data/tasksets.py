"""Environments of verifiers by name, `ID(option=value, ...)`, and their tasks as rows: `--dataset verifiers:ID(...)`.

`ID` is an installed taskset. An option is the taskset's own (`game=Wordle-v0`); with dots it is one of the environment,
as the package's own commands have it behind `--env.`: `agent.max_turns=4`, `agent.harness.id=null`.

| left to the package's default                | here                                                            |
|----------------------------------------------|-----------------------------------------------------------------|
| the program runs in a sandbox on the network | it runs on this machine, `agent.runtime.type=subprocess`        |
| the program is `bash`, a coding agent        | it is `null`, the package's plain conversation with its tools   |

A taskset that brings or names another program, or another place for it, keeps that.
"""

import json
from collections.abc import Mapping
from typing import Any

from paceline.config.packages import install_command
from paceline.config.reading import base_name, parameter_texts
from paceline.config.sections import json_or_text
from paceline.data.rows import check_split, split_of
from paceline.errors import ConfigError, DataError

PREFIX = "verifiers:"
REFUSALS = (ImportError, AttributeError, TypeError, ValueError, LookupError, OSError)
"""Errors of the package for an unknown taskset or a wrong option."""


def open_environment(name: str, options: Mapping[str, Any]) -> Any:
    """Load a taskset and return the package's environment for it, with one seat for the model.

    Raises:
        ConfigError: there is no such taskset, an option is wrong, or it cannot be trained on here; the sentence
            continues an address.
    """
    try:
        return _opened(name, options)
    except REFUSALS as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"it cannot be loaded ({type(error).__name__}: {reason:.500}); correct it first") from error


def _opened(name: str, options: Mapping[str, Any]) -> Any:
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.utils import loaders
    from verifiers.v1.utils.compile import validate_pairing

    loaders.import_taskset(name)
    settings: dict[str, Any] = {"taskset": {"id": name}}
    for option, value in options.items():
        *path, last = option.split(".") if "." in option else ("taskset", option)
        table = settings
        for field in path:
            table = table.setdefault(field, {})
        table[last] = value
    kind = loaders.env_config_type(name)
    seats = {key: field.default for key, field in kind.model_fields.items() if isinstance(field.default, AgentConfig)}
    if len(seats) != 1:
        raise ConfigError(f"it has the seats {', '.join(seats)}, and one model is trained; take one with a single seat")
    ((seat, default),) = seats.items()
    seat_settings = settings.setdefault(seat, {})
    if "runtime" not in default.model_fields_set:
        seat_settings.setdefault("runtime", {}).setdefault("type", "subprocess")
    if default.harness is None and loaders.default_harness_id(name) == "bash":
        seat_settings.setdefault("harness", {}).setdefault("id", "null")
    config = kind.model_validate(settings)
    agent, program = getattr(config, seat), config.agent_harnesses()[seat]
    if program.id == "bash" and agent.runtime.type == "subprocess":
        raise ConfigError(
            "the program `bash` would run the model's commands on this machine without isolation; give it a container "
            f"({seat}.runtime.type=docker), or take {seat}.harness.id=null"
        )
    environment = loaders.load_environment(config)
    tasks = type(environment.taskset).task_type()
    tools = [*environment.taskset.toolsets(config.taskset), *tasks.toolsets(config.taskset.task)]
    validate_pairing(loaders.load_harness(program), tasks, agent.runtime, tools=tools)
    return environment


def taskset_rows(dataset: str, split: str, size: int) -> list[dict[str, object]]:
    """Return the first `size` tasks of a split as rows, or all: the question, and the task's `index` in the taskset.

    A hash of a task's content decides its split, so that the two have no task in common.

    Raises:
        DataError: verifiers is not installed, the taskset cannot be loaded, or no task is of this split.
    """
    try:
        import verifiers.v1  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise DataError(f"--dataset {dataset} needs the package verifiers; `{install_command('verifiers')}`") from error
    check_split(dataset, split)
    texts = parameter_texts(dataset, label=f"--dataset {dataset}", error=DataError)
    name = base_name(dataset).removeprefix(PREFIX)
    try:
        taskset = open_environment(name, {key: json_or_text(value) for key, value in texts.items()}).taskset
    except ConfigError as error:
        raise DataError(f"--dataset {dataset}: {error}") from error
    rows = list[dict[str, object]]()
    for index, task in enumerate(taskset):
        content = json.dumps(task.data.model_dump(mode="json", exclude={"idx"}), sort_keys=True)
        if split_of(content) == split:
            question = task.data.prompt_text or task.data.name or f"Task {index}."
            rows.append({"question": question, "index": index})
        if len(rows) == size:
            break
    if not rows:
        raise DataError(f"--dataset {dataset} has no task in the split {split!r}; take another taskset for it")
    return rows
