"""The step: seconds and peak memory of one optimiser step of Paceline and of TRL, on one machine in one run.

    python benchmarks/bench_step.py [--workload NAME] [--threads 2] [--device cpu] [--vllm-python FILE]
                                    [--contender NAME] [--repetitions N] [--quick] [--output DIR]

A step generates P x G completions, grades them and updates the weights once; nothing is written to disk.

| contender                  | what it is                                                                          |
|----------------------------|-------------------------------------------------------------------------------------|
| paceline                   | `Sampler.sample` and `Learner.step`, all else at its default                          |
| paceline-recomputing       | the same with `--gradient-checkpointing true`                                        |
| paceline-lora              | the same with an adapter of rank 16 on all linear layers (on a GPU)                  |
| trl-BACKEND-DTYPE-ROWS     | `GRPOTrainer` of TRL, ROWS completions in a micro-batch, accumulated to one step;    |
|                            | generation by `generate`, by continuous batching or by vLLM in the same process      |
|                            | (on a GPU); float32, or bfloat16 by autocast                                         |
| ...-checkpointing          | the same with gradient checkpointing, TRL's default                                  |
| ...-lora                   | the same with an adapter of rank 16 on all linear layers                             |

Set alike: float32 weights and optimiser, prompts of each step, G, longest completion, temperature 1, reward function,
advantages over the group's mean and std, DAPO's token average and clip bounds (0.2, 0.28), no KL term, one update
per step, AdamW (fused) at learning rate 1e-6, gradients clipped at norm 1, the same number of threads. Precision is
each side's best: Paceline's own choice, TRL in float32 and in bfloat16. One thing is not alike: with continuous
batching and bfloat16, TRL 1.16 turns the weights and the optimiser's state into bfloat16 for good.

TRL 1.16 names vLLM 0.22 to 0.31 as what it generates with, and warns of another. On a GPU it is measured with the vLLM
of `--vllm-python`, whose environment must have TRL too; on a CPU it is not.

A step of TRL is timed from `on_step_begin` to `on_step_end`: its generation, rewards, loss and update lie between
them. The first step is a warm-up. Contenders take turns step by step, in alternating order, while the others sleep;
with the large model, of which memory holds one, they run one after the other, and of TRL's variants those that one step
shows to be slower are measured by that step. Memory is the process's peak resident size, and that less its size after
the imports; on a GPU, the most that torch had allocated there.

Checked, step by step: the same prompts and number of completions; where lengths are given, the same number of tokens
generated and trained on; with natural lengths, that mean lengths agree; that mean rewards agree. A step's tokens are
reported three ways: generated, trained on (with a gradient), and forwarded in training (padding and repeated prompts
included).
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from figures import disagreements, fastest_of_each_peer, pooled, ratio
from measuring import Entry, take_turns
from running import Conditions, run
from workloads import STEP, Workload

TIMEOUT = 1800.0
"""Seconds that a contender may take to load, or for one step."""
GIVEN = ["prompts", "completions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A way to configure TRL."""

    backend: Literal["generate", "continuous", "vllm"] = "generate"
    dtype: Literal["float32", "bfloat16"]
    rows: int
    """Completions in a micro-batch, at most as many as a step has."""
    checkpointing: bool = False
    lora: bool = False
    """True: an adapter is trained."""
    repetitions: int | None = None
    """1 where it is only there to show that it is slower."""

    @property
    def name(self) -> str:
        """As in results."""
        kinds = "-checkpointing" * self.checkpointing + "-lora" * self.lora
        return f"trl-{self.backend}-{self.dtype}-{self.rows}{kinds}"


VARIANTS = {
    "shipped": (
        Variant(dtype="float32", rows=256),
        Variant(dtype="float32", rows=64),
        Variant(dtype="bfloat16", rows=256),
        Variant(backend="continuous", dtype="float32", rows=256),
        Variant(backend="continuous", dtype="bfloat16", rows=256, repetitions=1),
    ),
    "30m": (
        Variant(dtype="float32", rows=16),
        Variant(dtype="bfloat16", rows=16),
        Variant(backend="continuous", dtype="bfloat16", rows=16, repetitions=1),
    ),
    "smollm2": (
        Variant(dtype="float32", rows=16),
        Variant(dtype="bfloat16", rows=16, repetitions=1),
        Variant(backend="continuous", dtype="bfloat16", rows=16, repetitions=1),
    ),
    # A step takes TRL minutes. Under autocast each of its decode steps converts all weights again, for 4 s; float32
    # with 8 rows and checkpointing took 439 s where the first of these took 226 s.
    "qwen-0.5b": (
        Variant(backend="continuous", dtype="bfloat16", rows=4),
        Variant(backend="continuous", dtype="bfloat16", rows=8, checkpointing=True, repetitions=1),
        Variant(dtype="float32", rows=2, repetitions=1),
    ),
    "qwen-1.5b": (Variant(dtype="bfloat16", rows=4, checkpointing=True),),
}
"""By size, on a CPU."""
ON_CUDA = (
    Variant(backend="vllm", dtype="bfloat16", rows=8, checkpointing=True),
    Variant(dtype="bfloat16", rows=8, checkpointing=True, repetitions=1),
    Variant(backend="vllm", dtype="bfloat16", rows=8, checkpointing=True, lora=True, repetitions=1),
)
"""With `generate` a step takes TRL more than a minute."""


