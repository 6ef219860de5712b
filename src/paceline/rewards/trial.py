"""One call of each reward function on made-up completions: what it returns is known before weights are read."""

from collections.abc import Mapping, Sequence

from paceline.errors import RewardError
from paceline.rewards.function import RewardFunction, compares_group
from paceline.rewards.scoring.scores import Scores, score
from paceline.types import Completion, Task

TRIAL_SIZE = 8
"""Tasks, spread evenly over the dataset, each with one completion: enough to tell a list from anything else."""
TRIAL_SECONDS = 120.0
"""A judge behind a network may need them; a function that never returns is found before the weights are read."""
NO_ANSWER = "I am not sure."


def trial(
    functions: Mapping[str, RewardFunction],
    tasks: Sequence[Task],
    *,
    may_be_silent: bool,
    timeout: float,
    num_generations: int,
) -> None:
    """Grade each of a few tasks' own gold answer; where there is none, a text that says nothing.

    Each of them stands there once, or `num_generations` times where a function needs whole groups. What a function
    raises here is no reason to stop: it may need a completion of another kind.

    Raises:
        RewardError: a result is not one number or None per completion, a function takes longer than `timeout`
            seconds, or none gives any number, unless `may_be_silent`.
    """
    if not functions or not tasks:
        return
    size = min(TRIAL_SIZE, len(tasks))
    repeated = num_generations if any(map(compares_group, functions.values())) else 1
    sample = [tasks[index * len(tasks) // size] for index in range(size) for _ in range(repeated)]
    scores = score(functions, sample, [_made_up(task) for task in sample], timeout=timeout)
    _refuse_too_slow(scores, timeout=timeout)
    is_silent = all(value is None for values in scores.values.values() for value in values)
    if is_silent and not may_be_silent and not any(scores.failed.values()):
        raise RewardError(
            f"reward functions {', '.join(map(repr, functions))} returned None for each of {len(sample)} made-up "
            f"completions, of {size} rows; return a number where a completion is a function's task"
        )


def _refuse_too_slow(scores: Scores, *, timeout: float) -> None:
    for name, failed in scores.failed.items():
        if len(failed) == len(scores.values[name]) and scores.seconds[name] >= timeout:
            raise RewardError(
                f"reward function {name!r} took more than {timeout:g} seconds for {len(failed)} made-up completions; "
                f"mend it, or raise --reward-timeout where that is below {TRIAL_SECONDS:g}"
            )


def _made_up(task: Task) -> Completion:
    """Its token ids are the prompt's, which the tokenizer knows; its text does not belong to them."""
    return Completion(
        token_ids=task.prompt_ids,
        logprobs=(0.0,) * len(task.prompt_ids),
        finish_reason="stop",
        text=task.answer or NO_ANSWER,
        policy_version=0,
    )
