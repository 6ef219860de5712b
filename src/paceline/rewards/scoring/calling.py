"""Calls reward functions: plain ones one after another, then all async ones together on the event loop of
the user's own code.

Each call has a deadline. Code that swallows every exception (`except:` around each row) is interrupted again and again,
and what it returns in the end is no result: a row that was cut short so has a made-up score.
"""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, ValuesView
from contextlib import nullcontext
from dataclasses import dataclass

from paceline.errors import RewardError
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.selecting import is_for
from paceline.runtime.activity import ACTIVITY
from paceline.runtime.event_loop import BlockedLoop, own_loop, wait_here
from paceline.runtime.interrupts import interrupted_after
from paceline.runtime.own_code import copied
from paceline.types import Completion, Task, Trajectory, completed

Arguments = Mapping[str, list[object]]  # By name, one value per completion

ENVIRONMENTS = "environments"
"""Argument with living objects, of which a copy would not be the same."""

# Types whose values nobody can change: they are given as they are.
UNCHANGING = frozenset({str, int, float, complex, bool, bytes, type(None)})
GRACE_SECONDS = 1.0
"""Async functions are cancelled at their deadline; one that then still blocks the event loop is interrupted."""
NAME = "a reward function"  # Of its task, for who is held up by one that blocks the loop


class RewardTimeout(BaseException):
    """The call took longer than it may. No `Exception`: a function that swallows those must not swallow this."""


class TooSlow(Exception):
    """A call was ended at its deadline; it is not made again row by row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallOutcome:
    """What one call came to."""

    result: object = None
    error: BaseException | None = None
    """What the function raised; `result` means nothing then."""
    seconds: float
    """Wall time; calls that wait at the same time count it each."""


def made_up(text: str, token_ids: tuple[int, ...] = ()) -> Trajectory:
    """A completion of this text that no model has sampled; reward functions see no logprobs."""
    completion = Completion(token_ids=token_ids, logprobs=(), finish_reason="stop", text=text, policy_version=0)
    return completed((), completion)


def arguments_of(
    tasks: Sequence[Task], completions: Sequence[Trajectory], environments: Sequence[object] = ()
) -> Arguments:
    """What every reward function may ask for; a column that not every task has is None where it is missing."""
    columns = dict.fromkeys(name for task in tasks for name in task.columns)
    return {
        **{name: [task.columns.get(name) for task in tasks] for name in columns},
        "answer": [task.answer for task in tasks],
        "prompts": [task.prompt for task in tasks],
        "prompt_messages": [None if task.messages is None else [dict(one) for one in task.messages] for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.sampled_ids) for completion in completions],
        "finish_reasons": [completion.finish_reason for completion in completions],
        "completion_messages": [[dict(one) for one in completion.messages] for completion in completions],
        "episode_ids": [list(completion.completion_ids) for completion in completions],
        ENVIRONMENTS: [getattr(one, "inner", one) for one in environments] or [None] * len(completions),
    }


def _own(value: object) -> object:
    """Copy an argument to the bottom for one call of a function that may change what it is given.

    Completions of one prompt share their row, and so do functions and steps: what one call does must reach no other.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if isinstance(value, list) and kind is list:
        return value.copy() if UNCHANGING.issuperset(map(type, value)) else [_own(item) for item in value]
    if isinstance(value, dict) and kind is dict:
        return {key: _own(item) for key, item in value.items()}
    return copied(value)


