"""What it costs a run to survive: the same steps with journal and checkpoints, and with nothing written down.

    python benchmarks/bench_survival.py [--workload NAME] [--steps 70] [--window 10] [--repetitions 5] [--quick]

| row        | what is written                                                                    |
|------------|------------------------------------------------------------------------------------|
| journal    | every step's rollouts                                                              |
| foreground | also a checkpoint every `--window` steps, for which the run waits                  |
| background | also a checkpoint every `--window` steps, from a copy while the run goes on: the default |

A process differs from the next by more than what is measured here, so nothing is said of two processes: a repetition
is two runs of the same steps, of which the first survives in the windows in which the second does not
(`survive_in_turns.py`). Seconds of a window with over seconds of the same window without, then of the next window, in
which the processes have changed places: in the geometric mean of the two their difference cancels. The throughput of a
row is the mean over these pairs of windows, with its interval; the first window warms up and does not count. Rows take
turns in every repetition. On a CPU all runs must end with the same weights.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch
from materials import SHAPES, write_model
from measuring import QUIET, machine
from running import RESULTS, write_result
from survival_tables import survival_rows

from paceline.config import ModelConfig
from paceline.intervals import Interval, mean_interval
from paceline.pretrained import load_tokenizer

ROOT = Path(__file__).parents[1]
TIMEOUT = 3600.0
"""Seconds that a run may take."""
WORKLOADS: dict[str, list[str]] = {
    "embedded": [],
    "30m": [
        *("--dataset", "arithmetic", "--reward-funcs", "random", "--eval-reward-func", "random"),
        *("--prompts-per-step", "8", "--num-generations", "8", "--max-completion-length", "128"),
    ],
    "qwen-0.5b": [
        *("--dataset", "arithmetic", "--reward-funcs", "random", "--eval-reward-func", "random"),
        *("--prompts-per-step", "16", "--num-generations", "16", "--max-completion-length", "512"),
    ],
}
"""Options besides the model: the one that ships with Paceline, and Qwen2 of two sizes with random weights, the larger
for a GPU."""


def rows(window: int) -> dict[str, list[str]]:
    """The options of each row."""
    often = ["--save-steps", str(window)]
    return {
        "journal": ["--save-steps", "0"],
        "foreground": [*often, "--background-save", "false"],
        "background": [*often, "--background-save", "true"],
    }


def make_inputs(workload: str, folder: Path) -> list[str]:
    """The options of a workload; a model with random weights that they name is written to `folder`."""
    if workload == "embedded":
        return WORKLOADS[workload]
    write_model(SHAPES[workload], folder / "model")
    load_tokenizer(ModelConfig(model="embedded")).save_pretrained(folder / "model")
    return ["--model", str(folder / "model"), *WORKLOADS[workload]]


def train(options: Sequence[str], *, first: int, window: int, steps: int, threads: int) -> dict[str, object]:
    """One run that survives in every other window: the seconds of each, and the hash of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        run, moments = Path(folder) / "run", Path(folder) / "moments.json"
        words = ["--output-dir", str(run), "--max-steps", str(steps), "--eval-size", "1", "--eval-steps", "0", *options]
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "benchmarks" / "survive_in_turns.py"),
                str(first),
                str(window),
                moments,
                *words,
            ],
            env=os.environ | QUIET | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"a run with {' '.join(options)} failed: {done.stderr.strip()}")
        ends = json.loads(moments.read_text())[window - 1 :: window]
        weights = hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()
    return {"first": first, "windows": [later - earlier for earlier, later in pairwise(ends)], "weights": weights}


def logs_of_ratios(repetition: Sequence[Mapping[str, object]]) -> Iterator[float]:
    """Of each two windows that follow each other: the mean logarithm of seconds with over seconds without.

    `repetition` is the run that survives in windows 0, 2, ... and the other one; their windows are those from 1 on.

    >>> even, odd = {"windows": [1.0, 4.4]}, {"windows": [2.2, 8.0]}
    >>> [round(math.exp(one), 6) for one in logs_of_ratios([even, odd])]  # one process takes twice as long
    [1.1]
    """
    even, odd = (list(map(float, one["windows"])) for one in repetition)  # type: ignore[call-overload]
    for number in range(0, len(even) - 1, 2):
        yield (math.log(odd[number] / even[number]) + math.log(even[number + 1] / odd[number + 1])) / 2


def compare(found: Mapping[str, Sequence[Sequence[Mapping[str, object]]]], window: int) -> dict[str, dict[str, object]]:
    """Of each row the throughput relative to nothing written down, with its interval, and the seconds of a step."""
    compared = dict[str, dict[str, object]]()
    for name, repetitions in found.items():
        logs = mean_interval([one for repetition in repetitions for one in logs_of_ratios(repetition)])
        throughput = Interval(value=math.exp(-logs.value), low=math.exp(-logs.high), high=math.exp(-logs.low))
        windows = [float(one) for runs in repetitions for run in runs for one in run["windows"]]  # type: ignore[attr-defined]
        compared[name] = {"throughput": asdict(throughput), "step": fmean(windows) / window}
    return compared


def main() -> int:
    """Measure, print, write; the exit status: 1 where weights differ on a CPU."""
    asked = _arguments()
    where, options = machine(asked.threads), rows(asked.window)
    if torch.cuda.is_available():
        where |= {"device": "cuda", "gpu": torch.cuda.get_device_name()}
    found: dict[str, list[list[dict[str, object]]]] = {name: [] for name in asked.row or options}
    with tempfile.TemporaryDirectory() as folder:
        inputs = make_inputs(asked.workload, Path(folder))
        for repetition in range(asked.repetitions):
            for name in list(found)[:: -1 if repetition % 2 else 1]:
                of_both = {
                    first: train(
                        [*inputs, *options[name]],
                        first=first,
                        window=asked.window,
                        steps=asked.steps,
                        threads=asked.threads,
                    )
                    for first in ((0, 1) if repetition % 2 else (1, 0))
                }
                found[name].append([of_both[0], of_both[1]])
                (line,) = survival_rows(compare({name: found[name]}, asked.window))
                print(line, flush=True)
    if not asked.quick or asked.output:
        setting = {"steps": asked.steps, "window": asked.window, "quick": asked.quick, "machine": where}
        result = {"benchmark": "survival", "size": asked.workload, **setting}
        result |= {"rows": compare(found, asked.window), "repetitions": found}
        print(write_result(asked.output or RESULTS, result))
    weights = {str(run["weights"]) for row in found.values() for runs in row for run in runs}
    if len(weights) > 1:
        print("runs ended with different weights")
    return 1 if len(weights) > 1 and "gpu" not in where else 0  # there `--deterministic` alone promises the same bits


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="embedded")
    parser.add_argument("--row", choices=list(rows(1)), action="append", help="may be given again (default: all)")
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one short run each; writes nothing without --output")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.quick:
        asked.steps, asked.window, asked.repetitions = 6, 2, 1
    if asked.steps < 3 * asked.window:
        parser.error(f"--steps must be at least three windows ({3 * asked.window}), got {asked.steps}")
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