def measure(name: str, workload: Workload, given: Path, conditions: Conditions) -> dict:
    """All contenders on one workload."""
    print(f"{name}: {workload.completions} completions of {workload.prompts} prompts a step", flush=True)
    answers = take_turns(
        conditions.chosen(entries(workload, given, conditions)),
        repetitions=workload.repetitions,
        threads=conditions.threads,
        timeout=TIMEOUT,
        together=workload.takes_turns,
    )
    exact = GIVEN if workload.lengths == "natural" else [*GIVEN, "tokens", "tokens_trained"]
    return {**asdict(workload), **compared(answers, exact=exact)}


def entries(workload: Workload, given: Path, conditions: Conditions) -> dict[str, Entry]:
    """Who takes part."""
    usual = [str(given), str(conditions.threads), conditions.device]
    found = {"paceline": Entry(script="step_paceline.py", arguments=usual)}
    if not workload.takes_turns and conditions.device == "cpu":  # where memory is short
        again = [*usual, "recomputing"]
        found["paceline-recomputing"] = Entry(script="step_paceline.py", arguments=again, repetitions=1)
    if conditions.device == "cuda":
        found["paceline-lora"] = Entry(script="step_paceline.py", arguments=[*usual, "lora"], repetitions=1)
    for variant in ON_CUDA if conditions.device == "cuda" else VARIANTS[workload.size]:
        rows = min(variant.rows, workload.completions)
        kept = "checkpointing" if variant.checkpointing else "plain"
        own = [variant.backend, variant.dtype, str(rows), kept + "-lora" * variant.lora]
        entry = Entry(script="step_trl.py", arguments=[*usual, *own], repetitions=variant.repetitions)
        if variant.backend == "vllm":
            if conditions.vllm_python is None:
                continue
            entry = replace(entry, python=str(conditions.vllm_python))
        found[variant.name] = entry
    return found


def compared(answers: dict[str, dict], *, exact: list[str]) -> dict:
    """The figures of each contender, Paceline's ratio to each peer, and whether the work was the same."""
    done = {name: one for name, one in answers.items() if one.get("repetitions")}
    for one in done.values():
        one |= figures(one)
    others = [name for name in done if name != "paceline"] if "paceline" in done else []
    peers = [name for name in others if not name.startswith("paceline")]
    mine = answers.get("paceline", {}).get("repetitions", [])
    factors = {
        peer: ratio(_seconds(done[peer]["repetitions"]), _seconds(mine[: len(done[peer]["repetitions"])]))
        for peer in peers
    }
    fastest = fastest_of_each_peer({peer: _seconds(done[peer]["repetitions"]) for peer in peers})
    return {
        "contenders": answers,
        "paceline_faster_by": factors,
        "fastest": fastest,
        "memory_of_fastest": {
            peer: done["paceline"]["peak_mib"] / done[name]["peak_mib"] for peer, name in fastest.items()
        },
        "unequal_work": [
            sentence
            for other in others
            for sentence in disagreements(other, mine, done[other]["repetitions"], exact=exact)
        ],
    }


def figures(answers: dict) -> dict[str, float]:
    """Medians over steps for time, means for counts, the largest for memory."""
    steps = answers["repetitions"]
    # on a GPU it is the GPU's memory that is short
    key = "device_peak_mib" if "device_peak_mib" in steps[0] else "peak_mib"
    before = answers["start"]["imported_mib"] if key == "peak_mib" else 0.0
    peak = max(step[key] for step in steps)
    counts = ("tokens", "tokens_trained", "tokens_forwarded", "groups_without_signal")
    return {
        "step_seconds": median(_seconds(steps)),
        "generate_seconds": median(step["generate_seconds"] for step in steps),
        "peak_mib": peak,
        "peak_above_imports_mib": peak - before,
        "mean_length": pooled([step["lengths"] for step in steps])["mean"],
        "mean_reward": pooled([step["rewards"] for step in steps])["mean"],
        **{f"{count}_per_step": sum(step[count] for step in steps) / len(steps) for count in counts},
    }


def _seconds(steps: list[dict]) -> list[float]:
    return [step["seconds"] for step in steps]


if __name__ == "__main__":
    raise SystemExit(run("step", STEP, measure, description=__doc__))
