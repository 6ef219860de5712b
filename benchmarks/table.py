"""The page docs/benchmarks.md from the result files: python benchmarks/table.py [RESULTS_DIRECTORY [PAGE]]"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from figures import rates

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
NAMES = {
    "paceline": "**Paceline**",
    "one-batch": "transformers `generate`, one batch",
    "continuous-32": "transformers continuous batching, 32 tokens a batch",
    "continuous-64": "transformers continuous batching, 64 tokens a batch",
    "trl-1": "TRL `GRPOTrainer`, 1 micro-batch",
    "trl-4": "TRL `GRPOTrainer`, 4 micro-batches",
}

OPENING = """# Benchmarks

Paceline against its peers on the same machine, in the same run, on the same work. This page is made by
`python benchmarks/table.py` from `benchmarks/results/*.json`, which hold every repetition. To measure again:

    pip install -e '.[bench]'
    python benchmarks/bench_generate.py
    python benchmarks/bench_step.py
    python benchmarks/table.py

On the machine below all of it takes about half an hour, and the machine should have nothing else to do. Every contender
is a process of its own with the same number of threads. After a warm-up they take turns in alternating order while the
others sleep; the figure is the median, with the smallest and the largest in brackets. Each script checks that the
contenders did the same work, and ends with status 1 when they did not.

Two models: the one that ships with Paceline, on its arithmetic problems, and one of 31 million random weights (Qwen2, 8
layers, width 512, vocabulary 8,192) on random prompts of 60 to 120 tokens. `fixed` lengths: no end token, so that all
sides make exactly the same number of tokens. `natural` lengths: an end token ends a completion, and tokens that exist
are counted.
"""

GENERATION = """
## Generation

Tokens of completions per second, from token ids in to token ids out; float32, temperature 1, no truncation. Paceline
also gives the text and the log-probability of every token, the others do not. Continuous batching is shown with the two
batch sizes that were fastest here, and its manager keeps running from one repetition to the next.
"""

STEP = """
## The step

Seconds per optimiser step: generate, grade, update. The same float32 weights, prompts, reward function, token average,
clip bounds, AdamW, and no gradient checkpointing on either side; `benchmarks/bench_step.py` lists it all. Peak memory
is the process's largest resident size; in brackets, how far above its size after the imports.

Tokens are means per step: generated; trained on, with a gradient; forwarded for that, padding and repeated prompts
included. Where the reward is `accuracy`, groups whose completions are all right or all wrong have a gradient of exactly
zero: Paceline leaves them out, TRL computes them. The reward `mean_token` gives every completion a gradient.
"""

CLOSING = """
## What these figures do not say

Both models are small and the machine has no GPU. TRL generates here with transformers' `generate`, as it does unless
vLLM is asked for; vLLM with TRL on a GPU is another comparison, and it is not made here.
"""


def page(results: Sequence[dict]) -> str:
    """The whole page; results of one benchmark stay in their order."""
    parts = [OPENING, *dict.fromkeys(_machine(result) for result in results)]
    for benchmark, text, rows in (("generate", GENERATION, generation_rows), ("step", STEP, step_rows)):
        chosen = [result for result in results if result["benchmark"] == benchmark]
        if chosen:
            parts.append(text)
        parts += [section(name, one, rows) for result in chosen for name, one in result["workloads"].items()]
    return "\n".join([*parts, CLOSING])


def _machine(result: dict) -> str:
    where = result["machine"]
    return (
        f"Machine: {where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}. Threads of "
        f"each contender: {where['threads']}.\nPython {where['python']}, torch {where['torch']}, transformers "
        f"{where['transformers']}, TRL {where['trl']}. Measured on {where['date']}."
    )


def section(name: str, workload: dict, rows) -> str:
    """A heading, what is measured, a table."""
    described = (
        f"{workload['prompts']} prompts x {workload['num_generations']} completions of "
        f"{'exactly' if workload['lengths'] == 'fixed' else 'at most'} {workload['max_new_tokens']} tokens; "
        f"{workload['repetitions']} repetitions."
    )
    unequal = [f"\n**Not the same work:** {sentence}." for sentence in workload["unequal_work"]]
    return "\n".join([f"### `{name}`\n", described, *unequal, "", *rows(workload)]) + "\n"


def generation_rows(workload: dict) -> list[str]:
    """Tokens per second of every contender."""
    lines = [
        "| contender | tokens/s | Paceline is faster by | mean length |",
        "|---|--:|--:|--:|",
    ]
    for name, one in workload["contenders"].items():
        if "error" in one:
            lines.append(f"| {NAMES[name]} | did not run: {one['error']} | | |")
            continue
        speeds = rates(one["repetitions"])
        lines.append(
            f"| {NAMES[name]} | {one['tokens_per_second']:,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f}) | "
            f"{_factor(workload, name)} | {one['mean_length']:.1f} |"
        )
    return lines


def step_rows(workload: dict) -> list[str]:
    """Seconds, memory and tokens of every contender."""
    lines = [
        f"Reward: `{workload['reward']}`.\n",
        "| contender | seconds per step | Paceline is faster by | peak memory, MiB | generated | trained | forwarded "
        "| mean length | mean reward |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in workload["contenders"].items():
        if "error" in one:
            lines.append(f"| {NAMES[name]} | did not run: {one['error']} | | | | | | | |")
            continue
        seconds = [step["seconds"] for step in one["repetitions"]]
        tokens = [one[f"{kind}_per_step"] for kind in ("tokens", "tokens_trained", "tokens_forwarded")]
        lines.append(
            f"| {NAMES[name]} | {one['step_seconds']:.2f} ({min(seconds):.2f}-{max(seconds):.2f}) | "
            f"{_factor(workload, name)} | {one['peak_mib']:,.0f} ({one['peak_above_imports_mib']:,.0f}) | "
            f"{' | '.join(f'{count:,.0f}' for count in tokens)} | {one['mean_length']:.1f} | {one['mean_reward']:.3f} |"
        )
    return lines


def _factor(workload: dict, name: str) -> str:
    factor = workload["paceline_faster_by"].get(name)
    return "" if factor is None else f"{factor:.2f}x"


def main(results: Path = RESULTS, target: Path = PAGE) -> None:
    order = ["generate-shipped", "generate-30m", "step-shipped", "step-30m"]
    found = [results / f"{name}.json" for name in order if (results / f"{name}.json").is_file()]
    if not found:
        raise SystemExit(f"{results} holds no result file; run benchmarks/bench_generate.py and bench_step.py first")
    target.write_text(page([json.loads(path.read_text()) for path in found]))
    print(target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
