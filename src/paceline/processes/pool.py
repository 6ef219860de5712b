"""A pool of worker processes that compute one request after another, where a hostile one can be killed.

One thread owns the workers: it starts them when there is work, hands out requests, reads their replies and buries the
dead. Any number of threads, an event loop's executor or a Ray actor may ask; nothing here needs the main thread or a
signal handler. Workers are fresh interpreters, not forks of a process with threads and CUDA. They end with this
process, also with kill -9.

A worker loads code once, and forks a child that computes, until its input ends: one line of JSON in, one out. The
kernel ends the child by SIGPROF when a request has used its processor time, so the deadline holds whatever the
interpreter does. The next child starts in milliseconds.
"""

import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, BinaryIO

from paceline.processes.children import die_with_parent
from paceline.processes.starting import import_variables, start_python

MEMORY_BYTES = 1 << 30  # Address space beyond what the process has once the code is loaded
REQUESTS_PER_CHILD = 2000
GROWTH_BYTES = 200 << 20
"""A child ends after so many requests, or when its memory has grown by so much: libraries keep what they compute."""
MAX_LINE = 1 << 16  # Bytes of one line, in both directions: two texts of 4096 characters, escaped
INPUT_ENDED, GO_ON = 0, 3  # Exit statuses of a child. 1 is the interpreter's own, for an unexpected exception.
SECONDS = "seconds"
"""Field of a request with its processor time."""
READY, FAILED, TIMEOUT = "ready", "failed", "timeout"
"""Fields of a worker's first message, loaded or not, and of the reply to a request whose time was over."""


Compute = Callable[[dict[str, Any]], dict[str, object]]


def work(load: Callable[[], None], compute: Compute, timeout: dict[str, object]) -> None:
    """Answer every line of standard input on standard output, for the process whose number is the first argument.

    `load` loads whatever is loaded at first use, before a deadline counts; each child inherits it.
    `timeout` is the reply to a request that has used its processor time.
    """
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    # Whatever a library prints goes nowhere; an interrupt at the terminal is for the parent.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _end_with(int(sys.argv[1]))
    try:
        load()
    except ImportError as error:
        _reply(replies, {FAILED: str(error)})
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES,) * 2)
    _reply(replies, {READY: True})
    while _outlive_a_child(requests, replies, compute, timeout):
        pass


def _outlive_a_child(requests: BinaryIO, replies: BinaryIO, compute: Compute, timeout: dict[str, object]) -> bool:
    """Fork a child, answer for it when its time is over; whether there is more to do.

    One that dies takes this process with it: whether it had read the next line already nobody knows, and a reply to
    it must not be taken for the reply to another.
    """
    parent = os.getpid()
    child = os.fork()
    if not child:
        _end_with(parent)
        os._exit(_serve(requests, replies, compute))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGPROF:
        _reply(replies, {**timeout, TIMEOUT: True})
    elif status not in (INPUT_ENDED, GO_ON):
        os._exit(status if status > 0 else 128 - status)
    return status != INPUT_ENDED


def _serve(requests: BinaryIO, replies: BinaryIO, compute: Compute) -> int:
    limit = _resident_bytes() + GROWTH_BYTES
    for _ in range(REQUESTS_PER_CHILD):
        line = requests.readline(MAX_LINE)
        if not line:
            return INPUT_ENDED
        request = json.loads(line.decode("utf-8", "surrogatepass"))
        signal.setitimer(signal.ITIMER_PROF, request[SECONDS])
        reply = compute(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _reply(replies, reply)
        if _resident_bytes() > limit:
            break
    return GO_ON


def _reply(replies: BinaryIO, message: dict[str, object]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


def _end_with(parent: int) -> None:
    """Die with the thread that started this process. Elsewhere than on Linux the end of the input has to do."""
    if sys.platform == "linux":
        die_with_parent()
    if os.getppid() != parent:
        os._exit(0)


def _resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


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
