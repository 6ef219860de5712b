"""The samplers as one group: work is shared out, answers come in order, and lost workers are replaced.

Ray is not imported here: `Workers` is the interface to whatever runs the processes.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from paceline.errors import TrainingError
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.runtime.timeline import Recorder
from paceline.training.rollouts.rounds import Round
from paceline.training.rollouts.sharing import SamplingWorkers

MOST_LOSSES = 3
"""Work with which this many workers in a row were lost is taken to be the cause."""


class Lost(Exception):
    """A worker's process is gone or silent for too long; the message names it and the evidence."""


class Workers(Protocol):
    """Processes that do one call at a time each, and accept notifications meanwhile."""

    @property
    def count(self) -> int:
        """Number of workers, numbered from 0; a replacement keeps the number."""

    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Begin a method call on an idle worker."""

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Make a call beside the worker's current one, without waiting; a lost worker misses it."""

    def wait(self, busy: Collection[int]) -> int:
        """Wait for one of these workers to answer or be lost, no longer than a worker may be silent."""

    def answer(self, worker: int) -> Any:
        """Take the result of the worker's call; once only.

        Raises:
            Lost: the worker is; `replace` it.
            PacelineError: the call raised it.
        """

    def replace(self, worker: int) -> None:
        """End what is left of a worker and start another under its number.

        Raises:
            TrainingError: after `end`.
        """

    def end(self) -> None:
        """End all workers."""


class WorkerGroup(SamplingWorkers):
    """All workers behind two methods: share work out, or bring all of them to one state."""

    def __init__(self, workers: Workers, recorder: Recorder | None = None, progress: Progress = NULL_PROGRESS) -> None:
        """Take idle workers; spans go to `recorder`, the number of finished shares to `progress`."""
        self.workers, self._progress = workers, progress
        self.recorder = recorder or Recorder()
        self._begun = dict[int, tuple[str, float]]()
        self.news: list[str] = []
        """One sentence per lost worker, until they are taken."""
        self._state: tuple[str, tuple[Any, ...]] | None = None

    @property
    def count(self) -> int:
        """Number of workers."""
        return self.workers.count

    def bring_to(self, method: str, *arguments: object) -> None:
        """Make this call on every worker, and first of all on every later replacement.

        Raises:
            TrainingError: a worker was lost `MOST_LOSSES` times in a row before it had done so.
            PacelineError: the call raised it.
        """
        self._state = (method, arguments)
        busy = set(range(self.workers.count))
        for worker in busy:
            self._start(worker, method, arguments)
        while busy:
            worker = self.workers.wait(busy)
            busy.remove(worker)
            try:
                self._answer(worker)
            except Lost as lost:
                self._replace(worker, lost)

    def tell(self, method: str, *arguments: object) -> None:
        """Make this call on every worker beside its current one; callable from any thread."""
        for worker in range(self.workers.count):
            self.workers.tell(worker, method, arguments)

    def share_out(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make one call per share, each on any worker; answers in the order of the shares.

        Raises:
            TrainingError: `MOST_LOSSES` workers were lost with the same share.
            PacelineError: a call raised it.
        """
        waiting, idle = deque(range(len(shares))), deque(range(self.workers.count))
        busy, answers, losses = dict[int, int](), dict[int, Any](), Counter[int]()
        while len(answers) < len(shares):
            self._progress.phase("generate", len(answers), len(shares))
            while idle and waiting:
                worker, share = idle.popleft(), waiting.popleft()
                self._start(worker, method, shares[share])
                busy[worker] = share
            worker = self.workers.wait(busy)
            share = busy.pop(worker)
            try:
                answers[share] = self._answer(worker)
            except Lost as lost:
                losses[share] += 1
                if losses[share] == MOST_LOSSES:
                    raise TrainingError(
                        f"{MOST_LOSSES} producers were lost one after another with the same prompts, at last {lost}; "
                        "lower --concurrent-sequences if memory ran out, then resume"
                    ) from None
                self._replace(worker, lost)
                waiting.appendleft(share)
            idle.append(worker)
        self._progress.phase("generate", len(shares), len(shares))
        return [answers[share] for share in range(len(shares))]

    def _start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        HEARTBEAT.beat(producer_row(worker), f"was asked for `{method}`")
        self._begun[worker] = method, self.recorder.clock()
        self.workers.start(worker, method, arguments)

    def _answer(self, worker: int) -> Any:
        try:
            answer = self.workers.answer(worker)
        finally:
            method, started = self._begun.pop(worker)
            self.recorder.end(producer_row(worker), method, started)
        HEARTBEAT.beat(producer_row(worker), f"gave its `{method}`")
        self.recorder.phases(producer_row(worker), started, _phases(answer))
        return answer

    def _replace(self, worker: int, lost: Lost) -> None:
        """Replace a lost worker and bring the new one to the group's state."""
        for _ in range(MOST_LOSSES):
            self.news.append(f"{lost}: another takes its place")
            self.workers.replace(worker)
            if self._state is None:
                return
            method, arguments = self._state
            self._start(worker, method, arguments)
            self.workers.wait({worker})
            try:
                self._answer(worker)
                return
            except Lost as again:
                lost = again
        raise TrainingError(f"{MOST_LOSSES} replacements of a producer were lost while they started, at last {lost}")


def producer_row(worker: int) -> str:
    """Timeline row of a worker."""
    return f"producer {worker}"


def _phases(answer: object) -> tuple[tuple[str, float], ...]:
    """Phases of a call that reports them: a round has two."""
    if not isinstance(answer, Round):
        return ()
    return (("generate", answer.generate_seconds), ("reward", answer.reward_seconds))
