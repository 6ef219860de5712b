"""Sampling ahead of training against sampling in turn, on Ray, where sampling takes twice as long as the update.

    python benchmarks/bench_cluster.py [--seeds 3] [--ratio 2] [--quick] [--output DIR]

The embedded model and task, with one sampler and one trainer. Sampling is slowed by waiting and not by work, as if
the engine ran on a device of its own: a second reward function, of weight 0, sleeps where the sampler scores.

1. A run in one process says how long an update takes, a run on the cluster in turn how long its sampling does: their
   medians give the wait that makes sampling and scoring `--ratio` times the update.
2. For every seed three runs next to each other, as a machine's speed changes from minute to minute: a short one in
   turn, whose phases predict the others, a run in turn, and one that samples one step ahead. Completions grow while a
   model learns, so a prediction is held against the same first steps of the others. Seconds per step are taken from the
   times at which a run wrote its rollouts down, and not from its own clocks.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from cluster_tables import cluster_rows
from measuring import QUIET, machine
from running import RESULTS, write_result

from paceline.checkpoints.run_directory import RunDir
from paceline.metrics.statistics import Interval, mean_interval
from paceline.workers import schedule

WAITING = """import time


def waiting(completions, **columns):
    time.sleep({seconds!r})
    return [0.0] * len(completions)
"""
IN_TURN, AHEAD = 0, 1
"""Values of --max-staleness."""
STARTING = 10
"""Steps that do not count: caches fill, and one step ahead begins with two."""
SHORT = 30
"""Steps of a run that is only timed."""
TIMEOUT = 1200.0
"""Seconds that a run may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Runs below one directory, all of the same work."""

    directory: Path
    flags: Sequence[str]

    def run(self, name: str, *flags: object) -> RunDir:
        """Train, in a process of its own.

        Raises:
            SystemExit: the run failed; what it printed last says why.
        """
        place = self.directory / name
        words = [*self.flags, "--output-dir", str(place), *map(str, flags)]
        done = subprocess.run(
            [sys.executable, "-m", "paceline", "train", *words],
            env=os.environ | QUIET,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stdout[-2000:]}")
        run = RunDir(place)
        print(f"  {name}: {step_seconds(run):.4f} s a step", flush=True)
        return run

    def slowed(self, seconds: float) -> list[str]:
        """Flags that make every step's sampling so many seconds longer."""
        file = self.directory / "slow.py"
        file.write_text(WAITING.format(seconds=seconds))
        return ["--cluster", "--reward-funcs", "accuracy", f"{file}:waiting", "--reward-weights", "1", "0"]


