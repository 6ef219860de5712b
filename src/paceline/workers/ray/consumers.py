"""All trainer ranks as one: they work together, and the first of them answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.errors import ProcessLost, TrainingError
from paceline.models.parallel.ranks import RankLost
from paceline.runtime.heartbeat import HEARTBEAT
from paceline.runtime.timeline import Recorder
from paceline.types import RolloutGroup
from paceline.workers.ray.consuming import ConsumerUpdate
from paceline.workers.ray.weights import Manifest
from paceline.workers.ray.worker_group import Lost, Workers

SPEAKER = 0
"""Rank whose answer is used where all ranks answer alike."""


class KeepingWorkers(Workers, Protocol):
    """Workers that can keep the result of a call."""

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Queue a further call on a worker and return a reference to its result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A version of the weights and the references to fetch it by."""

    manifest: Manifest
    buckets: list[Any]
    """References, in the manifest's order."""


class Consumers:
    """The trainer's ranks. The loss of one ends the run, because each has a share of every step."""

    def __init__(self, workers: KeepingWorkers, recorder: Recorder | None = None) -> None:
        """Take idle workers, one `ConsumingProcess` each; their spans go to `recorder`."""
        self._workers = workers
        self._recorder = recorder or Recorder()
        self._begun = dict[int, tuple[str, float]]()

    def weights(self, version: int) -> Weights:
        """Current weights.

        Raises:
            ProcessLost: a rank is gone, or silent.
            TrainingError: the ranks' weights differ.
        """
        manifest = _same(self._call(range(self._workers.count), "manifest", version))
        return Weights(manifest=manifest, buckets=self._fetch(manifest))

    def update(self, number: int, groups: Sequence[RolloutGroup], *, like: Manifest) -> tuple[ConsumerUpdate, Weights]:
        """Run all updates of a step and return the new weights; `like` is the manifest of an earlier version.

        Raises:
            ProcessLost: a rank is gone, or silent.
            TrainingError: the ranks' weights differ; or an update raised it.
        """
        ranks = range(self._workers.count)
        self._start(ranks, "update", number, groups)
        # calls are done in order: these read what this update makes, before the next one changes it
        buckets = self._fetch(like)
        found: list[ConsumerUpdate] = self._answers(ranks)
        return found[SPEAKER], Weights(manifest=_same([one.manifest for one in found]), buckets=buckets)

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method on the first rank.

        Raises:
            ProcessLost: it is gone, or silent.
            PacelineError: the method raised it.
        """
        return self._call([SPEAKER], method, *arguments)[0]

    def ask_all(self, method: str, *arguments: object) -> Any:
        """Call a method on all ranks and return the first rank's answer.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: the method raised it on one of them.
        """
        return self._call(range(self._workers.count), method, *arguments)[SPEAKER]

    def end(self) -> None:
        """End all ranks."""
        self._workers.end()

    def _fetch(self, manifest: Manifest) -> list[Any]:
        """References to the first rank's buckets; the other ranks help to gather them."""
        found = [
            [self._workers.keep(rank, "bucket", (names,)) for rank in range(self._workers.count)]
            for names in manifest.buckets
        ]
        return [of_ranks[SPEAKER] for of_ranks in found]

    def _call(self, ranks: Sequence[int], method: str, *arguments: object) -> list[Any]:
        self._start(ranks, method, *arguments)
        return self._answers(ranks)

    def _start(self, ranks: Sequence[int], method: str, *arguments: object) -> None:
        for rank in ranks:
            HEARTBEAT.beat(f"consumer {rank}", f"was asked for `{method}`")
            self._begun[rank] = method, self._recorder.clock()
            self._workers.start(rank, method, arguments)

    def _answers(self, ranks: Sequence[int]) -> list[Any]:
        """Answers by rank. If several ranks failed, the cause is raised and not the ranks that lost touch with it."""
        busy, answers, out_of_touch = set(ranks), dict[int, Any](), list[RankLost]()
        while busy:
            rank = self._workers.wait(busy)
            busy.remove(rank)
            try:
                answers[rank] = self._workers.answer(rank)
            except Lost as lost:
                raise ProcessLost(str(lost)) from None
            except RankLost as error:
                out_of_touch.append(error)
            finally:
                method, started = self._begun.pop(rank)
                self._recorder.end(f"consumer {rank}", method, started)
                HEARTBEAT.beat(f"consumer {rank}", f"ended its `{method}`")
        if out_of_touch:
            raise ProcessLost(str(out_of_touch[0]))
        return [answers[rank] for rank in ranks]


def _same(manifests: Sequence[Manifest]) -> Manifest:
    first = manifests[SPEAKER]
    for rank, manifest in enumerate(manifests):
        if manifest != first:
            raise TrainingError(
                f"consumer {rank} has weights {manifest.fingerprint:016x} after step {manifest.version}, the first one "
                f"has {first.fingerprint:016x}; they must be the same, so look at the machines, then resume"
            )
    return first
