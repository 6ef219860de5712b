"""What an entry point asks for: a new run, or one that goes on as it began."""

import json

import pytest

from paceline.checkpoints.run_directory import IDENTITY
from paceline.config.changing import plain_options
from paceline.config.flat_yaml import to_yaml
from paceline.training.setup.checks import resolved
from paceline.training.setup.preparation import prepare_request
from paceline.training.setup.run_request import new_run, resumed_run


@pytest.mark.parametrize(
    ("began_with", "flags", "sets"),
    [
        ({}, {}, 0),  # as a GRPOTrainer begins one without eval_dataset; `arithmetic` has a split of 10,000
        ({}, {"eval_split": "test", "eval_size": "4"}, 1),
        ({"arithmetic:test": {}}, {"eval_size": "4"}, 1),
    ],
)
def test_a_run_that_began_without_held_out_tasks_measures_nothing(tmp_path, began_with, flags, sets):
    options = {"model": "embedded", "dataset": "arithmetic", "eval_size": None, "max_completion_length": 40}
    folder = tmp_path / "run"
    config = new_run({**options, "output_dir": str(folder)}, file=None).config
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    identity = {**{key: {} for key in IDENTITY}, "options": plain_options(config), "eval_dataset": began_with}
    (folder / "identity.json").write_text(json.dumps(identity))

    request = resumed_run(folder, flags, file=None, override=[])

    assert len(prepare_request(request, resolved(request.config)).evaluators) == sets
