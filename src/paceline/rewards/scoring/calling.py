"""Calls reward functions: plain ones one after another, then all async ones together on the event loop of user code.

An exception becomes the outcome of its call; `grading.py` repeats the call, and `scores.py` counts what still fails.
Each call has a deadline. Code that swallows every exception (`except:` around each row) is interrupted again and again,
and its result is discarded: the rows that were interrupted have arbitrary scores.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, ValuesView
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.data.pictures import Picture
from paceline.data.row_images import pictures_in
from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, RewardFunction, is_for
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.interrupts import interrupted_after
from paceline.runtime.own_code import BlockedLoop, copied, own_loop, wait_here
from paceline.types import Completion, Task, Trajectory, completed

if TYPE_CHECKING:
    from PIL import Image

Arguments = Mapping[str, list[object]]  # By name, one value per completion

ENVIRONMENTS = "environments"
"""Argument with live objects, which are not copied."""

# Types whose values nobody can change: they are given as they are.
UNCHANGING = frozenset({str, int, float, complex, bool, bytes, type(None)})
GRACE_SECONDS = 1.0
"""Async functions are cancelled at their deadline; one that then still blocks the event loop is interrupted."""
NAME = "a reward function"  # Name of the task, for a report of what blocks the event loop


class RewardTimeout(BaseException):
    """A call exceeded its deadline. Not an `Exception`: a function that swallows those must not swallow this."""


class TooSlow(Exception):
    """A call was ended at its deadline; it is not repeated row by row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """Outcome of one call."""

    result: object = None
    error: BaseException | None = None
    """Exception that the function raised; `result` has no meaning then."""
    seconds: float
    """Wall time; calls that wait at the same time each count it."""


def made_up(text: str, token_ids: tuple[int, ...] = ()) -> Trajectory:
    """Make a completion of this text that no model has sampled, without logprobs."""
    completion = Completion(token_ids=token_ids, logprobs=(), finish_reason="stop", text=text, policy_version=0)
    return completed((), completion)


def arguments_of(
    tasks: Sequence[Task], completions: Sequence[Trajectory], environments: Sequence[object] = ()
) -> Arguments:
    """Return the arguments that reward functions may ask for; a column that a task lacks is None there."""
    columns = dict.fromkeys(name for task in tasks for name in task.columns)
    return {
        **{name: [task.columns.get(name) for task in tasks] for name in columns},
        "answer": [task.answer for task in tasks],
        "prompts": [task.prompt for task in tasks],
        "prompt_messages": [None if task.messages is None else _with_pictures(task) for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.sampled_ids) for completion in completions],
        "finish_reasons": [completion.finish_reason for completion in completions],
        "completion_messages": [list(map(dict, completion.messages)) for completion in completions],
        "episode_ids": [list(completion.completion_ids) for completion in completions],
        ENVIRONMENTS: [getattr(world, "inner", world) for world in environments] or [None] * len(completions),
    }


