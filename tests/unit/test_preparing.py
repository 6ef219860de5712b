"""What is made of a configuration before weights are read, and how little is loaded for it."""

import shlex
import subprocess
import sys

import pytest

from tests.wrong_inputs import CASES, ROW, furnish, make_model

CODE = """
import sys
from paceline.config import build_config
from paceline.preparing import prepare
options = {"model": "model", "dataset": "rows.jsonl", "eval_dataset": "rows.jsonl", "max_completion_length": 100}
prepared = prepare(build_config(options))
assert (len(prepared.tasks.tasks), len(prepared.meters)) == (4, 1)
print("\\n".join(sys.modules))
"""
COMPUTES = {
    "transformers.modeling_utils",
    "paceline.models",
    "paceline.engines.local",
    "paceline.checkpoint",
    "paceline.learner",
    "paceline.train",
}
"""Takes longer to load than all that is needed to refuse a run."""


REFUSED = """
import sys
from paceline.cli.main import main
status = main(sys.argv[1:])
print(status, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    "name",
    [
        "half of a model",
        "weights of other shapes",
        "adapter in no layer",
        "export of no whole checkpoint",
        "resume of no whole checkpoint",
    ],
)
def test_what_files_alone_can_tell_is_refused_without_torch(tmp_path, name):
    make_model(tmp_path / "tiny")
    (tmp_path / "here").mkdir()
    furnish(tmp_path / "here", tmp_path / "tiny")
    command = [sys.executable, "-c", REFUSED, *shlex.split(CASES[name][0])]
    done = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "2 False", done.stderr


def test_a_whole_preparation_loads_nothing_that_computes_a_model(tmp_path):
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n"))
    assert "transformers.models.auto.tokenization_auto" in loaded
    assert not loaded & COMPUTES
