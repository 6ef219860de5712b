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
    "math-verify": "math-verify, one by one",
    "process": "a process per program, not isolated",
}
PACKAGES = {
    "python": "Python",
    "torch": "torch",
    "transformers": "transformers",
    "trl": "TRL",
    "math-verify": "math-verify",
    "sympy": "sympy",
}
"""By its key in a result, a package as the page calls it."""

OPENING = """# Benchmarks

Paceline against its peers on the same machine, in the same run, on the same work. This page is made by
`python benchmarks/table.py` from `benchmarks/results/*.json`, which hold every repetition. To measure again:

    pip install -e '.[bench]'
    python benchmarks/bench_generate.py
    python benchmarks/bench_step.py
    python benchmarks/bench_rewards.py
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

ANSWERS = """
## Rewards: comparing answers

Pairs of a gold answer and an answer per second, each repetition in a fresh process that remembers nothing, its imports
done and its workers ready. `mixed`: half plain numbers, the other half rows of `tests/math_cases.py`, drawn with
repeats, as completions of one prompt repeat answers; `distinct`: each pair once; `hostile`: `mixed` with one answer in
a hundred that is built to be slow or huge. Both contenders may use all cores: Paceline sends what takes a proof to
worker processes, math-verify is called in a loop, with its own time limits of five seconds.

`verdicts right` is against what `tests/math_cases.py` says that each pair deserves. Paceline is tested with that table,
so its own figure says that it keeps what it promises, and no more; the other one says how often a plain call of
math-verify decides otherwise: units, words, several guesses at once. `wrongly right` are verdicts that would reward a
wrong answer.
"""

PROGRAMS = """
## Rewards: running programs

Small programs that read a line and print, per second; as many at a time as there are threads. Paceline runs each in its
sandbox, isolated at the level that `--sandbox auto` takes; the other contender starts a fresh `python -I` process for
each and isolates nothing. The outputs are compared and are the same.
"""

CLOSING = """
## What these figures do not say

Both models are small and the machine has no GPU. TRL generates here with transformers' `generate`, as it does unless
vLLM is asked for; vLLM with TRL on a GPU is another comparison, and it is not made here.
"""


def page(results: Sequence[dict]) -> str:
    """The whole page; results of one benchmark stay in their order."""
    about_models = [result for result in results if result["benchmark"] in ("generate", "step")]
    parts = [OPENING, *dict.fromkeys(_machine(result) for result in about_models)]
    for benchmark, text, rows in (("generate", GENERATION, generation_rows), ("step", STEP, step_rows)):
        chosen = [result for result in results if result["benchmark"] == benchmark]
        if chosen:
            parts.append(text)
        parts += [section(name, one, rows) for result in chosen for name, one in result["workloads"].items()]
    for size, text, rows in (("answers", ANSWERS, answer_rows), ("programs", PROGRAMS, program_rows)):
        for result in results:
            if (result["benchmark"], result.get("size")) == ("rewards", size):
                parts += [text, _machine(result), "", *rows(result["workloads"])]
    return "\n".join([*parts, CLOSING])


def _machine(result: dict) -> str:
    where = result["machine"]
    versions = ", ".join(f"{name} {where[key]}" for key, name in PACKAGES.items() if key in where)
    return (
        f"Machine: {where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}. Threads of "
        f"each contender: {where['threads']}.\n{versions}. Measured on {where['date']}."
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


def answer_rows(workloads: dict) -> list[str]:
    """Answers per second and verdicts of every contender, for every workload."""
    lines = [
        "| workload | contender | answers/s | Paceline is faster by | verdicts right | wrongly right |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, workload in workloads.items():
        work = f"`{name}`: {workload['answers']:,} answers, {workload['distinct']:,} of them different"
        for contender, one in workload["contenders"].items():
            if "rate" not in one:
                lines.append(f"| {work} | {NAMES[contender]} | did not end: {one['error']} | | | |")
                continue
            rates_seen = [again["answers"] / again["seconds"] for again in one["repetitions"] if "error" not in again]
            factor = workload["paceline_faster_by"] if contender != "paceline" else None
            lines.append(
                f"| {work} | {NAMES[contender]} | {one['rate']:,.0f} ({min(rates_seen):,.0f}-{max(rates_seen):,.0f}) | "
                f"{'' if factor is None else f'{factor:.1f}x'} | {one['right']:.1%} | {one['wrongly_right']:.1%} |"
            )
            work = ""
    return [*lines, ""]


def program_rows(workloads: dict) -> list[str]:
    """Programs per second of every contender."""
    lines = ["| contender | isolation | programs/s | Paceline is faster by |", "|---|---|--:|--:|"]
    for workload in workloads.values():
        for contender, one in workload["contenders"].items():
            if "rate" not in one:
                lines.append(f"| {NAMES[contender]} | | did not run: {one['error']} | |")
                continue
            rates_seen = [again["programs"] / again["seconds"] for again in one["repetitions"]]
            factor = workload["paceline_faster_by"] if contender != "paceline" else None
            lines.append(
                f"| {NAMES[contender]} | {one['start']['isolation']} | {one['rate']:,.0f} "
                f"({min(rates_seen):,.0f}-{max(rates_seen):,.0f}) | {'' if factor is None else f'{factor:.1f}x'} |"
            )
    return [*lines, ""]


def _factor(workload: dict, name: str) -> str:
    factor = workload["paceline_faster_by"].get(name)
    return "" if factor is None else f"{factor:.2f}x"


def main(results: Path = RESULTS, target: Path = PAGE) -> None:
    order = ["generate-shipped", "generate-30m", "step-shipped", "step-30m", "rewards-answers", "rewards-programs"]
    found = [results / f"{name}.json" for name in order if (results / f"{name}.json").is_file()]
    if not found:
        raise SystemExit(f"{results} holds no result file; run the benchmarks first")
    target.write_text(page([json.loads(path.read_text()) for path in found]))
    print(target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
