"""Law 10: a cluster that samples and trains in turn makes the run of one process, step for step and bit for bit, also
of conversations; ranks make it to rounding."""

import itertools
import json
from pathlib import Path

import pytest
from safetensors.numpy import load

from paceline.checkpoints.run_directory import RunDir
from paceline.training.backend import BackendFactory, in_this_process
from tests.support.cluster_here import cluster_here, made_by
from tests.support.cluster_runs import CLUSTER, CONVERSATIONS, ROWS, completions, train, weights
from tests.support.forked import torchrun
from tests.support.ranked_runs import options

MEASURED = (
    *("clock", "weights_bytes", "logprob_mismatch_mean", "logprob_mismatch_max", "rewards"),
    *("environment_seconds", "logprob_mismatch_by_turn"),
)
"""What differs without any difference of the run: times, ways of weights, rounding of logprobs in other batches."""


pytestmark = pytest.mark.usefixtures("forked_workers")
WORDS = [f"--{name}={value}" for name, value in CONVERSATIONS.items()]


def numbers(run: RunDir) -> list[dict]:
    return [{name: value for name, value in step.items() if name not in MEASURED} for step in run.metrics()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four steps in one process and on a cluster; every second row is a conversation, the others have one turn."""
    place = tmp_path_factory.mktemp("law-10")
    kinds = itertools.cycle([{"environment": "guess"}, {}])
    (place / "rows.jsonl").write_text("".join(json.dumps(row | next(kinds)) + "\n" for row in ROWS))
    mixed = (*WORDS, "--max-steps=4", f"--dataset={place / 'rows.jsonl'}", "--environment", "guess:5", "few=guess:3")
    return train(place / "here", *mixed), train(place / "cluster", *mixed, *CLUSTER)


def test_the_final_weights_are_equal_bit_for_bit(runs):
    here, cluster = map(weights, runs)
    assert here == cluster


def test_every_completion_with_its_reward_and_advantage_is_equal(runs):
    here, cluster = map(completions, runs)
    assert here == cluster
    assert [len(step) for step in here] == [16] * 4
    assert [{"episode" in one for one in step} for step in here] == [{True, False}] * 4


def test_every_number_of_every_step_is_equal(runs):
    here, cluster = map(numbers, runs)
    assert here == cluster
    assert all(step["updates"] == 1 and step["grad_norm"] > 0 for step in here)


def test_with_an_adapter_too_of_which_alone_the_weights_travel(tmp_path):
    # through Ray they travel in the test of an adapter that is a step ahead
    pytest.importorskip("peft")
    lora, samplers = {"lora_rank": 2, "merge_lora": True}, {"cluster": True, "num_producers": 2}
    here = made_by(in_this_process, tmp_path / "here", **lora)
    cluster = made_by(cluster_here, tmp_path / "cluster", **lora, **samplers)
    assert weights(here) == weights(cluster)
    assert completions(here) == completions(cluster)
    # A [2, inputs] and B [outputs, 2] of 2 layers: query and output, key and value, two gates and the way down
    adapter = 4 * 2 * 2 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert [step["weights_bytes"] for step in cluster.metrics()] == [adapter] * 4


# --- conversations


EVALUATED = {"eval_reward_func": "guess", "eval_generations": 2, "eval_temperature": 1.0}
AHEAD = {"max_staleness": 1, "lora_rank": 2, "merge_lora": True, "max_steps": 3}


def conversations(place: Path, make_backend: BackendFactory, **more: object) -> RunDir:
    return made_by(make_backend, place, **{**CONVERSATIONS, **more})


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    return conversations(tmp_path_factory.mktemp("law-10") / "games", in_this_process)


def test_conversations_have_several_turns_and_train(games):
    assert [len(step) for step in completions(games)] == [16] * 2
    assert all(step["turns_mean"] > 2 and step["grad_norm"] > 0 for step in games.metrics())


def evaluations(run: RunDir) -> list[list[dict]]:
    """Every held-out completion before and after the run, without the seconds of environments."""
    found = [run.eval_completions("held", step) for step in (0, 2)]
    for record in (one for records in found for one in records):
        for turn in record["episode"]["turns"]:
            del turn["seconds"]
    return found


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, games):
    """The run in one process and by a cluster's samplers, measured before and after, on the rows of the training."""
    held_out = f"held={games.path.parent / 'rows.jsonl'}"
    given, place = {**EVALUATED, "eval_dataset": held_out}, tmp_path_factory.mktemp("law-10")
    sampled_by = {"cluster": True, "num_producers": 2}
    here = conversations(place / "here", in_this_process, **given)
    return here, conversations(place / "cluster", cluster_here, **given, **sampled_by)


def test_samplers_that_share_conversations_make_the_run_of_one_process(games, evaluated):
    assert weights(evaluated[1]) == weights(games)
    assert completions(evaluated[1]) == completions(games)
    assert numbers(evaluated[1]) == numbers(games)


def test_evaluation_holds_its_own_conversations_and_changes_no_other(games, evaluated):
    here, cluster = map(evaluations, evaluated)
    assert here == cluster
    assert [len(records) for records in here] == [6 * 2] * 2
    assert max(len(record["episode"]["turns"]) for record in here[0]) == 3
    assert completions(evaluated[0]) == completions(games)  # nothing was drawn that training draws
    trained = {one["completion"] for step in completions(games) for one in step}
    assert trained.isdisjoint(record["completion"] for record in here[0])


@pytest.mark.long
def test_an_adapter_is_trained_on_conversations_a_step_ahead(tmp_path):
    pytest.importorskip("peft")
    here = conversations(tmp_path / "here", cluster_here, cluster=True, num_producers=2, **AHEAD)
    words = [f"--{name}={value}" for name, value in AHEAD.items() if value is not True]
    run = train(tmp_path / "cluster", *WORDS, *CLUSTER, *words, "--merge-lora")
    assert [{one["policy_version"] for one in step} for step in completions(run)] == [{0}, {0}, {1}]
    assert [step["staleness_max"] for step in run.metrics()] == [0, 1, 1]
    assert weights(run) == weights(here)
    assert completions(run) == completions(here)


@pytest.mark.long
def test_ranks_train_on_the_conversations_of_one_process_to_rounding(tmp_path, games):
    place = tmp_path / "ranks"
    done = torchrun("-m", "paceline", "train", *options(place), *WORDS, f"--output-dir={place / 'run'}")
    assert done.returncode == 0, done.stderr
    assert completions(RunDir(place / "run")) == completions(games)
    mine, theirs = load(weights(RunDir(place / "run"))), load(weights(games))
    assert max(abs(mine[name] - theirs[name]).max() for name in theirs) < 1e-3
