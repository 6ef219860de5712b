"""Weights on their way into vLLM, against a plain copy of the same memory.

    .venv-vllm/bin/python benchmarks/bench_sync.py [--size 30m|qwen-0.5b] [--repetitions 7]

Run with the Python of `make vllm`. Parts of a sync, which take turns, each its best repetition; float32:

| part        | what it is                                                                                     |
|-------------|------------------------------------------------------------------------------------------------|
| copy        | every parameter copied into another tensor: what no sync can be faster than                     |
| fingerprint | 64 bits over all parameters, as both sides of two processes make it                             |
| arrive      | parameters written from a store's memory, and their fingerprint compared: `write_buckets`       |
| load        | vLLM takes all weights: read, packed for its kernels, put in the place of the old               |
| probe       | a few tokens through vLLM and through the trainer's model                                       |
| adapter     | bytes of a LoRA adapter of rank 16 on all linear layers, as a share of all weights: no time     |
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping

import torch
from materials import SHAPES
from transformers import Qwen2Config, Qwen2ForCausalLM

from paceline.cluster.weights import fingerprint, manifest_of, read_bucket, write_buckets
from paceline.engines.vllm.delivery import deliver
from paceline.engines.vllm.engine import VllmEngine
from paceline.engines.vllm.room import Room
from tests.tiny import tiny_tokenizer

RANK = 16
LENGTH = 256


def main() -> None:
    """Measure and print, a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("30m", "qwen-0.5b"), default="30m")
    parser.add_argument("--repetitions", type=int, default=7)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPES[given.size])).eval()
    engine = VllmEngine(
        model,
        tiny_tokenizer(),
        compute_dtype=torch.float32,
        eos_token_ids=frozenset(),
        room=Room(sequences=8, length=LENGTH, cache_bytes=64 << 20),
    )
    seconds = _best(_parts(model, engine), given.repetitions)
    size = sum(parameter.nbytes for parameter in model.parameters())
    adapter = _adapter_bytes(model) / size
    for name, value in seconds.items():
        print(f"| {name} | {value * 1e3:.1f} ms | {value / seconds['copy']:.2f} x |")
    print(f"| adapter | {adapter:.1%} of {size / 2**20:.0f} MiB |")
    print(json.dumps({"size": given.size, "bytes": size, "adapter": adapter, "seconds": seconds}))


def _parts(model: Qwen2ForCausalLM, engine: VllmEngine) -> dict[str, Callable[[], object]]:
    targets = [torch.empty_like(parameter) for parameter in model.parameters()]
    manifest = manifest_of(model, version=1, policy_version=1)
    buckets = [[array.copy() for array in read_bucket(model, names)] for names in manifest.buckets]

    @torch.no_grad()
    def copy() -> None:
        for target, parameter in zip(targets, model.parameters(), strict=True):
            target.copy_(parameter)

    return {
        "copy": copy,
        "fingerprint": lambda: fingerprint(model.parameters()),
        "arrive": lambda: write_buckets(model, manifest, buckets),
        "load": lambda: deliver(engine._vllm, engine._weights(), workers=1),
        "probe": engine._probe,
    }


def _best(parts: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Seconds of each part undisturbed; they take turns, after one round for warming up."""
    seconds = {name: list[float]() for name in parts}
    for _ in range(repetitions + 1):
        for name, part in parts.items():
            started = time.perf_counter()
            part()
            seconds[name].append(time.perf_counter() - started)
    return {name: min(values[1:]) for name, values in seconds.items()}


def _adapter_bytes(model: Qwen2ForCausalLM) -> int:
    """Of float32 matrices A [rank, inputs] and B [outputs, rank] on every linear layer but the head."""
    layers = [one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear) and name != "lm_head"]
    return sum(4 * RANK * (one.in_features + one.out_features) for one in layers)


if __name__ == "__main__":
    main()
