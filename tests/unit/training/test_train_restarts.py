"""The loss of a process that a run cannot do without: another attempt from the last checkpoint, or an honest end."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.checkpoints.finding import Checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.errors import ProcessLost
from paceline.training.backend import Backend, BackendFactory, in_this_process
from paceline.training.session import train
from paceline.training.setup.inputs import RunInputs
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from tests.support.cluster_runs import completions, options_in, weights


@dataclass
class LosingBackend:
    """A backend that loses a process in the update of a step, once for each entry of `losses`."""

    backend: Backend
    step: int
    losses: list[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def update(self, number: int, groups: Any) -> Any:
        if number == self.step and self.losses:
            raise ProcessLost(self.losses.pop())
        return self.backend.update(number, groups)


def losing(*, step: int, times: int) -> BackendFactory:
    """A factory of a backend in this process that does so."""
    losses = ["consumer 1 is gone"] * times

    @contextmanager
    def place(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        with in_this_process(config, inputs, checkpoint) as backend:
            yield LosingBackend(backend, step, losses)

    return place


def run(folder: Path, place: BackendFactory = in_this_process, **options: object) -> tuple[RunDir, str]:
    """A run with a checkpoint every two steps, and what it said."""
    config = build_config({**options_in(folder), "cluster": True, "save_steps": 2, **options})
    console = Console(file=io.StringIO(), width=1000)
    assert train(
        RunRequest(config=config, output_dir=folder / "run"), prepare(config), console=console, make_backend=place
    )
    return RunDir(folder / "run"), console.file.getvalue()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("restarts") / "undisturbed")[0]


@pytest.mark.long
@pytest.mark.parametrize("step", [2, 4], ids=["before the first checkpoint", "after it"])
def test_a_run_that_lost_a_process_ends_as_the_one_that_did_not(tmp_path, undisturbed, step):
    found, said = run(tmp_path / "run", losing(step=step, times=2))
    assert weights(found) == weights(undisturbed)
    assert completions(found) == completions(undisturbed)
    assert "consumer 1 is gone: restart 1 of 3 from the last checkpoint" in said
    assert "consumer 1 is gone: restart 2 of 3 from the last checkpoint" in said
    assert ("going on after step 2" in said) == (step == 4)


@pytest.mark.long
def test_one_loss_too_many_ends_the_run_with_what_goes_on_from_there(tmp_path):
    with pytest.raises(ProcessLost, match=r"consumer 1 is gone; `paceline train --resume .*/run` continues from"):
        run(tmp_path / "run", losing(step=3, times=2), max_restarts=1)


def test_a_loss_before_there_is_a_run_directory_is_told_at_once(tmp_path):
    @contextmanager
    def place(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        raise ProcessLost("rank 0 of 2 met nobody")
        yield

    with pytest.raises(ProcessLost, match="rank 0 of 2 met nobody; start the run again"):
        run(tmp_path / "run", place)
    assert not (tmp_path / "run" / "run").exists()
