"""Learning: held-out accuracy over seconds and over sampled tokens, of TRL and of Paceline, on a real language model.

    python benchmarks/bench_learning.py [--seed N ...] [--steps 15] [--threads 2] [--output DIR]

SmolLM2-135M-Instruct learns word problems of one step, as in `examples/smollm2.yaml` but with half of its completions
per step and, from twice its learning rate, a linear descent: fewer completions suffice so, and TRL takes an hour less.
Both sides run the same script (learning_curve.py), which imports `GRPOTrainer` and `GRPOConfig` from one or the other:
the same model in float32, prompts in the same order, reward function, generations, lengths, temperature, learning rate,
clip bounds, average and optimiser. Generation is each side's own: TRL's by transformers' `generate`, in micro-batches
of 16 completions, which were faster than 64 and need a third of the memory. Seconds are those of training: held-out
questions are answered while the clock stands still. Runs alternate, and with every seed the other side begins.

Checked: the same number of completions, and that both sampled as many tokens within 10 %.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import yaml
from materials import GGUF, RECIPE, recipe_prompts
from measuring import Contender, Entry, machine
from running import RESULTS, write_result

from paceline.models.pretrained import model_directory

LIBRARIES = ("paceline", "trl")
ROWS = 16
SMALLER = {"num_generations": 8, "learning_rate": 4e-5}
"""What is set otherwise than in the recipe."""
HELD_OUT = 400
TOKENS_APART = 0.1
TIMEOUT = 1800.0
"""Seconds that a step with its evaluation may take."""


def work(recipe: Mapping[str, object], *, steps: int, eval_steps: int, seeds: Sequence[int]) -> dict:
    """What both sides are given: prompts as the chat template writes them, and what is set alike."""

    def rows(split: str, size: int) -> list[dict]:
        return [{"prompt": text, "answer": answer} for _, text, _, answer in recipe_prompts(split, size)]

    alike = ("prompts_per_step", "num_generations", "max_completion_length", "temperature", "learning_rate")
    return {
        "model": model_directory(str(GGUF)),
        "train": rows("train", (max(seeds) + 1) * steps * int(str(recipe["prompts_per_step"]))),
        "test": rows("test", HELD_OUT),
        "max_steps": steps,
        "eval_steps": eval_steps,
        "rows": ROWS,
        "warmup_steps": recipe["warmup_steps"],
        **{name: recipe[name] for name in alike},
    }


def curve(library: str, given: Path, seed: int, *, steps: int, threads: int) -> list[dict]:
    """The answers of one run, a step each.

    Raises:
        SystemExit: it did not end well; its last line says why.
    """
    entry = Entry(script="learning_curve.py", arguments=[library, str(given), str(seed), str(threads)])
    lines = list[dict]()
    with Contender.start(entry, threads=threads) as one:
        for _ in range(steps):
            line = one.read(timeout=TIMEOUT)
            if "error" in line:
                raise SystemExit(f"{library}, seed {seed}: {line['error']}")
            right = "" if line["right"] is None else f"  held out {line['right']} of {HELD_OUT}"
            print(f"{library}, seed {seed}: step {line['step']}, {line['seconds']:.0f} s{right}", flush=True)
            lines.append(line)
    return lines


def compared(runs: Sequence[Mapping]) -> dict[str, object]:
    """Per seed: what both had right in the end, and how much sooner Paceline reached what both reached."""
    found = dict[str, object]()
    for seed in sorted({run["seed"] for run in runs}):
        steps = {run["library"]: run["steps"] for run in runs if run["seed"] == seed}
        last = {library: one[-1] for library, one in steps.items()}
        both = min(one["right"] for one in last.values())
        reached = {
            library: next(step["seconds"] for step in one if step["right"] is not None and step["right"] >= both)
            for library, one in steps.items()
        }
        found[str(seed)] = {
            "right": {library: one["right"] for library, one in last.items()},
            "seconds_per_step": {library: last[library]["seconds"] / len(one) for library, one in steps.items()},
            "tokens": {library: one["tokens"] for library, one in last.items()},
            "reached_by_both": both,
            "seconds_to_reach_it": reached,
            "sooner_by": reached["trl"] / reached["paceline"],
        }
    return found


def unequal(runs: Sequence[Mapping]) -> list[str]:
    """What was not alike."""
    tokens = {one: mean(run["steps"][-1]["tokens"] for run in runs if run["library"] == one) for one in LIBRARIES}
    if abs(tokens["trl"] / tokens["paceline"] - 1) <= TOKENS_APART:
        return []
    return [f"paceline sampled {tokens['paceline']:.0f} tokens a run, trl {tokens['trl']:.0f}"]


def main() -> int:
    """Measure, print, write; 1 where the work was not alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, action="append", help="may be given again (default 0, 1, 2)")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--eval-steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    seeds, runs = asked.seed or [0, 1, 2], list[dict]()
    where = machine(asked.threads)
    recipe = yaml.safe_load(RECIPE.read_text()) | SMALLER
    given = work(recipe, steps=asked.steps, eval_steps=asked.eval_steps, seeds=seeds)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "work.json"
        path.write_text(json.dumps(given))
        for number, seed in enumerate(seeds):
            for library in LIBRARIES[:: -1 if number % 2 else 1]:
                steps = curve(library, path, seed, steps=asked.steps, threads=asked.threads)
                runs.append({"library": library, "seed": seed, "steps": steps})
    settings = {name: value for name, value in given.items() if name not in ("model", "train", "test")}
    result = {
        "benchmark": "learning",
        "size": "smollm2-135m",
        "machine": where,
        "settings": settings | {"held_out": HELD_OUT},
    }
    print(write_result(asked.output, {**result, "runs": runs, "compared": compared(runs)}))
    for seed, one in compared(runs).items():
        print(f"seed {seed}: {one}")
    print("\n".join(unequal(runs)) or "both sides did the same work")
    return 1 if unequal(runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
