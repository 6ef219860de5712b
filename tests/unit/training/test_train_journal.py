"""Rollouts on their way to disk and back: in order, before anything is said of them, of the tasks that there are."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.checkpoints.journal import Committed
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.objective import AdvantageConfig
from paceline.errors import StorageError
from paceline.training.rollout_journal import Journal, of_these_tasks
from paceline.training.rollouts.rounds import RolloutBatch, WeightTransfer
from paceline.training.rollouts.sampler import TaskSampler
from paceline.training.setup.inputs import RunObjects
from paceline.types import Media
from paceline.workers.backend import RankWeights, WorkerBackend
from tests.support.scripted import completion, scripted_sampler, task

TASKS = tuple(replace(task(str(number), prompt=f"{number} + 1"), columns={"level": number}) for number in range(4))


def fresh(tasks=TASKS) -> TaskSampler:
    return TaskSampler(tasks=tasks, seed=1, shuffle=True)


def right(completions: list[str], **columns: object) -> list[float]:
    return [float(text == "right") for text in completions]


def made(task_sampler: TaskSampler, seconds: float) -> RolloutBatch:
    """Two groups of the next tasks."""
    script = [[completion("right"), completion("wrong")]] * 2
    batch = scripted_sampler(script, {"right": right}, {"right": 1.0}, AdvantageConfig()).sample(task_sampler.take, 2)
    transfer = WeightTransfer(seconds=0.5, nbytes=7)
    return replace(batch, position=task_sampler.position, seconds=seconds, transfer=transfer)


@pytest.fixture
def run(tmp_path):
    with RunDir.create(tmp_path / "run", "model: embedded\n") as opened:
        yield opened


def committed(run: RunDir, steps: int) -> list[RolloutBatch]:
    """Steps as a run commits them."""
    task_sampler = fresh()
    journal = Journal(run, task_sampler, Committed())
    found = [made(task_sampler, float(number)) for number in range(1, steps + 1)]
    for number, sampled in enumerate(found, 1):
        journal.commit(number, sampled)
    journal.wait()
    return found


def test_what_was_committed_comes_back_as_it_was_once_and_with_the_tasks_columns(run):
    first, second = committed(run, 2)
    journal = Journal(run, fresh(), run.truncate_after(0))
    assert (journal.again, journal.position) == (2, 4)

    assert [journal.read(number) for number in (1, 2)] == [first, second]
    assert first.groups[0].task.columns
    assert journal.read(1) is None
    journal.commit(3, first)
    journal.wait()
    assert run.journal()[3]["seconds"] == 1.0


def test_a_step_of_other_prompts_than_the_dataset_has_is_named_and_not_used(run):
    committed(run, 2)
    entries = run.truncate_after(0)
    order = [one.task_id for one, _ in fresh().take(4)]
    later = int(order[2])  # the first task of step 2
    changed = tuple(replace(one, prompt_ids=(1,)) if number == later else one for number, one in enumerate(TASKS))
    found = of_these_tasks(entries, fresh(changed))
    assert [entry["step"] for entry in found.entries] == [1]
    assert found.faults == ("the rollouts from step 2 on are of other prompts than the dataset has: made again",)
    assert of_these_tasks(entries, fresh()) == entries


def test_a_step_of_other_images_than_the_dataset_has_is_not_used(run):
    committed(run, 1)
    image = Media(sha256="ab" * 32, start=0, length=1)
    changed = tuple(replace(one, media=(image,)) for one in TASKS)
    assert not of_these_tasks(run.truncate_after(0), fresh(changed)).entries


def test_a_disk_that_refuses_is_told_before_anything_is_said_of_the_step(run, tmp_path):
    journal, task_sampler = Journal(RunDir(tmp_path / "nowhere"), fresh(), Committed()), fresh()
    journal.commit(1, made(task_sampler, 0.0))
    with pytest.raises(StorageError, match=r"step-000001\.jsonl cannot be written"):
        journal.wait()
    with pytest.raises(StorageError, match="cannot be written"):
        journal.commit(2, made(task_sampler, 0.0))


def test_a_closed_journal_takes_nothing_more(run):
    journal = Journal(run, fresh(), Committed())
    journal.close()
    journal.commit(1, made(fresh(), 0.0))
    journal.wait()
    assert run.journal() == {}
    assert "journal" not in {thread.name for thread in threading.enumerate()}


class Busy:
    """A `WorkerGroup` that may not be asked for anything."""

    count = 2

    def call(self, method: str, *arguments: object) -> list[object]:
        raise AssertionError(f"ranks are asked to {method}")

    share_out = call


def test_ranks_are_not_asked_for_what_is_committed_and_go_on_behind_it(run):
    first, second = committed(run, 2)
    config = build_config({"model": "embedded", "dataset": "arithmetic", "prompts_per_step": 2, "max_steps": 3})
    task_sampler = fresh()
    weights, inputs = (
        RankWeights(Busy(), Busy(), policy_version=0),
        SimpleNamespace(total_steps=3, advantage=None, objects=RunObjects()),
    )
    backend = WorkerBackend(config, inputs, task_sampler, weights=weights, samplers=Busy(), done=0)
    journal = Journal(run, fresh(), run.truncate_after(0))
    backend.begin(journal)
    assert [journal.read(number) for number in (1, 2)] == [first, second]
    assert task_sampler.position == 4
    with pytest.raises(AssertionError, match="ranks are asked to sample"):
        backend.sample(3)
