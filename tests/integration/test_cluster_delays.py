"""60 steps on Ray with everything late by a drawn time and a sampler killed: no weights too old, no prompt lost.

Delays are drawn at every border: in the reward function, before a call (weights on their way, a share of the prompts,
a step's groups) and after an answer.
"""

import random
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.training.backend import Backend, make_task_sampler
from paceline.training.session import train
from paceline.training.setup.inputs import RunInputs, RunObjects
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from paceline.workers.backend import StoredWeights, WorkerBackend
from paceline.workers.group import WorkerGroup, Workers
from tests.support.cluster_runs import REWARD, ROWS, completions, options_in

pytestmark = pytest.mark.usefixtures("forked_workers")
STEPS, PROMPTS, GENERATIONS, STALENESS = 60, 4, 4, 2
LONGEST = 0.005
"""Seconds of a delay, at most: as long as what it delays."""
LATE = f"""
import random, threading

def late(completions, **columns):
    threading.Event().wait(random.Random(repr(completions)).uniform(0, {LONGEST}))
    return variety(completions, **columns)
"""


class LateWorkers:
    """`Workers` that hear of a call, and are heard of, a drawn time later."""

    def __init__(self, workers: Workers, seed: int) -> None:
        self.workers, self.chance = workers, random.Random(seed)

    @property
    def numbers(self) -> Sequence[int]:
        return self.workers.numbers

    def linger(self) -> None:
        threading.Event().wait(self.chance.uniform(0, LONGEST))

    def start(self, workers: Collection[int], method: str, arguments: tuple[Any, ...]) -> None:
        self.linger()
        self.workers.start(workers, method, arguments)

    def tell(self, worker: int, method: str, arguments: tuple[Any, ...]) -> None:
        self.linger()
        self.workers.tell(worker, method, arguments)

    def keep(self, worker: int, method: str, arguments: tuple[Any, ...]) -> Any:
        self.linger()
        return self.workers.keep(worker, method, arguments)

    def wait(self, busy: Collection[int]) -> int:
        return self.workers.wait(busy)

    def result(self, worker: int) -> Any:
        found = self.workers.result(worker)
        self.linger()
        return found

    def replace(self, worker: int) -> None:
        self.workers.replace(worker)

    def end(self) -> None:
        self.workers.end()


@contextmanager
def late_cluster(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
    """A `BackendFactory`: one trainer and the samplers on a cluster of this machine, with delays on every way."""
    from paceline.workers.placement import Share
    from paceline.workers.ray import RayWorkers, SamplerActor, TrainerActor, ray_cluster

    share = Share(cpus=1, gpus=0)
    with ray_cluster(config.cluster, share.cpus):
        actors = RayWorkers(TrainerActor, "trainer", 1, share, config, RunObjects(), None, inputs.run_size, None)
        late = LateWorkers(actors, seed=1)
        actors = RayWorkers(SamplerActor, "sampler", config.cluster.num_producers, share, config, RunObjects(), None)
        samplers = WorkerGroup(LateWorkers(actors, seed=2), "sampler")
        weights = StoredWeights(WorkerGroup(late, "trainer"), samplers, done=0)
        task_sampler = make_task_sampler(config, inputs, checkpoint)
        backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=samplers, done=0)
        try:
            yield backend
        finally:
            backend.close()


@pytest.fixture(scope="module", params=["finish", "continue"])
def run(request, tmp_path_factory) -> RunDir:
    place = tmp_path_factory.mktemp("delays") / "late"
    options = options_in(place) | {
        "reward_funcs": f"{place}/reward.py:late",
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "cluster": True,
        "num_producers": 2,
        "max_staleness": STALENESS,
        "on_new_weights": request.param,
    }
    (place / "reward.py").write_text(REWARD + LATE)
    (place / "trap").write_text(f"SIGKILL self run/rollouts/step-{STEPS // 2:06d}.jsonl")
    with Path(place, "said").open("w") as said:
        config = build_config(options)
        assert train(
            RunRequest(config=config, output_dir=place / "run"),
            prepare(config),
            console=Console(file=said),
            make_backend=late_cluster,
        )
    assert "another takes its place" in " ".join((place / "said").read_text().split())
    return RunDir(place / "run")


def versions_after_steps(run: RunDir) -> list[int]:
    """Updates that the weights had seen after step 0, 1, 2, ..."""
    return [0, *(step["policy_version"] for step in run.metrics())]


def versions_of(row: dict) -> list[int]:
    """The versions that a completion's tokens are of, in their order."""
    return [row["policy_version"], *(change["policy_version"] for change in row["weight_changes"])]


def test_no_token_is_sampled_from_weights_older_than_the_bound_or_newer_than_its_step(run):
    after, steps = versions_after_steps(run), completions(run)
    assert len(steps) == STEPS
    assert after[-1] > STEPS // 2  # most steps had signal
    for number, step in enumerate(steps, start=1):
        oldest, newest = after[max(0, number - 1 - STALENESS)], after[number - 1]
        assert all(oldest <= version <= newest for one in step for version in versions_of(one))


def test_weights_change_within_a_completion_where_that_is_wanted_and_there_alone(run):
    rows = [one for step in completions(run) for one in step]
    mixed = [one for one in rows if one["weight_changes"]]
    assert bool(mixed) == ("on_new_weights: continue" in (run.path / "config.yaml").read_text())
    for one in mixed:
        places = [0, *(change["token"] for change in one["weight_changes"]), one["completion_tokens"]]
        assert places == sorted(set(places))
        assert versions_of(one) == sorted(set(versions_of(one)))


def test_the_age_of_a_steps_tokens_is_among_its_numbers(run):
    before = versions_after_steps(run)
    for number, (step, metrics) in enumerate(zip(completions(run), run.metrics(), strict=True)):
        assert metrics["staleness_max"] == before[number] - min(one["policy_version"] for one in step)
        newest = before[number] - max(version for one in step for version in versions_of(one))
        assert newest <= metrics["staleness_mean"] <= metrics["staleness_max"]


def test_every_task_comes_once_in_each_pass_over_them_with_every_sample(run):
    steps = completions(run)
    assert all([one["sample"] for one in step] == [*range(GENERATIONS)] * PROMPTS for step in steps)
    taken = [one["task_id"] for step in steps for one in step if one["sample"] == 0]
    assert len(taken) == STEPS * PROMPTS
    passes = [taken[first : first + len(ROWS)] for first in range(0, len(taken), len(ROWS))]
    assert all(len(set(one)) == len(one) for one in passes)
