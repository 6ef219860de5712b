"""Workers of one kind as a group: asked together, given shares of the work, replaced when they are lost.

What runs the processes is behind `Workers`: actors of Ray, or the ranks of a launch.
"""

from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from typing_extensions import override

from paceline.engines import Engine, FurtherRequests, OnFinished, Request, Sampling
from paceline.episodes.conversations import Drawn
from paceline.errors import ProcessLost, TrainingError
from paceline.models.parallel.process_group import RankLost
from paceline.runtime.activity import ACTIVITY
from paceline.training.rollouts.rounds import RolloutBatch, RoundSampler, merge_rounds
from paceline.types import Completion

MOST_LOSSES = 3
"""Work with which this many workers in a row were lost is taken to be the cause."""


class Lost(Exception):
    """A worker's process is gone or silent for too long; the message names it and the evidence."""


class Workers(Protocol):
    """Processes that do one call at a time each. Those that cannot be replaced never raise `Lost`."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the workers; a replacement keeps its number."""

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        """Begin the same call on idle workers, of a method or of one of a part of theirs, such as `trainer.save`."""

    def wait(self, busy: Collection[int]) -> int:
        """Wait for one of these workers to answer or be lost, no longer than a worker may be silent."""

    def result(self, worker: int) -> Any:
        """Take the result of the worker's call; once only.

        Raises:
            Lost: the worker is; `replace` it.
            PacelineError: the call raised it.
        """

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        """Make a call beside the worker's current one, without waiting; a lost worker misses it."""
        raise TypeError("these workers do one call at a time")

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Queue a further call on a worker and return a reference to its result."""
        raise TypeError("these workers have no store of results")

    def replace(self, worker: int) -> None:
        """End what is left of a worker and start another under its number.

        Raises:
            TrainingError: after `end`.
        """
        raise TypeError("these workers cannot be replaced")

    def end(self) -> None:
        """End all workers, where they do not end by themselves."""
        return


class WorkerGroup:
    """All workers behind a few methods: ask them together, share work out, or bring all of them to one state."""

    def __init__(self, workers: Workers, who: str, *, is_counted: bool = True) -> None:
        """Take idle workers; `who` is the word for one of them, in messages and as a row of the timeline.

        `is_counted`: finished shares are the progress of sampling; False where a worker of this process says more.
        """
        self.workers, self.who, self._is_counted = workers, who, is_counted
        self._begun = dict[int, tuple[str, float]]()
        self.news: list[str] = []
        """One sentence per lost worker, until they are taken."""
        self._state: tuple[str, tuple[Any, ...]] | None = None

    @property
    def count(self) -> int:
        """Number of workers."""
        return len(self.workers.numbers)

    def call(self, method: str, *arguments: object) -> list[Any]:
        """Call a method on all workers, who do it together; results in their order.

        Raises:
            ProcessLost: one is gone, or silent; none can be replaced in the midst of common work.
            PacelineError: a call raised it.
        """
        self._start(self.workers.numbers, method, arguments)
        return self._gather(self.workers.numbers)

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method on the first worker alone; raises as `call` does."""
        first = self.workers.numbers[:1]
        self._start(first, method, arguments)
        return self._gather(first)[0]

    def bring_to(self, method: str, *arguments: object) -> None:
        """Make this call on every worker, and first of all on every later replacement.

        Raises:
            TrainingError: a worker was lost `MOST_LOSSES` times in a row before it had done so.
            PacelineError: the call raised it.
        """
        self._state = (method, arguments)
        busy = set(self.workers.numbers)
        self._start(self.workers.numbers, method, arguments)
        while busy:
            worker = self.workers.wait(busy)
            busy.remove(worker)
            try:
                self._result(worker)
            except Lost as lost:
                self._replace(worker, lost)

    def tell(self, method: str, *arguments: object) -> None:
        """Make this call on every worker beside its current one; callable from any thread."""
        for worker in self.workers.numbers:
            self.workers.tell(worker, method, arguments)

    def keep(self, method: str, *arguments: object) -> Any:
        """Queue a further call on all workers; returns a reference to the first one's result."""
        first, *_ = [self.workers.keep(worker, method, arguments) for worker in self.workers.numbers]
        return first

    def share_out(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Make one call per share, each on any worker; results in the order of the shares.

        Raises:
            TrainingError: `MOST_LOSSES` workers were lost with the same share.
            PacelineError: a call raised it.
        """
        waiting, idle = deque(range(len(shares))), deque(self.workers.numbers)
        busy, results, losses = dict[int, int](), dict[int, Any](), Counter[int]()
        while len(results) < len(shares):
            self._count(len(results), len(shares))
            while idle and waiting:
                worker, share = idle.popleft(), waiting.popleft()
                self._start([worker], method, shares[share])
                busy[worker] = share
            worker = self.workers.wait(busy)
            share = busy.pop(worker)
            try:
                results[share] = self._result(worker)
            except Lost as lost:
                losses[share] += 1
                if losses[share] == MOST_LOSSES:
                    raise TrainingError(
                        f"{MOST_LOSSES} samplers were lost one after another with the same prompts, at last {lost}; "
                        "lower --concurrent-sequences if memory ran out, then resume"
                    ) from None
                self._replace(worker, lost)
                waiting.appendleft(share)
            idle.append(worker)
        self._count(len(shares), len(shares))
        return [results[share] for share in range(len(shares))]

    def _start(self, workers: Sequence[int], method: str, arguments: tuple[Any, ...]) -> None:
        name = method.rpartition(".")[2]
        for worker in workers:
            self._begun[worker] = name, ACTIVITY.beat(f"{self.who} {worker}", name)
        self.workers.start(workers, method, arguments)

    def _gather(self, workers: Sequence[int]) -> list[Any]:
        """Results in order. If several workers failed, the cause is raised and not those that lost touch with it."""
        busy, results, out_of_touch = set(workers), dict[int, Any](), list[RankLost]()
        while busy:
            worker = self.workers.wait(busy)
            busy.remove(worker)
            try:
                results[worker] = self._result(worker)
            except Lost as lost:
                raise ProcessLost(str(lost)) from None
            except RankLost as error:
                out_of_touch.append(error)
        if out_of_touch:
            raise ProcessLost(str(out_of_touch[0]))
        return [results[worker] for worker in workers]

    def _count(self, done: int, of: int) -> None:
        if self._is_counted:
            ACTIVITY.advance("generate", done, of)

    def _result(self, worker: int) -> Any:
        row = f"{self.who} {worker}"
        try:
            result = self.workers.result(worker)
        finally:
            method, started = self._begun.pop(worker)
            ACTIVITY.end(row, method, started)
        if isinstance(result, RolloutBatch):
            phases = ("generate", result.generate_seconds), ("reward", result.reward_seconds)
            ACTIVITY.phases(row, started, phases)
        return result

    def _replace(self, worker: int, lost: Lost) -> None:
        for _ in range(MOST_LOSSES):
            self.news.append(f"{lost}: another takes its place")
            self.workers.replace(worker)
            if self._state is None:
                return
            self._start([worker], *self._state)
            self.workers.wait({worker})
            try:
                self._result(worker)
                return
            except Lost as again:
                lost = again
        raise TrainingError(f"{MOST_LOSSES} replacements of a sampler were lost while they started, at last {lost}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedRoundSampler(RoundSampler):
    """A `RoundSampler`: every worker has a share of the tasks."""

    workers: WorkerGroup

    @override
    def sample(self, drawn: Drawn) -> RolloutBatch:
        shares = even_shares(len(drawn), self.workers.count)
        return merge_rounds(self.workers.share_out("sample", [(drawn[share],) for share in shares]), side_by_side=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedEngine(Engine):
    """An `Engine`: every worker completes a share of the prompts. It learns of all completions at once."""

    workers: WorkerGroup
    takes_further: bool = False

    @override
    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: OnFinished | None = None,
        further: FurtherRequests | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Sample by the workers; calls `on_finished` for none.

        Raises:
            ValueError: further requests, which no worker would ever see.
        """
        if further is not None:
            raise ValueError("workers take all requests of a call at its start; give the next turns in a next call")
        shares = even_shares(len(requests), self.workers.count)
        results = self.workers.share_out("generate", [(requests[share], sampling) for share in shares])
        return [group for groups in results for group in groups]


def even_shares(count: int, workers: int) -> list[slice]:
    """`count` things for so many workers: neighbours, sizes that differ by at most one, none empty.

    >>> even_shares(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    parts = min(count, workers)
    starts = [part * count // parts for part in range(parts)] + [count]
    return [slice(first, last) for first, last in pairwise(starts)]
