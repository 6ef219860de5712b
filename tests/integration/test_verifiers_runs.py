"""One step of training on an environment of verifiers, whose own rollouts ask the endpoint."""

from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1", reason="`make test-adapters` installs verifiers")

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main

TASKSETS = Path(__file__).parents[1] / "tasksets"
SHORT = (
    "--model embedded-agent --dataset verifiers:guess_game --eval-reward-func guess_game --max-steps 1 "
    "--prompts-per-step 4 --num-generations 4 --eval-size 4 --max-turns 3 --max-reward-failure-rate 0"
)


def test_a_step_trains_on_the_packages_rollouts_and_its_rewards(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(TASKSETS)
    run = tmp_path / "run"
    given = ["train", *SHORT.split(), "--environment", "verifiers:guess_game", "--output-dir", str(run)]
    assert main(given) == 0
    (step,) = RunDir(run).metrics()
    reward = step["rewards"]["guess_game"]
    assert (reward["count"], reward["failures"]) == (16, 0)
    rollouts = list(RunDir(run).rollouts(1))
    assert len({rollout["prompt"] for rollout in rollouts}) == 4  # siblings play one task
    for rollout in rollouts:
        assert "Guess a number from " in rollout["prompt"]
        assert rollout["rewards"]["guess_game"] in (0.0, 1.0)
