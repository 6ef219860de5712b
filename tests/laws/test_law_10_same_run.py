"""Law 10: a cluster that samples and trains in turn makes the run of one process, step for step and bit for bit."""

import pytest

from tests.cluster_runs import CLUSTER, completions, train, weights

MEASURED = ("clock", "weights_bytes", "logprob_mismatch_mean", "logprob_mismatch_max", "rewards")
"""What differs without any difference of the run: times, ways of weights, rounding of logprobs in other batches."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory, alone):
    return alone, train(tmp_path_factory.mktemp("law-10") / "cluster", *CLUSTER)


def test_the_final_weights_are_equal_bit_for_bit(runs):
    here, cluster = map(weights, runs)
    assert here == cluster


def test_every_completion_with_its_reward_and_advantage_is_equal(runs):
    here, cluster = map(completions, runs)
    assert here == cluster
    assert [len(step) for step in here] == [16] * 4


def test_every_number_of_every_step_is_equal(runs):
    here, cluster = (
        [{name: value for name, value in step.items() if name not in MEASURED} for step in run.metrics()]
        for run in runs
    )
    assert here == cluster
    assert all(step["updates"] == 1 and step["grad_norm"] > 0 for step in here)


def test_with_an_adapter_too_of_which_alone_the_weights_travel(tmp_path):
    pytest.importorskip("peft")
    lora = ("--lora-rank", 2, "--merge-lora")
    here, cluster = train(tmp_path / "here", *lora), train(tmp_path / "cluster", *lora, *CLUSTER)
    assert weights(here) == weights(cluster)
    assert completions(here) == completions(cluster)
    # A [2, inputs] and B [outputs, 2] of 2 layers: query and output, key and value, two gates and the way down
    adapter = 4 * 2 * 2 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert [step["weights_bytes"] for step in cluster.metrics()] == [adapter] * 4
