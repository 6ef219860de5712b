"""Seven ranks of torchrun in the shape of ms-swift's example for eight GPUs: ranks that share the weights out (ZeRO-3)
train, the last one samples, seven completions for each prompt. The run is that of one process, to rounding."""

import pytest
from safetensors.numpy import load

from paceline.checkpoints.run_directory import RunDir
from tests.cluster_runs import completions, train, weights
from tests.ranked_runs import options, torchrun

EXAMPLE = ("--num-generations=7", "--max-steps=3", "--save-steps=2")
APART = ("--deepspeed", "zero3", "--sampling-ranks", "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("apart") / "alone", *EXAMPLE)


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    place = tmp_path_factory.mktemp("apart") / "seven"
    done = torchrun("train", *options(place), *EXAMPLE, *APART, f"--output-dir={place / 'run'}", ranks=7)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ranks 0 to 5 train, rank 6 samples") == 1
    return RunDir(place / "run")


def test_one_rank_samples_for_six_what_one_process_samples(alone, seven):
    assert completions(seven) == completions(alone)
    assert len(completions(seven)[2]) == 28


def test_six_ranks_train_on_it_to_the_weights_of_one_process_to_rounding(alone, seven):
    mine, theirs = load(weights(seven)), load(weights(alone))
    assert max(abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-4


@pytest.mark.parametrize("name", ["tokens_trained", "loss", "grad_norm", "entropy", "reward_mean", "policy_version"])
def test_they_report_what_one_process_reports(alone, seven, name):
    mine, theirs = ([step[name] for step in run.metrics()] for run in (seven, alone))
    assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_all_weights_are_handed_on_once_for_each_step_but_the_first(seven):
    first, *later = seven.metrics()
    assert "weights_bytes" not in first
    assert {step["weights_bytes"] for step in later} == {sum(one.nbytes for one in load(weights(seven)).values())}
