"""What work says of how far it has come, whoever does it: in order, to the end, and without a trace in the results."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.rewards.scoring.scores import score
from paceline.runtime.progress import Progress
from paceline.training.backend import BackendFactory, ReadyBackend, in_this_process
from paceline.training.loop import save
from paceline.training.session import train
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_inputs import RunInputs
from paceline.workers.ray.worker_group import Lost, WorkerGroup
from tests.cluster_runs import options_in, weights
from tests.recorded_progress import RecordedProgress
from tests.unit.rewards.test_rewards_scoring import completion, task
from tests.unit.training.test_train_saving import Scripted
from tests.unit.workers.test_ray_worker_group import ScriptedWorkers


def told_to(progress: Progress) -> BackendFactory:
    @contextmanager
    def place(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[ReadyBackend]:
        with in_this_process(config, replace(inputs, progress=progress), checkpoint) as ready:
            yield ready

    return place


def run(folder: Path, place: BackendFactory, **options: object) -> None:
    folder.mkdir()
    config = build_config({**options_in(folder / "given"), "max_steps": 2, **options})
    assert train(
        config, prepare(config), folder / "run", resume=False, console=Console(file=io.StringIO()), make_backend=place
    )


def test_a_step_samples_scores_and_updates_each_from_nothing_to_the_end(tmp_path):
    told = RecordedProgress()
    run(tmp_path / "told", told_to(told), num_iterations=2, micro_batch_tokens=64)
    phases = [(name, list(said)) for name, said in groupby(told.said, key=lambda one: one[0])]
    assert [name for name, _ in phases] == ["generate", "reward", "update"] * 2
    for name, said in phases:
        done, of, tokens = ([one[place] for one in said] for place in (1, 2, 3))
        assert done == sorted(done)
        assert tokens == sorted(tokens)
        assert (done[0], tokens[0]) == (0, 0)
        assert done[-1] == of[-1]
        assert (tokens[-1] > 0) == (name == "generate")
    updates = [said for name, said in phases if name == "update"]
    # of several micro-batches twice, each is told once; then that all is over
    assert all([one[1] for one in said[1:-1]] == list(range(1, said[-1][2] + 1)) for said in updates)
    assert all(said[-1][2] % 2 == 0 and said[-1][2] > 2 for said in updates)
    run(tmp_path / "untold", in_this_process, num_iterations=2, micro_batch_tokens=64)
    assert weights(RunDir(tmp_path / "told" / "run")) == weights(RunDir(tmp_path / "untold" / "run"))


def test_reward_functions_are_counted_as_they_are_called():
    told, seen = RecordedProgress(), []

    def look(completions: list[str]) -> list[float]:
        seen.append(told.said[-1])
        return [1.0] * len(completions)

    score({"a": look, "b": look}, [task(0)], [completion("x")], timeout=60.0, progress=told)
    assert seen == [("reward", 0, 2, 0), ("reward", 1, 2, 0)]
    assert told.said[-1] == ("reward", 2, 2, 0)


def test_producers_count_by_the_shares_that_came_back_and_a_lost_one_adds_nothing():
    told = RecordedProgress()
    workers = ScriptedWorkers(1, {(0, 1): Lost("gone")})
    WorkerGroup(workers, progress=told).share_out("sample", [("a",), ("b",)])
    assert told.said == [("generate", done, 2, 0) for done in (0, 1, 1, 2)]


def test_a_checkpoint_is_what_a_run_turns_to_and_the_screen_says_so():
    told = RecordedProgress()
    one = Scripted().at(1)
    one.progress = told
    save(one)
    assert told.begun == ["checkpoint"]
