"""Law 5, rollouts: what is committed is never sampled again, so that a run ahead of itself is resumed exactly too."""

import io
from collections.abc import Callable, Iterator
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
from tests.support.cluster_here import cluster_here
from tests.support.cluster_runs import completions, options_in, weights

STEPS, SAVED, LOST = 7, 2, 6
"""The process is lost in an update, two steps after a checkpoint."""


@dataclass
class Losing:
    """A half that is lost in the update of a step, once."""

    half: Any
    losses: list[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.half, name)

    def update(self, number: int, groups: Any) -> Any:
        if number == LOST and self.losses:
            raise ProcessLost(self.losses.pop())
        return self.half.update(number, groups)


def losing(place: BackendFactory, losses: list[str], then: Callable[[], None]) -> BackendFactory:
    """A factory of a backend that is lost so; `then` is called when everything has come down."""

    @contextmanager
    def wrapped(config: Config, inputs: RunInputs, checkpoint: Checkpoint | None) -> Iterator[Backend]:
        try:
            with place(config, inputs, checkpoint) as backend:
                yield Losing(backend, losses)
        except ProcessLost:
            then()
            raise

    return wrapped


def go(folder: Path, place: BackendFactory, staleness: int) -> tuple[RunDir, str]:
    """A run, restarted where it is lost, and what it said."""
    given = {"cluster": True, "num_producers": 2, "max_staleness": staleness, "max_steps": STEPS, "save_steps": SAVED}
    config = build_config({**options_in(folder), **given})
    console = Console(file=io.StringIO(), width=1000)
    assert train(
        RunRequest(config=config, output_dir=folder / "run"), prepare(config), console=console, make_backend=place
    )
    return RunDir(folder / "run"), console.file.getvalue()


def numbers(run: RunDir) -> list[dict[str, Any]]:
    """Every step's, without the reward function's name and seconds."""
    return [
        {name: value for name, value in step.items() if name not in ("clock", "rewards", "weights_bytes")}
        for step in run.metrics()
    ]


PLACES = {"one process": (in_this_process, 0), "1 step ahead": (cluster_here, 1), "2 steps ahead": (cluster_here, 2)}


@pytest.mark.parametrize("kind", PLACES)
def test_a_run_that_is_gone_on_with_reads_what_was_committed_and_ends_in_the_same_weights(tmp_path, kind):
    place, staleness = PLACES[kind]
    undisturbed, _ = go(tmp_path / "undisturbed", place, staleness)
    journal, found = tmp_path / "run" / "run" / "journal.jsonl", list[bytes]()
    lost = losing(place, ["trainer 0 is gone"], lambda: found.append(journal.read_bytes()))
    run, said = go(tmp_path / "run", lost, staleness)
    assert weights(run) == weights(undisturbed)
    assert completions(run) == completions(undisturbed)
    assert numbers(run) == numbers(undisturbed)
    if staleness == 0:  # a step that was sampled by the first attempt lasted as long as both took for it
        clocks = [step["clock"] for step in run.metrics()]
        assert all(one["generate"] + one["reward"] + one["update"] <= one["total"] for one in clocks)
    # a line says how long the step was sampled for: one that was sampled again has another
    (committed,) = found
    assert journal.read_bytes().startswith(committed)
    saved = (LOST - 1) // SAVED * SAVED
    again = len(committed.splitlines()) - saved
    assert again >= LOST - saved  # those that were trained on; how far sampling was ahead of them is the hour's
    assert f"{again} steps' rollouts used again, from step {saved + 1} on" in said


@pytest.mark.long
def test_without_its_journal_a_run_ahead_of_itself_is_another_one_after_a_loss(tmp_path):
    undisturbed, _ = go(tmp_path / "undisturbed", cluster_here, 1)

    def forget() -> None:
        RunDir(tmp_path / "run" / "run").discard_rollouts_after(0)

    run, said = go(tmp_path / "run", losing(cluster_here, ["trainer 0 is gone"], forget), 1)
    assert "used again" not in said
    assert weights(run) != weights(undisturbed)