def _with_pictures(task: Task) -> list[Mapping[str, object]]:
    """Return a task's messages, with the picture in each part that stands for an image."""
    messages: list[dict[str, Any]] = [dict(message) for message in task.messages or ()]
    if not task.media:
        return list(messages)
    by_hash = {picture.sha256: picture for picture in pictures_in(task.columns)}
    images = iter(task.media)
    return [
        {
            **message,
            "content": [
                {**part, "image": by_hash[next(images).sha256]} if part["type"] == "image" else part
                for part in message["content"]
            ],
        }
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _copied(value: object, images: "dict[str, Image.Image]") -> object:
    """Copy an argument deeply for one call of a function that may change it.

    Completions of one prompt share their row, and so do functions and steps: a change must not reach other calls.
    In the place of a picture stands its image, as PIL has it; `images`: those that the call has by now, by hash.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if isinstance(value, list) and kind is list:
        return value.copy() if UNCHANGING.issuperset(map(type, value)) else [_copied(item, images) for item in value]
    if isinstance(value, tuple) and kind is tuple and any(isinstance(item, Picture) for item in value):
        return [_copied(item, images) for item in value]
    if isinstance(value, dict) and kind is dict:
        return {key: _copied(item, images) for key, item in value.items()}
    if isinstance(value, Picture):
        if value.sha256 not in images:
            images[value.sha256] = value.pixels()
        return images[value.sha256]
    return copied(value)


def accepted(name: str, function: RewardFunction, arguments: Arguments) -> Arguments:
    """Return the arguments that the function's signature takes.

    Raises:
        RewardError: the function asks for an unknown argument; the sentence names it and those that exist.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward function {name!r} has no signature that can be read ({error}); wrap it in a function of Python"
        ) from error
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    missing = [
        parameter.name
        for parameter in named
        if parameter.default is parameter.empty and parameter.name not in arguments
    ]
    missing += [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_ONLY]
    if missing:
        raise RewardError(
            f"reward function {name!r} asks for the argument {missing[0]!r}, which it cannot get by name; "
            f"it can have {', '.join(arguments)}"
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    return {parameter.name: arguments[parameter.name] for parameter in named if parameter.name in arguments}


def outcomes(calls: Sequence[tuple[RewardFunction, Arguments]], *, timeout: float) -> list[CallOutcome]:
    """Call each function with its arguments; exceptions of a grader become outcomes.

    A call that takes more than `timeout` seconds fails; built-in functions have their own deadlines, per completion.
    """
    called = []
    for number, (function, arguments) in enumerate(calls, start=1):
        ACTIVITY.advance("reward", number - 1, len(calls))
        called.append(_call(function, arguments, timeout))
    waiting = {index: outcome for index, outcome in enumerate(called) if inspect.isawaitable(outcome.result)}
    if waiting:
        for index, outcome in zip(waiting, _awaited(list(waiting.values()), timeout), strict=True):
            called[index] = outcome
    ACTIVITY.advance("reward", len(calls), len(calls))
    return called


def _call(function: RewardFunction, arguments: Arguments, timeout: float) -> CallOutcome:
    started = time.perf_counter()
    limit = nullcontext() if isinstance(function, BuiltIn) else interrupted_after(timeout, RewardTimeout)
    try:
        with limit:
            if not isinstance(function, BuiltIn):
                images: dict[str, Image.Image] = {}
                arguments = {
                    name: values.copy() if name == ENVIRONMENTS else [_copied(value, images) for value in values]
                    for name, values in arguments.items()
                }
            result = listed(function(**arguments))
    except RewardTimeout:
        return CallOutcome(error=_too_slow(timeout), seconds=time.perf_counter() - started)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a grader raises is counted, not fatal
        return CallOutcome(error=error, seconds=time.perf_counter() - started)
    return CallOutcome(result=result, seconds=time.perf_counter() - started)


def listed(result: object) -> object:
    """Return the items of a generator, a map or a dict's values as a list, and anything else as it is.

    An exception inside a generator is raised here, as if by the function.
    """
    return [*result] if isinstance(result, Iterator | ValuesView) else result


def _too_slow(timeout: float) -> TooSlow:
    return TooSlow(f"the call took more than --reward-timeout {timeout:g} seconds")


def _awaited(called: Sequence[CallOutcome], timeout: float) -> list[CallOutcome]:
    """Await all calls at once; one that calls `sys.exit` ends its own call, not the run."""
    started, finished, begun = time.perf_counter(), dict[int, CallOutcome](), set[int]()

    async def finish(index: int) -> None:
        began, call = time.perf_counter(), called[index]
        begun.add(index)
        assert isinstance(call.result, Awaitable)
        result, failure = None, None
        try:
            async with asyncio.timeout(timeout) as limit:
                result = listed(await call.result)
        except (Exception, SystemExit, BlockedLoop, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
            failure = _too_slow(timeout) if limit.expired() or isinstance(error, BlockedLoop) else error
        finished[index] = CallOutcome(result=result, error=failure, seconds=call.seconds + time.perf_counter() - began)

    async def finish_all() -> None:
        await asyncio.gather(*(asyncio.create_task(finish(index), name=NAME) for index in range(len(called))))

    loop = own_loop()
    running = loop.begin(finish_all(), NAME)
    try:
        if not wait_here(running, timeout + GRACE_SECONDS):
            loop.free().result()
            wait_here(running, GRACE_SECONDS)
    finally:
        running.cancel()
    unfinished = CallOutcome(error=_too_slow(timeout), seconds=time.perf_counter() - started)
    behind = [index for index in range(len(called)) if index not in begun]
    if loop.is_lost and behind:  # a call blocks the loop for good, and these have not been started
        finished |= dict(zip(behind, _awaited([called[index] for index in behind], timeout), strict=True))
    return [finished.get(index, unfinished) for index in range(len(called))]


def early_start(
    functions: Mapping[str, RewardFunction], tasks: Sequence[Task]
) -> Callable[[int, tuple[int, ...], str], None] | None:
    """Return the callback of an engine for a finished completion: index of its request, its tokens, its text.

    `tasks[i]` is the task of request i. None where no function has work that can start early. The work is only begun:
    `score` asks for all results, and a function that could not begin does the work then.
    """
    starting = {name: f.begin for name, f in functions.items() if isinstance(f, BuiltIn) and f.begin is not None}
    if not starting:
        return None

    def start(request: int, token_ids: tuple[int, ...], text: str) -> None:
        task = tasks[request]
        for name, begin in starting.items():
            if is_for(task, name):
                begin(**arguments_of([task], [made_up(text, token_ids)]))

    return start
