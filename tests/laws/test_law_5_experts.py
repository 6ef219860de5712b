"""Law 5, experts: a run that replays its engine's routes is killed and resumed to the same weights, bit for bit."""

import signal

import pytest

from tests.chaos.runs import OPTIONS, Place, furnish
from tests.chaos.sabotage import Trap
from tests.support.families import family, make_model

SHORT = OPTIONS | {"max_steps": 4, "eval_steps": 0, "save_steps": 2, "dtype": "bfloat16", "threads": 1}


def furnished(folder) -> Place:
    place = Place(folder=furnish(folder).folder, options=SHORT)
    make_model(family("qwen3_moe")).save_pretrained(place.folder / "model")
    return place


@pytest.mark.long
def test_a_run_that_replays_routes_resumes_to_the_same_weights(tmp_path):
    whole, place = furnished(tmp_path / "whole"), furnished(tmp_path / "killed")
    assert whole.train().returncode == 0
    # rollouts of step 3 are written, and its update is not
    record = Trap(function="paceline.checkpoints.run_directory:RunDir.append_metrics", deed="SIGKILL", first=3)
    assert place.train(traps=[record]).returncode == -signal.SIGKILL
    ended = place.resume()
    assert ended.returncode == 0, ended.said
    assert place.outcome() == whole.outcome()
    steps = whole.run.metrics()
    disagreements = [step["router_disagreement"] for step in steps]  # few tokens: none differs in some steps
    assert max(disagreements) > 0
    assert all(0 <= disagreement < 0.5 for disagreement in disagreements)
    assert all(step["expert_load_max"] > 1 for step in steps)
    assert all("routes" in line for line in whole.run.rollouts(3))
