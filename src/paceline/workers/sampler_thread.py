"""When samplers work: ahead of the trainers in a thread of the driver, or in turn with them."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from paceline.runtime.activity import ACTIVITY
from paceline.workers.staleness import ScheduledJob, StalenessSchedule

_LOOK_UP_SECONDS = 5.0
"""Seconds between two checks that the other thread is alive."""


class SamplerWeights(Protocol):
    """Weight versions that samplers can load; every call has its own deadline."""

    def load(self, version: int) -> None:
        """Sample from this version from now on."""

    def offer(self) -> None:
        """Have samplers take the newest version after their next token."""

    def forget(self, older_than: int) -> None:
        """Drop versions before this one."""


class SamplerThread:
    """Does jobs in the schedule's order, each with the weights that it names. Results wait until they are taken."""

    def __init__(self, schedule: StalenessSchedule, weights: SamplerWeights, produce: Callable[[int], Any]) -> None:
        """`produce` samples the rollouts of a step."""
        self._schedule, self._weights, self._produce = schedule, weights, produce
        self._changed = threading.Condition()
        self._produced = dict[int, Any]()
        self._measures = list[Callable[[], Any]]()
        self._measured = list[Any]()
        self._failure: BaseException | None = None
        self._closed = False
        self._loaded: int | None = None
        self._in_hand: int | None = None  # version of the job that has begun
        ACTIVITY.queues["steps produced and not taken"] = lambda: len(self._produced)
        ACTIVITY.queues["measurements wanted"] = lambda: len(self._measures)
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)
        self._thread.start()

    def take(self, number: int) -> Any:
        """Wait for the rollouts of a step and return them; raises whatever ended the thread."""
        with self._changed:
            self._wait_for(lambda: number in self._produced)
            return self._produced.pop(number)

    def reach(self, number: int) -> None:
        """Wait until the rollouts of a step exist, taken or not; raises whatever ended the thread."""
        with self._changed:
            self._wait_for(lambda: self._schedule.produced >= number)

    def publish(self, version: int) -> None:
        """Announce that this version can be loaded."""
        with self._changed:
            self._schedule.publish(version)
            # not by the next job alone: for steps that are there already there is none
            self._forget()
            self._changed.notify_all()
        if self._schedule.takes_newest:
            # after it is published: the next step is then begun with these at least, and no sampler goes back
            self._weights.offer()

    def measure(self, measure: Callable[[], Any]) -> Any:
        """Call `measure` between two jobs, with the newest weights loaded, and return its result."""
        with self._changed:
            self._measures.append(measure)
            self._schedule.want_measurement()
            self._changed.notify_all()
            self._wait_for(lambda: bool(self._measured))
            return self._measured.pop()

    def close(self) -> None:
        """Begin no further job; the current one ends by itself, or with its workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the current job after `close`, so long at most: a daemon thread does not keep the process."""
        self._thread.join(seconds)

    def _wait_for(self, there: Callable[[], bool]) -> None:
        while not there():
            if self._failure is not None:
                raise self._failure
            assert self._thread.is_alive()
            self._changed.wait(_LOOK_UP_SECONDS)

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                if self._loaded != job.version:
                    self._weights.load(job.version)
                    self._loaded = job.version
                with self._changed:
                    self._forget()
                result = self._measures.pop(0)() if job.kind == "measure" else self._produce(job.number)
                with self._changed:
                    self._schedule.finish(job)
                    self._in_hand = None
                    if job.kind == "measure":
                        self._measured.append(result)
                    else:
                        self._produced[job.number] = result
                    self._changed.notify_all()
        except BaseException as failure:  # noqa: BLE001 - not swallowed: whoever waits for a result gets it
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _next(self) -> ScheduledJob | None:
        with self._changed:
            while not self._closed:
                job = self._schedule.next()
                if job is not None:
                    self._in_hand = job.version
                    return job
                self._changed.wait(_LOOK_UP_SECONDS)
        return None

    def _forget(self) -> None:
        """Drop versions that neither the schedule nor the job in hand needs; the lock is held."""
        needed = self._schedule.oldest_needed
        self._weights.forget(needed if self._in_hand is None else min(needed, self._in_hand))


class InTurn:
    """A `SamplerThread` without a thread: the first rank samples, trains and runs the loop one after the other."""

    def __init__(self, renew: Callable[[], None], produce: Callable[[int], Any]) -> None:
        """`renew` brings samplers to the newest weights, `produce` samples the rollouts of a step."""
        self._renew, self._produce = renew, produce

    def take(self, number: int) -> Any:
        """Sample the rollouts of a step."""
        self._renew()
        return self._produce(number)

    def measure(self, measure: Callable[[], Any]) -> Any:
        """Call `measure` with the newest weights loaded, and return its result."""
        self._renew()
        return measure()

    def publish(self, version: int) -> None:
        """Nobody waits for a version."""

    def reach(self, number: int) -> None:
        """Nothing is sampled before it is taken."""

    def close(self) -> None:
        """There is no thread to stop."""

    def join(self, seconds: float) -> None:
        """There is no thread to join."""