def accepted(name: str, function: RewardFunction, arguments: Arguments) -> Arguments:
    """The arguments that the function's signature takes.

    Raises:
        RewardError: it asks for one that there is not; the sentence names function, argument, and those that there are.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward function {name!r} has no signature that can be read ({error}); wrap it in a function of Python"
        ) from error
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [one.name for one in named if one.default is one.empty and one.name not in arguments]
    missing += [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    if missing:
        raise RewardError(
            f"reward function {name!r} asks for the argument {missing[0]!r}, which it cannot get by name; "
            f"it can have {', '.join(arguments)}"
        )
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return arguments
    return {one.name: arguments[one.name] for one in named if one.name in arguments}


def outcomes(calls: Sequence[tuple[RewardFunction, Arguments]], *, timeout: float) -> list[CallOutcome]:
    """Call each function with arguments of its own; nothing that a grader raises passes.

    A call that takes more than `timeout` seconds fails; built-in functions keep deadlines of their own, per answer.
    """
    called = []
    for number, (function, arguments) in enumerate(calls, start=1):
        ACTIVITY.advance("reward", number - 1, len(calls))
        called.append(_call(function, arguments, timeout))
    waiting = {place: one for place, one in enumerate(called) if inspect.isawaitable(one.result)}
    if waiting:
        for place, outcome in zip(waiting, _together(list(waiting.values()), timeout), strict=True):
            called[place] = outcome
    ACTIVITY.advance("reward", len(calls), len(calls))
    return called


def _call(function: RewardFunction, arguments: Arguments, timeout: float) -> CallOutcome:
    started = time.perf_counter()
    limit = nullcontext() if isinstance(function, BuiltIn) else interrupted_after(timeout, RewardTimeout)
    try:
        with limit:
            if not isinstance(function, BuiltIn):
                arguments = {
                    name: values.copy() if name == ENVIRONMENTS else [_own(value) for value in values]
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

    What a generator raises on its way, its function raises.
    """
    return [*result] if isinstance(result, Iterator | ValuesView) else result


def _too_slow(timeout: float) -> TooSlow:
    return TooSlow(f"the call took more than --reward-timeout {timeout:g} seconds")


def _together(called: Sequence[CallOutcome], timeout: float) -> list[CallOutcome]:
    """All of them awaited at once; a task of theirs that leaves the program takes its call with it, not the run."""
    started, finished, begun = time.perf_counter(), dict[int, CallOutcome](), set[int]()

    async def finish(place: int) -> None:
        began, one = time.perf_counter(), called[place]
        begun.add(place)
        assert isinstance(one.result, Awaitable)
        result, failure = None, None
        try:
            async with asyncio.timeout(timeout) as limit:
                result = listed(await one.result)
        except (Exception, SystemExit, BlockedLoop, asyncio.CancelledError) as error:  # noqa: BLE001 - as above
            failure = _too_slow(timeout) if limit.expired() or isinstance(error, BlockedLoop) else error
        finished[place] = CallOutcome(result=result, error=failure, seconds=one.seconds + time.perf_counter() - began)

    async def finish_all() -> None:
        await asyncio.gather(*(asyncio.create_task(finish(place), name=NAME) for place in range(len(called))))

    loop = own_loop()
    running = loop.begin(finish_all(), NAME)
    try:
        if not wait_here(running, timeout + GRACE_SECONDS):
            loop.free().result()
            wait_here(running, GRACE_SECONDS)
    finally:
        running.cancel()
    unfinished = CallOutcome(error=_too_slow(timeout), seconds=time.perf_counter() - started)
    behind = [place for place in range(len(called)) if place not in begun]
    if loop.is_lost and behind:  # one blocks it for good, and these have not had their turn
        finished |= dict(zip(behind, _together([called[place] for place in behind], timeout), strict=True))
    return [finished.get(place, unfinished) for place in range(len(called))]


def early_start(
    functions: Mapping[str, RewardFunction], tasks: Sequence[Task]
) -> Callable[[int, tuple[int, ...], str], None] | None:
    """What an engine is to call with a completion that has ended: index of its request, its tokens, its text.

    `tasks[i]` is the task of request i.

    None where no function has work that can start early. What is started here is only begun: `score` asks for all
    results, and a function that could not begin does the work then.
    """
    starting = {name: one for name, one in functions.items() if isinstance(one, BuiltIn) and one.begin is not None}
    if not starting:
        return None

    def start(request: int, token_ids: tuple[int, ...], text: str) -> None:
        task = tasks[request]
        for name, function in starting.items():
            if function.begin is not None and is_for(task, name):
                function.begin(**arguments_of([task], [made_up(text, token_ids)]))

    return start
