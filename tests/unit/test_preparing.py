"""What is made of a configuration before weights are read, and how little is loaded for it."""

import subprocess
import sys

from tests.wrong_inputs import ROW, make_model

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


def test_a_whole_preparation_loads_nothing_that_computes_a_model(tmp_path):
    make_model(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text(ROW * 4)
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\n"))
    assert "transformers.models.auto.tokenization_auto" in loaded
    assert not loaded & COMPUTES
