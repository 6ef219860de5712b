"""Samplers and trainers apart from the rows read images from the run directory, and compute what one process does."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from paceline.checkpoints.run_directory import RunDir
from paceline.config.building import build_config
from paceline.training.backend import in_this_process
from paceline.training.session import train
from paceline.training.setup.checks import check
from paceline.training.setup.preparation import prepare_request
from paceline.training.setup.run_request import RunRequest
from tests.support.cluster_here import cluster_here
from tests.support.cluster_runs import completions, weights
from tests.support.seeing_runs import seeing_options_in


def made(make_backend, place: Path, **more) -> RunDir:
    config = build_config({**seeing_options_in(place), "max_steps": 2, **more})
    request = RunRequest(config=config, output_dir=place / "run")
    inputs = prepare_request(request, check(config))
    assert train(request, inputs, console=Console(file=io.StringIO()), make_backend=make_backend)
    return RunDir(place / "run")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trained", [{}, {"train_vision": True, "train_projector": True}])
def test_a_cluster_reproduces_one_process_on_images_step_for_step(tmp_path, trained):
    alone = made(in_this_process, tmp_path / "alone", **trained)
    apart = made(cluster_here, tmp_path / "apart", cluster=True, num_producers=2, **trained)
    assert completions(apart) == completions(alone)
    assert weights(apart) == weights(alone)
    assert len(list((apart.path / "images").iterdir())) == 5
