"""The producers' side of the driver: one thread that works the schedule off while the other trains."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

from paceline.runtime.heartbeat import HEARTBEAT
from paceline.workers.ray.schedule import ScheduledJob, StalenessSchedule

_JOIN_SECONDS = 60.0
_LOOK_UP_SECONDS = 5.0
"""How long a wait goes on before it is asked again whether the other side is still there."""


class SamplerWeights(Protocol):
    """Whatever does the jobs; each call has deadlines of its own."""

    def load(self, version: int) -> None:
        """Sample from these weights from now on."""

    def forget(self, older_than: int) -> None:
        """Weights before this version are not asked for again."""


class ProducerThread:
    """Does jobs in the schedule's order, each with the weights that it asks for; results wait until they are taken."""

    def __init__(self, schedule: StalenessSchedule, weights: SamplerWeights, produce: Callable[[int], Any]) -> None:
        """`produce` makes the rollouts of a step."""
        self._schedule, self._weights, self._produce = schedule, weights, produce
        self._changed = threading.Condition()
        self._produced = dict[int, Any]()
        self._measures = list[Callable[[], Any]]()
        self._measured = list[Any]()
        self._failure: BaseException | None = None
        self._closed = False
        self._loaded: int | None = None
        HEARTBEAT.queues["steps produced and not taken"] = lambda: len(self._produced)
        HEARTBEAT.queues["measurements wanted"] = lambda: len(self._measures)
        self._thread = threading.Thread(target=self._work, name="producer", daemon=True)
        self._thread.start()

    def take(self, number: int) -> Any:
        """The rollouts of a step, once they are there.

        Raises:
            Exception: whatever ended the thread.
        """
        with self._changed:
            self._wait_for(lambda: number in self._produced)
            return self._produced.pop(number)

    def reach(self, number: int) -> None:
        """Wait until the rollouts of a step have been made, taken or not.

        Raises:
            Exception: whatever ended the thread.
        """
        with self._changed:
            self._wait_for(lambda: self._schedule.produced >= number)

    def publish(self, version: int) -> None:
        """Weights of this version can be loaded."""
        with self._changed:
            self._schedule.publish(version)
            # not by the next job alone: for steps that are there already there is none
            self._weights.forget(self._schedule.oldest_needed)
            self._changed.notify_all()

    def measure(self, measure: Callable[[], Any]) -> Any:
        """The result of `measure`, called in between two jobs when the newest weights are loaded."""
        with self._changed:
            self._measures.append(measure)
            self._schedule.want_measurement()
            self._changed.notify_all()
            self._wait_for(lambda: bool(self._measured))
            return self._measured.pop()

    def close(self) -> None:
        """Begin nothing any more; the job at hand ends by itself, or by its workers' end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the job at hand has ended, after `close` and its workers' end; not for ever, as nothing more comes
        of it and its thread does not keep the process."""
        self._thread.join(_JOIN_SECONDS)

    def _wait_for(self, there: Callable[[], bool]) -> None:
        while not there():
            if self._failure is not None:
                raise self._failure
            assert self._thread.is_alive()
            self._changed.wait(_LOOK_UP_SECONDS)

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                result = self._do(job)
                with self._changed:
                    self._schedule.finish(job)
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
                    return job
                self._changed.wait(_LOOK_UP_SECONDS)
        return None

    def _do(self, job: ScheduledJob) -> Any:
        if self._loaded != job.version:
            self._weights.load(job.version)
            self._loaded = job.version
        self._weights.forget(self._schedule.oldest_needed)
        return self._measures.pop(0)() if job.kind == "measure" else self._produce(job.number)
