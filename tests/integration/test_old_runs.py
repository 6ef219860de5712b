"""Run directories that version 0.1.0 wrote are read, reported, replayed and resumed: to the same weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.cli.main import main

WRITTEN = Path(__file__).parents[1] / "golden" / "runs-of-0.1.0"
ADAPTER = "final/adapter_model.safetensors"


@pytest.fixture
def copied(tmp_path):
    """A copy of one of them, since reading one may write a page into it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(WRITTEN / name, tmp_path / name))

    return copy


def same_end(run: Path) -> None:
    """The weights of the run that nothing happened to, to the rounding of another processor."""
    wanted = load_file(WRITTEN / "finished" / ADAPTER)
    torch.testing.assert_close(load_file(run / ADAPTER), wanted, atol=1e-5, rtol=1e-4)


def test_an_interrupted_run_is_resumed_to_the_same_weights(copied):
    run = copied("interrupted")
    assert main(["train", "--resume", str(run)]) == 0
    same_end(run)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 6


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_resumed(copied, capsys):
    run = copied("finished")
    (run / "checkpoints" / "step-000006" / "optimizer.safetensors").write_bytes(b"damaged")
    shutil.rmtree(run / "final")
    assert main(["train", "--resume", str(run)]) == 0
    assert "optimizer.safetensors is not the file that was saved" in capsys.readouterr().out
    same_end(run)


def test_a_finished_run_is_reported_and_compared(copied, capsys):
    run = copied("finished")
    assert main(["report", str(run), str(run)]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["report", str(run)]) == 0
    assert "arithmetic:test" in (run / "report.html").read_text()


def test_a_finished_run_s_completions_are_shown(copied, tmp_path):
    assert main(["rollouts", str(copied("finished")), "--static", str(tmp_path / "pages")]) == 0
    assert (tmp_path / "pages" / "index.html").exists()


def test_a_step_is_replayed_under_its_own_objective_with_its_own_numbers(copied, capsys):
    assert main(["replay", str(copied("finished")), "--step", "5", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["is_exact"]
    for name in ("loss", "grad_norm", "entropy", "tokens_trained", "reward_mean"):
        assert replayed["own"][name] == pytest.approx(replayed["recorded"][name], rel=1e-4)
