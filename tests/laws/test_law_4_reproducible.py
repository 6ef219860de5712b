"""Law 4, one process: the same configuration and seed give the same bytes; on a GPU where they are asked for."""

import hashlib

import pytest
import torch

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main

ASKED = ["--deterministic", "true"] if torch.cuda.is_available() else []
SHORT = (
    "--max-steps 3 --prompts-per-step 8 --num-generations 4 --dataset-size 100 --eval-size 20 --eval-steps 2 "
    "--warmup-steps 1"
)


def train(path, *options: str) -> tuple[str, list[dict]]:
    """Hash of the final weights, and all metrics without their clocks."""
    assert main(["train", "--output-dir", str(path), *SHORT.split(), *ASKED, *options]) == 0
    weights = hashlib.sha256((path / "final" / "model.safetensors").read_bytes()).hexdigest()
    run = RunDir(path)
    return weights, [_without_clock(record) for record in [*run.metrics(), *run.evals()]]


def _without_clock(record: dict) -> dict:
    rewards = {name: {k: v for k, v in r.items() if k != "seconds"} for name, r in record.get("rewards", {}).items()}
    return {name: value for name, value in record.items() if name != "clock"} | {"rewards": rewards}


@pytest.mark.long
def test_two_runs_with_one_seed_are_equal_and_another_seed_is_not(tmp_path):
    first, again = train(tmp_path / "a", "--seed", "1"), train(tmp_path / "b", "--seed", "1")
    assert first == again
    assert train(tmp_path / "c", "--seed", "2") != first
