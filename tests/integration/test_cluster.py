"""Runs on a cluster of this machine: ahead of training by what is allowed, and through the loss of producers."""

import pytest

from tests.cluster_runs import CLUSTER, completions, train, weights


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(tmp_path_factory.mktemp("cluster") / "undisturbed")


def test_with_a_staleness_of_one_every_step_is_sampled_one_step_before_its_turn_and_again_the_same(tmp_path):
    one, other = (train(tmp_path / name, *CLUSTER, "--max-staleness", 1) for name in ("one", "other"))
    versions = [{rollout["policy_version"] for rollout in step} for step in completions(one)]
    assert versions == [{0}, {0}, {1}, {2}]
    assert weights(one) == weights(other)
    assert completions(one) == completions(other)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_a_producer_that_dies_or_stops_is_replaced_and_the_run_is_what_it_would_have_been(
    tmp_path, undisturbed, signal
):
    run = train(tmp_path / "run", *CLUSTER, "--actor-timeout", 4, trap=f"{signal} self trap")
    assert weights(run) == weights(undisturbed)
    assert completions(run) == completions(undisturbed)
