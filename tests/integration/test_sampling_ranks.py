"""Seven ranks of torchrun in the shape of ms-swift's example for eight GPUs: ranks that share the weights out (ZeRO-3)
train, the last one samples, seven completions for each prompt. The run is that of one process, to rounding."""

import pytest
from safetensors.numpy import load

from paceline.checkpoints.run_directory import RunDir
from tests.support.cluster_here import cluster_here, made_by
from tests.support.cluster_runs import completions, train, weights
from tests.support.forked import torchrun
from tests.support.ranked_runs import options

EXAMPLE = ("--num-generations=7", "--max-steps=3", "--save-steps=2")
APART = ("--deepspeed", "zero3", "--sampling-ranks", "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("apart") / "alone", *EXAMPLE)


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    place = tmp_path_factory.mktemp("apart") / "seven"
    words = ("train", *options(place), *EXAMPLE, *APART, f"--output-dir={place / 'run'}")
    done = torchrun("-m", "paceline", *words, count=7)
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


def test_all_weights_are_handed_on_once_for_each_step(seven):
    whole = sum(one.nbytes for one in load(weights(seven)).values())
    assert [step["weights_bytes"] for step in seven.metrics()] == [whole] * 3


AHEAD = ("--max-staleness=1",)


def ahead_on_ranks(place, *more):
    done = torchrun("-m", "paceline", "train", *options(place), *AHEAD, *more, f"--output-dir={place / 'run'}", count=3)
    assert done.returncode == 0, done.stderr
    assert "sampling is up to 1 step ahead of training" in done.stdout
    return RunDir(place / "run")


@pytest.mark.parametrize("adapter", [{}, {"lora_rank": 2, "merge_lora": True}], ids=["weights", "adapter"])
def test_ranks_that_sample_ahead_make_the_run_of_a_cluster_that_does(tmp_path, adapter):
    # the same schedule, so the same completions, weights and bytes, to the rounding of two that train
    if adapter:
        pytest.importorskip("peft")
    samplers = {"cluster": True, "num_producers": 2, "max_staleness": 1}
    cluster = made_by(cluster_here, tmp_path / "cluster", **samplers, **adapter)
    words = [f"--{name}={value}" for name, value in adapter.items()]
    ranks = ahead_on_ranks(tmp_path / "ranks", "--sampling-ranks", "1", *words)
    assert completions(ranks) == completions(cluster)
    mine, theirs = load(weights(ranks)), load(weights(cluster))
    assert max(abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-4
    for name in ("staleness_max", "weights_bytes"):
        assert [step.get(name) for step in ranks.metrics()] == [step.get(name) for step in cluster.metrics()]


def test_ranks_take_newer_weights_between_two_tokens(tmp_path):
    run = ahead_on_ranks(tmp_path / "ranks", "--sampling-ranks", "2", "--on-new-weights=continue")
    assert len(run.metrics()) == 4
    assert all(step["staleness_max"] <= 1 for step in run.metrics())
