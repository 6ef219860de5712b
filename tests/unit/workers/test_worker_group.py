"""Workers as a group: answers in order, lost samplers replaced, their shares given to others in the state of all; and
of several trainers that fail together the culprit is named."""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from paceline.errors import ProcessLost, RewardError, TrainingError
from paceline.models.parallel.process_group import RankLost
from paceline.workers.group import MOST_LOSSES, Lost, WorkerGroup, even_shares


class ScriptedWorkers:
    """Workers that answer `method(arguments)` with a word, or do what the script says of their n-th call."""

    def __init__(self, count: int, script: dict[tuple[int, int], Exception] | None = None) -> None:
        self.numbers, self.script = range(count), script or {}
        self.calls: list[tuple[int, str, tuple[Any, ...]]] = []
        self.number = [0] * count
        self.pending = dict[int, str | Exception]()
        self.replaced: list[int] = []

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        for worker in workers:
            assert worker not in self.pending, "one call at a time"
            self.calls.append((worker, method, arguments))
            word = f"{method}({', '.join(map(str, arguments))})"
            self.pending[worker] = self.script.get((worker, self.number[worker]), word)
            self.number[worker] += 1

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.calls.append((worker, method, arguments))

    def wait(self, busy: Collection[int]) -> int:
        return max(busy)  # the last to begin answers first

    def result(self, worker: int) -> str:
        found = self.pending.pop(worker)
        if isinstance(found, Exception):
            raise found
        return found

    def replace(self, worker: int) -> None:
        self.replaced.append(worker)

    def end(self) -> None:
        raise AssertionError("nobody ends these")


class ScriptedRanks:
    """Trainers that answer what the script says, one after another, the last of the busy ones first."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.numbers, self.scripts = range(len(scripts)), [deque(script) for script in scripts]
        self.calls = defaultdict[int, list[tuple[Any, ...]]](list)

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        for worker in workers:
            self.calls[worker].append((method, *arguments))

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        self.calls[worker].append((method, *arguments))
        return f"reference {arguments}"

    def wait(self, busy: Collection[int]) -> int:
        return max(busy)

    def result(self, worker: int) -> Any:
        found = self.scripts[worker].popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def replace(self, worker: int) -> None:
        raise AssertionError("a trainer cannot be replaced while the others go on")


def samplers(workers: ScriptedWorkers) -> WorkerGroup:
    return WorkerGroup(workers, "sampler")


def trainers(*scripts: list[Any]) -> WorkerGroup:
    return WorkerGroup(ScriptedRanks(*scripts), "trainer")


def calls_of(group: WorkerGroup, shares: Sequence[object]) -> list[str]:
    return group.share_out("do", [(share,) for share in shares])


def test_answers_come_in_the_order_of_the_shares_whoever_is_first():
    workers = ScriptedWorkers(2)
    assert calls_of(samplers(workers), "abcde") == [f"do({letter})" for letter in "abcde"]
    assert len(workers.calls) == 5


def test_a_lost_workers_share_is_done_again_and_once_only():
    workers = ScriptedWorkers(2, {(1, 0): Lost("gone")})
    group = samplers(workers)
    assert calls_of(group, "abc") == ["do(a)", "do(b)", "do(c)"]
    assert sorted(arguments for _, _, arguments in workers.calls) == [("a",), ("b",), ("b",), ("c",)]
    assert (workers.replaced, group.news) == ([1], ["gone: another takes its place"])


def test_a_replacement_is_brought_to_the_state_of_all_before_it_works():
    workers = ScriptedWorkers(1, {(0, 1): Lost("gone")})
    group = samplers(workers)
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
    samplers(workers).bring_to("load", "version 7")
    assert workers.replaced == [1, 1]
    assert workers.number == [1, 3]


def test_a_share_that_every_worker_is_lost_with_ends_the_run_with_how():
    workers = ScriptedWorkers(1, {(0, call): Lost(f"loss {call}") for call in range(MOST_LOSSES)})
    with pytest.raises(TrainingError, match=r"3 samplers were lost .* at last loss 2; lower --concurrent"):
        calls_of(samplers(workers), "a")


def test_a_worker_that_is_lost_again_and_again_while_it_starts_ends_the_run():
    workers = ScriptedWorkers(1, {(0, call): Lost(f"loss {call}") for call in range(9)})
    with pytest.raises(TrainingError, match=r"3 replacements of a sampler were lost .* at last loss 3"):
        samplers(workers).bring_to("load")


def test_everybody_is_told_and_nobody_is_waited_for():
    workers = ScriptedWorkers(2)
    workers.start([1], "do", ("a",))
    samplers(workers).tell("offer", "version 8")
    assert workers.calls[1:] == [(0, "offer", ("version 8",)), (1, "offer", ("version 8",))]
    assert workers.pending == {1: "do(a)"}


def test_what_a_call_raises_is_raised():
    workers = ScriptedWorkers(2, {(0, 0): RewardError("the reward is a str")})
    with pytest.raises(RewardError, match="the reward is a str"):
        calls_of(samplers(workers), "ab")


def test_only_the_first_worker_is_asked_for_what_one_can_do():
    group = trainers([("a sentence",)], [])
    assert group.ask("sentences") == ("a sentence",)
    assert group.workers.calls == {0: [("sentences",)]}


def test_all_workers_are_called_and_answer_in_their_order():
    group = trainers(["saved"], ["saved too"])
    assert group.call("save", "place") == ["saved", "saved too"]
    assert group.workers.calls == {0: [("save", "place")], 1: [("save", "place")]}


def test_the_lost_worker_is_named_and_not_the_one_that_waited_for_it():
    # number 1 answers first: it lost touch because number 0 is gone
    with pytest.raises(ProcessLost, match=r"^trainer 0 is gone$"):
        trainers([Lost("trainer 0 is gone")], [RankLost("rank 1 was adding up gradients")]).call("update")


def test_workers_that_lost_touch_without_a_culprit_are_a_loss_too():
    with pytest.raises(ProcessLost, match="rank 0 was adding up"):
        trainers([RankLost("rank 0 was adding up gradients")], ["done"]).call("update")


def test_what_a_worker_raised_itself_is_told_at_once():
    # nobody waits for number 0, which stands in a collective that number 1 never comes to
    with pytest.raises(TrainingError, match="norm is nan"):
        trainers([], [TrainingError("the gradient's norm is nan")]).call("update")


def test_shares_are_neighbours_of_nearly_one_size():
    assert [len(range(10)[share]) for share in even_shares(10, 4)] == [2, 3, 2, 3]
    assert even_shares(2, 4) == [slice(0, 1), slice(1, 2)]
    assert even_shares(0, 4) == []
