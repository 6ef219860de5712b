"""Peak memory of each process that trains, with slices of a model (ZeRO-3) and with copies of it, beside the plan's.

    python benchmarks/bench_layouts.py [--size qwen-0.5b] [--ranks 2] [--quick]

Every rank is a process of its own (layout_rank.py) with the learner alone, nothing samples: some updates of one
micro-batch per rank, with every layer computed again and the precision that a run chooses. What a process has before
it makes the model (Python, torch, the process group) is measured and taken off. Both layouts must report the same loss.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from materials import SHAPES
from measuring import QUIET, machine
from running import RESULTS, write_result

from paceline.config.building import build_config
from paceline.config.layout import layout
from paceline.training.plan.memory import memory_plan
from paceline.training.plan.shape import model_shape

LAYOUTS = {"copies": 0, "ZeRO-3": 3}
"""Names to stages."""
TIMEOUT = 900.0
"""Seconds that a layout may take."""
ROOT = Path(__file__).parents[1]


def measure(size: str, stage: int, *, ranks: int, tokens: int, updates: int) -> list[dict]:
    """What each rank found."""
    with tempfile.TemporaryDirectory() as folder:
        words = [size, stage, ranks, tokens, updates, folder]
        environment = os.environ | QUIET | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        processes = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "layout_rank.py"), *map(str, [*words, rank])],
                env=environment,
            )
            for rank in range(ranks)
        ]
        if any([process.wait(TIMEOUT) for process in processes]):
            raise SystemExit(f"a rank of {ranks} with --zero-stage {stage} failed")
        return [json.loads((Path(folder) / f"rank-{rank}.json").read_text()) for rank in range(ranks)]


def planned(size: str, stage: int, *, ranks: int, tokens: int) -> int:
    """Bytes that `paceline plan` says of a process that trains and does nothing else."""
    options = {"zero_stage": stage, "dtype": "bfloat16", "gradient_checkpointing": "true"}
    lengths = {"prompts_per_step": ranks, "num_generations": 2, "max_prompt_length": 1}
    lengths |= {"max_completion_length": tokens - 1, "micro_batch_tokens": tokens}
    config = build_config({"model": size, "dataset": "d", **options, **lengths})
    shape = model_shape(SHAPES[size], parameters=parameters(size))
    assert shape is not None
    memory = memory_plan(config, shape, layout(config.parallel, ranks))
    return memory.trained + memory.activations + memory.head


def parameters(size: str) -> int:
    """Of a Qwen2 model: biases at queries, keys and values, three matrices in the feed-forward part."""
    shape = SHAPES[size]
    width, inner, tokens = (int(shape[name]) for name in ("hidden_size", "intermediate_size", "vocab_size"))
    heads, pairs = int(shape["num_attention_heads"]), int(shape["num_key_value_heads"])
    kv = 2 * pairs * width // heads
    layer = 2 * width * width + width * kv + width + kv + 3 * width * inner + 2 * width
    return int(shape["num_hidden_layers"]) * layer + width + tokens * width * (1 if shape["tie_word_embeddings"] else 2)


def main() -> int:
    """Measure, print, write; the exit status: 1 where the layouts' losses differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SHAPES), default="qwen-0.5b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512, help="of each rank's micro-batch (default 512)")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the small shape; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    size = "30m" if asked.quick else asked.size
    where = machine(1, packages=("torch", "transformers"))
    found = {}
    print("| layout | peak of a rank | planned | off by | of copies |\n|---|--:|--:|--:|--:|")
    for name, stage in LAYOUTS.items():
        ranks = measure(size, stage, ranks=asked.ranks, tokens=asked.tokens, updates=asked.updates)
        peak = max(one["peak"] - one["before"] for one in ranks)
        plan = planned(size, stage, ranks=asked.ranks, tokens=asked.tokens)
        found[name] = {"peak": peak, "planned": plan, "loss": ranks[0]["loss"], "ranks": ranks}
        share = peak / found["copies"]["peak"]
        print(f"| {name} | {peak / 2**20:,.0f} MiB | {plan / 2**20:,.0f} MiB | {plan / peak - 1:+.1%} | {share:.3f} |")
    losses = [one["loss"] for one in found.values()]
    same = max(losses) - min(losses) <= 1e-3 * max(map(abs, losses))
    output = asked.output or (None if asked.quick else RESULTS)
    if output is not None:
        result = {"benchmark": "layouts", "size": size, "quick": asked.quick, "machine": where, "ranks": asked.ranks}
        print(write_result(output, {**result, "tokens": asked.tokens, "layouts": found}))
    if not same:
        print(f"losses differ: {losses}")
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
