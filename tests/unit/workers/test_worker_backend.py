"""How trained weights come to samplers as the backend sees it: who is asked what, and that copies are compared."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline.errors import TrainingError
from paceline.training.rollouts.rounds import NO_TRANSFER
from paceline.workers.backend import BroadcastWeights, RankWeights, StoredWeights
from paceline.workers.group import WorkerGroup
from paceline.workers.torchrun.rank import RankWorkers
from paceline.workers.weight_sync import Manifest, Renewed, WeightsChecksum
from paceline.workers.worker import TrainerUpdate
from tests.unit.training.test_train_records import NOTHING
from tests.unit.workers.scripted_ranks import ScriptedChannels
from tests.unit.workers.test_worker_group import ScriptedRanks


def manifest(version: int, fingerprint: int = 7) -> Manifest:
    return Manifest(
        version=version, policy_version=version, buckets=(("a", "b"), ("c",)), nbytes=12, fingerprint=fingerprint
    )


def updated(version: int, rate: float = 0.5, fingerprint: int = 7) -> TrainerUpdate:
    held = WeightsChecksum(part=(0, 0, 0), fingerprint=fingerprint)
    return TrainerUpdate(stats=NOTHING, learning_rate=rate, policy_version=version, held=held)


def renewed(fingerprint: int | None = None) -> Renewed:
    held = None if fingerprint is None else WeightsChecksum(part=(), fingerprint=fingerprint)
    return Renewed(transfer=NO_TRANSFER, held=held)


def stored_weights(*scripts: list[Any], done: int = 0) -> StoredWeights:
    trainers = WorkerGroup(ScriptedRanks(*scripts), "trainer")
    return StoredWeights(trainers, WorkerGroup(ScriptedRanks([]), "sampler"), done=done)


def test_the_first_trainer_answers_for_all_and_its_weights_are_read_before_the_next_call():
    weights = stored_weights([manifest(0), updated(1, rate=0.1), manifest(1)], [None, updated(1, rate=0.2), None])
    assert weights.update(1, []).learning_rate == 0.1
    buckets = [("bucket", ("a", "b")), ("bucket", ("c",))]
    calls = [("manifest", 0), *buckets, ("update", 1, []), ("manifest", 1), *buckets]
    assert weights.trainers.workers.calls == {0: calls, 1: calls}  # the other has parts of the weights, perhaps
    references = ["reference (('a', 'b'),)", "reference (('c',),)"]
    assert weights.kept == {version: (manifest(version), references) for version in (0, 1)}
    weights.forget(1)
    assert list(weights.kept) == [1]


def test_trainers_with_differing_weights_end_the_run():
    weights = stored_weights([manifest(3), updated(4)], [None, updated(4, fingerprint=8)], done=3)
    with pytest.raises(TrainingError, match=r"trainer 1 has weights 0{15}8 after update 4, trainer 0 has 0{15}7"):
        weights.update(4, [])


class FirstRank:
    """Trains, keeps weights and sends them, or has a copy that it renews."""

    def __init__(self, versions: list[int]) -> None:
        self.versions, self.trainer, self.kept = iter(versions), self, {0: {}, 1: {}}
        self.sent = list[Manifest]()

    def update(self, number: int, groups: object) -> TrainerUpdate:
        return updated(next(self.versions))

    def hold(self, version: int) -> Manifest:
        return manifest(version)

    def load(self, manifest: Manifest) -> None:
        self.sent.append(manifest)

    def renew(self, policy_version: int) -> Renewed:
        return renewed(5)


def groups(own: FirstRank, channels: ScriptedChannels, *parts: tuple[str, Sequence[int]]) -> list[WorkerGroup]:
    return [
        WorkerGroup(RankWorkers(own, numbers, channels, lambda seconds: None, part=part), "rank")
        for part, numbers in parts
    ]


def rank_weights(versions: list[int], **answers: list[Any]) -> tuple[RankWeights, ScriptedChannels]:
    """Three ranks that train and sample. `answers` of rank 1, as `_1`, and so on."""
    channels = ScriptedChannels({rank: answers.get(f"_{rank}", []) for rank in (1, 2)})
    ranks, trainers = groups(FirstRank(versions), channels, ("", range(3)), ("trainer", range(3)))
    return RankWeights(ranks, trainers, policy_version=0), channels


def asked(channels: ScriptedChannels, *ranks: int) -> list[list[str]]:
    """Methods of these ranks."""
    return [[method for method, _ in channels.sent[rank]] for rank in ranks]


def test_copies_are_renewed_when_something_is_sampled_from_new_weights_and_not_before():
    step = [updated(1), renewed(5), updated(1)]
    weights, channels = rank_weights([1, 1], _1=step, _2=step)
    weights.renew()
    assert weights.update(1, []) == updated(1)
    assert asked(channels, 1) == [["trainer.update"]]
    weights.renew()
    weights.renew()
    assert asked(channels, 1, 2) == [["trainer.update", "renew"]] * 2
    assert channels.sent[2][-1] == ("renew", (1,))
    weights.update(2, [])  # without signal: the weights are as they were
    weights.renew()
    assert asked(channels, 1) == [["trainer.update", "renew", "trainer.update"]]


def test_the_first_rank_hands_its_versions_on_to_those_that_only_sample():
    # ranks 0 and 1 train; 2 and 3 sample
    own, channels = FirstRank([1]), ScriptedChannels({1: [None, updated(1), None], 2: [None, None], 3: [None, None]})
    parts = ("trainer", range(2)), ("sampler", range(2, 4)), ("", [0, 2, 3])
    trainers, samplers, senders = groups(own, channels, *parts)
    weights = BroadcastWeights(trainers, samplers, senders, own, done=0)
    weights.load(0)
    weights.update(1, [])
    weights.load(1)
    assert asked(channels, 1, 2, 3) == [["trainer.hold", "trainer.update", "trainer.hold"], ["load"] * 2, ["load"] * 2]
    assert own.sent == [manifest(0), manifest(1)]
    assert weights.transfer.nbytes == 2 * manifest(0).nbytes
    weights.forget(1)
    assert (list(weights.kept), list(own.kept)) == ([1], [1])


def test_newer_weights_are_offered_to_each_sampler_beside_its_calls():
    own, channels = FirstRank([1]), ScriptedChannels({1: []})
    own.kept[0] = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0]), "c": torch.tensor([0.5])}
    trainers, samplers, senders = groups(own, channels, ("trainer", [0]), ("sampler", [1]), ("", [0, 1]))
    BroadcastWeights(trainers, samplers, senders, own, done=0).offer()
    (method, (sent, *buckets)) = channels.told[1][0]
    assert (method, sent) == ("sampler.offer", manifest(0))
    assert [[array.view("float32").tolist() for array in bucket] for bucket in buckets] == [[[1.0], [2.0]], [[0.5]]]


def test_a_rank_whose_copy_is_another_after_an_update_ends_the_run():
    weights, _ = rank_weights([1], _1=[updated(1, fingerprint=8)], _2=[updated(1)])
    with pytest.raises(TrainingError, match=r"rank 1 has weights \w{15}8 after update 1, rank 0 has \w{15}7"):
        weights.update(1, [])


def test_copies_that_differ_after_they_are_renewed_end_the_run():
    weights, _ = rank_weights([1], _1=[updated(1), renewed(5)], _2=[updated(1), renewed(6)])
    weights.update(1, [])
    with pytest.raises(TrainingError, match=r"rank 2 has weights \w{15}6 after update 1, rank 0 has \w{15}5"):
        weights.renew()
