"""Mixtures of experts in bfloat16: routes of engine and trainer that differ, and the mismatch without and with replay.

    OMP_NUM_THREADS=1 python benchmarks/bench_routes.py [--device cpu|cuda] [--output DIR]

Five families of six layers, width 64 and random weights, 16 experts of which each token takes four. The engine
decodes 16 completions of 48 tokens to each of 4 prompts; the trainer computes the same tokens with its own routes,
and with the engine's. `differ` is the share of routes, token by layer, where another set of experts was chosen,
`tokens` the share of tokens with such a layer. `k3` is the mean of exp(r) - 1 - r over the sampled tokens, where r is
the trainer's logprob less the engine's: an estimate of their KL divergence in nats. `largest` is the largest |r|.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from machine import described
from running import RESULTS, write_result
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paceline.engines import Request, Sampling, sample_key
from paceline.engines.local.engine import LocalEngine
from paceline.models.forward import choose_forward
from paceline.models.loaded import Loaded
from paceline.models.plain_forward import computing_in
from paceline.models.routing import routing_of
from paceline.models.rows import on_device
from paceline.objective.micro_batches import MicroBatch, Sample, pack
from paceline.training.learner.forward_backward import WholeModel
from paceline.types import completed
from tests.support.tiny import tiny_tokenizer

EXPERTS, CHOSEN = 16, 4
SIZES = {
    "vocab_size": 260, "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258, "hidden_size": 64,
    "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.1,
    "num_experts_per_tok": CHOSEN, "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "gpt_oss": {"sliding_window": 16},
    "glm4_moe": {"first_k_dense_replace": 0},
    "deepseek_v3": {"first_k_dense_replace": 0, "n_group": 4, "topk_group": 2, **LATENT},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3, "num_dense_layers": 0},
}
PROMPTS, GENERATIONS, LENGTH = 4, 16, 48


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the result file")
    asked = parser.parse_args()
    found = {name: measured(name, torch.device(asked.device)) for name in FAMILIES}
    for name, values in found.items():
        print(f"| {name} | " + " | ".join(f"{value:.2g}" for value in values.values()) + " |")
    result = {"benchmark": "routes", "size": "tiny", "machine": described(asked.device, threads=1), "families": found}
    print(write_result(asked.output, result, prefix="gpu-" if asked.device == "cuda" else ""))
    return 0


def measured(name: str, device: torch.device) -> dict[str, float]:
    """Sample with one family's model, and compare the trainer's pass without and with the engine's routes."""
    model = _model(name).to(device)
    forward, dtype = choose_forward(model, torch.bfloat16), torch.bfloat16
    engine = LocalEngine(
        model,
        tiny_tokenizer(),
        concurrent_sequences=64,
        compute_dtype=dtype,
        eos_token_ids=frozenset(),
        notes_routes=True,
    )
    drawn = torch.randint(256, (PROMPTS, 24), generator=torch.Generator().manual_seed(1)).tolist()
    requests = [
        Request(
            prompt_ids=tuple(prompt),
            keys=tuple(sample_key(0, "train", str(number), 0, sample) for sample in range(GENERATIONS)),
        )
        for number, prompt in enumerate(drawn)
    ]
    samples = list[Sample]()
    completions = engine.generate(requests, Sampling(max_completion_length=LENGTH))
    for number, (request, group) in enumerate(zip(requests, completions, strict=True)):
        for one in group:
            prompt, policy = completed(request.prompt_ids, one).spans
            row = Sample(
                group=number,
                prompt_ids=prompt.tokens,
                prompt_routes=group[0].prompt_routes,
                spans=(policy,),
                advantages=(1.0,),
            )
            samples.append(row)
    batch = on_device(pack(samples, [1.0] * len(samples), range(len(samples)), dtype=torch.float32), device)
    runner, loaded = WholeModel(forward=forward, temperature=1.0), Loaded(model=model, compute_dtype=dtype)
    differ = _differing(model, forward, batch)
    without, given = (_mismatch(runner, loaded, some) for some in (replace(batch, routes=None), batch))
    return {
        "differ": float(differ.float().mean()),
        "tokens": float(differ.any(-1).float().mean()),
        "k3_without": without[0],
        "k3_with": given[0],
        "largest_without": without[1],
        "largest_with": given[1],
    }


def _model(name: str) -> PreTrainedModel:
    own = AutoConfig.for_model(name).to_dict()
    settings = {key: value for key, value in SIZES.items() if key in own or key.endswith("token_id")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(name, **{**settings, **FAMILIES[name]})
        )
    return model.eval()


def _differing(model: PreTrainedModel, forward: Any, batch: MicroBatch) -> torch.Tensor:
    """Whether the trainer, without given routes, chooses other experts: for each target and layer."""
    with torch.no_grad(), computing_in(model, torch.bfloat16):
        forward(model, replace(batch, routes=None))
    routing = routing_of(model)
    assert routing is not None
    chosen = routing.chosen()
    assert chosen is not None
    assert batch.routes is not None
    own, engines = (
        routes.index_select(0, batch.sources).unflatten(1, (-1, CHOSEN)).sort(-1).values
        for routes in (chosen, batch.routes)
    )
    known = (engines != 255).all()
    assert known, "a route of a target is not known"
    return (own != engines).any(-1)


def _mismatch(runner: WholeModel, loaded: Loaded, batch: MicroBatch) -> tuple[float, float]:
    (values,) = runner.values(loaded, [batch])
    assert values is not None
    ratio = (values[0] - batch.rollout_logprobs).double()
    return float((ratio.exp() - 1 - ratio).mean()), float(ratio.abs().max())


if __name__ == "__main__":
    raise SystemExit(main())
