"""Interface of reward functions, the record of a built-in one, the parameters in its name, and the rows it applies to.

A dataset's column `reward_funcs` names the functions that apply to a row:

    {"question": "...", "answer": "42", "reward_funcs": ["accuracy", "format"]}

A row without the column, or with null in it, is graded by all functions of the run. A function that a row does not name
is not called on it, and its value is None there. Names are those of `--reward-funcs`, with or without parameters.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from paceline.chat.thinking import prefills_think, visible_text
from paceline.config.reading import base_name, parameter_texts, suggest
from paceline.data.answers import final_answer
from paceline.errors import DataError, RewardError
from paceline.sandbox.programs import Sandbox
from paceline.types import FinishReason, RowCheck, Task

Function = TypeVar("Function", bound=Callable[..., Any])

RIGHT = 0.5  # Score from which a completion counts as right, for functions that define no other threshold


class RewardFunction(Protocol):
    """Grades a batch of completions; knows nothing of models, losses or files.

    Called as `f(prompts=..., completions=..., completion_ids=..., answer=..., prompt_messages=..., **columns)`: lists
    with one entry per completion, every column of the dataset among them. `prompts` are texts with the chat template
    applied, `prompt_messages` the messages before it was applied (None for a prompt of plain text), `finish_reasons`
    are `length` where the completion was cut, else `stop`. A function without `**columns` gets only the arguments that
    its signature names.

    In a conversation `completions` and `completion_ids` hold what the model wrote, turn after turn, without the
    observations of an environment; `completion_messages` are all messages after the prompt, `episode_ids` the tokens of
    both. `environments` are the environment objects, ended but not destroyed, for a function to inspect (the user's own
    object where there is one). An entry is None for a completion without an environment, and where environments run in
    other processes.

    It returns a list (or tuple, array or tensor) with one number per completion, None for a completion that it does
    not grade, or a `Grade` where there is a note beside the number. An `async def` function works too: those of a run
    share one event loop and wait at the same time. A function may change its arguments.

    A call that raises is made again, and then row by row, except for a function that compares completions
    (`needs_group`).

        def shorter(completion_ids, **columns):
            return [-len(ids) / 1000 for ids in completion_ids]
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One number, None or `Grade` per completion, or an awaitable of that list."""


def needs_group(function: Function) -> Function:
    """Mark a reward function that compares the completions of a prompt: it is called on whole groups only.

    The attribute `needs_group = True` on a function or callable object has the same effect.

        @needs_group
        def longest(prompts, completions, **columns):
            most = {}
            for prompt, text in zip(prompts, completions, strict=True):
                most[prompt] = max(most.get(prompt, 0), len(text))
            return [float(len(text) == most[prompt]) for prompt, text in zip(prompts, completions, strict=True)]
    """
    vars(function).update(needs_group=True)
    return function


def right_of(function: RewardFunction) -> float:
    """Return the least score of a function that evaluation counts as right."""
    return function.right if isinstance(function, BuiltIn) else RIGHT


def compares_group(function: RewardFunction) -> bool:
    """Return whether a function is marked with `needs_group`."""
    return is_marked(function, "needs_group")


def is_marked(function: object, mark: str) -> bool:
    """Return whether a function, or the function inside a `functools.partial`, has this attribute."""
    if getattr(function, mark, False) is True:
        return True
    return isinstance(function, functools.partial) and is_marked(function.func, mark)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """A reward with a note."""

    value: float | None
    """None: the function does not grade this completion."""
    note: str
    """Text for a person, recorded beside the rollout: `passed 3 of 5 tests, then timeout`."""
    cut_short: bool = False
    """True if the batch had used up its time: `value` then counts everything that was not examined as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardContext:
    """Settings of a run that built-in reward functions need."""

    max_completion_length: int | None = None
    """Most tokens of a completion; the default of functions that penalise length."""
    open_sandbox: Callable[[], Sandbox] | None = None
    """Opens the sandbox for programs; called when the first program has to run. Returns the same sandbox each time."""
    seed: int = 0
    """Seed of the run, from which judges draw the order of what they compare."""
    call_seconds: float = 600.0
    """Seconds that a judge may take for all verdicts of one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A kind of content that a function needs in the rows."""

    does: str
    """Predicate of a sentence about the function: `compares with gold answers`."""
    remedies: tuple[str, ...]
    """Advice where no row has such content."""
    repairs: tuple[str, ...]
    """Advice for rows whose content cannot be graded."""
    is_met: Callable[[Task], bool]
    doubtful: Callable[[Sequence[Task]], list[int]] = lambda tasks: []
    """Positions of tasks whose content has a form that cannot be recognised in a completion."""


