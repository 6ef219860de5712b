"""The user's own code: loaded by its name, and the event loop of its async functions.

`module:function` is imported, `file.py:function` runs once per content.

All async code of the user's shares one event loop: reward functions, tools and environments. A client that keeps
connections open (httpx, aiohttp, AsyncOpenAI) belongs to the loop of its first request, whoever makes that. So the loop
is never closed, and background tasks continue between two calls.

Code that blocks the loop holds up all other tasks. A caller whose deadline has passed interrupts that code. If it does
not react, as in a C call that never returns, the loop is given up and a new one is made: a thread cannot be killed.
"""

import asyncio
import contextlib
import copy
import difflib
import functools
import importlib
import importlib.util
import itertools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast, final

from paceline.base_directory import local_path
from paceline.config.reading import NULL_WORDS
from paceline.errors import PacelineError, RewardError
from paceline.runtime.interrupts import Interrupt
from paceline.runtime.shown_text import hidden

_LOADING_ERRORS = (Exception, SystemExit)
"""Errors that the user's code may raise while it is loaded."""


def copied(value: Any) -> Any:
    """Return a deep copy of an object of the user's; an object that cannot be copied is returned itself.

    Locks, queues, clients and tensors of a graph raise different errors, as any class may.
    """
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - the border: a class says by its own code how it is copied
        return value


def own_function(name: str, *, flag: str, error: type[PacelineError] = RewardError) -> Callable[..., Any]:
    """The user's own function or class that the option `flag` calls `file.py:function` or `module:function`.

    Raises:
        error: no such file, module or function, or one that cannot be loaded.
    """
    where, _, attribute = name.rpartition(":")
    module = own_module(where, label=f"{flag} {name}", error=error)
    if not hasattr(module, attribute):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise error(
            f"{flag} {name}: there is no {attribute!r} in it{nearest(attribute, functions)}; "
            f"it defines {', '.join(functions) or 'no function'}"
        )
    function = getattr(module, attribute)
    if not callable(function):
        raise error(f"{flag} {name}: {attribute!r} is of type {type(function).__name__}, but must be a function")
    return cast(Callable[..., Any], function)


def own_module(where: str, *, label: str, error: type[PacelineError]) -> ModuleType:
    """The module of this name, or the file of this path as one; the sentence of an error begins with `label`.

    Raises:
        error: no such file or module, or one that cannot be loaded.
    """
    if where.endswith(".py"):
        return _load_file(label, local_path(where), error)
    try:
        return importlib.import_module(where)
    except _LOADING_ERRORS as cause:
        raise error(
            f"{label}: the module cannot be imported ({_describe(cause)}); install its package, check PYTHONPATH, or "
            "name the file as path/to/file.py:function"
        ) from cause


