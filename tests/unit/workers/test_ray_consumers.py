"""The consumers as one: the first speaks for all, differing weights end the run, of several the culprit is named."""

from collections import defaultdict, deque
from collections.abc import Collection
from typing import Any

import pytest

from paceline.errors import ProcessLost, TrainingError
from paceline.models.parallel.ranks import RankLost
from paceline.training.learner.stats import summarise_updates
from paceline.workers.ray.consumers import Consumers
from paceline.workers.ray.consuming import ConsumerUpdate
from paceline.workers.ray.weights import Manifest
from paceline.workers.ray.worker_group import Lost


def manifest(version: int, fingerprint: int = 7) -> Manifest:
    return Manifest(
        version=version, policy_version=version, buckets=(("a", "b"), ("c",)), nbytes=12, fingerprint=fingerprint
    )


def updated(version: int, rate: float = 0.1) -> ConsumerUpdate:
    return ConsumerUpdate(
        stats=summarise_updates([], micro_batch_tokens=4096), learning_rate=rate, manifest=manifest(version)
    )


class ScriptedRanks:
    """Ranks that answer what the script says, one after another, the last of the busy ones first."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.count, self.scripts = len(scripts), [deque(script) for script in scripts]
        self.calls = defaultdict[int, list[tuple[Any, ...]]](list)
        self.is_ended = False

    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.calls[worker].append((method, *arguments))

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        self.calls[worker].append((method, *arguments))
        return f"reference {arguments}"

    def wait(self, busy: Collection[int]) -> int:
        return max(busy)

    def answer(self, worker: int) -> Any:
        found = self.scripts[worker].popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def replace(self, worker: int) -> None:
        raise AssertionError("a rank cannot be replaced while the others go on")

    def end(self) -> None:
        self.is_ended = True


def test_the_first_rank_answers_for_all_and_its_weights_are_read_before_the_next_call():
    workers = ScriptedRanks([updated(1, rate=0.1)], [updated(1, rate=0.2)])
    found, weights = Consumers(workers).update(1, [], like=manifest(0))
    assert (found.learning_rate, weights.manifest) == (0.1, manifest(1))
    calls = [("update", 1, []), ("bucket", ("a", "b")), ("bucket", ("c",))]
    assert workers.calls == {0: calls, 1: calls}  # the other has parts of the weights, perhaps
    assert weights.buckets == ["reference (('a', 'b'),)", "reference (('c',),)"]


def test_only_the_first_rank_is_asked_for_what_one_can_do():
    workers = ScriptedRanks([("a sentence",)], [])
    assert Consumers(workers).ask("sentences") == ("a sentence",)
    assert workers.calls == {0: [("sentences",)]}


def test_all_ranks_save_and_the_first_one_says_where():
    workers = ScriptedRanks(["saved"], ["saved too"])
    assert Consumers(workers).ask_all("save", "place") == "saved"
    assert workers.calls == {0: [("save", "place")], 1: [("save", "place")]}


def test_ranks_with_differing_weights_end_the_run():
    workers = ScriptedRanks([manifest(3)], [manifest(3, fingerprint=8)])
    with pytest.raises(TrainingError, match=r"consumer 1 has weights 0{15}8 after step 3, the first one has 0{15}7"):
        Consumers(workers).weights(3)


def test_the_lost_rank_is_named_and_not_the_one_that_waited_for_it():
    # rank 1 answers first: it lost touch because rank 0 is gone
    workers = ScriptedRanks([Lost("consumer 0 is gone")], [RankLost("rank 1 was adding up gradients")])
    with pytest.raises(ProcessLost, match=r"^consumer 0 is gone$"):
        Consumers(workers).update(1, [], like=manifest(0))


def test_ranks_that_lost_touch_without_a_culprit_are_a_loss_too():
    workers = ScriptedRanks([RankLost("rank 0 was adding up gradients")], [updated(1)])
    with pytest.raises(ProcessLost, match="rank 0 was adding up"):
        Consumers(workers).update(1, [], like=manifest(0))


def test_what_a_rank_raised_itself_is_told_at_once():
    # nobody waits for rank 0, which stands in a collective that rank 1 never comes to
    workers = ScriptedRanks([], [TrainingError("the gradient's norm is nan")])
    with pytest.raises(TrainingError, match="norm is nan"):
        Consumers(workers).update(1, [], like=manifest(0))
