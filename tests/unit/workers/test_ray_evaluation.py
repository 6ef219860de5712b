"""Held-out sets measured by all samplers: every row once, in its own place, whoever is lost on the way."""

from collections.abc import Collection
from typing import Any

import pytest

from paceline.engines import Request, Sampling
from paceline.training.evaluation import Evaluator
from paceline.types import Completion
from paceline.workers.group import Lost, SharedEngine, WorkerGroup
from tests.support.scripted import completion, task


class ReadingWorkers:
    """Workers that complete a prompt with its own text; some calls are lost as the script says."""

    def __init__(self, count: int, lost: Collection[int] = ()) -> None:
        self.numbers, self.lost, self.calls = range(count), set(lost), 0
        self.answered: list[str] = []
        self.pending = dict[int, tuple[Request, ...]]()

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        assert method == "generate"
        self.pending |= dict.fromkeys(workers, arguments[0])

    def wait(self, busy: Collection[int]) -> int:
        return max(busy)

    def result(self, worker: int) -> list[tuple[Completion, ...]]:
        requests, self.calls = self.pending.pop(worker), self.calls + 1
        if self.calls in self.lost:
            raise Lost("gone")
        texts = [bytes(request.prompt_ids).decode() for request in requests]
        self.answered += texts
        return [(completion(text),) for text in texts]

    def replace(self, worker: int) -> None:
        pass

    def end(self) -> None:
        raise AssertionError("nobody ends these")


def evaluator(name: str, size: int) -> Evaluator:
    tasks = tuple(task(f"{name}:{number}", prompt=f"{name} {number}") for number in range(size))
    return Evaluator(
        name=name,
        tasks=tasks,
        functions={"even": lambda completions, **columns: [float(int(text[-1]) % 2 == 0) for text in completions]},
        sampling=Sampling(max_completion_length=8, temperature=0.0),
        generations=1,
        max_failure_rate=0.0,
        reward_timeout=60.0,
        seed=0,
    )


@pytest.mark.parametrize("samplers", [1, 2, 3, 5])
@pytest.mark.parametrize("lost", [(), (1,), (2, 3)])
def test_every_row_of_every_set_is_counted_once_however_many_samplers_share_them(samplers, lost):
    workers = ReadingWorkers(samplers, lost)
    engine = SharedEngine(workers=WorkerGroup(workers, "sampler"))
    found = [evaluator(name, size).evaluate(engine, step=4) for name, size in (("math", 7), ("code", 4))]
    assert [(one.record()["set"], one.record()["n"], one.record()["correct"]) for one in found] == [
        ("math", 7, 4),
        ("code", 4, 2),
    ]
    texts = [record["completion"] for one in found for record in one.completion_records()]
    assert texts == [f"math {number}" for number in range(7)] + [f"code {number}" for number in range(4)]
    assert sorted(workers.answered) == sorted(texts)
