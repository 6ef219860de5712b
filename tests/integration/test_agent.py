"""Learning to play a game over several turns on a CPU: the embedded model, its recipe cut short."""

import json

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main

# A quarter of the recipe's steps at six times its rate.
SHORT = "--max-steps 15 --learning-rate 3e-4 --eval-size 200 --eval-steps 0"


def test_the_model_learns_to_say_what_is_left_and_to_halve_it(tmp_path):
    options = ["--model", "embedded-agent", "--output-dir", str(tmp_path / "run"), *SHORT.split()]
    assert main(["train", *options]) == 0
    run = RunDir(tmp_path / "run")
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["before"]["accuracy"] < 0.4
    assert summary["difference"]["ci_low"] > 0.3
    before, after = run.evals()
    assert after["turns_mean"] < before["turns_mean"] - 0.3
    assert all(step["rewards"]["guess"]["failures"] == 0 for step in run.metrics())
    assert any("From " in rollout["completion"] for rollout in run.rollouts(15))
