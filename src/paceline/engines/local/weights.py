"""What a Llama-like transformers module holds, as plain tensors: the fused decoder's view of the learner's weights.

H query heads, K key/value heads, D head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from paceline.engines.local.adapters import is_adapted, linear_problem
from paceline.engines.local.operations import Linear
from paceline.models.sliding_windows import partial_attention

# Their modules differ in biases and in query/key norms only, which are read off the module.
KNOWN_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# The other types change their frequencies with the length of the sequence.
FIXED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why the fused decoder cannot read this model, None when it can."""
    name, config = type(model).__name__, model.config
    if name not in KNOWN_ARCHITECTURES:
        return f"{name} is not among the architectures that it knows ({', '.join(KNOWN_ARCHITECTURES)})"
    if config.hidden_act != "silu":
        return f"hidden_act is {config.hidden_act!r}, not 'silu'"
    if (reason := partial_attention(config)) is not None:
        return reason
    rope_type = model.model.rotary_emb.rope_type
    if rope_type not in FIXED_ROPE_TYPES:
        return f"rope_type is {rope_type!r}, not one of {', '.join(FIXED_ROPE_TYPES)}"
    for layer in model.model.layers:
        for path in _PROJECTIONS + _MLP:
            problem = linear_problem(layer.get_submodule(path))
            if problem is not None:
                return f"{path} {problem}"
    return _other_adapter(model)


def _other_adapter(model: PreTrainedModel) -> str | None:
    """Adapters anywhere but in the linear layers, which have been looked at."""
    for name, module in model.named_modules():
        if is_adapted(module) and not name.endswith(_PROJECTIONS + _MLP):
            return f"{name} has an adapter that it cannot read ({type(module).__name__})"
    return None


def joined(layers: Sequence[Linear], dtype: torch.dtype) -> Linear:
    """Layers of one input below each other, in `dtype`: a single one's own tensors where they have it.

    Several are written where they will lie, so that nothing is copied twice. All have a bias, or none has.
    """
    weight = _below_each_other([weight for weight, _ in layers], dtype)
    biases = [bias for _, bias in layers if bias is not None]
    return weight, _below_each_other(biases, dtype) if biases else None


def _below_each_other(
    parts: Sequence[Float[Tensor, "O *I"]],  # noqa: F821 - dimensions
    dtype: torch.dtype,
) -> Float[Tensor, "Os *I"]:  # noqa: F821
    if len(parts) == 1:
        return parts[0].to(dtype)
    sizes = [len(part) for part in parts]
    whole = parts[0].new_empty(sum(sizes), *parts[0].shape[1:], dtype=dtype)
    for place, part in zip(whole.split(sizes), parts, strict=True):
        place.copy_(part)
    return whole


def joined_qk_norm(attention: Any, dtype: torch.dtype) -> Float[Tensor, "H+K D"]:
    """Scales of the norms over query and key heads, one for each head."""
    head_width = attention.head_dim
    scales = [
        norm.weight.detach().to(dtype).expand(projection.out_features // head_width, head_width)
        for norm, projection in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj))
    ]
    return torch.cat(scales)
