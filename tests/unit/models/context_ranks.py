"""What one of two ranks that share the tokens of micro-batches finds, beside all of them."""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from paceline.config.layout import Sizes
from paceline.errors import ModelError
from paceline.models.forward import PolicyForward, choose_forward
from paceline.models.fused_layers import is_fused
from paceline.models.loaded import Loaded
from paceline.models.parallel.context import Exchange
from paceline.models.parallel.mesh import make_mesh
from paceline.models.parallel.mesh_ranks import MeshLayout
from paceline.models.parallel.process_group import Meeting, process_group
from paceline.models.parallel.ranks import WHOLE, ParallelLayout
from paceline.models.parallel.sharding import Sharding
from paceline.objective.micro_batches import MicroBatch, pack
from paceline.training.learner.forward_backward import WholeModel
from tests.laws.splitting import random_episodes, random_samples, relative
from tests.support.episodes import sample as make_sample

CPU = torch.device("cpu")
TOKENS = 3
"""The second of two ranks has one less."""


def by_hand(exchange: Exchange, rank: int) -> dict[str, list]:
    """Heads in the place of tokens and back: 3 tokens, 4 heads of queries, one of keys; a number is 10 token + head."""
    own = torch.tensor([[0.0, 1, 2, 3], [20, 21, 22, 23]] if rank == 0 else [[10.0, 11, 12, 13], [0, 0, 0, 0]])
    query, key = own[..., None].requires_grad_(), own[:, :1, None].clone().detach().requires_grad_()
    heads = exchange.to_heads(query, key, key)
    back = exchange.to_tokens(heads[0])
    # of the keys' gradient every rank gives 1 for each token that it has seen, in its queries' heads
    gradients = torch.autograd.grad(heads[1].sum() + (back * 3).sum(), (query, key))
    return {
        "queries": heads[0][..., 0].tolist(),
        "keys": heads[1][..., 0].tolist(),
        "back": back[..., 0].tolist(),
        "by queries": gradients[0][..., 0].tolist(),
        "by keys": gradients[1][..., 0].tolist(),
    }


def model_of(dtype: torch.dtype) -> PreTrainedModel:
    """A model whose layers the kernels of a CPU serve, in float32."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **heads)).to(dtype).train()


def batches() -> dict[str, MicroBatch]:
    """Several prompts and completions, and one whose only target is predicted by the second rank's token."""
    short = make_sample(group=0, prompt_ids=(5, 6), completion_ids=(7,), logprobs=(0.0,), advantage=1.0)
    found = {"several": random_samples(3), "episodes": random_episodes(3), "a rank without a target": [short]}
    return {
        name: pack(samples, [1.0] * len(samples), range(len(samples)), dtype=torch.float32)
        for name, samples in found.items()
    }


def passed(
    model: PreTrainedModel,
    forward: PolicyForward,
    batch: MicroBatch,
    layout: ParallelLayout,
    dtype: torch.dtype,
):
    """Values and gradients of a pass."""
    passes = WholeModel(forward=forward, temperature=0.7, parallel_layout=layout)
    loaded, said = Loaded(model=model, compute_dtype=dtype), list[Tensor]()

    def loss(_: int, logprobs: Tensor, entropy: Tensor) -> Tensor:
        said.append(logprobs.detach())
        places = torch.arange(1, len(logprobs) + 1)
        return (logprobs * places).sum() + (entropy * places.flip(0)).sum()

    model.zero_grad()
    passes.backward(loaded, [batch], loss)
    gradients = [one.grad for one in model.parameters()]
    return said[0], torch.cat([one.flatten() for one in gradients if one is not None]).clone()


def compared(layout: MeshLayout, dtype: torch.dtype) -> dict[str, float]:
    """How far values and summed gradients of both ranks are from those of one that has all tokens."""
    model = model_of(torch.float32)
    forward = choose_forward(model, dtype)
    assert is_fused(model)
    errors = {}
    for name, batch in batches().items():
        wanted = passed(model, forward, batch, WHOLE, dtype)
        values, gradient = passed(model, forward, batch, layout, dtype)
        torch.distributed.all_reduce(gradient)
        errors[f"values, {name}"] = relative(values, wanted[0])
        errors[f"gradients, {name}"] = relative(gradient, wanted[1])
    return errors


def kept(layout: MeshLayout) -> dict[str, int]:
    """The largest tensors that a pass over 256 tokens keeps, and what all of them take, beside those of all tokens."""
    model = model_of(torch.float32)
    forward = choose_forward(model)
    sample = make_sample(group=0, prompt_ids=(1,) * 16, completion_ids=(2,) * 241, advantage=1.0)
    batch = pack([sample], [1.0], [0], dtype=torch.float32)
    return {name: _kept(model, forward, batch, one) for name, one in (("alone", WHOLE), ("shared", layout))}


def _kept(model: PreTrainedModel, forward: PolicyForward, batch: MicroBatch, layout: ParallelLayout) -> int:
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    saved = dict[int, int]()

    def note(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _alive = forward.of(model, layout.tokens(batch))
    return sum(saved.values())


def refused(layout: MeshLayout) -> str:
    """What is said of a model whose rows are padded."""
    padded = PolicyForward(kind="padded", reason="some layers attend to a sliding window")
    try:
        padded.of(model_of(torch.float32), layout.tokens(batches()["several"]))
    except ModelError as error:
        return str(error)
    return ""


def work(rank: int, folder: str) -> None:
    """One of two ranks: everything that the tests ask about."""
    torch.set_num_threads(1)
    with process_group(Meeting(file=Path(folder, "meeting")), rank=rank, size=2, device=CPU, timeout=60):
        mesh = make_mesh(Sizes(replicate=2, context=2), CPU)
        layout = MeshLayout(mesh=mesh, sharding=Sharding(stage=0))
        assert mesh.context is not None
        found = {
            "exchanged": by_hand(Exchange(group=mesh.context, tokens=TOKENS), rank),
            "float32": compared(layout, torch.float32),
            "bfloat16": compared(layout, torch.bfloat16),
            "kept": kept(layout),
            "refused": refused(layout),
        }
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
