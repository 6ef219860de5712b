"""Ranks as workers: everybody does its part at once, answers come by rank, a lost touch gets the culprit's name."""

from typing import Any

import pytest

from paceline.errors import ProcessLost, TrainingError
from paceline.models.parallel.process_group import RankLost
from paceline.workers.group import WorkerGroup
from paceline.workers.torchrun.rank import LEAVE, RankWorkers, follow_calls
from tests.unit.workers.scripted_ranks import ScriptedChannels


class Part:
    """A rank's worker, and its sampler too: remembers what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.sampler = self

    def do(self, *arguments: Any) -> str:
        self.asked.append(arguments)
        return f"own {arguments}"

    def fail(self, error: Exception) -> None:
        raise error


def group(
    results: dict[int, list[Any]], verdict: BaseException | None = None, *, numbers: range | None = None, part: str = ""
) -> tuple[WorkerGroup, ScriptedChannels, Part]:
    """The first rank and others with these answers, of which those with `numbers` are called."""
    channels, own = ScriptedChannels(results), Part()
    numbers = numbers or range(len(results) + 1)

    def raise_verdict(seconds: float) -> None:
        if verdict is not None:
            raise verdict

    return WorkerGroup(RankWorkers(own, numbers, channels, raise_verdict, part=part), "rank"), channels, own


def test_every_rank_is_asked_the_same():
    whole, channels, own = group({1: ["one"], 2: ["two"]})
    assert whole.call("do", "it", 7) == ["own ('it', 7)", "one", "two"]
    assert own.asked == [("it", 7)]
    assert channels.sent == {rank: [("do", ("it", 7))] for rank in (1, 2)}


def test_what_all_are_asked_is_turned_into_bytes_once():
    whole, channels, _ = group({1: ["one"], 2: ["two"], 3: ["three"]})
    whole.call("do", "it")
    assert channels.messages == 1


def test_each_rank_gets_its_share_and_those_without_one_are_not_asked():
    whole, channels, own = group({1: ["one"], 2: []}, part="sampler")
    assert whole.count == 3
    assert whole.share_out("do", [("a",), ("b",)]) == ["own ('a',)", "one"]
    assert (own.asked, channels.sent[1], channels.sent[2]) == ([("a",)], [("sampler.do", ("b",))], [])
    assert whole.share_out("do", []) == []


def test_ranks_that_only_sample_have_all_the_shares():
    whole, channels, own = group({1: [], 2: ["first"], 3: ["second"]}, numbers=range(2, 4))
    assert whole.count == 2
    assert whole.share_out("do", [("a",), ("b",)]) == ["first", "second"]
    assert [channels.sent[rank] for rank in (1, 2, 3)] == [[], [("do", ("a",))], [("do", ("b",))]]
    assert own.asked == []


def test_a_first_rank_that_trains_alone_sends_an_update_to_nobody():
    whole, channels, _ = group({1: []}, numbers=range(1))
    assert whole.call("do") == ["own ()"]
    assert channels.messages == 0


def test_the_others_begin_before_the_first_rank_does_its_own():
    whole, channels, own = group({1: ["one"]})
    own.do = lambda: channels.sent[1][-1]
    assert whole.call("do") == [("do", ()), "one"]


@pytest.mark.parametrize("where", ["in the own part", "on the line"])
def test_a_lost_touch_is_told_by_the_name_of_the_rank_that_is_gone(where):
    touch = RankLost("rank 0 was adding up gradients when another rank went away")
    whole, *_ = group({1: [touch]}, verdict=ProcessLost("rank 1 is gone"))
    with pytest.raises(ProcessLost, match=r"^rank 1 is gone$"):
        whole.call("fail", touch) if where == "in the own part" else whole.call("do")


def test_a_lost_touch_without_a_culprit_is_a_loss_too():
    whole, *_ = group({1: [RankLost("rank 1 does not answer any more")]})
    with pytest.raises(ProcessLost, match=r"^rank 1 does not answer any more$"):
        whole.call("do")


def test_the_first_ranks_own_error_is_told_as_it_is():
    whole, *_ = group({1: []})
    with pytest.raises(TrainingError, match=r"^the gradient's norm is nan$"):
        whole.call("fail", TrainingError("the gradient's norm is nan"))


def test_another_rank_does_what_it_is_asked_until_it_is_asked_to_leave():
    channels, part = (
        ScriptedChannels({0: [("do", (1,)), ("sampler.do", (2,)), (LEAVE, ("left",)), ("do", (3,))]}),
        Part(),
    )
    assert follow_calls(part, channels) == "left"
    assert part.asked == [(1,), (2,)]
    assert channels.sent[0] == ["own (1,)", "own (2,)"]


def test_another_ranks_error_is_no_answer():
    channels = ScriptedChannels({0: [("fail", (TrainingError("no memory"),))]})
    with pytest.raises(TrainingError, match="no memory"):
        follow_calls(Part(), channels)
    assert channels.sent[0] == []
