"""Where environments run, so that none can stop the run or another: each call has a deadline, and an outcome.

This file is the interface, and the event-loop thread in which calls are carried out.

results.py      what methods may return, and the border to what they raise
threads.py      environments of this process: threads, and the event loop of async methods
processes.py    environments in processes of their own: the trainer's side, and what runs there
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

from paceline.environments import Environment, EnvironmentSpec
from paceline.environments.hosting.processes import LOAD, ProcessHost
from paceline.environments.hosting.results import (
    Method,
    TooLate,
    WrongResult,
    attempt,
    checked,
    described,
    dismiss,
    own_copy,
)
from paceline.environments.hosting.threads import ThreadHost, WorkerThreads
from paceline.processes.forking import Result
from paceline.processes.starting import HostFailure
from paceline.processes.warm_parent import WarmParents
from paceline.runtime.shown_text import hidden

MOST_PROCESSES = 512
MOST_THREADS = 512
WAIT_SECONDS = 600.0
"""Seconds that a call waits for a free process or thread."""
GRACE_SECONDS = 5.0
"""Grace period in which an environment may close itself after a failure, or where a run was broken off."""
CLOSE_SECONDS = 60.0
"""Seconds that the end of everything may take; each of its parts has a shorter limit."""
LEFT_BEFORE_WARNING = 3  # Late calls that hold threads before a failure says so
ENDED = "the run ended before it returned"
CUT_SHORT = "it was closed before it returned"
GONE = "it has ended before"


class Outcome(NamedTuple):
    """Outcome of a call of an environment."""

    seconds: float
    """Wall seconds of the call, without those that it waited for a free process or thread."""
    value: Any = None
    """What it returned: text, messages or None of `begin`, an Observation of `observe`, a number or None of `close`."""
    failure: str | None = None
    """Failure in one sentence; the environment is gone then. None: it succeeded."""
    timed_out: bool = False
    """True if it failed by taking too long."""
    printed: tuple[str, ...] = ()
    """Last lines that its process has printed, after `close`; empty for one of this process."""


Then = Callable[[Outcome], None]


class Host(Protocol):
    """Thread or process in which an environment runs."""

    started: float
    """When the present call began, by `time.perf_counter`, after it waited for a free thread or process."""
    printed: tuple[str, ...]
    """Last lines that its process has printed, once it has ended."""

    async def call(self, method: Method, arguments: tuple[Any, ...], seconds: float) -> Result:
        """Call a method; raises TooLate after so many seconds, and HostFailure where thread or process fail."""

    async def end(self, *, seconds: float) -> None:
        """End it; it may close itself within so many seconds. 0: it is late, broken or closed."""


class Hosted:
    """One episode's environment. One call at a time; a `close` during another call ends both."""

    def __init__(self, hosts: "Hosts", spec: EnvironmentSpec, make: Callable[[], Environment]) -> None:
        self.is_instant = spec.is_instant
        """True if calls are carried out at once, in the caller's thread."""
        self.spec, self.make = spec, make
        self._hosts = hosts
        self._environment: Environment | None = None  # of an instant one
        self.host: Host | None = None
        """Thread or process of the environment while it lives; for the event loop alone, as the following two."""
        self.busy: asyncio.Task[Result] | None = None
        """The present call."""
        self.ending: tuple[Host, asyncio.Task[None]] | None = None
        """Process of its own in which it ran, and the end of that."""

    def call(self, method: Literal["begin", "observe", "close"], *arguments: Any, then: Then) -> None:
        """Call a method of the environment; `then` is called once with the outcome, from any thread.

        Never raises what the environment raises, and never waits for it, unless it is instant. After a failure the
        environment is gone, and `close` does nothing.
        """
        if not self.is_instant:
            self._hosts.carry_out(self, method, arguments, then)
            return
        started, late = time.perf_counter(), False
        result: Result = (None, None if method == "close" else GONE)
        if method == "begin" or self._environment is not None:
            try:
                result = attempt(self._call_now, method, arguments)
            except TooLate:
                late, result = True, (None, f"it took more than {self._hosts.seconds:g} seconds")
        value, failure = result
        if failure is not None and method != "close" and not late and self._environment is not None:
            with suppress(TooLate):
                dismiss(attempt(self._environment.close)[0])
        if failure is not None or method == "close":
            self._environment = None
        then(Outcome(value=value, failure=failure, timed_out=late, seconds=time.perf_counter() - started))

    def _call_now(self, method: Method, arguments: tuple[Any, ...]) -> Any:
        if method == "begin":
            self._environment = self.make()
        value = getattr(self._environment, method)(*map(own_copy, arguments))
        if value is not None and inspect.isawaitable(value):
            dismiss(value)
            raise WrongResult(
                f"{self.spec.name}.{method} is async, but is to be called at once; leave `is_instant` out"
            )
        return checked(self.spec.name, method, value)