def step_seconds(run: RunDir, *, last: int | None = None) -> float:
    """By the clock on the wall: from the end of the last starting step to the end of step `last`, or of the run."""
    files = sorted((run.path / "rollouts").glob("step-*.jsonl"))[:last]
    ends = [file.stat().st_mtime for file in files[min(STARTING, len(files) // 2) - 1 :]]
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def median_seconds(run: RunDir, *phases: str) -> float:
    """Of a step's phases together."""
    return median(sum(one["clock"][phase] for phase in phases) for one in run.metrics()[STARTING // 2 :])


def wait_for(bench: Bench, ratio: float) -> dict[str, float]:
    """How long to wait for sampling and scoring to take `ratio` times the update."""
    update = median_seconds(bench.run("one-process", "--max-steps", SHORT), "update")
    sampling = median_seconds(bench.run("unslowed", "--max-steps", SHORT, "--cluster"), "generate", "reward")
    if sampling >= ratio * update:
        raise SystemExit(f"sampling takes {sampling / update:.2f} times the update unslowed; give a larger --ratio")
    return {"update": update, "sampling_unslowed": sampling, "wait": ratio * update - sampling}


def predicted(bench: Bench, slowed: Sequence[str], seed: int) -> dict[int, float]:
    """Seconds per step by staleness, from a short run in turn without its first step."""
    run = bench.run(f"seed-{seed}-timings", *slowed, "--max-steps", SHORT, "--seed", seed)
    steps = [schedule.step_seconds(record) for record in run.metrics()[1:]]
    found = dict[int, float]()
    for staleness in (IN_TURN, AHEAD):
        done = schedule.simulate(steps * 4, max_staleness=staleness)
        found[staleness] = (done[-1] - done[-1 - len(steps)]) / len(steps)  # the start no longer shows
    return found


def outcome(run: RunDir) -> dict:
    """What a run took and reached."""
    last, summary = run.evals()[-1], json.loads((run.path / "summary.json").read_text())
    return {
        "seconds_per_step": step_seconds(run),
        "first_seconds_per_step": step_seconds(run, last=SHORT),
        "completions_per_second": fmean(one["rollouts"] for one in run.metrics()) / step_seconds(run),
        "clock": {phase: median_seconds(run, phase) for phase in ("generate", "reward", "produce", "update", "wait")},
        "accuracy": last["accuracy"],
        "correct": [bool(one["correct"]) for one in run.eval_completions(last["set"], last["step"])],
        "step_seconds": summary["step_seconds"],
    }


def accuracy(runs: Sequence[Mapping]) -> dict:
    """Over tasks, each with its share of the seeds that were right."""
    return as_record(mean_interval([fmean(answers) for answers in zip(*(one["correct"] for one in runs), strict=True)]))


def accuracy_difference(in_turn: Sequence[Mapping], ahead: Sequence[Mapping]) -> dict:
    """Ahead less in turn, paired by task."""
    shares = [
        [fmean(answers) for answers in zip(*(one["correct"] for one in runs), strict=True)] for runs in (in_turn, ahead)
    ]
    return as_record(mean_interval([after - before for before, after in zip(*shares, strict=True)]))


def as_record(interval: Interval) -> dict[str, float]:
    """For a result file."""
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def measure(bench: Bench, *, seeds: int, ratio: float) -> dict:
    """The whole comparison."""
    waits = wait_for(bench, ratio)
    slowed = bench.slowed(waits["wait"])
    runs: dict[int, list[dict]] = {IN_TURN: [], AHEAD: []}
    for seed in range(seeds):
        expected = predicted(bench, slowed, seed)
        for staleness in (IN_TURN, AHEAD)[:: 1 if seed % 2 else -1]:
            name = f"seed-{seed}-staleness-{staleness}"
            found = outcome(bench.run(name, *slowed, "--max-staleness", staleness, "--seed", seed))
            runs[staleness].append({"predicted_seconds_per_step": expected[staleness], **found})
    orders = {
        "in turn" if staleness == IN_TURN else "one step ahead": {
            "accuracy": accuracy(found),
            "runs": [{key: value for key, value in one.items() if key != "correct"} for one in found],
        }
        for staleness, found in runs.items()
    }
    pairs = zip(runs[IN_TURN], runs[AHEAD], strict=True)
    return {
        "ratio": ratio,
        "steps_timed": SHORT,
        "seconds": waits,
        "orders": orders,
        "faster_by": [one["seconds_per_step"] / other["seconds_per_step"] for one, other in pairs],
        "accuracy_difference": accuracy_difference(runs[IN_TURN], runs[AHEAD]),
    }


def main() -> int:
    """Measure, print, write; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=2.0, help="of sampling to the update (default 2)")
    parser.add_argument("--quick", action="store_true", help="a few steps; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    where = machine(threads=1, packages=("torch", "transformers", "ray"))
    flags = ["--eval-steps", "0", "--save-steps", "0", *(["--max-steps", "30"] if asked.quick else [])]
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Bench(directory=Path(directory), flags=flags), seeds=asked.seeds, ratio=asked.ratio)
    print("\n".join(cluster_rows(found)))
    output = asked.output or (None if asked.quick else RESULTS)
    if output is not None:
        result = {"benchmark": "cluster", "size": "embedded", "quick": asked.quick, "machine": where, **found}
        print(write_result(output, result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
