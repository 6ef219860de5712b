"""Models with windows, states and experts: generation beside transformers' `generate`, a step beside TRL, and both
beside another commit of Paceline, on one machine in one run.

    python benchmarks/bench_families.py [--other TREE] [--size NAME]... [--what generate|step]... [--threads 2]
                                        [--repetitions N] [--quick] [--output DIR]

    git worktree add ../before 913063c9
    python benchmarks/bench_families.py --other ../before

| contender                    | what it is                                                                       |
|------------------------------|----------------------------------------------------------------------------------|
| paceline                     | this tree: `LocalEngine.generate`, or `Sampler.sample` and `Learner.step`          |
| before                       | the same by the scripts and the package of `--other`                             |
| generate-DTYPE               | `model.generate`, all completions in one batch                                   |
| trl-generate-DTYPE-ROWS      | `GRPOTrainer` of TRL, whose loss has no term for the routers' load               |

Shapes are those of Gemma 3 (6 layers, windows of 64), Qwen3.5 (8 layers, 3 with a state : 1), gpt-oss (windows,
sinks, 2 of 8 experts) and Qwen3-MoE (4 of 32 experts), with about 10 or 100 million random weights. Everything else is
as in `bench_generate.py` and `bench_step.py`: the same weights, prompts and drawn lengths for all, so that all make
exactly as many tokens, which is checked; a process for each, one warm-up, turns in alternating order, medians.

`--quick` measures the small shapes alone, and a step of two of them, in less than ten minutes. A result is written
after each shape. The table between the marks of docs/performance.md is written from a result that is not quick.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from bench_generate import compared as compared_generations
from bench_step import Variant
from bench_step import compared as compared_steps
from measuring import Entry, machine, take_turns
from naming import title
from performance import filled
from running import RESULTS, make_materials, write_result
from workloads import FAMILIES, Workload

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
TIMEOUT = 900.0
"""Seconds that a contender may take to load, or for one repetition."""
QUICK = tuple(name for name in FAMILIES if name.endswith("-10m"))
QUICK_STEPS = ("gemma3-10m", "qwen3-moe-10m")
EXACT = {"generate": ["tokens"], "step": ["prompts", "completions", "tokens", "tokens_trained"]}
"""What all contenders must have alike."""


def entries(what: str, workload: Workload, given: Path, *, threads: int, other: Path | None) -> dict[str, Entry]:
    """Who takes part; `other`: the tree of another commit."""
    usual, script = [str(given), str(threads), "cpu"], f"{what}_paceline.py"
    found = {"paceline": Entry(script=script, arguments=usual, sources=ROOT / "src")}
    if other is not None:
        found["before"] = Entry(script=str(other / "benchmarks" / script), arguments=usual, sources=other / "src")
    # bfloat16 reads half the bytes of a large model, and its conversions cost a small one more than they save
    for dtype in ("float32",) if workload.size.endswith("-10m") else ("float32", "bfloat16"):
        if what == "generate":
            entry = Entry(script="generate_transformers.py", arguments=[*usual, "generate", dtype])
            found[f"generate-{dtype}"] = entry
        else:
            variant = Variant(dtype=dtype, rows=min(16, workload.completions))
            arguments = [*usual, variant.backend, dtype, str(variant.rows), "plain"]
            found[variant.name] = Entry(script="step_trl.py", arguments=arguments)
    return found


def measured(what: str, workload: Workload, *, threads: int, other: Path | None) -> dict:
    """All contenders on one shape."""
    print(f"{what}, {workload.size}: {workload.completions} completions of {workload.prompts} prompts", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        given = make_materials("families", workload.size, is_quick=False, directory=directory)
        answers = take_turns(
            entries(what, workload, given, threads=threads, other=other),
            repetitions=workload.repetitions,
            threads=threads,
            timeout=TIMEOUT,
        )
    compared = compared_generations if what == "generate" else compared_steps
    return {**asdict(workload), **compared(answers, exact=EXACT[what])}


def table(result: Mapping) -> str:
    """The measured ratios as a table of the page, with the machine below it."""
    lines = ["| shape | what | Paceline | as fast as before | as fast as | peer |", "|---|---|--:|--:|--:|---|"]
    for what in ("generate", "step"):
        for size, one in result[what].items():
            mine = one["contenders"].get("paceline", {})
            if what == "generate":
                speed = f"{mine['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in mine else "failed"
            else:
                speed = f"{mine['step_seconds']:.2f} s" if "step_seconds" in mine else "failed"
            factors = one["paceline_faster_by"]
            before = f"{factors['before']:.1f}x" if "before" in factors else ""
            peer = next((name for peer, name in one["fastest"].items() if peer != "before"), None)
            beside = f"{factors[peer]:.1f}x | {title(peer)}" if peer in factors else " | none"
            lines.append(f"| {size} | {what} | {speed} | {before} | {beside} |")
    where = result["machine"]
    other = f"; before: commit {result['other']}" if result["other"] else ""
    lines += ["", f"{where['cpu']}, {where['threads']} threads, torch {where['torch']}, {where['date']}{other}."]
    return "\n".join(lines)


def complaints(result: Mapping) -> list[str]:
    """Sentences about contenders that ended early, or did other work."""
    found = []
    for what in ("generate", "step"):
        for size, one in result[what].items():
            ended = [
                f"{name} ended: {answer['error']}" for name, answer in one["contenders"].items() if "error" in answer
            ]
            found += [f"{what}, {size}: {sentence}" for sentence in (*ended, *one["unequal_work"])]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="work tree of another commit (default: not measured)")
    parser.add_argument("--size", choices=list(FAMILIES), action="append", help="may be given again (default: all)")
    parser.add_argument("--what", choices=list(EXACT), action="append", help="may be given again (default: both)")
    parser.add_argument("--threads", type=int, default=2, help="of each contender (default 2)")
    parser.add_argument("--repetitions", type=int, help="after the warm-up, at most the workload's own")
    parser.add_argument("--quick", action="store_true", help="the small shapes alone, a step of two of them")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="directory of the result (default benchmarks/results)"
    )
    asked = parser.parse_args()
    other = None if asked.other is None else asked.other.resolve()
    result: dict = {
        "benchmark": "families",
        "size": "quick" if asked.quick else "cpu",
        "machine": machine(asked.threads),
        "other": None if other is None else _commit(other),
        "this": _commit(ROOT),
        "generate": {},
        "step": {},
    }
    for what in asked.what or EXACT:
        sizes = (QUICK_STEPS if what == "step" else QUICK) if asked.quick else tuple(FAMILIES)
        for size in (name for name in asked.size or sizes if name in sizes):
            workload = FAMILIES[size]
            most = 2 if asked.quick else workload.repetitions
            workload = replace(workload, repetitions=min(asked.repetitions or most, most))
            result[what][size] = measured(what, workload, threads=asked.threads, other=other)
            path = write_result(asked.output, result)
    print(table(result))
    print(path)
    if not asked.quick and asked.output == RESULTS:
        PAGE.write_text(filled(PAGE.read_text(), {"families": table(result)}))
    wrong = complaints(result)
    print("\n".join(wrong) or "every contender did the same work")
    return 1 if wrong else 0


def _commit(tree: Path) -> str:
    """The commit of a work tree, with a mark where its files have been changed."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    raise SystemExit(main())
