"""What a reward function is, and what a built-in one is beyond that."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from paceline.sandbox.programs import Sandbox
from paceline.types import RowCheck, Task

Function = TypeVar("Function", bound=Callable[..., Any])

RIGHT = 0.5  # Where nothing else is known of a function, a score of at least this says that a completion is right


class RewardFunction(Protocol):
    """Grades a batch of completions; knows nothing of models, losses or files.

    Called as `f(prompts=..., completions=..., completion_ids=..., answer=..., prompt_messages=..., **columns)`: lists
    with one entry per completion, every column of the dataset among them. `prompts` are texts with the chat template
    applied, `prompt_messages` the messages that went into it (None for a prompt of plain text), `finish_reasons` are
    `length` where the completion was cut, else `stop`. A function without `**columns` gets only the arguments that its
    signature names.

    Of a conversation `completions` and `completion_ids` are what the model wrote, turn after turn, and nothing that an
    environment said; `completion_messages` are all messages behind the prompt, `episode_ids` the tokens of both.
    `environments` are the environments themselves, ended but alive, for a function to look into (the user's own object
    where there is one); None of a completion without one, and where environments have processes of their own.

    It returns a list (or tuple, array or tensor) with one number per completion, None for a completion that is not
    its task, or a `Grade` where there is something to say beside the number. An `async def` function may be given too:
    those of a run share one event loop and wait at the same time. What it is given is its own to change.

    A call that raises is made again, and then row by row, but for a function that compares completions
    (`needs_group`).

        def shorter(completion_ids, **columns):
            return [-len(ids) / 1000 for ids in completion_ids]
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One number, None or `Grade` per completion, or an awaitable of that list."""


def needs_group(function: Function) -> Function:
    """Mark a reward function that compares the completions of a prompt: it is called on whole groups only.

    The attribute `needs_group = True` on a function, or on an object that is called, says the same.

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
    """The least score of a function that evaluation counts as right."""
    return function.right if isinstance(function, BuiltIn) else RIGHT


def compares_group(function: RewardFunction) -> bool:
    """Return whether a function says that it needs whole groups."""
    return is_marked(function, "needs_group")


def is_marked(function: object, mark: str) -> bool:
    """Return whether a function has this attribute, or what a `functools.partial` calls has it."""
    if getattr(function, mark, False) is True:
        return True
    return isinstance(function, functools.partial) and is_marked(function.func, mark)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """A reward with what there is to say of it."""

    value: float | None
    """None: not this function's task."""
    note: str
    """For a person, written down beside the rollout: `passed 3 of 5 tests, then timeout`."""
    cut_short: bool = False
    """The batch had used up its time before all was known: `value` counts what was not looked at as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardContext:
    """What a run tells its built-in reward functions."""

    max_completion_length: int | None = None
    """Tokens of a completion, at most; the default of functions that penalise length."""
    open_sandbox: Callable[[], Sandbox] | None = None
    """Where programs run; called when the first one has to. The same sandbox each time."""
    seed: int = 0
    """Seed of the run, from which judges draw the order of what they compare."""
    call_seconds: float = 600.0
    """Seconds that a judge may take for all verdicts of one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltIn(RewardFunction):
    """A built-in reward function, made for a run. It is called as any other, but changes nothing of what it is given:
    rows reach it uncopied."""

    name: str
    """As the registry has it, without parameters."""
    call: RewardFunction
    gold: Callable[[Task], str | None] | None
    """A completion of a task that must score `maximum`, None where the row does not tell; None: there is no such
    thing, as for functions of length."""
    junk: Callable[[Task], tuple[str, ...]] = lambda task: ()
    """Completions of a task that must score below `maximum`."""
    maximum: float = 1.0
    right: float = RIGHT
    """Evaluation counts a completion that scores at least this as right."""
    find: Callable[[str, str], str | None] | None = None
    """From prompt and completion to the answer that it reads there, if it states one; None: it reads none."""
    find_in_cut: Callable[[str, str], str | None] | None = None
    """The same for a completion that was cut at its limit; None: as `find`."""
    mark: str = ""
    """How an answer must be marked to be read, in words for the user; empty: no mark is asked for."""
    is_formed: Callable[[str, str], bool] | None = None
    """True if a completion has, after its prompt, the format that the function asks for; None: it asks for none."""
    check_row: RowCheck | None = None
    """Called when the data is read."""
    begin: Callable[..., None] | None = None
    """Called with the same arguments for some completions while others are still sampled: starts work whose result
    `call` will need. It returns at once and raises nothing."""
    describe: Callable[[], str] | None = None
    """A sentence on what is in force, for the start of a run: how programs are isolated, what a judge may spend.
    Raises SandboxError where programs cannot be isolated, RewardError where a judge does not answer."""
    needs_group: bool = False
    """True if it compares the completions of a prompt: it is called on whole groups only."""
    calls: Callable[[int], int] | None = None
    """From the completions of a group to the calls of a service that their grades take, retries aside."""
    counts: Callable[[], Mapping[str, float]] | None = None
    """What was spent since it was last asked, for the metrics: numbers that add up over calls."""

    @override
    def __call__(self, **arguments: Any) -> Any:
        return self.call(**arguments)
