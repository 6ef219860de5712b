"""Before the first step: do the built-in reward functions recognise what the dataset's own rows call right?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paceline.data.rows import spread
from paceline.errors import RewardError
from paceline.rewards.builtin.answers import is_blank
from paceline.rewards.builtin.tools import has_calls, unreadable_calls
from paceline.rewards.function import BuiltIn, RewardFunction, compares_group, is_marked
from paceline.rewards.maths.verdicts import unverifiable
from paceline.rewards.programs.cases import has_cases
from paceline.rewards.scoring.calling import accepted, arguments_of, made_up
from paceline.rewards.scoring.scores import score
from paceline.rewards.selecting import is_for
from paceline.types import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """One kind of thing that rows give."""

    does: str
    """What a function does with it, after its name: `compares with gold answers`."""
    remedies: tuple[str, ...]
    """What to do where no row has it."""
    repairs: tuple[str, ...]
    """What to do with rows that have it and cannot be graded by it."""
    is_met: Callable[[Task], bool]
    doubtful: Callable[[Sequence[Task]], list[int]] = lambda tasks: []
    """Positions of tasks that have it in a form that cannot be recognised in a completion."""


CHOOSE = "choose another reward function"

ANSWERS = Need(
    does="compares with gold answers",
    remedies=("name their column with --answer-column", CHOOSE),
    repairs=("correct these answers", "name the right column with --answer-column", CHOOSE),
    is_met=lambda task: not is_blank(task.answer),
    doubtful=lambda tasks: unverifiable([task.answer or "" for task in tasks]),
)
CALLS = Need(
    does="compares with tool calls",
    remedies=(
        "give them in the column tool_calls",
        "name their column with --answer-column",
        "choose another function",
    ),
    repairs=("correct these calls", CHOOSE),
    is_met=has_calls,
    doubtful=unreadable_calls,
)
CASES = Need(
    does="runs test cases",
    remedies=("give them in one of the columns that docs/rewards.md names", CHOOSE),
    repairs=("correct the tests or the solutions of these rows", CHOOSE),
    is_met=lambda task: has_cases(task.columns),
)

# By the name of the function; one that is not here can grade any row.
NEEDS: Mapping[str, Need] = {
    **dict.fromkeys(("accuracy", "think_answer_tags", "boxed", "gsm8k", "cosine"), ANSWERS),
    "tool_call": CALLS,
    "code": CASES,
}

TRIAL_SIZE = 8
"""Tasks, spread evenly over the dataset, each with one completion: enough to tell a list from anything else."""
TRIAL_SECONDS = 120.0
"""A judge behind a network may need them; a function that never returns is found before the weights are read."""
SAMPLE_SIZE = 100  # Tasks that are graded, spread evenly over those that a function can grade
LOOKED_AT = 1000
"""Tasks, spread evenly over the dataset, among which these are looked for: to state what is right may take time."""
MAX_OFFENDERS = 0.01  # Share of the tasks that may fail a test
SELF_TEST_SECONDS = 600.0
"""Programs of the dataset's own run in the test: as long as one call of a reward function may take in a run."""


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
    for name, function in functions.items():
        accepted(name, function, arguments_of(tasks[:1], ()))
    built_in = {name: function for name, function in functions.items() if isinstance(function, BuiltIn)}
    others = {name: function for name, function in functions.items() if name not in built_in}
    trial(
        others,
        tasks,
        may_be_silent=not are_all or bool(built_in) or any(is_marked(one, "may_be_silent") for one in others.values()),
        timeout=min(timeout, TRIAL_SECONDS),
        num_generations=num_generations,
    )
    offenders = list[str]()
    for name, function in built_in.items():
        able = [task for task in tasks if is_for(task, name)]
        need = NEEDS.get(function.name)
        if need is not None:
            # Without what it needs a function gives None for every completion, and there is nothing to learn.
            total, able = len(able), [task for task in able if need.is_met(task)]
            if total and not able:
                raise RewardError(
                    f"reward function {name!r} {need.does} and none of the {total} tasks has one",
                    remedies=need.remedies,
                )
        offenders += _misgraded(name, function, able, need)
        if need is not None:
            # Tasks whose gold answer no completion could state so that it is recognised.
            failing = [able[place].task_id for place in need.doubtful(able)]
            if len(failing) > MAX_OFFENDERS * len(able):
                raise RewardError(
                    f"reward function {name!r} cannot recognise the gold answer of {len(failing)} of {len(able)} tasks "
                    f"({_some(failing)}) in any other spelling",
                    remedies=need.repairs,
                )
            offenders += failing
    return tuple(dict.fromkeys(offenders))


def _misgraded(name: str, function: BuiltIn, tasks: Sequence[Task], need: Need | None) -> list[str]:
    """Ids of the sampled tasks whose gold completion does not score full, or where junk does."""
    # Tasks with a completion of each that must score full; None where nothing says what that would be.
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
        for place, ((task, _, is_gold), value) in enumerate(zip(rows, scores.values[name], strict=True))
        if place in scores.failed[name] or (value is not None and (value >= function.maximum) != is_gold)
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
    """Grade each of a few tasks' own gold answer; where there is none, a text that says nothing.

    Each of them stands there once, or `num_generations` times where a function needs whole groups. What a function
    raises here is no reason to stop: it may need a completion of another kind.

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
