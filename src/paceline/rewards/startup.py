"""Before the first step: do the built-in reward functions recognise the dataset's own gold answers?"""

from collections.abc import Mapping, Sequence

from paceline.errors import RewardError
from paceline.rewards.builtin import BUILT_IN, NEEDS_ANSWER, gold_completion
from paceline.rewards.function import RewardFunction
from paceline.rewards.scoring import check_arguments
from paceline.rewards.trial import trial
from paceline.types import Task

SAMPLE_SIZE = 100
"""Tasks, spread evenly over the dataset."""
MAX_OFFENDERS = 0.01
"""Share of the sampled tasks that may fail the test."""
MAXIMUM = 1.0
"""The most that any built-in function gives."""
WRONG_ANSWER = "none of this is an answer"
JUNK = ("", "I am not sure.", "<answer></answer>", r"\boxed{}")


def self_test(
    functions: Mapping[str, RewardFunction], tasks: Sequence[Task], *, are_all: bool = True
) -> tuple[str, ...]:
    """Ids of the sampled tasks whose gold answer does not score full, or where junk does.

    A gold answer that cannot be verified against itself can never be learned. Only built-in functions are tested so:
    what a gold completion of another one looks like is not known, only what it may return. `are_all`: no reward model
    gives rewards beside these functions.

    Raises:
        RewardError: more than 1 % of the sampled tasks are such, a function that needs gold answers finds none at
            all, one asks for an argument that there is not, or one returns what is no list of numbers; it names
            function and tasks.
    """
    sample = _sample(tasks)
    check_arguments(functions, tasks)
    others = {name: function for name, function in functions.items() if BUILT_IN.get(name) is not function}
    trial(others, tasks, may_be_silent=not are_all or len(others) < len(functions))
    _refuse_without_answers(functions, tasks)
    offenders: list[str] = []
    for name, function in functions.items():
        if name not in BUILT_IN or BUILT_IN[name] is not function:
            continue
        failing = [task.task_id for task in sample if not _passes(name, function, task)]
        if len(failing) > MAX_OFFENDERS * len(sample):
            raise RewardError(
                f"reward function {name!r} does not give full marks to the gold answer of {len(failing)} of "
                f"{len(sample)} sampled tasks ({', '.join(failing[:5])}{', ...' if len(failing) > 5 else ''}); correct "
                "these answers, name the right column with --answer-column, or choose another reward function"
            )
        offenders += failing
    return tuple(dict.fromkeys(offenders))


def _refuse_without_answers(functions: Mapping[str, RewardFunction], tasks: Sequence[Task]) -> None:
    """Without a gold answer these functions give None for every completion, and there is nothing to learn."""
    needing = [name for name in functions if name in NEEDS_ANSWER]
    if needing and all(task.answer is None for task in tasks):
        raise RewardError(
            f"reward function {needing[0]!r} compares with gold answers and none of the {len(tasks)} tasks has one; "
            "name their column with --answer-column, or choose another reward function"
        )


def _sample(tasks: Sequence[Task]) -> list[Task]:
    answered = [task for task in tasks if task.answer is not None and task.answer.strip()]
    size = min(SAMPLE_SIZE, len(answered))
    return [answered[index * len(answered) // size] for index in range(size)]


def _passes(name: str, function: RewardFunction, task: Task) -> bool:
    """Whether the gold answer scores full and nothing that is surely wrong does."""
    gold = gold_completion(name, task.answer or "", prompt=task.prompt)
    if gold is None:
        return True
    junk = list(JUNK)
    if name != "format":
        junk.append(gold_completion(name, WRONG_ANSWER, prompt=task.prompt) or "")
    completions = [gold, *junk]
    size = len(completions)
    values = function(prompts=[task.prompt] * size, completions=completions, answer=[task.answer] * size)
    return bool(values[0] == MAXIMUM and MAXIMUM not in values[1:])
