"""Two ranks of torchrun on this machine that share the weights out (ZeRO-3): the run of one process to rounding, and an
end of all with the end of one."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support import forked
from tests.support.cluster_runs import completions, weights
from tests.support.ranked_runs import options, ours, torchrun

SAVING = ("--deepspeed", "zero3", "--save-steps", "2")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    place = tmp_path_factory.mktemp("torchrun") / "shared"
    done = torchrun("train", *options(place), *SAVING, f"--output-dir={place / 'run'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks sample and train together") == 1
    assert done.stdout.count("Options: ") == 1
    return RunDir(place / "run")


def test_two_ranks_sample_what_one_process_samples(alone, shared):
    # logprobs in the trainer and the engine are of other batches: advantages and tokens are not
    assert completions(shared) == completions(alone)


@pytest.mark.parametrize("name", ["tokens_trained", "loss", "grad_norm", "entropy", "reward_mean", "policy_version"])
def test_two_ranks_report_what_one_process_reports(alone, shared, name):
    mine, theirs = ([step[name] for step in run.metrics()] for run in (shared, alone))
    assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_two_ranks_end_with_the_weights_of_one_process_to_rounding(alone, shared):
    mine, theirs = load(weights(shared)), load(weights(alone))
    assert max(abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-4


def test_a_killed_rank_ends_all_by_name_and_the_run_goes_on_to_what_it_would_have_been(tmp_path, shared):
    place = tmp_path / "killed"
    given = options(place)
    (place / "trap").write_text("SIGKILL rank:1 run/checkpoints/step-000002")
    done = forked.torchrun("-m", "paceline", "train", *given, *SAVING, f"--output-dir={place / 'run'}")
    assert done.returncode != 0
    remedy = f"`paceline train --resume {place / 'run'}` continues from the last checkpoint"
    assert ours(done) == [f"paceline: rank 1 is gone; {remedy}"]
    resumed = forked.torchrun("-m", "paceline", "train", "--resume", place / "run")
    assert resumed.returncode == 0, resumed.stderr
    assert "going on after step 2" in resumed.stdout
    run = RunDir(place / "run")
    assert completions(run) == completions(shared)
    assert weights(run) == weights(shared)


def test_what_two_ranks_began_one_process_goes_on_with_and_samples_nothing_again(tmp_path, alone, shared, capsys):
    run = RunDir(Path(shutil.copytree(shared.path, tmp_path / "run")))
    for later in (run.path / "final", run.path / "checkpoints" / "step-000004"):
        shutil.rmtree(later)
    assert main(["train", "--resume", str(run.path), "--zero-stage", "0"]) == 0
    assert "2 steps' rollouts used again, from step 3 on" in capsys.readouterr().out
    assert (run.path / "journal.jsonl").read_bytes() == (shared.path / "journal.jsonl").read_bytes()
    assert completions(run) == completions(alone)
    mine, theirs = load(weights(run)), load(weights(alone))
    assert max(abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-4


def test_the_layout_of_a_run_that_is_gone_on_with_may_be_another_and_its_seed_may_not(shared, capsys):
    assert main(["train", "--resume", str(shared.path), "--seed", "1", "--zero-stage", "0"]) == 2
    assert capsys.readouterr().err.startswith("paceline: --seed is 1 and was 0, with which")


def test_a_wrong_option_is_said_once_and_no_rank_waits_for_another():
    done = forked.torchrun("-m", "paceline", "train", "--max-steps", 0)
    assert ours(done) == ["paceline: --max-steps must be at least 1, got 0"]
    assert done.stdout == ""