class Hosts:
    """All environments of a run; a context manager that ends them, within bounds, whatever they do."""

    def __init__(
        self, *, step_seconds: float, most_processes: int = MOST_PROCESSES, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        """Start nothing yet.

        Args:
            step_seconds: that a call may take.
            most_processes: that live at a time. Calls that need another one wait; so it should not be below the number
                of episodes that begin together.
            wait_seconds: that a call waits for a free process or thread.
        """
        self.seconds, self.wait, self.most_processes = step_seconds, wait_seconds, most_processes
        self._lock = threading.Lock()
        self._event_loop: _EventLoop | None = None
        self._is_closed = False

    @property
    def alive(self) -> int:
        """Number of environments that have begun and not ended, but for instant ones."""
        return 0 if self._event_loop is None else len(self._event_loop.living)

    @property
    def left(self) -> int:
        """Number of threads that late calls still hold."""
        return 0 if self._event_loop is None else self._event_loop.threads.left

    def open(self, spec: EnvironmentSpec, make: Callable[[], Environment] | None = None) -> Hosted:
        """Return the host of one episode's environment; `begin` makes it, in this process by `make` if given."""
        return Hosted(self, spec, make or spec.make)

    def carry_out(self, hosted: Hosted, method: Method, arguments: tuple[Any, ...], then: Then) -> None:
        """Carry out a call of `Hosted`."""
        with self._lock:
            if not self._is_closed:
                self._event_loop = self._event_loop or _EventLoop(self)
                self._event_loop.loop.call_soon_threadsafe(self._event_loop.accept, hosted, method, arguments, then)
                return
        then(Outcome(failure=None if method == "close" else ENDED, seconds=0.0))

    def close(self) -> None:
        """End all environments and what they have started; calls under way fail."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if self._event_loop is not None and not was_closed:
            self._event_loop.close()

    def __enter__(self) -> Self:
        """Open, also once more: a program may train and evaluate again."""
        with self._lock:
            if self._is_closed:
                self._is_closed, self._event_loop = False, None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _EventLoop:
    """The thread in which calls are carried out: all of its state is touched on its event loop alone."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.loop = asyncio.new_event_loop()
        self.living = set[Host]()
        self._calls = dict[asyncio.Task[Result], Method]()
        self._endings = set[asyncio.Task[None]]()
        self.threads = WorkerThreads(MOST_THREADS, hosts.wait)
        self.processes = WarmParents(LOAD, hosts.most_processes, hosts.wait)
        self._thread = threading.Thread(target=self.loop.run_forever, name="environments", daemon=True)
        self._thread.start()

    def accept(self, hosted: Hosted, method: Method, arguments: tuple[Any, ...], then: Then) -> None:
        """Begin to carry out a call."""
        if hosted.busy is not None:
            hosted.busy.cancel()
            hosted.host = None
        elif method == "begin":
            hosted.host = (
                ProcessHost(hosted.spec, self.processes)
                if hosted.spec.own_process
                else ThreadHost(hosted.spec.name, hosted.make, self.threads)
            )
            self.living.add(hosted.host)
        host = hosted.host
        if host is None:
            outcome = Outcome(failure=None if method == "close" else GONE, seconds=0.0)
            _report_at_end(hosted, outcome, then) if method == "close" else then(outcome)
            return
        host.started = time.perf_counter()
        hosted.busy = task = self.loop.create_task(host.call(method, arguments, self._hosts.seconds))
        self._calls[task] = method
        task.add_done_callback(partial(self._report, hosted, host, method, then))

    def _report(self, hosted: Hosted, host: Host, method: Method, then: Then, task: asyncio.Task[Result]) -> None:
        """Report the outcome of a call, and end its environment where nothing more can be asked of it."""
        seconds = time.perf_counter() - host.started
        del self._calls[task]
        if hosted.busy is task:
            hosted.busy = None
        value, grace, late = None, 0.0, False
        if task.cancelled():
            failure: str | None = CUT_SHORT
        elif (error := task.exception()) is None:
            value, failure = task.result()
            grace = min(GRACE_SECONDS, self._hosts.seconds)
        else:
            late = isinstance(error, TooLate)
            failure = f"{error}" if isinstance(error, HostFailure) else described(error)
            if late:
                reason = f": {error}" if str(error) else ""
                failure = f"it took more than {self._hosts.seconds:g} seconds{reason}{self._still_held()}"
        if failure is not None or method == "close":
            if hosted.host is host:
                hosted.host = None
            ending = self.end(host, 0.0 if method == "close" else grace)
            hosted.ending = (host, ending) if hosted.spec.own_process else None
        failure = None if failure is None else hidden(failure)
        outcome = Outcome(value=value, failure=failure, timed_out=late, seconds=seconds)
        _report_at_end(hosted, outcome, then) if method == "close" else then(outcome)

    def _still_held(self) -> str:
        left = self.threads.left
        if left < LEFT_BEFORE_WARNING:
            return ""
        return (
            f" ({left} late calls of environments still hold their threads and memory, as threads cannot be ended; "
            "give it a process of its own)"
        )

    def end(self, host: Host, seconds: float) -> asyncio.Task[None]:
        """End an environment, without waiting for that."""
        self.living.discard(host)
        task = self.loop.create_task(host.end(seconds=seconds))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def close(self) -> None:
        """End everything; called from another thread."""
        try:
            asyncio.run_coroutine_threadsafe(self._end_all(), self.loop).result(CLOSE_SECONDS)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(GRACE_SECONDS)
        if not self._thread.is_alive():
            self.loop.close()

    async def _end_all(self) -> None:
        calls, grace = dict(self._calls), min(GRACE_SECONDS, self._hosts.seconds)
        for task, method in calls.items():
            if method != "close":
                task.cancel()
        if calls:
            _, late = await asyncio.wait(calls, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.wait(calls)
            await asyncio.sleep(0)  # their outcomes are reported after them
        for host in list(self.living):
            self.end(host, grace)
        if self._endings:
            await asyncio.wait(self._endings, timeout=2 * GRACE_SECONDS)
            await asyncio.sleep(0)
        self.threads.close()
        self.processes.close()


def _report_at_end(hosted: Hosted, outcome: Outcome, then: Then) -> None:
    """Report the outcome of a `close`, with what its process has printed once that has ended."""
    if hosted.ending is None:
        then(outcome)
        return
    host, ending = hosted.ending
    ending.add_done_callback(lambda _: then(outcome._replace(printed=host.printed)))
