"""What the reward functions of a run read in a completion: its answer, and whether it has the format asked for."""

from collections.abc import Mapping

from paceline.data.extraction.final import final_answer
from paceline.data.extraction.thinking import prefills_think, visible_text
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.selecting import is_for
from paceline.types import Task


def stated_answer(functions: Mapping[str, RewardFunction], task: Task, text: str) -> str | None:
    """The answer of a completion as the first function that reads one reads it, else as `accuracy` would; or None."""
    for function in functions.values():
        if isinstance(function, BuiltIn) and function.find is not None:
            return function.find(task.prompt, text)
    return final_answer(visible_text(text, prefilled=prefills_think(task.prompt)))


def has_format(functions: Mapping[str, RewardFunction], task: Task, text: str) -> bool | None:
    """Return whether a completion has every format that functions ask for; None if none asks for one."""
    verdicts = [
        function.is_formed(task.prompt, text)
        for name, function in functions.items()
        if isinstance(function, BuiltIn) and function.is_formed is not None and is_for(task, name)
    ]
    return all(verdicts) if verdicts else None
