"""A pool of worker processes that compute one request after another, where a hostile one can be killed.

One thread owns the workers: it starts them when there is work, hands out requests, reads their replies and buries the
dead. Any number of threads, an event loop's executor or a Ray actor may ask; nothing here needs the main thread or a
signal handler. Workers are fresh interpreters, not forks of a process with threads and CUDA. They end with this
process, also with kill -9.
"""

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from paceline.processes.starting import import_variables, start_python
from paceline.processes.worker import FAILED, MAX_LINE, READY, SECONDS, TIMEOUT

FULL_SECONDS = 2.0  # Processor time for one request; one that needs more is given up
FIRST_SECONDS = 0.3
"""What a request gets at first. One that needs more waits until all others had as much, so that hostile ones do not
hold up their neighbours; almost every honest proof takes a hundredth of a second."""
WALL_SECONDS = 60.0  # A worker that is silent for so long is stopped or starved: its deadline is in processor time
START_SECONDS = 120.0  # For starting an interpreter and loading the code: a second, on a machine that is not swamped
MAX_ATTEMPTS = 3
"""Workers that may die over a request, or at their start. Two prove nothing: what kills all takes the second too."""

PoolReply = dict[str, Any]


@dataclass(slots=True)
class _Job:
    request: dict[str, str]
    future: "Future[PoolReply]" = field(default_factory=Future)
    attempts: int = 0
    seconds: float = FIRST_SECONDS
    """Processor time that it may use."""


@dataclass(slots=True, eq=False)
class _Worker:
    process: "subprocess.Popen[bytes]"
    pipes: tuple[IO[bytes], IO[bytes]]
    """Standard input and output of the process."""
    silent_until: float
    """On the monotonic clock."""
    job: _Job | None = None
    is_ready: bool = False
    received: bytes = b""


