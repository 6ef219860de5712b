"""Checkpoints as the loop sees them: begun, told of once they are on disk, waited for at the right moments."""

import io
import os
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.checkpoints.finding import Checkpoint, TrainingState, newest_checkpoint
from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.errors import ProcessLost, RewardError, StorageError
from paceline.training.backend import Backend, in_this_process
from paceline.training.run import Requests, Run, save, save_last, wait_at_end, wait_for_checkpoint
from paceline.training.session import train
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_request import RunRequest
from tests.support.checkpoint_files import content
from tests.support.cluster_runs import options_in, weights


@dataclass
class SlowBackend:
    """A `Backend` whose checkpoints are on disk when somebody waits for them, or when `is_written` says so."""

    events: list[str]
    is_written: bool = False
    error: StorageError | None = None
    _begun: Checkpoint | None = None

    def save(self, root, state, protected):
        self.events.append(f"begin {state.step}")
        self._begun = Checkpoint(path=root / f"step-{state.step:06d}", state=state)
        return (f"a sentence of {state.step}",)

    def saved(self, *, wait):
        if self.error is not None:
            raise self.error
        return self._begun if wait or self.is_written else None


@dataclass
class Diary:
    """An `Observer` that writes down what it is told."""

    events: list[str]

    def saved(self, checkpoint):
        self.events.append(f"saved {checkpoint.state.step}")
        return Requests(stop=True)

    def notify(self, sentence):
        self.events.append(sentence)


@dataclass
class Scripted:
    """A run that stands after a step, with a backend and an observer that share a diary."""

    events: list[str] = field(default_factory=list)

    def at(self, step: int, **options) -> Run:
        return Run(
            config=build_config({"model": "embedded", "dataset": "arithmetic", **options}),
            inputs=None,
            backend=SlowBackend(self.events),
            run_dir=RunDir(Path("run")),
            journal=None,
            observer=Diary(self.events),
            guards=None,
            state=at(step),
        )


def at(step: int) -> TrainingState:
    return TrainingState(step=step, position=step, policy_version=step)


def test_a_checkpoint_is_told_of_once_it_is_on_disk_and_the_next_one_waits_for_it():
    one = Scripted()
    run = one.at(1)
    assert save(run) == wait_for_checkpoint(run, wait=False) == Requests()
    assert one.events == ["begin 1", "a sentence of 1"]
    run.state = at(2)
    assert save(run) == Requests(stop=True)
    run.backend.is_written = True
    assert wait_for_checkpoint(run, wait=False) == Requests(stop=True)
    assert wait_for_checkpoint(run, wait=True) == Requests()
    assert one.events == ["begin 1", "a sentence of 1", "saved 1", "begin 2", "a sentence of 2", "saved 2"]
    assert run.saved_step == 2


def test_in_the_foreground_it_is_there_when_the_loop_goes_on():
    one = Scripted()
    assert save(one.at(1, background_save=False)) == Requests(stop=True)
    assert one.events == ["begin 1", "a sentence of 1", "saved 1"]


def test_a_last_checkpoint_is_not_written_twice():
    one = Scripted()
    run = one.at(1)
    save(run)
    save_last(run)
    run.state = at(2)
    save_last(run)
    save_last(run)
    assert [event for event in one.events if "sentence" not in event] == ["begin 1", "saved 1", "begin 2", "saved 2"]


@pytest.mark.parametrize(
    ("error", "is_told"),
    [(None, True), (RewardError("too many"), True), (KeyboardInterrupt(), False), (ProcessLost("gone"), False)],
    ids=["end", "error", "second signal", "lost rank"],
)
def test_the_end_of_a_run_waits_unless_there_is_no_time_or_nobody_who_writes(error, is_told):
    one = Scripted()
    run = one.at(1)
    save(run)
    wait_at_end(run, None if error is None else type(error), error, None)
    assert ("saved 1" in one.events) == is_told


def test_an_error_of_the_checkpoint_ends_the_run_and_beside_another_error_it_is_told():
    one = Scripted()
    run = one.at(1)
    save(run)
    run.backend.error = StorageError("the disk is full")
    for moment in (
        lambda: wait_for_checkpoint(run, wait=False),
        lambda: save(run),
        lambda: wait_at_end(run, None, None, None),
    ):
        with pytest.raises(StorageError, match="the disk is full"):
            moment()
    wait_at_end(run, RewardError, RewardError("too many"), None)
    assert one.events[-1] == "the disk is full"


@dataclass
class HangingBackend:
    """A backend that gets a signal in the update of a step, and does not end it."""

    backend: Backend
    step: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def update(self, number: int, groups: Any) -> Any:
        if number == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(60)
        return self.backend.update(number, groups)


@pytest.mark.usefixtures("heeded_signals")
@pytest.mark.parametrize(
    ("step", "left"), [(1, "there is no checkpoint yet"), (3, "the last checkpoint is that of step 2")]
)
def test_a_step_that_does_not_end_within_the_grace_leaves_the_last_whole_checkpoint(tmp_path, step, left):
    @contextmanager
    def place(config, inputs, checkpoint):
        with in_this_process(config, inputs, checkpoint) as backend:
            yield HangingBackend(backend, step)

    config = build_config(
        {**options_in(tmp_path / "given"), "save_steps": 2, "stop_grace": 0.01, "background_save": False}
    )
    console = Console(file=io.StringIO(), width=1000)
    with pytest.raises(KeyboardInterrupt) as raised:
        train(
            RunRequest(config=config, output_dir=tmp_path / "run"), prepare(config), console=console, make_backend=place
        )
    why, what = raised.value.args
    assert why == "SIGTERM: the step in hand did not end within 0.01 s (--stop-grace)"
    assert what.startswith(left)
    found, damaged = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert (found and found.state.step, damaged) == (2 if step == 3 else None, ())


@pytest.mark.long
def test_a_run_that_saves_in_the_background_leaves_what_one_in_the_foreground_leaves(tmp_path):
    found = []
    for background in (True, False):
        place = tmp_path / str(background)
        config = build_config({**options_in(place), "save_steps": 1, "background_save": background})
        console = Console(file=io.StringIO(), width=1000)
        assert train(
            RunRequest(config=config, output_dir=place / "run"),
            prepare(config),
            console=console,
            make_backend=in_this_process,
        )
        places = sorted((place / "run" / "checkpoints").iterdir())
        found.append((weights(RunDir(place / "run")), {one.name: content(one) for one in places}))
    assert found[0] == found[1]
    assert len(found[0][1]) == 2
