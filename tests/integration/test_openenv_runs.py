"""One step of training on an environment of OpenEnv, served in a process for each conversation, without a network."""

import pytest

pytest.importorskip("openenv.core", reason="`make test-adapters` installs openenv-core")

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main

SHORT = (
    "--model embedded-agent --dataset seeds --eval-reward-func guessing --max-steps 1 --prompts-per-step 2 "
    "--num-generations 4 --eval-size 2 --max-turns 3 --max-reward-failure-rate 0 --max-prompt-length 256 "
    "--max-completion-length 192"
)


def test_a_step_trains_on_an_environment_that_is_served_here(tmp_path):
    run = tmp_path / "run"
    given = ["train", *SHORT.split(), "--environment", "openenv:tests.support.openenv_games:guessing"]
    assert main([*given, "--output-dir", str(run)]) == 0
    (step,) = RunDir(run).metrics()
    assert (step["rewards"]["guessing"]["count"], step["rewards"]["guessing"]["failures"]) == (8, 0)
    rollouts = list(RunDir(run).rollouts(1))
    assert len({(rollout["task_id"], rollout["prompt"]) for rollout in rollouts}) == 2  # siblings begin alike
    assert all("Action: a whole number, number: a guess from 1 to 20" in rollout["prompt"] for rollout in rollouts)