class WorkerPool:
    """Carries out requests in worker processes, each of which runs `worker.work`."""

    def __init__(
        self,
        size: int,
        command: Sequence[str],
        *,
        failure: Callable[[str], Exception],
        remedy: str,
        wall_seconds: float = WALL_SECONDS,
    ) -> None:
        """Start nothing yet.

        Args:
            size: workers, at most.
            command: starts a worker, with the process id of this process behind it.
            failure: makes the exception of a request of which nothing is known, from the reason.
            remedy: what to check where no worker can be started.
            wall_seconds: silence after which a worker is given up.
        """
        self._size, self._command, self._wall_seconds = size, command, wall_seconds
        self._failure, self._remedy = failure, remedy
        self._jobs, self._slow_jobs = deque[_Job](), deque[_Job]()
        self._workers = list[_Worker]()
        self._lock = threading.Lock()
        self._selector = selectors.PollSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self._failed_starts = 0
        self._thread = threading.Thread(target=self._run, name="paceline-pool", daemon=True)
        self._thread.start()

    def submit(self, request: dict[str, str]) -> "Future[PoolReply]":
        """Return the reply to come, whose exception is a `failure` where nothing is known of the request."""
        job = _Job(request=request)
        with self._lock:
            if self._closed:
                job.future.set_exception(self._failure("the workers were ended"))
                return job.future
            self._jobs.append(job)
        self._wake()
        return job.future

    def process_ids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        return [worker.process.pid for worker in list(self._workers)]

    def close(self) -> None:
        """End every worker; what was not decided fails."""
        with self._lock:
            self._closed = True
        self._wake()
        self._thread.join(timeout=10)

    def abandon(self) -> None:
        """Let go of the workers without touching them: they belong to the process that this one was forked from."""
        for worker in self._workers:
            worker.process.returncode = 0
            for pipe in worker.pipes:
                pipe.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of calls to wake up
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        """Run the loop of the thread that owns the workers. However it ends, no request is left waiting."""
        try:
            while not self._closed:
                # Until the next worker has been silent for too long; for ever while all are idle.
                busy = [worker.silent_until for worker in self._workers if worker.job or not worker.is_ready]
                for key, _ in self._selector.select(max(0.0, min(busy) - time.monotonic()) if busy else None):
                    if key.data is None:
                        os.read(self._wake_read, MAX_LINE)
                    else:
                        self._receive(key.data)
                for worker in list(self._workers):
                    if worker.silent_until < time.monotonic() and (worker.job or not worker.is_ready):
                        self._lose(worker)
                self._hand_out()
        finally:
            self._closed = True
            with self._lock:
                self._jobs.extend(worker.job for worker in self._workers if worker.job)
            for worker in list(self._workers):
                self._bury(worker)
            self._fail_waiting("the workers were ended")

    def _hand_out(self) -> None:
        idle = [worker for worker in self._workers if worker.is_ready and worker.job is None and not _is_dead(worker)]
        with self._lock:
            queues = (self._jobs, self._slow_jobs)
            for worker in idle:
                worker.job = (self._jobs or self._slow_jobs).popleft() if any(queues) else None
            waiting = sum(map(len, queues))
        for worker in idle:
            if worker.job is not None:
                worker.silent_until = time.monotonic() + self._wall_seconds
                line = json.dumps({SECONDS: worker.job.seconds, **worker.job.request}, ensure_ascii=False)
                with suppress(BrokenPipeError):  # to a dead worker nothing is sent: its end is about to be read
                    worker.pipes[0].write(line.encode("utf-8", "surrogatepass") + b"\n")  # fits into an empty pipe
        starting = sum(not worker.is_ready for worker in self._workers)
        for _ in range(min(self._size - len(self._workers), waiting - starting)):
            self._start()

    def _start(self) -> None:
        """Start a worker. The hash seed is fixed, so that every worker orders terms, and decides, alike."""
        variables = {**import_variables(), "PYTHONHASHSEED": "0"}
        try:
            process = start_python(str(os.getpid()), command=self._command, variables=variables)
        except OSError as error:
            self._do_with_less(f"a worker process does not start ({error}); {self._remedy}")
            return
        assert process.stdin is not None
        assert process.stdout is not None
        pipes = process.stdin, process.stdout
        worker = _Worker(process=process, pipes=pipes, silent_until=time.monotonic() + START_SECONDS)
        self._workers.append(worker)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _receive(self, worker: _Worker) -> None:
        data = os.read(worker.pipes[1].fileno(), MAX_LINE)
        worker.received += data
        if not data or len(worker.received) > MAX_LINE:
            self._lose(worker)
            return
        *lines, worker.received = worker.received.split(b"\n")
        for line in lines:
            message = None
            with suppress(ValueError):
                message = json.loads(line)
            if not isinstance(message, dict):  # the worker will be given up for its silence
                continue
            if FAILED in message:
                self._do_with_less(f"a worker process does not start ({message[FAILED]}); {self._remedy}")
            elif READY in message:
                worker.is_ready = True
                self._failed_starts = 0
            elif worker.job is not None:
                job, worker.job = worker.job, None
                if not message.pop(TIMEOUT, False) or job.seconds >= FULL_SECONDS:
                    job.future.set_result(message)
                    continue
                # Its first slice of time was too short: it goes behind all that have not had theirs.
                job.seconds = FULL_SECONDS
                with self._lock:
                    self._slow_jobs.append(job)

    def _lose(self, worker: _Worker) -> None:
        """Bury a worker; its job goes back to the queue, unless it has been there too often."""
        status = self._bury(worker)
        job, worker.job = worker.job, None
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts == MAX_ATTEMPTS:
                self._do_with_less(f"a worker process ended at its start with status {status}; {self._remedy}")
        elif job is not None:
            job.attempts += 1
            if job.attempts < MAX_ATTEMPTS:
                with self._lock:
                    self._jobs.appendleft(job)
                return
            job.future.set_exception(
                self._failure(
                    f"{MAX_ATTEMPTS} worker processes died over {str(job.request)[:200]} (status {status}), so "
                    "nothing is known of it; if it happens to others too, check the memory of the machine"
                )
            )

    def _bury(self, worker: _Worker) -> int:
        """End a worker; returns its exit status once the process and its child are gone."""
        if worker in self._workers:
            self._workers.remove(worker)
            self._selector.unregister(worker.pipes[1])
        with suppress(ProcessLookupError, PermissionError):  # gone already
            os.killpg(worker.process.pid, signal.SIGKILL)
        status = worker.process.wait()
        for pipe in worker.pipes:
            pipe.close()
        return status

    def _do_with_less(self, reason: str) -> None:
        """A worker did not start: those that did go on alone; without any, nothing that waits can be decided."""
        started = sum(worker.is_ready for worker in self._workers)
        self._size = max(1, started)
        self._failed_starts = 0
        if not started:
            self._fail_waiting(reason)

    def _fail_waiting(self, reason: str) -> None:
        with self._lock:
            jobs = [*self._jobs, *self._slow_jobs]
            self._jobs.clear()
            self._slow_jobs.clear()
        for job in jobs:
            job.future.set_exception(self._failure(reason))


def _is_dead(worker: _Worker) -> bool:
    """Return whether the process has ended, without taking its status: until then nobody else can have its id."""
    try:
        return os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else took the status: code that waits for any child, or SIGCHLD ignored
        return True
