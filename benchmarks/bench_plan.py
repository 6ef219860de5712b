"""What `paceline plan` says a run takes of main memory, against what runs took: one process each, with random weights.

    python benchmarks/bench_plan.py [--case NAME ...] [--threads 2] [--output DIRECTORY]

A case is a shape of model and train's options. Its run makes two steps, the first of which is followed by a
checkpoint, so that it has seen all that a longer one would: moments, and an update beside a copy that is being written.
The peak is the kernel's own, of the process `paceline train` (`ru_maxrss`), as the plan's is.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from measuring import QUIET, machine
from plan_tables import plan_rows
from running import RESULTS, write_result

from paceline.cli.arguments import parse
from paceline.cli.plan import this_device
from paceline.cli.train import COMMAND
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import read_shape
from paceline.training.setup.configuration import read_configuration

ROOT = Path(__file__).parents[1]
TIMEOUT = 1800.0
"""Seconds that a run may take."""
ALLOWED = 0.15
"""Share of the measured peak that the plan may be off by."""
TASK = ("--dataset", "arithmetic", "--reward-funcs", "random", "--eval-reward-func", "random")
STEPS = ("--max-steps", "2", "--save-steps", "1", "--eval-steps", "0", "--eval-size", "1", "--max-prompt-length", "176")
SMALL = ("--prompts-per-step", "4", "--num-generations", "8", "--max-completion-length", "64")
LARGE = ("--prompts-per-step", "8", "--num-generations", "8", "--max-completion-length", "128")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "embedded": ("embedded", ()),
    "30m": ("30m", SMALL),
    "30m, long completions": (
        "30m",
        ("--prompts-per-step", "2", "--num-generations", "32", "--max-completion-length", "336"),
    ),
    "100m": ("100m", SMALL),
    "100m, no copy to save": ("100m", (*SMALL, "--background-save", "false")),
    "100m, reference": ("100m", (*SMALL, "--beta", "0.04")),
    "100m, adapter": ("100m", (*SMALL, "--lora-rank", "16")),
    "100m, 8-bit moments": ("100m", (*SMALL, "--optimizer", "adamw_8bit")),
    "100m, micro-batches of 8,192": (
        "100m",
        (*LARGE, "--micro-batch-tokens", "8192", "--gradient-checkpointing", "false"),
    ),
    "100m, the same, layers computed again": (
        "100m",
        (*LARGE, "--micro-batch-tokens", "8192", "--gradient-checkpointing", "true"),
    ),
    "30m, four updates a step": ("30m", (*SMALL, "--num-iterations", "2", "--num-minibatches", "2")),
    "100m, adapter, micro-batches of 1,024": (
        "100m",
        (*SMALL, "--lora-rank", "16", "--micro-batch-tokens", "1024"),
    ),
    "qwen-0.5b": (
        "qwen-0.5b",
        ("--prompts-per-step", "2", "--num-generations", "4", "--max-completion-length", "32"),
    ),
    "qwen-0.5b, adapter": (
        "qwen-0.5b",
        ("--prompts-per-step", "2", "--num-generations", "4", "--max-completion-length", "32", "--lora-rank", "16"),
    ),
}
"""Shape and options."""


def options_of(case: str, folder: Path) -> list[str]:
    """What `paceline train` is given; a model that is not there yet is written to `folder`."""
    shape, options = CASES[case]
    if shape == "embedded":
        return [*STEPS, *options]
    place = folder / shape
    if not place.is_dir():
        # a process of its own: the peak of a child starts at its parent's
        subprocess.run([sys.executable, str(ROOT / "benchmarks" / "plan_models.py"), shape, str(place)], check=True)
    return ["--model", str(place), *TASK, *STEPS, *options]


def measured_peak(options: Sequence[str], threads: int) -> int:
    """Bytes of main memory that a run took at most."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | QUIET | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        words = ["-m", "paceline", "train", "--output-dir", str(Path(folder) / "run"), *options]
        with (Path(folder) / "said").open("w+") as said:
            run = subprocess.Popen([sys.executable, *words], env=environment, stdout=said, stderr=said)
            _, status, used = os.wait4(run.pid, 0)
            if status:
                said.seek(0)
                raise SystemExit(f"a run with {' '.join(options)} failed: {said.read()[-2000:]}")
    return used.ru_maxrss * 1024


def planned(options: Sequence[str]) -> dict[str, int]:
    """The plan's parts and its peak, in bytes."""
    config = read_configuration(parse(COMMAND, list(options)).options).config
    shape = read_shape(config.model.model)
    assert shape is not None  # all shapes here are described as usual
    memory = memory_plan(config, shape, on=this_device())
    parts = {name: int(value) for name, value in asdict(replace(memory, cut=0)).items()}  # type: ignore[arg-type]
    return parts | {"sampling": memory.sampling, "update": memory.update, "peak": memory.peak}


def main() -> int:
    """Measure, print, write; the exit status: 1 where a plan was off by more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), action="append", help="may be given again (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--measured", type=Path, help="an earlier result: its runs are planned again and not made again"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the JSON file")
    asked = parser.parse_args()
    where = machine(asked.threads)
    before = {} if asked.measured is None else json.loads(asked.measured.read_text())["cases"]
    found = dict[str, dict[str, object]]()
    with tempfile.TemporaryDirectory() as folder:
        for case in asked.case or CASES:
            options = options_of(case, Path(folder))
            plan, of_case = planned(options), {"options": [*CASES[case][1]]}
            known = before.get(case, {})
            is_known = known.get("options") == of_case["options"]
            peak = known["measured"] if is_known else measured_peak(options, asked.threads)
            found[case] = {**of_case, "planned": plan, "measured": peak, "off": plan["peak"] / peak - 1}
            (line,) = plan_rows({case: found[case]})
            print(line, flush=True)
    if not asked.case:
        result = {"benchmark": "plan", "size": "cpu", "machine": where, "cases": found}
        print(write_result(asked.output, result))
    return 0 if all(abs(float(str(one["off"]))) <= ALLOWED for one in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