def own_name(function: Callable[..., object]) -> str:
    """Return the name by which an option records a function that a program gives as an object.

    >>> own_name(sum)
    'builtins:sum'
    """
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def recorded_name(function: Any, words: Collection[str]) -> str:
    """Return the name by which an option with several functions records one that a program gives as an object.

    The text of an option is read: it is split at commas, and brackets, colons and some words have a meaning there. So
    other signs become `_`, and a function that is called as one of the `words` goes by its module too.

    >>> recorded_name(sum, ()), recorded_name(sum, ("sum",))
    ('sum', 'builtins:sum')
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = re.sub(r"[^\w.<>-]", "_", str(getattr(function, "__name__", type(function).__name__)))
    if name and name.lower() not in {*NULL_WORDS, *words}:
        return name
    return f"{getattr(function, '__module__', None) or '__main__'}:{name or 'function'}"


def recorded_names(functions: Sequence[Any], words: Collection[str]) -> list[str]:
    """Return `recorded_name` of each; other functions of the same name are numbered from 2 on."""
    named = dict[str, Any]()
    for function in functions:
        name = recorded_name(function, words)
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        named[next(unused for unused in numbered if unused not in named)] = function
    return [*named]


def file_of_code(name: str) -> Path | None:
    """The file that the function `name` was loaded from; None: it has no module in its name, or one without a file."""
    where = name.rpartition(":")[0]
    file = where if where.endswith(".py") else getattr(sys.modules.get(where), "__file__", None)
    return None if file is None else local_path(file)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question that asks for the nearest of the known names; empty if none is near.

    >>> nearest("acuracy", ["accuracy", "code"])
    "; did you mean 'accuracy'?"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _load_file(label: str, path: Path, error: type[PacelineError]) -> ModuleType:
    """Load the file as a module whose name has a hash of path and content, so that two files never share a module."""
    try:
        content = path.read_bytes()
    except OSError as cause:
        raise error(f"{label}: the file cannot be read ({cause}); check the path") from cause
    digest = blake2b(str(path.resolve()).encode() + b"\x00" + content, digest_size=8).hexdigest()
    module_name = f"paceline_own_{digest}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise error(f"{label}: {path} is not a Python file; its name must end with .py")
    beside = str(path.resolve().parent)
    if beside not in sys.path:  # last: a file of the user's own takes no library's name
        sys.path.append(beside)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except _LOADING_ERRORS as cause:
        del sys.modules[module_name]
        raise error(f"{label}: the file cannot be loaded ({_describe(cause)}); correct it first") from cause
    return module


def _describe(error: BaseException) -> str:
    where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return hidden(f"{type(error).__name__}: {text}{where}")


ANSWER_SECONDS = 1.0
"""Timeout for the loop to react, before and after an interrupt; else it counts as blocked."""
AGAIN_SECONDS = 1.0  # From one cancellation of a task to the next, as long as it continues
PAUSE_SECONDS = 1.0  # An interrupt reaches a thread other than the main one between two waits of this length

T = TypeVar("T")


class BlockedLoop(BaseException):
    """Raised in code that blocks the loop. No `Exception`: code that swallows those must not swallow this."""


@final
class OwnLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.is_lost = False
        """True once it is blocked for good: no task begins on it any more."""
        self._loop = asyncio.new_event_loop()
        self._interrupt: Interrupt | None = None
        self._blocker: str | None = None
        self._lock, self._freed = threading.Lock(), Future[str | None]()
        self._freed.set_result(None)
        threading.Thread(target=self._live, name="async", daemon=True).start()

    def begin(self, awaitable: Awaitable[T], name: str) -> Future[T]:
        """Await in a task of this name on the loop.

        Cancelling the future cancels the task until it ends, and interrupts code that blocks the loop.
        """
        done = Future[T]()

        async def awaited() -> T:
            return await awaitable

        def start() -> None:
            task = self._loop.create_task(awaited(), name=name)
            task.add_done_callback(lambda _: _tell(done, task))
            # after the task's first step: what was never begun would warn of that
            done.add_done_callback(lambda _: self._loop.call_soon_threadsafe(cancel, task))

        def free(_: Future[T]) -> None:
            if done.cancelled():
                self.free()

        def cancel(task: asyncio.Task[T]) -> None:
            if not task.done():
                task.cancel()
                self._loop.call_later(AGAIN_SECONDS, cancel, task)

        done.add_done_callback(free)
        self._loop.call_soon_threadsafe(start)
        return done

    def free(self) -> Future[str | None]:
        """Begin to interrupt code that blocks the loop, in a thread; takes at most twice `ANSWER_SECONDS`.

        Returns:
            The name of the task that blocks it, the same for all who ask meanwhile; None: it answered.
        """
        with self._lock:
            if self._freed.done():
                self._freed = Future()
                threading.Thread(target=self._free, args=(self._freed,), name="freeing", daemon=True).start()
            return self._freed

    def settle(self) -> None:
        """Wait for the end of a `free` that is under way."""
        wait([self._freed])

    def _free(self, freed: Future[str | None]) -> None:
        if not self.is_lost:
            self._blocker = None
            if not self._answers():
                running = asyncio.current_task(self._loop)
                self._blocker = "other code" if running is None else running.get_name()
                if self._interrupt is not None:
                    self._interrupt.send(BlockedLoop())
                self.is_lost = not self._answers()
        freed.set_result(self._blocker)

    def _answers(self) -> bool:
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(ANSWER_SECONDS)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._interrupt = Interrupt()
        self._interrupt.open()
        while True:
            # asyncio raises what is to leave the program here, besides in who awaits it; an interrupt may come late
            with contextlib.suppress(BlockedLoop, SystemExit, KeyboardInterrupt):
                self._loop.run_forever()


def _tell(done: Future[T], task: asyncio.Task[T]) -> None:
    """Copy the result of a task to a future, unless that was cancelled."""
    if task.cancelled():
        done.cancel()
    elif done.set_running_or_notify_cancel():
        if (error := task.exception()) is None:
            done.set_result(task.result())
        else:
            done.set_exception(error)


def wait_here(future: Future[Any], seconds: float = math.inf) -> bool:
    """Wait in this thread for a future of the loop, at most `seconds`; return True if it is done."""
    until = time.monotonic() + seconds
    while not future.done() and (left := until - time.monotonic()) > 0:
        wait([future], min(PAUSE_SECONDS, left))
    return future.done()


_loop: OwnLoop | None = None
_loop_lock = threading.Lock()


def own_loop() -> OwnLoop:
    """Return the loop of this process, made at its first use, and again once the former one is lost."""
    global _loop
    with _loop_lock:
        if _loop is not None:
            _loop.settle()
        if _loop is None or _loop.is_lost:
            _loop = OwnLoop()
        return _loop


def _after_fork() -> None:
    """Forget the loop: its thread does not live on in a forked child."""
    global _loop, _loop_lock
    _loop, _loop_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
