"""The producers as one: answers in order, lost workers replaced, their shares given to others in the state of all."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from paceline.errors import RewardError, TrainingError
from paceline.training.rollouts.sharing import even_shares
from paceline.workers.ray.worker_group import MOST_LOSSES, Lost, WorkerGroup


class ScriptedWorkers:
    """Workers that answer `method(arguments)` with a word, or do what the script says of their n-th call."""

    def __init__(self, count: int, script: dict[tuple[int, int], Exception] | None = None) -> None:
        self.count, self.script = count, script or {}
        self.calls: list[tuple[int, str, tuple[Any, ...]]] = []
        self.number = [0] * count
        self.pending = dict[int, str | Exception]()
        self.replaced: list[int] = []

    def start(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        assert worker not in self.pending, "one call at a time"
        self.calls.append((worker, method, arguments))
        word = f"{method}({', '.join(map(str, arguments))})"
        self.pending[worker] = self.script.get((worker, self.number[worker]), word)
        self.number[worker] += 1

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.calls.append((worker, method, arguments))

    def wait(self, busy: Collection[int]) -> int:
        return max(busy)  # the last to begin answers first

    def answer(self, worker: int) -> str:
        found = self.pending.pop(worker)
        if isinstance(found, Exception):
            raise found
        return found

    def replace(self, worker: int) -> None:
        self.replaced.append(worker)

    def end(self) -> None:
        raise AssertionError("nobody ends these")


def calls_of(group: WorkerGroup, shares: Sequence[object]) -> list[str]:
    return group.share_out("do", [(share,) for share in shares])


def test_answers_come_in_the_order_of_the_shares_whoever_is_first():
    workers = ScriptedWorkers(2)
    assert calls_of(WorkerGroup(workers), "abcde") == [f"do({letter})" for letter in "abcde"]
    assert len(workers.calls) == 5


def test_a_lost_workers_share_is_done_again_and_once_only():
    workers = ScriptedWorkers(2, {(1, 0): Lost("gone")})
    group = WorkerGroup(workers)
    assert calls_of(group, "abc") == ["do(a)", "do(b)", "do(c)"]
    assert sorted(arguments for _, _, arguments in workers.calls) == [("a",), ("b",), ("b",), ("c",)]
    assert (workers.replaced, group.news) == ([1], ["gone: another takes its place"])


def test_a_replacement_is_brought_to_the_state_of_all_before_it_works():
    workers = ScriptedWorkers(1, {(0, 1): Lost("gone")})
    group = WorkerGroup(workers)
    group.bring_to("load", "version 7")
    calls_of(group, "a")
    assert [call[1:] for call in workers.calls] == [
        ("load", ("version 7",)),
        ("do", ("a",)),
        ("load", ("version 7",)),
        ("do", ("a",)),
    ]


def test_a_worker_lost_while_it_is_brought_to_a_state_is_replaced_too():
    workers = ScriptedWorkers(2, {(1, 0): Lost("gone"), (1, 1): Lost("gone again")})
    WorkerGroup(workers).bring_to("load", "version 7")
    assert workers.replaced == [1, 1]
    assert workers.number == [1, 3]


def test_a_share_that_every_worker_is_lost_with_ends_the_run_with_how():
    workers = ScriptedWorkers(1, {(0, call): Lost(f"loss {call}") for call in range(MOST_LOSSES)})
    with pytest.raises(TrainingError, match=r"3 producers were lost .* at last loss 2; lower --concurrent"):
        calls_of(WorkerGroup(workers), "a")


def test_a_worker_that_is_lost_again_and_again_while_it_starts_ends_the_run():
    workers = ScriptedWorkers(1, {(0, call): Lost(f"loss {call}") for call in range(9)})
    with pytest.raises(TrainingError, match=r"3 replacements of a producer were lost .* at last loss 3"):
        WorkerGroup(workers).bring_to("load")


def test_everybody_is_told_and_nobody_is_waited_for():
    workers = ScriptedWorkers(2)
    workers.start(1, "do", ("a",))
    WorkerGroup(workers).tell("offer", "version 8")
    assert workers.calls[1:] == [(0, "offer", ("version 8",)), (1, "offer", ("version 8",))]
    assert workers.pending == {1: "do(a)"}


def test_what_a_call_raises_is_raised():
    workers = ScriptedWorkers(2, {(0, 0): RewardError("the reward is a str")})
    with pytest.raises(RewardError, match="the reward is a str"):
        calls_of(WorkerGroup(workers), "ab")


def test_shares_are_neighbours_of_nearly_one_size():
    assert [len(range(10)[share]) for share in even_shares(10, 4)] == [2, 3, 2, 3]
    assert even_shares(2, 4) == [slice(0, 1), slice(1, 2)]
    assert even_shares(0, 4) == []
