"""Self-test before the first step: do built-in reward functions give full marks to the dataset's gold answers?"""

from collections.abc import Mapping, Sequence

from paceline.data.rows import spread
from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, Need, RewardFunction, compares_group, is_for, is_marked
from paceline.rewards.scoring.calling import accepted, arguments_of, made_up
from paceline.rewards.scoring.scores import score
from paceline.types import Task

TRIAL_SIZE = 8
"""Tasks of a trial, spread evenly over the dataset, each with one completion: enough to check the type of a result."""
TRIAL_SECONDS = 120.0
"""Timeout of a trial: enough for a judge behind a network, and a function that never returns ends early."""
SAMPLE_SIZE = 100  # Tasks that are graded, spread evenly over those that a function can grade
LOOKED_AT = 1000
"""Tasks, spread evenly over the dataset, from which the graded ones are taken: to make gold completions takes time."""
MAX_OFFENDERS = 0.01  # Share of the tasks that may fail a test
SELF_TEST_SECONDS = 600.0
"""Timeout of the test, in which programs of the dataset run: that of one call of a reward function in a run."""


def unmet_needs(functions: Mapping[str, RewardFunction], tasks: Sequence[Task]) -> tuple[str, ...]:
    """Return a sentence for each built-in function that cannot grade some of the tasks, as they lack what it needs."""
    sentences = []
    for name, function in functions.items():
        if isinstance(function, BuiltIn) and (need := function.need) is not None:
            graded = [task for task in tasks if is_for(task, name)]
            lacking = [task.task_id for task in graded if not need.is_met(task)]
            if lacking:
                sentences.append(
                    f"reward function {name!r} {need.does} and {len(lacking)} of {len(graded)} tasks have "
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
    """Return the ids of tasks whose gold answer cannot be recognised, does not score full, or where junk does.

    A gold answer that cannot be verified against itself can never be learned. Only built-in functions are tested so:
    for a user's function only the type of its result can be checked. The content of rows is checked on all of them, the
    scores on a sample. `are_all`: no reward model gives rewards beside these functions. `timeout`: seconds that a
    user's function may take. `num_generations`: completions of a whole group.

    Raises:
        RewardError: more than 1 % of the tasks fail, a function that needs gold answers, tool calls or test cases finds
            none at all, asks for an unknown argument, or returns no list of numbers; it names function and tasks.
    """
    for name, function in functions.items():
        accepted(name, function, arguments_of(tasks[:1], ()))
    built_in = {name: function for name, function in functions.items() if isinstance(function, BuiltIn)}
    others = {name: function for name, function in functions.items() if name not in built_in}
    trial(
        others,
        tasks,
        may_be_silent=not are_all or bool(built_in) or any(is_marked(f, "may_be_silent") for f in others.values()),
        timeout=min(timeout, TRIAL_SECONDS),
        num_generations=num_generations,
    )
    offenders = list[str]()
    for name, function in built_in.items():
        able = [task for task in tasks if is_for(task, name)]
        need = function.need
        if need is not None:
            # without what it needs a function returns None for every completion, and there is nothing to learn
            total, able = len(able), [task for task in able if need.is_met(task)]
            if total and not able:
                raise RewardError(
                    f"reward function {name!r} {need.does} and none of the {total} tasks has one",
                    remedies=need.remedies,
                )
        offenders += _misgraded(name, function, able, need)
        if need is not None:
            # Tasks whose gold answer no completion could state so that it is recognised.
            failing = [able[index].task_id for index in need.doubtful(able)]
            if len(failing) > MAX_OFFENDERS * len(able):
                raise RewardError(
                    f"reward function {name!r} cannot recognise the gold answer of {len(failing)} of {len(able)} tasks "
                    f"({_some(failing)}) in any other spelling",
                    remedies=need.repairs,
                )
            offenders += failing
    return tuple(dict.fromkeys(offenders))


def _misgraded(name: str, function: BuiltIn, tasks: Sequence[Task], need: Need | None) -> list[str]:
    """Return the ids of sampled tasks whose gold completion does not score full, or where junk does."""
    # tasks, each with a completion that must score full; None where no such completion is known
    if function.gold is None:
        sample: list[tuple[Task, str | None]] = [(task, None) for task in spread(tasks, SAMPLE_SIZE)]
    else:
        golds = [(task, function.gold(task)) for task in spread(tasks, LOOKED_AT)]
        sample = spread([pair for pair in golds if pair[1] is not None] or golds, SAMPLE_SIZE)
    rows = [(task, gold, True) for task, gold in sample if gold is not None]
    rows += [(task, junk, False) for task, _ in sample for junk in function.junk(task)]
    completions = [made_up(text) for _, text, _ in rows]
    scores = score({name: function}, [task for task, _, _ in rows], completions, timeout=SELF_TEST_SECONDS)
    wrong = {
        task.task_id
        for index, ((task, _, is_gold), value) in enumerate(zip(rows, scores.values[name], strict=True))
        if index in scores.failed[name] or (value is not None and (value >= function.maximum) != is_gold)
    }
    failing = [task.task_id for task, _ in sample if task.task_id in wrong]
    if len(failing) > MAX_OFFENDERS * len(sample):
        another = ("look at these prompts, which may not allow its format, or choose another reward function",)
        *repairs, last = another if need is None else need.repairs
        culprit = f"; the first failure: {scores.culprit}" if scores.culprit else ""
        raise RewardError(
            f"reward function {name!r} does not give full marks to the gold answer of {len(failing)} of {len(sample)} "
            f"sampled tasks ({_some(failing)}), or gives them to junk",
            remedies=[*repairs, f"{last}{culprit}"],
        )
    return failing


def _some(task_ids: Sequence[str]) -> str:
    return f"{', '.join(task_ids[:5])}{', ...' if len(task_ids) > 5 else ''}"


def trial(
    functions: Mapping[str, RewardFunction],
    tasks: Sequence[Task],
    *,
    may_be_silent: bool,
    timeout: float,
    num_generations: int,
) -> None:
    """Grade the gold answers of a few tasks; for a task without one, a text without an answer.

    Each is graded once, or `num_generations` times where a function needs whole groups. An exception of a function is
    no reason to stop: it may need a completion of another kind.

    Raises:
        RewardError: a result is not one number or None per completion, a function takes longer than `timeout`
            seconds, or none gives any number, unless `may_be_silent`.
    """
    if not functions or not tasks:
        return
    repeated = num_generations if any(map(compares_group, functions.values())) else 1
    sample = [task for task in spread(tasks, TRIAL_SIZE) for _ in range(repeated)]
    # Token ids are the prompt's, which the tokenizer knows; the text does not belong to them.
    completions = [made_up(task.answer or "I am not sure.", task.prompt_ids) for task in sample]
    scores = score(functions, sample, completions, timeout=timeout)
    for name, failed in scores.failed.items():
        if len(failed) == len(scores.values[name]) and scores.seconds[name] >= timeout:
            raise RewardError(
                f"reward function {name!r} took more than {timeout:g} seconds for {len(failed)} made-up completions; "
                f"mend it, or raise --reward-timeout where that is below {TRIAL_SECONDS:g}"
            )
    is_silent = all(value is None for values in scores.values.values() for value in values)
    if is_silent and not may_be_silent and not any(scores.failed.values()):
        raise RewardError(
            f"reward functions {', '.join(map(repr, functions))} returned None for each of {len(sample)} made-up "
            f"completions, of {min(TRIAL_SIZE, len(tasks))} rows; return a number where a completion is a function's "
            "task"
        )
