"""The step: seconds and peak memory of one optimiser step of Paceline and of TRL, on one machine in one run.

    python benchmarks/bench_step.py [--size shipped|30m|all] [--threads 2] [--quick] [--output DIR]

A step generates P x G completions, grades them and updates the weights once; nothing is written to disk.

| contender | what it is                                                                                     |
|-----------|------------------------------------------------------------------------------------------------|
| paceline  | `Producer.make` and `Learner.step`, all else at its default                                     |
| trl-1     | `GRPOTrainer` of TRL, all completions in one micro-batch                                        |
| trl-4     | the same in four micro-batches, accumulated                                                     |

Set alike: float32 weights, prompts of each step, G, longest completion, temperature 1, reward function, advantages
over the group's mean and deviation, DAPO's token average and clip bounds (0.2, 0.28), no KL term, one update per step,
AdamW (fused) at learning rate 1e-6, gradients clipped at norm 1, no gradient checkpointing, the same number of threads.

A step of TRL is timed from `on_step_begin` to `on_step_end`: its generation, rewards, loss and update lie between
them. Contenders take turns step by step, in alternating order, while the others sleep; the first step is a warm-up.
Memory is the process's peak resident size, and that less its size after the imports.

Checked, step by step: the same prompts and number of completions; with fixed lengths also the same number of tokens
generated and trained on; with natural lengths, that mean lengths and rewards agree. A step's tokens are reported three
ways: generated, trained on (with a gradient), and forwarded in training (padding and repeated prompts included).
"""

from dataclasses import asdict
from statistics import median

from figures import disagreements, pooled, ratio
from measuring import take_turns
from running import run
from workloads import STEP, Workload

MICRO_BATCHES = ("1", "4")
TIMEOUT = 1800.0
"""Seconds that a contender may take to load, or for one step."""
EXACT = {
    "fixed": ["prompts", "completions", "tokens", "tokens_trained"],
    "natural": ["prompts", "completions"],
}


def measure(name: str, workload: Workload, *, is_quick: bool, threads: int) -> dict:
    """All contenders on one workload."""
    print(f"{name}: {workload.completions} completions of {workload.prompts} prompts a step", flush=True)
    given = [name, str(int(is_quick)), str(threads)]
    contenders = {"paceline": ("step_paceline.py", given)}
    contenders |= {f"trl-{count}": ("step_trl.py", [count, *given]) for count in MICRO_BATCHES}
    answers = take_turns(contenders, repetitions=workload.repetitions, threads=threads, timeout=TIMEOUT)
    return {**asdict(workload), **compared(answers, exact=EXACT[workload.lengths])}


def compared(answers: dict[str, dict], *, exact: list[str]) -> dict:
    """The figures of each contender, Paceline's ratio to each peer, and whether the work was the same."""
    done = {name: one for name, one in answers.items() if "error" not in one}
    for one in done.values():
        one |= figures(one)
    peers = [name for name in done if name != "paceline"] if "paceline" in done else []
    mine = answers["paceline"].get("repetitions", [])
    return {
        "contenders": answers,
        "paceline_faster_by": {peer: ratio(_seconds(done[peer]["repetitions"]), _seconds(mine)) for peer in peers},
        "best_peer": min(peers, key=lambda peer: done[peer]["step_seconds"], default=None),
        "unequal_work": [
            sentence for peer in peers for sentence in disagreements(peer, mine, done[peer]["repetitions"], exact=exact)
        ],
    }


def figures(answers: dict) -> dict[str, float]:
    """Medians over steps for time, means for counts, the largest for memory."""
    steps = answers["repetitions"]
    peak = max(step["peak_mib"] for step in steps)
    counts = ("tokens", "tokens_trained", "tokens_forwarded", "groups_without_signal")
    return {
        "step_seconds": median(_seconds(steps)),
        "peak_mib": peak,
        "peak_above_imports_mib": peak - answers["start"]["imported_mib"],
        "mean_length": pooled([step["lengths"] for step in steps])["mean"],
        "mean_reward": pooled([step["rewards"] for step in steps])["mean"],
        **{f"{count}_per_step": sum(step[count] for step in steps) / len(steps) for count in counts},
    }


def _seconds(steps: list[dict]) -> list[float]:
    return [step["seconds"] for step in steps]


if __name__ == "__main__":
    raise SystemExit(run("step", STEP, measure, description=__doc__))
