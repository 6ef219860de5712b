"""What an entry point asks for: a new run, or one that goes on as it began."""

import pytest

from paceline.checkpoints.run_directory import IDENTITY, RunDir
from paceline.config.changing import plain_options
from paceline.config.flat_yaml import to_yaml
from paceline.training.setup.checks import resolved
from paceline.training.setup.preparation import prepare_request
from paceline.training.setup.run_request import new_run, resumed_run


@pytest.mark.long
@pytest.mark.parametrize(
    ("began_with", "flags", "sets"),
    [
        ({}, {}, 0),  # as a GRPOTrainer begins one without eval_dataset, although `arithmetic` has a split
        ({}, {"eval_split": "test"}, 1),
        ({"arithmetic:test": {}}, {}, 1),
    ],
)
def test_a_run_that_began_without_held_out_tasks_measures_nothing(tmp_path, began_with, flags, sets):
    options = {"model": "embedded", "dataset": "arithmetic", "eval_size": 4, "max_completion_length": 40}
    folder = tmp_path / "run"
    config = new_run({**options, "output_dir": str(folder)}, file=None).config
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    identity = {**{key: {} for key in IDENTITY}, "options": plain_options(config), "eval_dataset": began_with}
    RunDir(folder).write_identity(identity)

    request = resumed_run(folder, flags, file=None, override=[])

    assert len(prepare_request(request, resolved(request.config)).evaluators) == sets
