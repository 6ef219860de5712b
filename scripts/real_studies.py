"""Compare choices that people argue about on a real language model, three seeds each, and print a table for each study.

    make real-studies
    python scripts/real_studies.py [STUDY ...]

Every run is a short form of `examples/smollm2.yaml`: SmolLM2-135M-Instruct, word problems of one step, 20 steps of 32
completions. Two runs are made at a time, with a thread each, but those of `staleness` one after the other, as their
seconds count. They lie in `runs/real-studies`; those that are there are not made again, and one that was stopped goes
on.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

from paceline.checkpoints.run_directory import RunDir

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs" / "real-studies"
SEEDS = (0, 1, 2)
BASE: Mapping[str, object] = {
    "prompts_per_step": 4,
    "num_generations": 8,
    "learning_rate": 4e-5,
    "max_steps": 20,
    "eval_steps": 20,
    "eval_size": 300,
    "threads": 1,
}
ADAPTER: Mapping[str, object] = {"learning_rate": 4e-4}
"""Ten times the rate of all weights, as is advised for adapters."""
FOUR_UPDATES: Mapping[str, object] = {"num_minibatches": 4, "learning_rate": 2e-5}
"""Of the same completions: with one update ratios are 1, and no objective clips anything."""
AHEAD: Mapping[str, object] = {"cluster": "true", "eval_steps": 10}
"""A process samples while another trains, each with one of two threads; sampling in turn with training has both."""

STUDIES: Mapping[str, Mapping[str, Mapping[str, object]]] = {
    "staleness": {
        "0": {"threads": 2, "eval_steps": 10},
        "1": {**AHEAD, "max_staleness": 1},
        "1, not corrected": {**AHEAD, "max_staleness": 1, "rollout_correction": "none"},
        "2": {**AHEAD, "max_staleness": 2},
        "2, not corrected": {**AHEAD, "max_staleness": 2, "rollout_correction": "none"},
    },
    "adapters": {
        "all weights": {},
        "rank 64": {**ADAPTER, "lora_rank": 64},
        "rank 16": {**ADAPTER, "lora_rank": 16},
        "rank 1": {**ADAPTER, "lora_rank": 1},
    },
    "objectives": {
        "GRPO": {**FOUR_UPDATES, "preset": "grpo", "beta": 0.0},
        "Dr. GRPO": {**FOUR_UPDATES, "preset": "dr_grpo"},
        "DAPO": {**FOUR_UPDATES, "preset": "dapo", "max_refills": 0, "overlong_share": 0.0},
        "GSPO": {**FOUR_UPDATES, "preset": "gspo"},
        "CISPO": {**FOUR_UPDATES, "preset": "cispo"},
    },
    "penalty": {"no penalty": {}, "0.04": {"beta": 0.04}},
    "generations": {
        "16 prompts x 2": {"prompts_per_step": 16, "num_generations": 2},
        "8 prompts x 4": {"prompts_per_step": 8, "num_generations": 4},
        "4 prompts x 8": {},
        "2 prompts x 16": {"prompts_per_step": 2, "num_generations": 16},
    },
}
"""What each arm of a study sets otherwise than BASE."""


def directory(options: Mapping[str, object], seed: int) -> Path:
    """Where a run lies: arms that set the same share it."""
    named = [f"{name}-{value}" for name, value in sorted(options.items())]
    return RUNS / "_".join([*named, f"seed-{seed}"])


def train(options: Mapping[str, object], seed: int) -> None:
    """Make the run of these options, or its rest.

    Raises:
        SystemExit: it did not end well.
    """
    run = directory(options, seed)
    begun = (run / "config.yaml").is_file()
    if begun and any(record["step"] == BASE["max_steps"] for record in RunDir(run).evals()):
        return
    given = {**BASE, **options, "seed": seed, "output_dir": run}
    flags = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    how = ["--resume", str(run)] if begun else ["--config", "examples/smollm2.yaml", *flags]
    print(f"{run.name} ...", file=sys.stderr, flush=True)
    with (RUNS / f"{run.name}.log").open("a") as log:
        command = [sys.executable, "-m", "paceline", "train", *how]
        status = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if status:
        raise SystemExit(f"{run.name} ended with {status}; {RUNS / run.name}.log has what it said")


HEADINGS = "| arm | right after, seeds 0, 1, 2 (95 % interval) | mean | tokens | seconds |\n|---|---|--:|--:|--:|"


def row(arm: str, runs: Sequence[RunDir]) -> str:
    """A table row: the accuracy of each seed with its interval, the mean, and sampled tokens and seconds of a run."""
    lasts = [run.evals()[-1] for run in runs]
    cells = [f"{100 * one['accuracy']:.1f} ({100 * one['ci_low']:.1f} to {100 * one['ci_high']:.1f})" for one in lasts]
    tokens = mean(sum(step["tokens_generated"] for step in run.metrics()) for run in runs)
    seconds = mean(sum(step["clock"]["total"] for step in run.metrics()) for run in runs)
    accuracy = 100 * mean(one["accuracy"] for one in lasts)
    return f"| {arm} | {', '.join(cells)} | {accuracy:.1f} | {tokens:,.0f} | {seconds:,.0f} |"


def tables(names: Sequence[str]) -> Iterator[str]:
    """A table for each study, its runs made where they are missing."""
    for name in names:
        arms = STUDIES[name]
        with ThreadPoolExecutor(1 if name == "staleness" else 2) as pool:
            made = [pool.submit(train, options, seed) for seed in SEEDS for options in arms.values()]
        for one in made:
            one.result()
        yield f"\n{name}\n\n{HEADINGS}"
        for arm, options in arms.items():
            yield row(arm, [RunDir(directory(options, seed)) for seed in SEEDS])


def main() -> None:
    names = sys.argv[1:] or list(STUDIES)
    unknown = sorted(set(names) - set(STUDIES))
    if unknown:
        raise SystemExit(f"{', '.join(unknown)} is no study; there are {', '.join(STUDIES)}")
    RUNS.mkdir(parents=True, exist_ok=True)
    for line in tables(names):
        print(line, flush=True)


if __name__ == "__main__":
    main()
