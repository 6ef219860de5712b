"""Learning to look at pictures on a CPU: the embedded model, its recipe cut short."""

import json

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main

# A third of the recipe's steps.
SHORT = "--max-steps 20 --eval-size 200 --eval-steps 0 --dataset-size 640"


@pytest.mark.long
def test_the_model_learns_to_list_what_it_sees(tmp_path):
    assert main(["train", "--model", "embedded-vision", "--output-dir", str(tmp_path / "run"), *SHORT.split()]) == 0
    run = RunDir(tmp_path / "run")
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["before"]["accuracy"] < 0.45
    assert summary["difference"]["ci_low"] > 0.2
    assert len(list((run.path / "images").iterdir())) >= 640
