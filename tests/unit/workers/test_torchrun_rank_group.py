"""All ranks as one: everybody does its part at once, answers come by rank, a lost touch gets the culprit's name."""

from typing import Any

import pytest

from paceline.errors import ProcessLost, TrainingError
from paceline.models.parallel.ranks import RankLost
from paceline.runtime.timeline import Recorder
from paceline.workers.torchrun.rank_group import BUILD, LEAVE, RankGroup, answer_calls
from paceline.workers.torchrun.roles import Roles
from tests.unit.workers.scripted_ranks import Knowing, ScriptedChannels


class Part:
    """A rank's part: remembers what it was made with, and what it is asked."""

    def __init__(self, *made_with: Any) -> None:
        self.asked: list[tuple[Any, ...]] = [made_with]

    def do(self, *arguments: Any) -> str:
        self.asked.append(arguments)
        return f"own {arguments}"

    def fail(self, error: Exception) -> None:
        raise error


def group(
    answers: dict[int, list[Any]], verdict: BaseException | None = None, *, apart: int = 0
) -> tuple[RankGroup, ScriptedChannels, list[Part]]:
    """The first rank and others with these answers, the last `apart` of which only sample."""
    size = len(answers) + 1
    roles = Roles(training=range(size - apart), sampling=range(size - apart if apart else 0, size))
    channels, parts = ScriptedChannels(answers), list[Part]()

    def make(*arguments: Any) -> Part:
        parts.append(Part(*arguments))
        return parts[-1]

    made = RankGroup(
        make, ("config", 3), channels=channels, watch=Knowing(verdict), roles=roles, recorder=Recorder(lambda: 0.0)
    )
    return made, channels, parts


def test_every_rank_is_made_with_the_same_arguments_and_asked_the_same():
    whole, channels, (part,) = group({1: ["one"], 2: ["two"]})
    assert whole.call("do", "it", 7) == ["own ('it', 7)", "one", "two"]
    assert part.asked == [("config", 3), ("it", 7)]
    assert channels.sent == {rank: [(BUILD, ("config", 3)), ("do", ("it", 7))] for rank in (1, 2)}


def test_what_all_are_asked_is_turned_into_bytes_once():
    whole, channels, _ = group({1: ["one"], 2: ["two"], 3: ["three"]})
    before = channels.messages
    whole.call("do", "it")
    assert channels.messages == before + 1


def test_each_rank_gets_its_share_and_those_without_one_are_not_asked():
    whole, channels, (part,) = group({1: ["one"], 2: []})
    assert whole.count == 3
    assert whole.share_out("do", [("a",), ("b",)]) == ["own ('a',)", "one"]
    assert (part.asked[-1], channels.sent[1][-1], len(channels.sent[2])) == (("a",), ("do", ("b",)), 1)
    assert whole.share_out("do", []) == []


def test_ranks_that_only_sample_have_all_the_shares_and_no_part_in_an_update():
    whole, channels, (part,) = group({1: ["trained"], 2: ["first"], 3: ["second", "third"]}, apart=2)
    assert whole.count == 2
    assert whole.call_training("do", 1) == ["own (1,)", "trained"]
    assert whole.share_out("do", [("a",), ("b",)]) == ["first", "second"]
    assert [channels.sent[rank][1:] for rank in (1, 2, 3)] == [[("do", (1,))], [("do", ("a",))], [("do", ("b",))]]
    assert part.asked[1:] == [(1,)]


def test_a_first_rank_that_trains_alone_sends_an_update_to_nobody():
    whole, channels, _ = group({1: []}, apart=1)
    assert whole.call_training("do") == ["own ()"]
    assert channels.sent[1] == [(BUILD, ("config", 3))]


def test_the_others_begin_before_the_first_rank_does_its_own():
    whole, channels, (part,) = group({1: ["one"]})
    part.do = lambda: channels.sent[1][-1]
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
    channels = ScriptedChannels({0: [(BUILD, ("config",)), ("do", (1,)), ("do", (2,)), (LEAVE, ()), ("do", (3,))]})
    channels.answers[0].popleft()
    parts = list[Part]()
    answer_calls(lambda *given: parts.append(Part(*given)) or parts[-1], channels)
    assert parts[0].asked == [("config",), (1,), (2,)]
    assert channels.sent[0] == [None, "own (1,)", "own (2,)"]


def test_another_ranks_error_is_no_answer():
    channels = ScriptedChannels({0: [(BUILD, ()), ("fail", (TrainingError("no memory"),))]})
    channels.answers[0].popleft()
    with pytest.raises(TrainingError, match="no memory"):
        answer_calls(Part, channels)
    assert channels.sent[0] == [None]
