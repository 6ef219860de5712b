"""The loop's view of ranks: who is asked what, when weights are handed on, and that copies of them are compared."""

from typing import Any

import pytest

from paceline.config.building import build_config
from paceline.errors import TrainingError
from paceline.runtime.timeline import Recorder
from paceline.training.feed import Feed
from paceline.training.produced import SHARED
from paceline.workers.torchrun.agreeing import Held, Renewed
from paceline.workers.torchrun.halves import SpmdHalves
from paceline.workers.torchrun.roles import Roles
from paceline.workers.torchrun.team import Team
from paceline.workers.torchrun.training import Updated
from tests.unit.training.test_train_records import NOTHING
from tests.unit.workers.scripted_ranks import Knowing, ScriptedLines

APART = Roles(training=range(2), sampling=range(2, 4))
CONFIG = build_config({"model": "embedded", "dataset": "arithmetic"})


def updated(version: int, fingerprint: int = 7) -> Updated:
    held = Held(part=(0, 0, 0), fingerprint=fingerprint)
    return Updated(stats=NOTHING, learning_rate=0.5, policy_version=version, held=held)


def renewed(fingerprint: int | None = None) -> Renewed:
    return Renewed(handover=SHARED, held=None if fingerprint is None else Held(part=(), fingerprint=fingerprint))


class FirstRank:
    """Trains, and sends weights."""

    def __init__(self, versions: list[int]) -> None:
        self.versions = iter(versions)

    def update(self, number: int, groups: object) -> Updated:
        return updated(next(self.versions))

    def renew(self, policy_version: int) -> Renewed:
        return renewed(5)


class Asks:
    """A `Meter` that asks for nothing."""

    def measure(self, engine: object, *, step: int) -> Any:
        return step


def halves(versions: list[int], **answers: list[Any]) -> tuple[SpmdHalves, ScriptedLines]:
    """Ranks 0 and 1 train; 2 and 3 sample. `answers` of rank 1, as `_1`, and so on."""
    lines = ScriptedLines({rank: answers.get(f"_{rank}", []) for rank in (1, 2, 3)})
    watch, recorder = Knowing(), Recorder(lambda: 0.0)
    team = Team(lambda: FirstRank(versions), (), lines=lines, watch=watch, roles=APART, recorder=recorder)
    return SpmdHalves(CONFIG, Feed(tasks=(), seed=0, shuffle=False), team, policy_version=0), lines


def asked(lines: ScriptedLines) -> list[list[str]]:
    """Methods of ranks 1, 2 and 3, without the making."""
    return [[method for method, _ in lines.sent[rank][1:]] for rank in (1, 2, 3)]


def test_weights_are_handed_on_to_all_when_something_is_sampled_from_new_ones_and_not_before():
    step = [updated(1), renewed(), updated(1)]
    whole, lines = halves([1, 1], _1=step, _2=[renewed(5)], _3=[renewed(5)])
    whole.measure(Asks(), step=0)
    assert whole.update(1, []) == (NOTHING, 0.5)
    assert asked(lines) == [["update"], [], []]
    assert whole.measure(Asks(), step=1) == whole.measure(Asks(), step=1) == 1
    assert asked(lines) == [["update", "renew"], ["renew"], ["renew"]]
    assert lines.sent[3][-1] == ("renew", (1,))
    whole.update(2, [])  # without signal: the weights are as they were
    whole.measure(Asks(), step=2)
    assert asked(lines) == [["update", "renew", "update"], ["renew"], ["renew"]]


def test_a_rank_whose_copy_is_another_after_an_update_ends_the_run():
    whole, _ = halves([1], _1=[updated(1, fingerprint=8)])
    with pytest.raises(TrainingError, match=r"rank 1 has weights \w{15}8 after update 1, rank 0 has \w{15}7"):
        whole.update(1, [])


def test_weights_that_arrive_otherwise_than_they_left_end_the_run():
    whole, _ = halves([1], _1=[updated(1), renewed()], _2=[renewed(5)], _3=[renewed(6)])
    whole.update(1, [])
    with pytest.raises(TrainingError, match=r"rank 3 has weights \w{15}6 after update 1, rank 0 has \w{15}5"):
        whole.measure(Asks(), step=1)
