"""How trained weights come to samplers as the backend sees it: who is asked what, and that copies are compared."""

from typing import Any

import pytest

from paceline.errors import TrainingError
from paceline.training.rollout_journal import NO_TRANSFER
from paceline.workers.backend import RankWeights, StoredWeights
from paceline.workers.group import WorkerGroup
from paceline.workers.torchrun.rank import RankWorkers
from paceline.workers.trainer import TrainerUpdate
from paceline.workers.weight_sync import Manifest, Renewed, WeightsChecksum
from tests.unit.training.test_train_records import NOTHING
from tests.unit.workers.scripted_ranks import Knowing, ScriptedChannels
from tests.unit.workers.test_worker_group import ScriptedRanks


def manifest(version: int, fingerprint: int = 7) -> Manifest:
    return Manifest(
        version=version, policy_version=version, buckets=(("a", "b"), ("c",)), nbytes=12, fingerprint=fingerprint
    )


def stored(version: int, rate: float = 0.1, fingerprint: int = 7) -> TrainerUpdate:
    found = manifest(version, fingerprint)
    held, version = found.checksum, found.policy_version
    return TrainerUpdate(stats=NOTHING, learning_rate=rate, policy_version=version, held=held, manifest=found)


def updated(version: int, fingerprint: int = 7) -> TrainerUpdate:
    held = WeightsChecksum(part=(0, 0, 0), fingerprint=fingerprint)
    return TrainerUpdate(stats=NOTHING, learning_rate=0.5, policy_version=version, held=held, manifest=None)


def renewed(fingerprint: int | None = None) -> Renewed:
    held = None if fingerprint is None else WeightsChecksum(part=(), fingerprint=fingerprint)
    return Renewed(transfer=NO_TRANSFER, held=held)


def stored_weights(*scripts: list[Any], done: int = 0) -> StoredWeights:
    trainers = WorkerGroup(ScriptedRanks(*scripts), "trainer")
    return StoredWeights(trainers, WorkerGroup(ScriptedRanks([]), "sampler"), done=done)


def test_the_first_trainer_answers_for_all_and_its_weights_are_read_before_the_next_call():
    weights = stored_weights([manifest(0), stored(1, rate=0.1)], [manifest(0), stored(1, rate=0.2)])
    assert weights.update(1, []).learning_rate == 0.1
    buckets = [("bucket", ("a", "b")), ("bucket", ("c",))]
    calls = [("manifest", 0), *buckets, ("update", 1, []), *buckets]
    assert weights.trainers.workers.calls == {0: calls, 1: calls}  # the other has parts of the weights, perhaps
    references = ["reference (('a', 'b'),)", "reference (('c',),)"]
    assert weights.kept == {version: (manifest(version), references) for version in (0, 1)}
    weights.forget(1)
    assert list(weights.kept) == [1]


def test_trainers_with_differing_weights_end_the_run():
    with pytest.raises(TrainingError, match=r"trainer 1 has weights 0{15}8 after update 3, trainer 0 has 0{15}7"):
        stored_weights([manifest(3)], [manifest(3, fingerprint=8)], done=3)
    weights = stored_weights([manifest(3), stored(4)], [manifest(3), stored(4, fingerprint=8)], done=3)
    with pytest.raises(TrainingError, match=r"trainer 1 has weights 0{15}8 after update 4, trainer 0 has 0{15}7"):
        weights.update(4, [])


class FirstRank:
    """Trains, and sends weights."""

    def __init__(self, versions: list[int]) -> None:
        self.versions, self.trainer = iter(versions), self

    def update(self, number: int, groups: object) -> TrainerUpdate:
        return updated(next(self.versions))

    def renew(self, policy_version: int) -> Renewed:
        return renewed(5)


def rank_weights(versions: list[int], **answers: list[Any]) -> tuple[RankWeights, ScriptedChannels]:
    """Ranks 0 and 1 train; 2 and 3 sample. `answers` of rank 1, as `_1`, and so on."""
    channels = ScriptedChannels({rank: answers.get(f"_{rank}", []) for rank in (1, 2, 3)})
    own = FirstRank(versions)
    ranks, trainers = (
        WorkerGroup(RankWorkers(own, numbers, channels, Knowing(), part=part), "rank")
        for numbers, part in ((range(4), ""), (range(2), "trainer"))
    )
    return RankWeights(ranks, trainers, policy_version=0), channels


def asked(channels: ScriptedChannels) -> list[list[str]]:
    """Methods of ranks 1, 2 and 3."""
    return [[method for method, _ in channels.sent[rank]] for rank in (1, 2, 3)]


def test_weights_are_handed_on_to_all_when_something_is_sampled_from_new_ones_and_not_before():
    step = [updated(1), renewed(), updated(1)]
    weights, channels = rank_weights([1, 1], _1=step, _2=[renewed(5)], _3=[renewed(5)])
    weights.renew()
    assert weights.update(1, []) == updated(1)
    assert asked(channels) == [["trainer.update"], [], []]
    weights.renew()
    weights.renew()
    assert asked(channels) == [["trainer.update", "renew"], ["renew"], ["renew"]]
    assert channels.sent[3][-1] == ("renew", (1,))
    weights.update(2, [])  # without signal: the weights are as they were
    weights.renew()
    assert asked(channels) == [["trainer.update", "renew", "trainer.update"], ["renew"], ["renew"]]


def test_a_rank_whose_copy_is_another_after_an_update_ends_the_run():
    weights, _ = rank_weights([1], _1=[updated(1, fingerprint=8)])
    with pytest.raises(TrainingError, match=r"rank 1 has weights \w{15}8 after update 1, rank 0 has \w{15}7"):
        weights.update(1, [])


def test_weights_that_arrive_otherwise_than_they_left_end_the_run():
    weights, _ = rank_weights([1], _1=[updated(1), renewed()], _2=[renewed(5)], _3=[renewed(6)])
    weights.update(1, [])
    with pytest.raises(TrainingError, match=r"rank 3 has weights \w{15}6 after update 1, rank 0 has \w{15}5"):
        weights.renew()
