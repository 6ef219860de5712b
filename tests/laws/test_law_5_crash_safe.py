"""Law 5, one process: a run that is killed and resumed ends with the same weights, bit for bit."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.chaos.sabotage import Trap, lay
from tests.support.forked import forked, paceline

SHORT = (
    "--max-steps 6 --prompts-per-step 8 --num-generations 4 --dataset-size 100 --eval-size 20 --eval-steps 3 "
    "--save-steps 2 --warmup-steps 1"
    # the same bits are promised on a CPU, and on a GPU where they are asked for
    f"{' --deterministic true' if torch.cuda.is_available() else ''}"
)


def sha256(run: Path) -> str:
    return hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()


def killed(trap: Trap, words: list[str]) -> None:
    lay(trap)
    main(words)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert paceline("train", "--output-dir", str(run), *SHORT.split()).returncode == 0
    return run


@pytest.mark.long
@pytest.mark.parametrize(
    "moment",
    [
        # before there is any checkpoint
        ("run_directory:RunDir.append_metrics", 1),
        # rollouts of step 4 written, its metrics not
        ("run_directory:RunDir.append_metrics", 4),
        ("saving:sync", 9),  # in the middle of writing a checkpoint
        # the last step done, its evaluation not written
        ("run_directory:RunDir.append_eval", 3),
    ],
    ids=lambda moment: f"{moment[0]} {moment[1]}",
)
def test_a_run_killed_at_any_moment_resumes_to_the_same_weights(tmp_path, undisturbed, moment):
    (function, count), run = moment, tmp_path / "run"
    trap = Trap(function=f"paceline.checkpoints.{function}", deed="SIGKILL", first=count)
    assert forked(killed, trap, ["train", "--output-dir", str(run), *SHORT.split()]).returncode == -9
    assert not (run / "final").exists()
    committed = (run / "journal.jsonl").read_bytes()
    assert paceline("train", "--resume", str(run)).returncode == 0
    assert sha256(run) == sha256(undisturbed)
    # a line says how long the step was sampled for: one that was sampled again has another
    assert (run / "journal.jsonl").read_bytes().startswith(committed[: committed.rfind(b"\n") + 1])
    assert (
        len(committed.splitlines())
        >= {"append_metrics": count, "sync": 2, "append_eval": 6}[re.split("[:.]", function)[-1]]
    )
    steps = [record["step"] for record in RunDir(run).metrics()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert [record["accuracy"] for record in RunDir(run).evals()] == [
        record["accuracy"] for record in RunDir(undisturbed).evals()
    ]


@pytest.mark.long
def test_an_adaptive_entropy_bonus_goes_on_as_it_was(tmp_path):
    run, bonus = tmp_path / "run", "--entropy-coef 0.01 --entropy-target 0.3 0 0.05 0.01"
    assert paceline("train", "--output-dir", str(run), *SHORT.split(), *bonus.split()).returncode == 0
    whole = sha256(run)
    states = [json.loads(file.read_text()) for file in sorted(run.glob("checkpoints/*/progress.json"))]
    assert {round(state["entropy_coef"], 9) for state in states} - {0.01}
    assert paceline("train", "--resume", str(sorted((run / "checkpoints").iterdir())[0])).returncode == 0
    assert sha256(run) == whole


@pytest.mark.long
def test_an_exported_checkpoint_is_what_the_end_of_the_run_wrote(tmp_path, undisturbed):
    assert paceline("export", str(undisturbed), str(tmp_path / "model")).returncode == 0
    ours, theirs = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (tmp_path / "model", undisturbed / "final")
    )
    assert ours == theirs
