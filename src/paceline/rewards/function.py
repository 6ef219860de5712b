"""What a reward function is, and what a built-in one is beyond that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.programs import Sandbox
from paceline.types import RowCheck, Task

RIGHT = 0.5
"""Where nothing else is known of a function, a score of at least this says that a completion is right."""


class RewardFunction(Protocol):
    """Grades a batch of completions; knows nothing of models, losses or files.

    Called as `f(prompts=..., completions=..., completion_ids=..., answer=..., prompt_messages=..., **columns)`: lists
    with one entry per completion, every column of the dataset among them. `prompts` are texts with the chat template
    applied, `prompt_messages` the messages that went into it (None for a prompt of plain text). A function without
    `**columns` gets only the arguments that its signature names.

    It returns a list (or tuple, array or tensor) with one number per completion, None for a completion that is not
    its task, or a `Grade` where there is something to say beside the number. An `async def` function may be given too:
    those of a run share one event loop and wait at the same time.

        def shorter(completion_ids, **columns):
            return [-len(ids) / 1000 for ids in completion_ids]
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One number, None or `Grade` per completion, or an awaitable of that list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """A reward with what there is to say of it."""

    value: float | None
    """None: not this function's task."""
    note: str
    """For a person, written down beside the rollout: `passed 3 of 5 tests, then timeout`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardContext:
    """What a run tells its built-in reward functions."""

    max_completion_length: int | None = None
    """Tokens of a completion, at most; the default of functions that punish length."""
    open_sandbox: Callable[[], Sandbox] | None = None
    """Where programs run; called when the first one has to. The same sandbox each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltIn:
    """A built-in reward function, made for a run. It is called as any other."""

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
    check_row: RowCheck | None = None
    """Called when the data is read."""
    begin: Callable[..., None] | None = None
    """Called with the same arguments for some completions while others are still sampled: starts work whose result
    `call` will need. It returns at once and raises nothing."""
    describe: Callable[[], str] | None = None
    """A sentence on what is in force, for the start of a run: how programs are isolated. Raises SandboxError where
    they cannot be."""

    def __call__(self, **arguments: Any) -> Any:
        """See `RewardFunction`."""
        return self.call(**arguments)
