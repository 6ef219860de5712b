"""What it costs a run to survive: the same steps with journal and checkpoints, and with nothing written down.

    python benchmarks/bench_survival.py [--workload NAME] [--steps 130] [--turn 1] [--window 10] [--repetitions 8]
                                        [--quick]

| row        | what is written                                                                    |
|------------|------------------------------------------------------------------------------------|
| journal    | every step's rollouts                                                              |
| foreground | also a checkpoint for every `--window` of them, for which the run waits            |
| background | also a checkpoint for every `--window` of them, from a copy while the run goes on: the default |

A process differs from the next by more than what is measured here, and so does a machine from itself ten seconds
later. So nothing is said of two processes or of two times: a repetition is two runs of the same steps, of which the
first survives in the turns of `--turn` steps in which the second does not (`survive_in_turns.py`). Of every two windows
of steps each run survives in one window's worth: seconds of these steps over seconds of the others, which were made
between them. In the geometric mean of both runs' ratios it cancels that steps differ. The throughput of a row is the
mean over these pairs of windows, with its interval; the first window warms up and does not count. A turn must be long
enough for a checkpoint to be on disk in it. Rows take turns in every repetition. On a CPU all runs must end with the
same weights.
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
from survive_in_turns import Turns

from paceline.config.sections import ModelConfig
from paceline.metrics.statistics import Interval, mean_interval
from paceline.models.pretrained import load_tokenizer

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


def rows(turn: int) -> dict[str, list[str]]:
    """The options of each row: a checkpoint may be begun wherever a turn begins."""
    often = ["--save-steps", str(turn)]
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


def train(options: Sequence[str], turns: Turns, *, steps: int, threads: int) -> dict[str, object]:
    """One run that survives in turns: its seconds with and without, of every two windows, and its weights' hash."""
    with tempfile.TemporaryDirectory() as folder:
        run, moments = Path(folder) / "run", Path(folder) / "moments.json"
        words = ["--output-dir", str(run), "--max-steps", str(steps), "--eval-size", "1", "--eval-steps", "0", *options]
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "benchmarks" / "survive_in_turns.py"),
                *map(str, (turns.first, turns.turn, turns.window, moments)),
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
        ends = json.loads(moments.read_text())
        weights = hashlib.sha256((run / "final" / "model.safetensors").read_bytes()).hexdigest()
    return {"first": turns.first, "pairs": pairs_of_windows(ends, turns), "weights": weights}


def pairs_of_windows(ends: Sequence[float], turns: Turns) -> list[dict[str, float]]:
    """Seconds of the steps that survived and of those that did not, of every two windows behind the first one.

    `ends` has when each step was written down. Here a step takes one second, and one that survives two:

    >>> pairs_of_windows([1, 3, 4, 6, 7, 9], Turns(first=1, turn=1, window=2))
    [{'survived': 4.0, 'bare': 2.0}]
    """
    seconds = {step: later - earlier for step, (earlier, later) in enumerate(pairwise(ends), start=2)}
    both = 2 * turns.window
    return [
        {
            "survived": math.fsum(seconds[step] for step in range(start, start + both) if turns.survives(step)),
            "bare": math.fsum(seconds[step] for step in range(start, start + both) if not turns.survives(step)),
        }
        for start in range(turns.window + 1, len(ends) - both + 2, both)
    ]


def logs_of_ratios(repetition: Sequence[Mapping[str, object]]) -> Iterator[float]:
    """Of every two windows: the mean over both runs of the logarithm of seconds with over seconds without.

    >>> first, second = {"pairs": [{"survived": 4.4, "bare": 1}]}, {"pairs": [{"survived": 2.2, "bare": 8}]}
    >>> [round(math.exp(one), 6) for one in logs_of_ratios([first, second])]  # half of the steps take four times
    [1.1]
    """
    for pairs in zip(*(one["pairs"] for one in repetition), strict=True):  # type: ignore[misc]
        yield fmean(math.log(pair["survived"] / pair["bare"]) for pair in pairs)


def compare(found: Mapping[str, Sequence[Sequence[Mapping[str, object]]]], window: int) -> dict[str, dict[str, object]]:
    """Of each row the throughput relative to nothing written down, with its interval, and the seconds of a step."""
    compared = dict[str, dict[str, object]]()
    for name, repetitions in found.items():
        logs = mean_interval([one for repetition in repetitions for one in logs_of_ratios(repetition)])
        throughput = Interval(value=math.exp(-logs.value), low=math.exp(-logs.high), high=math.exp(-logs.low))
        pairs = [pair for runs in repetitions for run in runs for pair in run["pairs"]]  # type: ignore[attr-defined]
        step = fmean(pair["survived"] + pair["bare"] for pair in pairs) / (2 * window)
        compared[name] = {"throughput": asdict(throughput), "step": step}
    return compared


def main() -> int:
    """Measure, print, write; the exit status: 1 where weights differ on a CPU."""
    asked = _arguments()
    where, options = machine(asked.threads), rows(asked.turn)
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
                        Turns(first=first, turn=asked.turn, window=asked.window),
                        steps=asked.steps,
                        threads=asked.threads,
                    )
                    for first in ((0, 1) if repetition % 2 else (1, 0))
                }
                found[name].append([of_both[0], of_both[1]])
                (line,) = survival_rows(compare({name: found[name]}, asked.window))
                print(line, flush=True)
    if not asked.quick or asked.output:
        setting = {name: getattr(asked, name) for name in ("steps", "turn", "window", "quick")}
        result = {"benchmark": "survival", "size": asked.workload, **setting, "machine": where}
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
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--turn", type=int, default=1)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one short run each; writes nothing without --output")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    if asked.quick:
        asked.steps, asked.window, asked.repetitions = 6, 2, 1
    if asked.window % asked.turn:
        parser.error(f"--turn must divide --window {asked.window}, got {asked.turn}")
    if asked.steps < 3 * asked.window:
        parser.error(f"--steps must be at least three windows ({3 * asked.window}), got {asked.steps}")
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
