"""What it costs a run to survive: the same run without checkpoints, and with them in the foreground and background.

    python benchmarks/bench_survival.py [--steps 60] [--save-steps 10] [--repetitions 5] [--quick]

| row        | what it is                                                                     |
|------------|--------------------------------------------------------------------------------|
| none       | no checkpoint                                                                  |
| foreground | one every `--save-steps` steps, and the run waits until it is on disk          |
| background | the same, written from a copy while the run goes on: the default               |

Every run is a process of its own on the embedded model, rows take turns, and the order turns round with each
repetition. A run's time is its steps and what it waited for checkpoints, without evaluations; a row's is the median.
All rows must end with the same weights.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measuring import QUIET, machine
from running import RESULTS, write_result

ROOT = Path(__file__).parents[1]
TIMEOUT = 3600.0
"""Seconds that a run may take."""
WARM_UP = 2
"""First steps of a run, in which kernels are read and memory is found: not counted."""


def rows(save_steps: int) -> dict[str, list[str]]:
    """The options of each row."""
    often = ["--save-steps", str(save_steps)]
    return {
        "none": ["--save-steps", "0"],
        "foreground": [*often, "--background-save", "false"],
        "background": [*often, "--background-save", "true"],
    }


def train(options: Sequence[str], *, steps: int, threads: int) -> dict[str, object]:
    """One run: seconds per step, of which it waited for checkpoints, and the hash of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["train", "--output-dir", str(run), "--max-steps", str(steps), "--eval-size", "1", *options]
        environment = os.environ | QUIET | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        command = [sys.executable, "-m", "paceline", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            raise SystemExit(f"a run with {' '.join(options)} failed: {done.stderr.strip()}")
        waited = json.loads((run / "summary.json").read_text())["clock"]["checkpoint"]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        clocks = [record["clock"]["total"] for record in records][WARM_UP:]
        weights = hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()
    return {"step": (sum(clocks) + waited) / len(clocks), "waited": waited / len(clocks), "weights": weights}


def compare(found: Mapping[str, Sequence[Mapping[str, object]]]) -> dict[str, dict[str, float]]:
    """Of each row the median seconds of a step, what of them it waited, and its throughput relative to `none`."""
    medians = {name: statistics.median(float(str(one["step"])) for one in runs) for name, runs in found.items()}
    return {
        name: {
            "step": medians[name],
            "waited": statistics.median(float(str(one["waited"])) for one in runs),
            "throughput": medians["none"] / medians[name],
        }
        for name, runs in found.items()
    }


def main() -> int:
    """Measure, print, write; the exit status: 1 where weights differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one short run each; writes nothing without --output")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    steps, repetitions = (12, 1) if asked.quick else (asked.steps, asked.repetitions)
    where, options = machine(asked.threads), rows(asked.save_steps)
    found: dict[str, list[dict[str, object]]] = {name: [] for name in options}
    for repetition in range(repetitions):
        for name in list(options)[:: -1 if repetition % 2 else 1]:
            found[name].append(train(options[name], steps=steps, threads=asked.threads))
    print("| checkpoints | a step | of which waited | throughput |\n|---|--:|--:|--:|")
    compared = compare(found)
    for name, one in compared.items():
        print(f"| {name} | {one['step']:.4f} s | {one['waited']:.4f} s | {one['throughput']:.3f} |")
    output = asked.output or (None if asked.quick else RESULTS)
    if output is not None:
        setting = {"steps": steps, "save_steps": asked.save_steps, "quick": asked.quick, "machine": where}
        result = {"benchmark": "survival", "size": "embedded", **setting, "rows": compared, "runs": found}
        print(write_result(output, result))
    weights = {str(one["weights"]) for runs in found.values() for one in runs}
    if len(weights) > 1:
        print("rows ended with different weights")
    return 0 if len(weights) == 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
