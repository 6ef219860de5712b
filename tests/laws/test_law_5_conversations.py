"""Law 5, conversations: a run killed between two turns is resumed to the same end, and committed ones stay."""

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.conversing import (
    GENERATIONS,
    GROUPS,
    STEPS,
    TURNS,
    calls,
    furnish_conversing,
    lay_trap,
    lift_trap,
)
from tests.chaos.processes import descendants
from tests.chaos.runs import Outcome, Place, committed
from tests.chaos.sabotage import Trap
from tests.support.forked import Program

PER_STEP = GROUPS * GENERATIONS * TURNS


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Outcome:
    place = furnish_conversing(tmp_path_factory.mktemp("undisturbed") / "place")
    ended = place.train()
    assert ended.returncode == 0, ended.said
    assert calls(place) == STEPS * PER_STEP
    return place.outcome()


@pytest.fixture
def place(tmp_path) -> Place:
    return furnish_conversing(tmp_path / "place")


@pytest.mark.long
@pytest.mark.parametrize("turn", [1, PER_STEP + PER_STEP // 2, STEPS * PER_STEP])
def test_a_run_killed_at_any_turn_resumes_to_the_same_weights(place, undisturbed, turn):
    lay_trap(place, f"if turn is not None and count == {turn}: os.kill(trainer(), signal.SIGKILL)")
    assert place.train().returncode == -signal.SIGKILL
    lift_trap(place)
    before = committed(place)
    ended = place.resume()
    assert ended.returncode == 0, ended.said
    assert place.outcome() == undisturbed
    assert len(before) <= (turn - 1) // PER_STEP * GROUPS * GENERATIONS  # half a step is sampled again as a whole


@pytest.mark.long
def test_turns_as_soon_as_observations_come_end_in_the_same_weights(place, undisturbed):
    """Logprobs of the engine are of other batches then, to rounding, and the loss does not read them."""
    lay_trap(place, f"if turn is not None and count == {PER_STEP}: os.kill(trainer(), signal.SIGKILL)")
    assert place.train("--deterministic", "false").returncode == -signal.SIGKILL
    lift_trap(place)
    assert place.resume().returncode == 0
    outcome = place.outcome()
    assert (outcome.weights, outcome.texts) == (undisturbed.weights, undisturbed.texts)


@pytest.mark.long
def test_a_committed_step_needs_no_environment(place, undisturbed):
    """Only its update is missing: whatever the environment would do now does not matter."""
    record = Trap(function="paceline.checkpoints.run_directory:RunDir.append_metrics", deed="SIGKILL", first=STEPS)
    assert place.train(traps=[record]).returncode == -signal.SIGKILL
    asked = calls(place, "begun"), calls(place)
    lay_trap(place, "raise ModuleNotFoundError('its package is removed')")
    ended = place.resume()
    assert ended.returncode == 0, ended.said
    assert place.outcome() == undisturbed
    assert (calls(place, "begun"), calls(place)) == asked


SOON = 15.0
"""Seconds for what is to happen at once, on a busy machine too."""


def hanging(place: Place, *more: object) -> tuple[Program, list[int]]:
    """A run whose conversations all hang in its second step, and descriptors of its processes."""
    (place.folder / "tmp").mkdir()
    lay_trap(
        place,
        f"if turn is not None and count > {PER_STEP}:",
        "    (PLACE / f'hung-{count}').touch()",
        "    signal.pause()",
    )
    running = place.begin("--environment-timeout", 200, 200, *more)
    while len(list(place.folder.glob("hung-*"))) < GROUPS * GENERATIONS:
        assert not running.ends_within(0.05), "it ended before"
    assert any((place.folder / "tmp").iterdir())
    return running, [os.pidfd_open(pid) for pid in descendants(running.pid)]


def have_ended(processes: list[int]) -> bool:
    return all(select.select([process], [], [], SOON)[0] for process in processes)


@pytest.mark.long
@pytest.mark.parametrize(("presses", "grace", "seconds"), [(1, 2, 2), (2, 200, 0)])
def test_ctrl_c_while_tools_are_called_ends_in_time_and_leaves_nothing(place, undisturbed, presses, grace, seconds):
    """After `--stop-grace` seconds, or at the second one. The environments would have 200 seconds."""
    running, processes = hanging(place, "--stop-grace", grace)
    threads = Path(f"/proc/{running.pid}/task")
    before, sent = len(list(threads.iterdir())), time.monotonic()
    running.send(signal.SIGINT)
    if presses == 2:
        while len(list(threads.iterdir())) == before:  # it heeds the first by a thread that measures the grace
            assert not running.ends_within(0.05), "it ended at the first"
        running.send(signal.SIGINT)
    ended = running.end(60)
    assert ended.returncode == 130, ended.said
    assert seconds <= time.monotonic() - sent < seconds + SOON
    assert have_ended(processes)
    assert not any((place.folder / "tmp").iterdir())
    lift_trap(place)
    assert place.resume().returncode == 0
    assert place.outcome() == undisturbed


@pytest.mark.long
def test_what_a_killed_machine_left_of_conversations_the_next_attempt_reclaims(place, undisturbed):
    """All are stopped before any is killed, so that none cleans up after another."""
    running, processes = hanging(place)
    doomed = [*descendants(running.pid), running.pid]
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
    running.end(SOON)
    assert have_ended(processes)
    assert any((place.folder / "tmp").iterdir()), "nothing was left"
    lift_trap(place)
    assert place.resume().returncode == 0
    assert not any((place.folder / "tmp").iterdir())
    assert place.outcome() == undisturbed