CHOOSE = "choose another reward function"

FORM_ALONE = (
    "rewards the form, whatever the answer in it is; give it a small weight beside a function that judges the answer"
)
"""Exception of a function that rewards a format: attacks without content count against it all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltIn(RewardFunction):
    """A built-in reward function, made for a run, with all that help, self-test, audit and documentation say of it.

    It is called like any other function, but must not change its arguments: it gets the rows themselves, not copies.
    """

    name: str
    """Name in the registry, without parameters."""
    call: RewardFunction
    gold: Callable[[Task], str | None] | None
    """Returns a completion of a task that must score `maximum`, None where the row does not determine one; None: there
    is no such completion, as for functions of length."""
    junk: Callable[[Task], tuple[str, ...]] = lambda task: ()
    """Returns completions of a task that must score below `maximum`."""
    maximum: float = 1.0
    right: float = RIGHT
    """Score from which evaluation counts a completion as right."""
    find: Callable[[str, str], str | None] | None = None
    """Returns the answer that the function reads in a completion after a prompt, if it states one; None: it reads
    none."""
    find_in_cut: Callable[[str, str], str | None] | None = None
    """The same for a completion that was cut at its limit; None: same as `find`."""
    mark: str = ""
    """How an answer must be marked to be read, in words for the user; empty: no mark is asked for."""
    is_formed: Callable[[str, str], bool] | None = None
    """Returns True if a completion has, after its prompt, the format that the function asks for; None: no format."""
    system_prompt: str | None = None
    """Default system message of a run, which tells the model the format that the function reads."""
    need: Need | None = None
    """Content of rows without which a completion gets no number; None: any row can be graded."""
    honest_forms: tuple[str, ...] = ()
    """Forms of an answer, by their names in `audit.subjects.WRAPPINGS`, in which the function promises to find it."""
    audit_exception: str = ""
    """Reason why attacks may score full, such as `FORM_ALONE`; empty: none may."""
    check_row: RowCheck | None = None
    """Called when the data is read."""
    begin: Callable[..., None] | None = None
    """Called with the same arguments for some completions while others are still sampled: starts work whose result
    `call` will need. It returns at once and raises nothing."""
    describe: Callable[[], str] | None = None
    """Returns a sentence for the start of a run: how programs are isolated, what a judge may spend. Raises SandboxError
    where programs cannot be isolated, RewardError where a judge does not respond."""
    needs_group: bool = False
    """True if it compares the completions of a prompt: it is called on whole groups only."""
    calls: Callable[[int], int] | None = None
    """Maps the size of a group to the number of calls of a service, without retries."""
    counts: Callable[[], Mapping[str, float]] | None = None
    """Returns the spending since the last call of it, for the metrics: numbers that add up over calls."""

    @override
    def __call__(self, **arguments: Any) -> Any:
        return self.call(**arguments)


def parameters_of(name: str, maker: Callable[..., object]) -> dict[str, object]:
    """Return the parameters in a name, as values of the types that `maker` annotates them with.

    Values are numbers, true or false, words, or text without commas. They are never read as code.

    Raises:
        RewardError: the sentence names the parameter, the value, and the choices.
    """
    texts = parameter_texts(name, label=f"--reward-funcs {name}", error=RewardError)
    known = annotations(maker) if texts else {}
    for parameter in texts:
        if parameter not in known:
            base, near = base_name(name), suggest(parameter, known, otherwise="")
            what = f"has no parameter {parameter!r}; {near + ' ' if near else ''}it takes {', '.join(known)}"
            if not known:
                what = f"takes no parameters, got {parameter!r}; write {base}"
            raise RewardError(f"--reward-funcs {name}: {base!r} {what}")
    return {parameter: _parsed(name, parameter, known[parameter], value) for parameter, value in texts.items()}


def annotations(maker: Callable[..., object]) -> dict[str, object]:
    """Return the keyword parameters of a maker with their types."""
    hints = typing.get_type_hints(maker)
    parameters = inspect.signature(maker).parameters.items()
    return {name: hints[name] for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _parsed(name: str, parameter: str, annotation: object, text: str) -> object:
    kind = annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        kind = next(arm for arm in typing.get_args(annotation) if arm is not type(None))
    value: object = None
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        rule, value = f"one of {', '.join(choices)}", text if text in choices else None
    elif kind is str:
        return text
    elif kind is bool:
        rule, value = "true or false", {"true": True, "false": False}.get(text.lower())
    else:
        assert kind in (int, float), f"{parameter}: a maker's parameters are numbers, booleans, text or literals"
        rule = "a whole number" if kind is int else "a number"
        with suppress(ValueError):
            number = int(text) if kind is int else float(text)
            value = number if math.isfinite(number) else None
    if value is None:
        raise RewardError(f"--reward-funcs {name}: {parameter} must be {rule}, got {text!r}; correct the value")
    return value


COLUMN = "reward_funcs"


def is_for(task: Task, name: str) -> bool:
    """Return whether the reward function `name` is to grade completions of this task."""
    chosen = _chosen(task)
    return chosen is None or name in chosen or base_name(name) in chosen


def check_selections(names: Iterable[str], tasks: Sequence[Task]) -> None:
    """Raise DataError for a row that names a function which the run does not have, or none at all."""
    known = {spelling for name in names for spelling in (name, base_name(name))}
    for task in tasks:
        chosen = _chosen(task)
        unknown = [name for name in chosen or () if name not in known]
        if unknown or chosen == ():
            raise DataError(
                f"row {task.task_id}: column {COLUMN!r} must name functions of --reward-funcs "
                f"({', '.join(sorted(known))}), got {unknown[0] if unknown else 'none'!r}; correct the row, leave the "
                "cell empty (null) for all of them, or rename the column"
            )


def _chosen(task: Task) -> tuple[str, ...] | None:
    """Return the names in the row; text is split at commas and spaces."""
    value = task.columns.get(COLUMN)
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    return None if value is None else (str(value),)


def row_check(functions: Mapping[str, RewardFunction]) -> RowCheck | None:
    """Combine the row checks of these functions; None where no function has one."""
    checks = [f.check_row for f in functions.values() if isinstance(f, BuiltIn) and f.check_row is not None]
    if not checks:
        return None

    def check_all(columns: Mapping[str, object], row_id: str) -> None:
        for check in checks:
            check(columns, row_id)

    return check_all


def stated_answer(
    functions: Mapping[str, RewardFunction], task: Task, text: str, finish_reason: FinishReason
) -> str | None:
    """Return the answer of a completion as the first function that reads one does, else as `accuracy` does; or None."""
    for function in functions.values():
        if isinstance(function, BuiltIn) and function.find is not None:
            find = function.find_in_cut if function.find_in_cut and finish_reason == "length" else function.find
            return find(task.prompt, text)
    return final_answer(visible_text(text, prefilled=prefills_think(task.prompt)))


def has_format(functions: Mapping[str, RewardFunction], task: Task, text: str) -> bool | None:
    """Return whether a completion has every format that functions ask for; None if no function asks for one."""
    verdicts = [
        function.is_formed(task.prompt, text)
        for name, function in functions.items()
        if isinstance(function, BuiltIn) and function.is_formed is not None and is_for(task, name)
    ]
    return all(verdicts) if verdicts else None
