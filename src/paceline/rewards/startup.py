"""Before the first step: do the built-in reward functions recognise what the dataset's own rows call right?"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.needs import NEEDS
from paceline.rewards.scoring.arguments import check_arguments
from paceline.rewards.scoring.scores import Scores, score
from paceline.rewards.selecting import is_for
from paceline.rewards.trial import TRIAL_SECONDS, trial
from paceline.types import Completion, Task

SAMPLE_SIZE = 100
"""Tasks that are graded, spread evenly over those that a function can grade."""
LOOKED_AT = 1000
"""Tasks, spread evenly over the dataset, among which these are looked for: to state what is right may take time."""
MAX_OFFENDERS = 0.01
"""Share of the tasks that may fail a test."""
SELF_TEST_SECONDS = 600.0
"""Programs of the dataset's own run in the test: as long as one call of a reward function may take in a run."""

ANOTHER_FORMAT = "look at these prompts, which may not allow its format, or choose another reward function"

Element = TypeVar("Element")


def unmet_needs(functions: Mapping[str, RewardFunction], tasks: Sequence[Task]) -> tuple[str, ...]:
    """A sentence for each built-in function that gives some of the tasks no number, as they lack what it needs."""
    sentences = []
    for name, function in functions.items():
        if isinstance(function, BuiltIn) and function.name in NEEDS:
            own = [task for task in tasks if is_for(task, name)]
            lacking = [task.task_id for task in own if not NEEDS[function.name].is_met(task)]
            if lacking:
                sentences.append(
                    f"reward function {name!r} {NEEDS[function.name].does} and {len(lacking)} of {len(own)} tasks have "
                    f"none ({', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''}): it gives them no number"
                )
    return tuple(sentences)


def self_test(
    functions: Mapping[str, RewardFunction],
    tasks: Sequence[Task],
    *,
    are_all: bool = True,
    timeout: float = TRIAL_SECONDS,
    num_generations: int = 1,
) -> tuple[str, ...]:
    """Ids of the tasks whose gold answer cannot be recognised, does not score full, or where junk does.

    A gold answer that cannot be verified against itself can never be learned. Only built-in functions are tested so:
    what a gold completion of another one looks like is not known, only what it may return. What rows give is checked
    on all of them, what it scores on a sample. `are_all`: no reward model gives rewards beside these functions.
    `timeout`: seconds that a function of the user's own may take. `num_generations`: completions of a whole group.

    Raises:
        RewardError: more than 1 % of the tasks are such, a function that needs gold answers, tool calls or test cases
            finds none at all, one asks for an argument that there is not, or one returns what is no list of numbers;
            it names function and tasks.
    """
    check_arguments(functions, tasks)
    built_in = {name: function for name, function in functions.items() if isinstance(function, BuiltIn)}
    others = {name: function for name, function in functions.items() if name not in built_in}
    trial(
        others,
        tasks,
        may_be_silent=not are_all or bool(built_in),
        timeout=min(timeout, TRIAL_SECONDS),
        num_generations=num_generations,
    )
    offenders = list[str]()
    for name, function in built_in.items():
        own = [task for task in tasks if is_for(task, name)]
        _refuse_without(name, function, own)
        offenders += _misgraded(name, function, own)
        offenders += _doubtful(name, function, own)
    return tuple(dict.fromkeys(offenders))


def _refuse_without(name: str, function: BuiltIn, tasks: Sequence[Task]) -> None:
    """Without what it needs a function gives None for every completion, and there is nothing to learn."""
    if function.name not in NEEDS or not tasks:
        return
    need = NEEDS[function.name]
    if not any(need.is_met(task) for task in tasks):
        raise RewardError(
            f"reward function {name!r} {need.does} and none of the {len(tasks)} tasks has one; {need.remedy}"
        )


def _doubtful(name: str, function: BuiltIn, tasks: Sequence[Task]) -> list[str]:
    """Ids of all tasks whose gold answer no completion could state so that it is recognised."""
    if function.name not in NEEDS:
        return []
    need = NEEDS[function.name]
    having = [task for task in tasks if need.is_met(task)]
    failing = [having[place].task_id for place in need.doubtful(having)]
    if len(failing) > MAX_OFFENDERS * len(having):
        raise RewardError(
            f"reward function {name!r} cannot recognise the gold answer of {len(failing)} of {len(having)} tasks "
            f"({_some(failing)}) in any other spelling; {need.repair}"
        )
    return failing


def _misgraded(name: str, function: BuiltIn, tasks: Sequence[Task]) -> list[str]:
    """Ids of the sampled tasks whose gold completion does not score full, or where junk does."""
    sample = _sample(function, tasks)
    rows = [(task, gold, True) for task, gold in sample if gold is not None]
    rows += [(task, junk, False) for task, _ in sample for junk in function.junk(task)]
    scores = score(
        {name: function},
        [task for task, _, _ in rows],
        [_stated(text) for _, text, _ in rows],
        timeout=SELF_TEST_SECONDS,
    )
    wrong = {
        task.task_id
        for place, ((task, _, is_gold), value) in enumerate(zip(rows, scores.values[name], strict=True))
        if place in scores.failed[name] or (value is not None and (value >= function.maximum) != is_gold)
    }
    failing = [task.task_id for task, _ in sample if task.task_id in wrong]
    repair = NEEDS[function.name].repair if function.name in NEEDS else ANOTHER_FORMAT
    if len(failing) > MAX_OFFENDERS * len(sample):
        raise RewardError(
            f"reward function {name!r} does not give full marks to the gold answer of {len(failing)} of {len(sample)} "
            f"sampled tasks ({_some(failing)}), or gives them to junk; {repair}{_culprit(scores)}"
        )
    return failing


def _sample(function: BuiltIn, tasks: Sequence[Task]) -> list[tuple[Task, str | None]]:
    """Tasks with a completion of each that must score full; None where nothing says what that would be."""
    if function.name in NEEDS:
        tasks = [task for task in tasks if NEEDS[function.name].is_met(task)]
    if function.gold is None:
        return [(task, None) for task in _spread(tasks, SAMPLE_SIZE)]
    golds = [(task, function.gold(task)) for task in _spread(tasks, LOOKED_AT)]
    return _spread([pair for pair in golds if pair[1] is not None] or golds, SAMPLE_SIZE)


def _spread(items: Sequence[Element], most: int) -> list[Element]:
    size = min(most, len(items))
    return [items[index * len(items) // size] for index in range(size)]


def _stated(text: str) -> Completion:
    return Completion(token_ids=(), logprobs=(), finish_reason="stop", text=text, policy_version=0)


def _some(task_ids: Sequence[str]) -> str:
    return f"{', '.join(task_ids[:5])}{', ...' if len(task_ids) > 5 else ''}"


def _culprit(scores: Scores) -> str:
    return f"; the first failure: {scores.culprit}" if scores.culprit else ""
