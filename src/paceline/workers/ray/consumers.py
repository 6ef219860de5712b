"""All ranks of the trainer as one: they train together, and the first of them speaks for all."""

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
"""The rank whose answer counts where all would give the same."""


class KeepingWorkers(Workers, Protocol):
    """Workers that can leave what a call gives where it is."""

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        """Have a worker make a further call after those that it was given: a reference to what that will give."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A version of the weights, and where it can be fetched."""

    manifest: Manifest
    buckets: list[Any]
    """References, in the manifest's order."""


class Consumers:
    """The trainer, whose ranks do everything together. The loss of one ends them: each has a share of a step."""

    def __init__(self, workers: KeepingWorkers, recorder: Recorder | None = None) -> None:
        """Of workers that are idle, a `ConsumingProcess` each; what each of them does goes to `recorder`."""
        self._workers = workers
        self._recorder = recorder or Recorder()
        self._begun = dict[int, tuple[str, float]]()

    def weights(self, version: int) -> Weights:
        """The weights as they are.

        Raises:
            ProcessLost: a rank is gone, or silent.
            TrainingError: the ranks' weights differ.
        """
        manifest = _same(self._call(range(self._workers.count), "manifest", version))
        return Weights(manifest=manifest, buckets=self._fetch(manifest))

    def update(self, number: int, groups: Sequence[RolloutGroup], *, like: Manifest) -> tuple[ConsumerUpdate, Weights]:
        """All updates of a step, and the weights that they made; `like`: the manifest of an earlier version.

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
        """What the first rank's method gives.

        Raises:
            ProcessLost: it is gone, or silent.
            PacelineError: the method raised it.
        """
        return self._call([SPEAKER], method, *arguments)[0]

    def ask_all(self, method: str, *arguments: object) -> Any:
        """What the first rank's method gives, where all ranks have a share in it.

        Raises:
            ProcessLost: a rank is gone, or silent.
            PacelineError: the method raised it on one of them.
        """
        return self._call(range(self._workers.count), method, *arguments)[SPEAKER]

    def end(self) -> None:
        """End all ranks."""
        self._workers.end()

    def _fetch(self, manifest: Manifest) -> list[Any]:
        """What the first rank gives of each bucket; the others help, as each may have parts of it."""
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
        """What each rank gave. Of several that failed the culprit is named: who only lost touch with it is not."""
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
