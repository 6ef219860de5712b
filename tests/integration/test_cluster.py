"""Runs on a cluster of this machine: ahead of training by what is allowed, and through the loss of samplers."""

import json

import pytest

from paceline.checkpoints.run_directory import RunDir
from tests.support.cluster_here import cluster_here, made_by
from tests.support.cluster_runs import CLUSTER, completions, train, weights

pytestmark = pytest.mark.usefixtures("forked_workers")


def numbers(run: RunDir) -> list[dict]:
    """Of every step, without clocks, rewards by the function's name, and the rounding of logprobs in other batches."""
    apart = ("clock", "rewards", "logprob_mismatch_mean", "logprob_mismatch_max")
    return [{name: value for name, value in step.items() if name not in apart} for step in run.metrics()]


@pytest.fixture(scope="module")
def ahead(tmp_path_factory):
    return train(tmp_path_factory.mktemp("cluster") / "ahead", *CLUSTER, "--max-staleness", 1)


def test_with_a_staleness_of_one_every_step_is_sampled_one_step_before_its_turn_also_by_one_sampler(tmp_path, ahead):
    again = made_by(cluster_here, tmp_path / "again", cluster=True, num_producers=1, max_staleness=1)
    versions = [{rollout["policy_version"] for rollout in step} for step in completions(ahead)]
    assert versions == [{0}, {0}, {1}, {2}]
    assert weights(ahead) == weights(again)
    assert completions(ahead) == completions(again)
    assert numbers(ahead) == numbers(again)


def test_a_run_ends_with_the_seconds_that_its_phases_and_their_order_let_expect(ahead):
    paces = json.loads((ahead.path / "summary.json").read_text())["step_seconds"]
    clocks = [record["clock"] for record in ahead.metrics()]
    assert paces["measured"] == sum(clock["total"] for clock in clocks) / len(clocks)
    produce, update, record = (
        sum(clock["produce"] for clock in clocks),
        sum(clock["update"] for clock in clocks),
        sum(clock["total"] - clock["wait"] - clock["update"] for clock in clocks),
    )
    # side by side: longer than either half, and no longer than one after the other
    assert max(produce, update) < paces["predicted"] * len(clocks) <= produce + update + record + 1e-9


def test_a_sampler_that_dies_or_stops_is_replaced_and_the_run_is_what_it_would_have_been(tmp_path, alone, capsys):
    trap = "SIGKILL self run/config.yaml SIGSTOP self run/rollouts/step-000002.jsonl"
    run = train(tmp_path / "run", *CLUSTER, "--actor-timeout", 10, trap=trap)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("another takes its place") == 2
    assert "is gone" in said
    assert "gave no sign of life for 10 s" in said
    assert weights(run) == weights(alone)
    assert completions(run) == completions(alone)
