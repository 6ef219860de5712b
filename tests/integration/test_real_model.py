"""A published language model, small enough for a CPU, begins to learn: the short form of `make real`."""

from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "runs" / "real" / "SmolLM2-135M-Instruct.Q4_1.gguf"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not MODEL.is_file(), reason=f"needs runs/real/{MODEL.name}, which `make test-all` fetches"),
]


def test_a_real_language_model_begins_to_learn_word_problems_in_eight_steps(tmp_path, monkeypatch):
    """Of 60 held-out questions it answers 8 at first, and about 22 then."""
    pytest.importorskip("gguf")
    monkeypatch.chdir(ROOT)
    short = "--max-steps 8 --prompts-per-step 2 --learning-rate 4e-5 --eval-size 60 --eval-steps 8"
    options = ["--config", "examples/smollm2.yaml", "--output-dir", str(tmp_path / "run"), *short.split()]
    assert main(["train", *options]) == 0
    before, after = RunDir(tmp_path / "run").evals()
    assert 0.05 <= before["accuracy"] <= 0.4
    assert after["accuracy"] >= before["accuracy"] + 0.1
