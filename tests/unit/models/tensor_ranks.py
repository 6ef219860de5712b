"""What one rank of a tensor axis finds beside the whole model that it has as well."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from paceline.config.layout import Sizes
from paceline.config.sections import LoraConfig
from paceline.errors import ModelError
from paceline.kernels.linear import speed_up_linear_layers
from paceline.kernels.logprobs import token_logprobs
from paceline.models.activations import recompute
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.loaded import Loaded
from paceline.models.lora import add_adapter, make_lora_config
from paceline.models.parallel.mesh import Mesh, make_mesh
from paceline.models.parallel.mesh_ranks import MeshLayout, MeshRanks
from paceline.models.parallel.process_group import Meeting, RankLost, process_group
from paceline.models.parallel.ranks import WHOLE, ParallelLayout
from paceline.models.parallel.sharding import Sharding
from paceline.models.parallel.tensor_layers import shared, vocabulary_passes
from paceline.models.tied_embedding import add_up_in_place
from paceline.objective.micro_batches import MicroBatch, pack
from paceline.training.learner.forward_backward import head_values
from tests.laws.splitting import random_samples, relative

CPU = torch.device("cpu")
LAYERS, TEMPERATURE = 2, 0.7
SIZES = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": random_samples(3)[0].prompt_ids[0],  # its embedding is read, and takes no gradient
    "bos_token_id": 257,
    "eos_token_id": 258,
}


def model_of(config_class: type, model_class: type, dtype: torch.dtype = torch.float64, **settings: object) -> Loaded:
    """Random weights, drawn alike on every rank; biases too, which would start as zeros."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config_class(**SIZES | settings))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_(std=0.2)
    return Loaded(model=model.to(dtype).train(), compute_dtype=dtype)


def gemma() -> Loaded:
    return model_of(GemmaConfig, GemmaForCausalLM, head_dim=8)


def gemma2() -> Loaded:
    return model_of(Gemma2Config, Gemma2ForCausalLM, head_dim=8, sliding_window=32, final_logit_softcapping=None)


def phi() -> Loaded:
    return model_of(PhiConfig, PhiForCausalLM)


def mistral() -> Loaded:
    return model_of(MistralConfig, MistralForCausalLM, sliding_window=None)


def llama_with_biases() -> Loaded:
    return model_of(LlamaConfig, LlamaForCausalLM, attention_bias=True, mlp_bias=True)


def llama_with_one_embedding_and_every_shortcut() -> Loaded:
    loaded = model_of(LlamaConfig, LlamaForCausalLM, torch.float32, tie_word_embeddings=True, num_attention_heads=2)
    speed_up_linear_layers(loaded.model)  # and head_dim is 16, which the fused layers serve
    add_up_in_place(loaded.model)
    return loaded


def qwen3_with_an_odd_vocabulary() -> Loaded:
    return model_of(Qwen3Config, Qwen3ForCausalLM, vocab_size=261, head_dim=8)


def llama_with_one_key_value_head() -> Loaded:
    return model_of(LlamaConfig, LlamaForCausalLM, num_key_value_heads=1, attention_bias=True)


def qwen3_with_adapters_beside_one_key_value_head() -> Loaded:
    return qwen3_with_adapters_everywhere(num_key_value_heads=1)


