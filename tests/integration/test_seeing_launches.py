"""Runs whose prompts hold images on ranks of a launch and on a Ray cluster: those of one process, step for step."""

import pytest
import torch
from safetensors.torch import load_file

from paceline.checkpoints.run_directory import RunDir
from paceline.cli.main import main
from tests.support.cluster_runs import completions
from tests.support.ranked_runs import ours, torchrun
from tests.support.seeing_runs import seeing_options_in

pytestmark = pytest.mark.long

MORE = ["--max-steps=2", "--train-projector=true"]


def options(place):
    return [*(f"--{name}={value}" for name, value in seeing_options_in(place).items()), *MORE]


def final(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(run.path / "final" / "model.safetensors")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    place = tmp_path_factory.mktemp("alone") / "here"
    assert main(["train", *options(place), f"--output-dir={place / 'run'}"]) == 0
    return RunDir(place / "run")


def test_two_ranks_train_on_images_as_one_process_does(alone, tmp_path):
    place = tmp_path / "ranks"
    done = torchrun("train", *options(place), f"--output-dir={place / 'run'}")
    assert done.returncode == 0, ours(done)
    run = RunDir(place / "run")
    assert completions(run) == completions(alone)
    weights, wanted = final(run), final(alone)
    assert weights.keys() == wanted.keys()
    assert all(torch.allclose(weights[name], wanted[name], rtol=1e-4, atol=1e-5) for name in wanted)


def test_a_cluster_trains_on_images_as_one_process_does(alone, tmp_path):
    place = tmp_path / "cluster"
    more = ["--cluster=true", "--num-producers=2", f"--output-dir={place / 'run'}"]
    assert main(["train", *options(place), *more]) == 0
    run = RunDir(place / "run")
    assert completions(run) == completions(alone)
    weights, wanted = final(run), final(alone)
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
