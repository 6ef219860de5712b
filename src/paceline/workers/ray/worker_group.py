"""The producers as one: shares of the work go out, come back in order, and are given to others where one is lost.

Nothing of Ray here: `Workers` is the border to whatever runs them.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from paceline.errors import TrainingError
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.progress import NULL_PROGRESS, Progress
from paceline.runtime.timeline import Recorder
from paceline.training.rollouts.rounds import Round

MOST_LOSSES = 3
"""What as many workers in a row were lost with is what kills them."""


class Lost(Exception):
    """A worker's process is gone, or silent for too long; the message says which and how it was found out."""


class Workers(Protocol):
    """Processes that do one call at a time each, and hear what they are told meanwhile."""

    @property
    def count(self) -> int:
        """How many there are, numbered from 0; a lost one is replaced under its number."""

    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Have an idle worker call a method of its own."""

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Have a worker make a call beside what it is doing, which nobody waits for; one that is lost does not hear."""

    def wait(self, busy: Collection[int]) -> int:
        """Any worker of these that has answered or is lost. Waits no longer than a worker may be silent."""

    def answer(self, worker: int) -> Any:
        """What its call gave, once.

        Raises:
            Lost: the worker is; `replace` it.
            PacelineError: the call raised it.
        """

    def replace(self, worker: int) -> None:
        """End whatever is left of a worker and start another in its place, in the state that a new one has.

        Raises:
            TrainingError: after `end`.
        """

    def end(self) -> None:
        """End them all."""


class WorkerGroup:
    """All workers behind two verbs: share work out among them, or bring them all to one state."""

    def __init__(self, workers: Workers, recorder: Recorder | None = None, progress: Progress = NULL_PROGRESS) -> None:
        """Of idle workers; what each of them does goes to `recorder`, how many shares are done to `progress`."""
        self.workers, self._progress = workers, progress
        self.recorder = recorder or Recorder()
        self._begun = dict[int, tuple[str, float]]()
        self.news: list[str] = []
        """A sentence for every worker that was lost, until somebody takes them."""
        self._state: tuple[str, tuple[Any, ...]] | None = None

    @property
    def count(self) -> int:
        """How many workers there are."""
        return self.workers.count

    def bring_to(self, method: str, *arguments: object) -> None:
        """Have every worker make this call, and every later replacement before anything else: the state they are in.

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
        """Have every worker make this call beside what it is doing; from any thread."""
        for worker in range(self.workers.count):
            self.workers.tell(worker, method, arguments)

    def share_out(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One call per share, each by any worker; the answers in the order of the shares.

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
        """Another worker in the place of a lost one, in the state of all."""
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
    """A worker's row in a timeline."""
    return f"producer {worker}"


def _phases(answer: object) -> tuple[tuple[str, float], ...]:
    """The parts of a call that says how long they took: of a round of samples two."""
    if not isinstance(answer, Round):
        return ()
    return (("generate", answer.generate_seconds), ("reward", answer.reward_seconds))
