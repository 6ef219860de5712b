"""What a reward function is given: the columns of its rows, and of those what its signature names."""

import copy
import inspect
from collections.abc import Mapping, Sequence

from paceline.errors import RewardError
from paceline.rewards.function import RewardFunction
from paceline.types import Completion, Task

Arguments = Mapping[str, list[object]]
"""By name, one value per completion."""

UNCHANGING = frozenset({str, int, float, complex, bool, bytes, type(None)})
"""Types whose values nobody can change: they are given as they are."""


def check_arguments(functions: Mapping[str, RewardFunction], tasks: Sequence[Task]) -> None:
    """Refuse, before the first step, a function that asks for what the tasks of a dataset do not have.

    Raises:
        RewardError: it names function and argument, and the arguments that there are.
    """
    for name, function in functions.items():
        accepted(name, function, arguments_of(tasks[:1], ()))


def arguments_of(tasks: Sequence[Task], completions: Sequence[Completion]) -> Arguments:
    """What every reward function may ask for; a column that not every task has is None where it is missing."""
    columns = dict.fromkeys(name for task in tasks for name in task.columns)
    return {
        **{name: [task.columns.get(name) for task in tasks] for name in columns},
        "answer": [task.answer for task in tasks],
        "prompts": [task.prompt for task in tasks],
        "prompt_messages": [None if task.messages is None else [dict(one) for one in task.messages] for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.token_ids) for completion in completions],
    }


def owned(arguments: Arguments) -> dict[str, list[object]]:
    """The arguments for one call of a function that may change what it is given, row by row copied to the bottom.

    Completions of one prompt share their row, and so do functions and steps: what one call does must reach no other.
    """
    return {name: [_own(value) for value in values] for name, values in arguments.items()}


def _own(value: object) -> object:
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if isinstance(value, list) and kind is list:
        return value.copy() if UNCHANGING.issuperset(map(type, value)) else [_own(item) for item in value]
    if isinstance(value, dict) and kind is dict:
        return {key: _own(item) for key, item in value.items()}
    try:
        return copy.deepcopy(value)
    except TypeError:  # a lock, a client: a program's own object, of which there is no second one
        return value


def accepted(name: str, function: RewardFunction, arguments: Arguments) -> Arguments:
    """The arguments that the function's signature takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward function {name!r} has no signature that can be read ({error}); wrap it in a function of Python"
        ) from error
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [one.name for one in named if one.default is one.empty and one.name not in arguments]
    missing += [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    if missing:
        raise RewardError(
            f"reward function {name!r} asks for the argument {missing[0]!r}, which it cannot get by name; "
            f"it can have {', '.join(arguments)}"
        )
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return arguments
    return {one.name: arguments[one.name] for one in named if one.name in arguments}
