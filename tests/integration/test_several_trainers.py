"""Several trainers on a cluster of this machine: the run of one process to rounding, and through the loss of one."""

import pytest
from safetensors.numpy import load

from tests.support.cluster_runs import completions, train, weights

pytestmark = pytest.mark.usefixtures("forked_workers")
TRAINERS = ("--cluster", "--num-consumers", 2, "--save-steps", 1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trainers") / "shared", *TRAINERS)


@pytest.mark.parametrize("name", ["tokens_trained", "loss", "grad_norm", "entropy", "reward_mean"])
def test_two_trainers_report_what_one_process_reports(alone, shared, name):
    ours, theirs = ([step[name] for step in run.metrics()] for run in (shared, alone))
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_two_trainers_end_with_the_weights_of_one_process_to_rounding(alone, shared):
    ours, theirs = load(weights(shared)), load(weights(alone))
    assert max(abs(ours[name] - theirs[name]).max() for name in theirs) < 1e-4


def test_the_way_of_the_weights_is_measured(shared):
    size = sum(tensor.nbytes for tensor in load(weights(shared)).values())
    assert [step["weights_bytes"] for step in shared.metrics()] == [size] * 4
    assert all(0 < step["clock"]["weights"] <= step["clock"]["produce"] for step in shared.metrics())


def test_after_the_loss_of_a_trainer_the_run_goes_on_from_its_checkpoint_and_is_what_it_would_have_been(
    tmp_path, shared, capsys
):
    # a step is sampled while the checkpoint of the step before is written
    trap = "SIGKILL TrainerActor run/checkpoints/step-000001 SIGSTOP TrainerActor run/checkpoints/step-000002"
    run = train(tmp_path / "run", *TRAINERS, "--actor-timeout", 10, trap=trap)
    said = " ".join(capsys.readouterr().out.split())
    assert "restart 1 of 3 from the last checkpoint" in said
    assert "restart 2 of 3 from the last checkpoint" in said
    assert "gave no sign of life for 10 s" in said
    assert weights(run) == weights(shared)
    assert completions(run) == completions(shared)
