"""Law 5, conversations: a run killed between two turns is resumed to the same end, and committed ones stay."""

import signal

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
from tests.chaos.runs import Outcome, Place, committed
from tests.chaos.sabotage import Trap

PER_STEP = GROUPS * GENERATIONS * TURNS


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Outcome:
    place = furnish_conversing(tmp_path_factory.mktemp("undisturbed") / "place")
    ended = place.train()
    assert ended.status == 0, ended.said
    assert calls(place) == STEPS * PER_STEP
    return place.outcome()


@pytest.fixture
def place(tmp_path) -> Place:
    return furnish_conversing(tmp_path / "place")


@pytest.mark.parametrize("answer", [1, PER_STEP + PER_STEP // 2, STEPS * PER_STEP])
def test_a_run_killed_at_any_turn_resumes_to_the_same_weights(place, undisturbed, answer):
    lay_trap(place, f"if turn is not None and count == {answer}: os.kill(trainer(), signal.SIGKILL)")
    assert place.train().status == -signal.SIGKILL
    lift_trap(place)
    before = committed(place)
    ended = place.resume()
    assert ended.status == 0, ended.said
    assert place.outcome() == undisturbed
    assert len(before) <= (answer - 1) // PER_STEP * GROUPS * GENERATIONS  # half a step is sampled again as a whole


def test_turns_as_soon_as_answers_come_end_in_the_same_weights(place, undisturbed):
    """Logprobs of the engine are of other batches then, to rounding, and the loss does not read them."""
    lay_trap(place, f"if turn is not None and count == {PER_STEP}: os.kill(trainer(), signal.SIGKILL)")
    assert place.train("--deterministic", "false").status == -signal.SIGKILL
    lift_trap(place)
    assert place.resume().status == 0
    outcome = place.outcome()
    assert (outcome.weights, outcome.texts) == (undisturbed.weights, undisturbed.texts)


def test_a_committed_step_needs_no_environment(place, undisturbed):
    """Only its update is missing: whatever the environment would do now does not matter."""
    record = Trap(function="paceline.checkpoints.run_directory:RunDir.append_metrics", deed="SIGKILL", first=STEPS)
    assert place.train(traps=[record]).status == -signal.SIGKILL
    asked = calls(place, "begun"), calls(place)
    lay_trap(place, "raise ModuleNotFoundError('its package is removed')")
    ended = place.resume()
    assert ended.status == 0, ended.said
    assert place.outcome() == undisturbed
    assert (calls(place, "begun"), calls(place)) == asked
