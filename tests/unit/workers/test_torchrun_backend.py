"""The loop's view of ranks: who is asked what, when weights are handed on, and that copies of them are compared."""

from typing import Any

import pytest

from paceline.config.building import build_config
from paceline.errors import TrainingError
from paceline.runtime.timeline import Recorder
from paceline.training.sampled_step import NO_TRANSFER
from paceline.training.task_sampler import TaskSampler
from paceline.workers.torchrun.backend import TorchrunBackend
from paceline.workers.torchrun.rank_group import RankGroup
from paceline.workers.torchrun.replicas import Renewed, WeightsChecksum
from paceline.workers.torchrun.roles import Roles
from paceline.workers.torchrun.training import RankUpdate
from tests.unit.training.test_train_records import NOTHING
from tests.unit.workers.scripted_ranks import Knowing, ScriptedChannels

APART = Roles(training=range(2), sampling=range(2, 4))
CONFIG = build_config({"model": "embedded", "dataset": "arithmetic"})


def updated(version: int, fingerprint: int = 7) -> RankUpdate:
    held = WeightsChecksum(part=(0, 0, 0), fingerprint=fingerprint)
    return RankUpdate(stats=NOTHING, learning_rate=0.5, policy_version=version, held=held)


def renewed(fingerprint: int | None = None) -> Renewed:
    return Renewed(
        transfer=NO_TRANSFER, held=None if fingerprint is None else WeightsChecksum(part=(), fingerprint=fingerprint)
    )


class FirstRank:
    """Trains, and sends weights."""

    def __init__(self, versions: list[int]) -> None:
        self.versions = iter(versions)

    def update(self, number: int, groups: object) -> RankUpdate:
        return updated(next(self.versions))

    def renew(self, policy_version: int) -> Renewed:
        return renewed(5)


class Asks:
    """A `Evaluator` that asks for nothing."""

    def evaluate(self, engine: object, *, step: int) -> Any:
        return step


def backend(versions: list[int], **answers: list[Any]) -> tuple[TorchrunBackend, ScriptedChannels]:
    """Ranks 0 and 1 train; 2 and 3 sample. `answers` of rank 1, as `_1`, and so on."""
    channels = ScriptedChannels({rank: answers.get(f"_{rank}", []) for rank in (1, 2, 3)})
    watch, recorder = Knowing(), Recorder(lambda: 0.0)
    group = RankGroup(lambda: FirstRank(versions), (), channels=channels, watch=watch, roles=APART, recorder=recorder)
    return TorchrunBackend(CONFIG, TaskSampler(tasks=(), seed=0, shuffle=False), group, policy_version=0), channels


def asked(channels: ScriptedChannels) -> list[list[str]]:
    """Methods of ranks 1, 2 and 3, without the making."""
    return [[method for method, _ in channels.sent[rank][1:]] for rank in (1, 2, 3)]


def test_weights_are_handed_on_to_all_when_something_is_sampled_from_new_ones_and_not_before():
    step = [updated(1), renewed(), updated(1)]
    whole, channels = backend([1, 1], _1=step, _2=[renewed(5)], _3=[renewed(5)])
    whole.evaluate(Asks(), step=0)
    assert whole.update(1, []) == (NOTHING, 0.5)
    assert asked(channels) == [["update"], [], []]
    assert whole.evaluate(Asks(), step=1) == whole.evaluate(Asks(), step=1) == 1
    assert asked(channels) == [["update", "renew"], ["renew"], ["renew"]]
    assert channels.sent[3][-1] == ("renew", (1,))
    whole.update(2, [])  # without signal: the weights are as they were
    whole.evaluate(Asks(), step=2)
    assert asked(channels) == [["update", "renew", "update"], ["renew"], ["renew"]]


def test_a_rank_whose_copy_is_another_after_an_update_ends_the_run():
    whole, _ = backend([1], _1=[updated(1, fingerprint=8)])
    with pytest.raises(TrainingError, match=r"rank 1 has weights \w{15}8 after update 1, rank 0 has \w{15}7"):
        whole.update(1, [])


def test_weights_that_arrive_otherwise_than_they_left_end_the_run():
    whole, _ = backend([1], _1=[updated(1), renewed()], _2=[renewed(5)], _3=[renewed(6)])
    whole.update(1, [])
    with pytest.raises(TrainingError, match=r"rank 3 has weights \w{15}6 after update 1, rank 0 has \w{15}5"):
        whole.evaluate(Asks(), step=1)
