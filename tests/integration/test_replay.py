"""A step of a run again: exactly as it was under its own objective, and as it would have been under another one."""

import base64
import json
import math
import shutil
from array import array
from pathlib import Path

import pytest

from paceline.checkpoints.run_directory import RunDir
from paceline.checkpoints.run_files import read_records
from paceline.cli.main import main
from tests.support.cluster_runs import train

NUMBERS = ("loss", "grad_norm", "entropy", "kl", "clip_low_fraction", "clip_high_fraction", "tokens_trained", "updates")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    options = ("--save-steps", 2, "--num-minibatches", 2, "--beta", 0.1, "--save-total-limit", 1, "--warmup-steps", 3)
    return train(tmp_path_factory.mktemp("replay") / "run", *options)


def replayed(run, capsys, *words):
    assert main(["replay", str(run.path), "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("step", "weights"),
    [
        (3, "those before step 3: the model that the run began with, and 2 steps trained again on their rollouts"),
        (1, "those before step 1: the model that the run began with"),
    ],
)
def test_a_step_under_its_own_objective_is_the_step_that_was_made(run, capsys, step, weights):
    found = replayed(run, capsys, "--step", step)
    assert (found["weights"], found["is_exact"], found["other"]) == (weights, True, None)
    recorded = run.metrics()[step - 1]
    assert {name: found["unchanged"][name] for name in NUMBERS} == {name: recorded[name] for name in NUMBERS}
    assert recorded["updates"] == 2


def test_another_objective_has_other_numbers_on_the_same_completions_and_the_run_stays_as_it_is(run, capsys):
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    found = replayed(run, capsys, "--step", 3, "--preset", "dr_grpo", "--bound", "none")
    assert found["changed"]["average"] == ["token", "constant"]
    assert found["changed"]["bound"] == ["clip", "none"]
    own, other = found["unchanged"], found["other"]
    assert (own["kl"] > 0, other["kl"]) == (True, None)
    assert (other["reward_mean"], other["tokens_generated"]) == (own["reward_mean"], own["tokens_generated"])
    assert other["grad_norm"] != own["grad_norm"]
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def floats(packed):
    return array("f", base64.b64decode(packed["float32"])).tolist()


def test_the_tokens_of_a_step_are_those_that_its_update_had_and_what_it_made_of_them(run, tmp_path, capsys):
    copy = RunDir(Path(shutil.copytree(run.path, tmp_path / "run")))
    found = replayed(copy, capsys, "--step", 3, "--tokens")
    about, *rows = read_records(copy.path / "tokens" / "step-000003.jsonl")
    assert about == {
        "step": 3,
        "sha256": copy.journal()[3]["sha256"],
        "weights": found["weights"],
        "is_exact": True,
    }
    rollouts = copy.rollouts(3)
    before, after, entropy = ([floats(row[name]) for row in rows] for name in ("before", "after", "entropy"))
    assert [len(one) for one in before] == [row["completion_tokens"] for row in rollouts]
    # the local engine samples from the learner's own weights
    for row, own in zip(rollouts, before, strict=True):
        assert own == pytest.approx(floats(row["logprobs"]), abs=1e-4)
    assert after != before
    assert all(0 < value < math.log(512) for one in entropy for value in one)


def test_of_the_nearest_checkpoint_it_says_how_old_its_weights_are(run, capsys):
    found = replayed(run, capsys, "--step", 3, "--nearest")
    assert not found["is_exact"]
    assert found["weights"] == "the model that the run began with, 2 steps older than those that step 3 had"


def test_steps_from_before_a_change_of_options_are_said_to_have_had_others(run, tmp_path, capsys):
    copy = RunDir(Path(shutil.copytree(run.path, tmp_path / "run")))
    copy.write_identity({**run.identity(), "changes": [{"after_step": 2, "options": {}, "files": {}}]})
    found = replayed(copy, capsys, "--step", 3)
    assert not found["is_exact"]
    assert found["weights"].endswith("; under the run's present options, which differed up to step 2")


def test_the_table_has_both_objectives_beside_what_was_recorded(run, capsys):
    assert main(["replay", str(run.path), "--step", "1", "--beta", "0"]) == 0
    said = capsys.readouterr().out
    assert "--beta: 0.1 -> 0.0" in said
    assert all(column in said for column in ("as it was", "own objective", "other", "grad_norm"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--step", "9"], "has no committed rollouts of step 9, but of steps 1 to 4"),
        (["--step", "0"], "--step must be a whole number of at least 1, got '0'"),
        ([], "--step must be a whole number of at least 1, got ''"),
        (["--step", "1", "--learning-rate", "1"], "--learning-rate is no option of `paceline replay`"),
        (["--step", "1", "--ref-sync", "1", "0.5"], "--ref-sync is no option of `paceline replay`"),
        (["--step", "1", "--clip-eps-low", "2"], "--clip-eps-low must lie in [0, 1)"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_sentence(run, capsys, words, sentence):
    assert main(["replay", str(run.path), *words]) in (1, 2)
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


def test_a_replay_needs_a_run(tmp_path, capsys):
    assert main(["replay", "--step", "1"]) == 2
    assert main(["replay", str(tmp_path), "--step", "1"]) != 0
    said = capsys.readouterr().err
    assert "replay needs a run directory first" in said
    assert "is not a run directory" in said
