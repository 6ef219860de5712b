"""Keep of the demo's runs what the rules of learning read: the series that tests hold them to.

make demo
python scripts/record_learning.py runs/demo tests/golden/learning
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.checkpoints.run_directory import RunDir

OF_STEPS = (
    "step",
    "reward_mean",
    "learning_rate",
    "updates",
    "grad_norm",
    "prompts",
    "groups_zero_deviation",
    "alarms",
)
OF_EVALS = ("set", "step", "accuracy", "ci_low", "ci_high")


def columns(records: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Name to one value per record."""
    return {name: [record[name] for record in records] for name in names}


def main(runs: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(path for path in runs.iterdir() if path.is_dir()):
        run = RunDir(path)
        kept = columns(run.metrics(), OF_STEPS), columns(run.evals(), OF_EVALS)
        (target / f"{path.name}.json").write_text(json.dumps(kept, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