def qwen3_with_adapters_everywhere(**settings: object) -> Loaded:
    settings |= {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": False}
    loaded = model_of(Qwen3Config, Qwen3ForCausalLM, **settings)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens"]
    loaded = add_adapter(loaded, make_lora_config(LoraConfig(lora_rank=4, lora_targets=tuple(names))))
    generator = torch.Generator().manual_seed(0)
    for parameter in loaded.model.parameters():
        if parameter.requires_grad:
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return loaded


def qwen3_computed_again() -> Loaded:
    loaded = model_of(Qwen3Config, Qwen3ForCausalLM, head_dim=8)
    recompute(loaded.model, None)
    return loaded


def qwen3_with_experts(**settings: object) -> Loaded:
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    loaded = model_of(Qwen3MoeConfig, Qwen3MoeForCausalLM, **(sizes | settings))
    loaded.model.set_experts_implementation("eager")
    return loaded


def olmo_with_experts() -> Loaded:
    return model_of(OlmoeConfig, OlmoeForCausalLM, num_experts=4, num_experts_per_tok=2, experts_implementation="eager")


MODELS: dict[str, Callable[[], Loaded]] = {
    "gemma": gemma,
    "gemma2": gemma2,
    "phi": phi,
    "mistral": mistral,
    "llama, biases": llama_with_biases,
    "llama, one embedding, every shortcut": llama_with_one_embedding_and_every_shortcut,
    "qwen3, odd vocabulary": qwen3_with_an_odd_vocabulary,
    "qwen3, adapters everywhere": qwen3_with_adapters_everywhere,
    "qwen3, computed again": qwen3_computed_again,
    "qwen3, experts": qwen3_with_experts,
    "qwen3, experts in one layer of two": lambda: qwen3_with_experts(mlp_only_layers=[0]),
    "olmo, experts beside whole attention": olmo_with_experts,
    "llama, one key/value head": llama_with_one_key_value_head,
    "qwen3, one key/value head, adapters everywhere": qwen3_with_adapters_beside_one_key_value_head,
}


def refused() -> dict[str, Loaded]:
    """Models that no rank may be left a part of."""
    bitten = model_of(PhiConfig, PhiForCausalLM, qk_layernorm=True)
    doubled = model_of(LlamaConfig, LlamaForCausalLM)
    doubled.model.base_model.layers[1].mlp.up_proj = torch.nn.Sequential(torch.nn.Linear(32, 64))
    import peft

    dora = model_of(LlamaConfig, LlamaForCausalLM)
    dora = add_adapter(dora, peft.LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    adapted = add_adapter(qwen3_with_experts(), LoraConfig(lora_rank=2, lora_parameters=("all-experts",)))
    wide, uncounted = llama_with_one_key_value_head(), llama_with_one_key_value_head()
    wide.model.base_model.layers[1].self_attn.k_proj = torch.nn.Linear(32, 16)
    del uncounted.model.base_model.layers[1].self_attn.num_key_value_groups
    return {
        "a norm beside the plan": bitten,
        "no linear layer": doubled,
        "DoRA": dora,
        "an adapter beside experts": adapted,
        "experts by other products": qwen3_with_experts(),
        "two keys for one key/value head": wide,
        "no number of groups": uncounted,
    }


def batch(dtype: torch.dtype) -> MicroBatch:
    samples = random_samples(3)
    return pack(samples, [1.0] * len(samples), range(len(samples)), dtype=dtype)


def run(
    model: PreTrainedModel, forward: PolicyForward, given: MicroBatch, layout: ParallelLayout
) -> tuple[Tensor, Tensor]:
    hidden = forward(model, given)
    return head_values(model, hidden, given.targets, temperature=TEMPERATURE, rule=forward.head, parallel_layout=layout)


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    whole = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in whole.items()}


def compared(loaded: Loaded, mesh: Mesh) -> dict[str, object]:
    """How far logprobs, entropies and gradients of the split model are from the whole one's, and what was sent."""
    model, forward = loaded.model, choose_forward(loaded.model)
    given = batch(model.dtype)
    layout = MeshLayout(mesh=mesh, sharding=Sharding(stage=0))

    def loss(values: tuple[Tensor, Tensor]) -> Tensor:
        share = torch.linspace(-1, 2, len(given.targets), dtype=model.dtype)
        return (share * values[0]).sum() + 0.3 * (share.flip(0) * values[1]).sum()

    wanted = run(model, forward, given, WHOLE)
    loss(wanted).backward()
    expected = {name: one.clone() for name, one in gradients(model).items()}
    model.zero_grad()
    layout.apply(model, model.dtype)
    with Sent() as there:
        found = run(model, forward, given, layout)
    with Sent() as back:
        loss(found).backward()
    MeshRanks(mesh, layout).add_up_gradients(model)
    got = gradients(model)
    assert set(got) == set(expected)
    return {
        "values": max(relative(one, other) for one, other in zip(found, wanted, strict=True)),
        "gradients": {name: relative(got[name], expected[name]) for name in got},
        "parts": sorted(name for name, one in model.named_parameters() if isinstance(one, DTensor)),
        "sent": [there.counts, back.counts],
    }


def eager(mesh: Mesh) -> float:
    """How far hidden states of transformers' own attention, which repeats keys by a number, are from the whole's."""
    model = model_of(LlamaConfig, LlamaForCausalLM, num_key_value_heads=1, attn_implementation="eager").model
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        whole = model.base_model(tokens).last_hidden_state
        MeshLayout(mesh=mesh, sharding=Sharding(stage=0)).apply(model, model.dtype)
        return relative(model.base_model(tokens).last_hidden_state, whole)


class Sent(TorchDispatchMode):
    """Counts calls of collectives, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def in_half(mesh: Mesh) -> dict[str, float]:
    """Under bfloat16 autocast, how far whole and split model are from the exact logprobs."""
    loaded = model_of(Qwen3Config, Qwen3ForCausalLM, torch.float32, head_dim=8)
    model, forward, layout = (
        loaded.model,
        choose_forward(loaded.model),
        MeshLayout(mesh=mesh, sharding=Sharding(stage=0)),
    )
    given = batch(torch.float32)
    with torch.no_grad():
        exact = run(model, forward, given, WHOLE)[0]

        def logprobs(layout: ParallelLayout) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = forward(model, given).bfloat16()
            return head_values(
                model, hidden, given.targets, temperature=TEMPERATURE, rule=forward.head, parallel_layout=layout
            )[0]

        whole = logprobs(WHOLE)
        layout.apply(model, model.dtype)
        part = logprobs(layout)
    return {"whole": relative(whole, exact), "part": relative(part, exact), "dtype": str(part.dtype)}


def of_a_vocabulary(mesh: Mesh, dtype: torch.dtype, temperature: float) -> dict[str, float]:
    """How far logprobs, entropies and gradients are from those of one process with all logits."""
    generator = torch.Generator().manual_seed(7)
    place, width = mesh.devices.get_local_rank("tensor"), 31
    hidden = 2 * torch.randn(23, 8, generator=generator, dtype=dtype)
    head = torch.randn(2 * width, 8, generator=generator, dtype=dtype)
    targets = torch.randint(2 * width, (23,), generator=generator)
    shares = torch.randn(2, 23, generator=generator, dtype=dtype)
    results = []
    for rows, passes in (
        (head, None),
        (head[place * width :][:width], vocabulary_passes(mesh.devices.get_group("tensor"))),
    ):
        inputs = hidden.clone().requires_grad_(), rows.clone().requires_grad_()
        # a few rows at a time, so that there is more than one chunk
        values = token_logprobs(
            *inputs, targets, temperature=temperature, chunk_elements=64, product_rows=5, passes=passes
        )
        results.append(
            {
                "values": torch.stack(values).detach(),
                "by logprobs": torch.autograd.grad((shares[0] * values[0]).sum(), inputs, retain_graph=True),
                "by entropy": torch.autograd.grad((shares[1] * values[1]).sum(), inputs, retain_graph=True),
                "by both": torch.autograd.grad((shares * torch.stack(values)).sum(), inputs),
            }
        )
    wanted, found = results
    errors = {"values": relative(found["values"], wanted["values"])}
    for kind in ("by logprobs", "by entropy", "by both"):
        by_hidden = found[kind][0].clone()
        torch.distributed.all_reduce(by_hidden, group=mesh.devices.get_group("tensor"))
        errors[f"hidden {kind}"] = relative(by_hidden, wanted[kind][0])
        errors[f"head {kind}"] = relative(found[kind][1], wanted[kind][1][place * width :][:width])
    return errors


def sentences(mesh: Mesh) -> dict[str, str]:
    """What is said of models that are refused, and that they are left as they were."""
    said = {}
    for name, loaded in refused().items():
        kinds = [type(module) for module in loaded.model.modules()]
        try:
            MeshLayout(mesh=mesh, sharding=Sharding(stage=0)).apply(loaded.model, loaded.compute_dtype)
        except ModelError as error:
            said[name] = str(error)
        assert kinds == [type(module) for module in loaded.model.modules()]
    return said


def alone(mesh: Mesh) -> str:
    """What is said in a backward pass when the other rank has left."""
    x = torch.ones(3, requires_grad=True)
    try:
        shared(x, mesh.devices.get_group("tensor")).sum().backward()
    except RankLost as error:
        return str(error)
    return ""


def work(rank: int, folder: str) -> None:
    """One of two ranks: everything that the tests ask about."""
    torch.set_num_threads(1)
    with process_group(Meeting(file=Path(folder, "meeting")), rank=rank, size=2, device=CPU, timeout=60):
        mesh = make_mesh(Sizes(tensor=2), CPU)
        found = {
            "models": {name: compared(make(), mesh) for name, make in MODELS.items()},
            "vocabulary": {
                f"{dtype}, {temperature}": of_a_vocabulary(mesh, dtype, temperature)
                for dtype in (torch.float64, torch.float32)
                for temperature in (1.0, 0.7)
            },
            "half": in_half(mesh),
            "eager": eager(mesh),
            "refused": sentences(mesh),
            "left": alone(mesh) if rank == 0 else None,
        }
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
