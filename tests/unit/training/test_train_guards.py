"""A run whose updates are not finite: what is skipped, said and kept, where it ends, and how it goes on."""

import io
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.errors import CheckpointError, TrainingError
from paceline.metrics.definitions import METRICS
from paceline.training.backend import Backend, BackendFactory, in_this_process
from paceline.training.run import Guards, refuse_other_records
from paceline.training.session import train
from paceline.training.setup.configuration import read_run_configuration
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from tests.support.cluster_runs import options_in, weights
from tests.unit.training.test_train_records import NOTHING


@dataclass
class PoisonedBackend:
    """A backend that trains on an advantage which is not a number, in some steps."""

    backend: Any
    steps: tuple[int, ...]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def update(self, number: int, groups: Any) -> Any:
        if number in self.steps:
            first, *others = groups
            poisoned = tuple(replace(rollout, advantage=math.nan) for rollout in first.rollouts)
            groups = [replace(first, rollouts=poisoned, dropped=None), *others]
        return self.backend.update(number, groups)


def poisoned(*steps: int) -> BackendFactory:
    @contextmanager
    def place(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        with in_this_process(config, inputs, checkpoint) as backend:
            yield PoisonedBackend(backend, steps)

    return place


def run(folder: Path, *steps: int, resume: bool = False, place: BackendFactory | None = None, **options: object) -> str:
    """A run of six steps with a checkpoint after each second one; what it said."""
    if resume:
        config = read_run_configuration(folder / "run")
    else:
        folder.mkdir(exist_ok=True)
        fixed = {"max_steps": 6, "save_steps": 2, "save_total_limit": 9}
        config = build_config({**options_in(folder / "given"), **fixed, **options})
    console = Console(file=io.StringIO(), width=1000)
    assert train(
        RunRequest(config=config, output_dir=folder / "run", resume=resume),
        prepare(config),
        console=console,
        make_backend=place or poisoned(*steps),
    )
    return console.file.getvalue()


@pytest.mark.long
def test_a_skipped_update_is_counted_said_and_its_rollouts_kept_and_the_run_goes_on(tmp_path):
    said = run(tmp_path, 3)
    found = RunDir(tmp_path / "run")
    assert [record["updates_skipped"] for record in found.metrics()] == [0, 0, 1, 0, 0, 0]
    assert [record["policy_version"] for record in found.metrics()] == [1, 2, 2, 3, 4, 5]
    assert "step 3: 1 of 1 updates skipped, as loss or gradient was not finite; the weights are as they were" in said
    kept = list((tmp_path / "run" / "kept").iterdir())
    assert [file.name for file in kept] == ["step-000003.jsonl"]
    assert kept[0].read_text().count("loss or gradient was not finite") == len(found.rollouts(3))


@pytest.mark.long
def test_three_in_a_row_end_the_run_before_a_checkpoint_and_resuming_ends_as_if_nothing_had_been(tmp_path):
    with pytest.raises(
        TrainingError,
        match=r"3 updates in a row up to step 4 were skipped, .*kept/step-000004\.jsonl",
    ):
        run(tmp_path / "a", 2, 3, 4)
    folder = tmp_path / "a" / "run"
    assert sorted(one.name for one in (folder / "checkpoints").iterdir()) == ["step-000002"]
    assert [record["skipped_in_a_row"] for record in RunDir(folder).metrics()] == [0, 1, 2, 3]
    run(tmp_path / "a", 2, resume=True)
    run(tmp_path / "b", 2)
    assert weights(RunDir(folder)) == weights(RunDir(tmp_path / "b" / "run"))
    assert len(list((folder / "kept").iterdir())) == 3  # what went wrong stays to be looked at


def test_skipped_updates_are_counted_on_over_the_steps_of_a_resumed_run_until_one_is_made():
    guards = Guards([{"step": 7, "skipped_in_a_row": 1}])
    skipped = replace(NOTHING, updates_skipped=1, skipped_in_a_row=1)
    assert guards.counted(skipped).skipped_in_a_row == 2
    guards.check(8, Path("kept"))
    assert guards.counted(replace(NOTHING, updates=1, updates_skipped=2, skipped_in_a_row=1)).skipped_in_a_row == 1
    assert guards.counted(replace(skipped, updates_skipped=3, skipped_in_a_row=3)).skipped_in_a_row == 4
    with pytest.raises(TrainingError, match="4 updates in a row up to step 9"):
        guards.check(9, Path("kept"))


def test_a_smaller_budget_for_micro_batches_is_said_once():
    guards = Guards()
    (line,) = guards.sentences(5, replace(NOTHING, micro_batch_tokens=1000, micro_batches_halved=2))
    assert line == (
        "memory ran out in step 5: the step was repeated, and from here on micro-batches have at most 1000 tokens"
    )
    assert guards.sentences(6, replace(NOTHING, micro_batch_tokens=1000)) == []


@dataclass
class StuckBackend:
    """A backend whose update of the third step waits for what never comes."""

    backend: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def update(self, number: int, groups: Any) -> Any:
        if number == 3:
            threading.Event().wait(600)
        return self.backend.update(number, groups)


@contextmanager
def stuck(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
    with in_this_process(config, inputs, checkpoint) as backend:
        yield StuckBackend(backend)


@pytest.mark.long
def test_a_run_in_which_nothing_happens_any_more_ends_and_goes_on_from_its_checkpoint(tmp_path):
    with pytest.raises(TrainingError, match=r"--step-timeout 5 s, at last run: update 3; .*/stuck/.*/report"):
        run(tmp_path, place=stuck, step_timeout=5.0)
    (report,) = (tmp_path / "run" / "stuck").glob("*/report.txt")
    assert "in update" in report.read_text()
    run(tmp_path, resume=True)
    assert len(RunDir(tmp_path / "run").metrics()) == 6


def test_records_of_another_version_are_refused_by_step_and_metric(tmp_path):
    whole = {**dict.fromkeys(METRICS, 0), "step": 1}
    refuse_other_records(tmp_path, [whole])
    older = {name: value for name, value in whole.items() if name not in ("skipped_in_a_row", "kl")}  # kl is optional
    with pytest.raises(CheckpointError, match=r"step 2 of metrics\.jsonl has no skipped_in_a_row, as another version"):
        refuse_other_records(tmp_path, [whole, {**older, "step": 2}])
