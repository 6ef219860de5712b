"""What a forward pass keeps for the backward pass: measured, computed again layer by layer, or held in main memory.

    forward    layer 1   layer 2   layer 3   layer 4          of layers 1 and 2 only the inputs are kept
    backward   layer 4   layer 3   2 again, 2   1 again, 1

The first layers are recomputed: when the backward pass reaches them, the activations of the others are free. So only
one layer's activations at a time come on top of what was kept. The last layer's are needed at once in any case.
"""

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from paceline.models.activation_checkpointing import Activations
from paceline.models.rows import on_device
from paceline.objective.micro_batches import MicroBatch, Sample, pack

if TYPE_CHECKING:
    from paceline.models.forward import PolicyForward


FEW_ELEMENTS = 1 << 14
"""A tensor below this stays where it is: a transfer to the other memory takes longer than the space is worth."""


def recompute(model: PreTrainedModel, count: int | None) -> None:
    """Compute the activations of the first `count` layers again in the backward pass; None: of all of them.

    The gradient stays the same, on a CPU bit for bit.
    """
    # the reentrant kind gives no gradient where a segment's inputs need none, as under an adapter
    kind = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=kind)
    else:  # the older name
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kind)
    if count is not None:
        for number, layer in enumerate(layers_of(model)):
            layer.gradient_checkpointing = number < count


def is_recomputing(model: nn.Module) -> bool:
    """Return whether any part of the model is computed again in the backward pass."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def layers_of(model: nn.Module) -> list[GradientCheckpointingLayer]:
    """Those that can be computed again one by one."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def measure_activations(model: PreTrainedModel, forward: "PolicyForward", compute_dtype: torch.dtype) -> Activations:
    """Measure what a forward pass keeps by two short ones, whose difference leaves out what is kept once.

    These are the weights' copies in `compute_dtype`. Attention over longer sequences keeps no more per token, but for
    the keys and values of a prompt, which every one of its completions copies.
    """
    nbytes, tokens = list[int](), list[int]()
    for prompts in (2, 1):  # of 8 tokens each, with four completions of 8 inputs to each
        samples = [
            Sample(
                group=n // 4, prompt_ids=(0,) * 8, completion_ids=(0,) * 9, rollout_logprobs=(0.0,) * 9, advantage=0.0
            )
            for n in range(4 * prompts)
        ]
        batch = pack(samples, [0.0] * len(samples), range(len(samples)), dtype=model.dtype)
        nbytes.append(_saved_bytes(model, forward, on_device(batch, model.device), compute_dtype))
        tokens.append(batch.num_forwarded(forward.kind))
    return Activations(
        all_layers=(nbytes[0] - nbytes[1]) / (tokens[0] - tokens[1]),
        layer_input=model.config.get_text_config().hidden_size * model.dtype.itemsize,
        layers=len(layers_of(model)),
    )


def _saved_bytes(
    model: PreTrainedModel, forward: "PolicyForward", batch: MicroBatch, compute_dtype: torch.dtype
) -> int:
    """Storage behind everything that autograd keeps, each piece once, the weights not counted."""
    weights, saved = _addresses(model), dict[int, int]()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        # the tensor itself would hold the node that holds it: a ring through C++ that is never freed
        return tensor.detach()

    half = compute_dtype != model.dtype
    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        torch.autocast(model.device.type, dtype=compute_dtype, enabled=half),
    ):
        _alive = forward(model, batch)  # with it all that was noted, so that no address is used twice
    return sum(saved.values())


def in_main_memory(model: PreTrainedModel) -> contextlib.AbstractContextManager[object]:
    """Inside, what a forward pass keeps waits in main memory, and comes back for the backward pass; the weights stay.

    Layers that are computed again keep their inputs where they are.
    """
    weights = _addresses(model)

    def out(tensor: Tensor) -> tuple[torch.device, Tensor]:
        if tensor.numel() < FEW_ELEMENTS or tensor.untyped_storage().data_ptr() in weights:
            return tensor.device, tensor.detach()  # as above: never the tensor itself
        # page-locked memory is what a GPU can copy to and from by itself
        there = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
        return tensor.device, there.copy_(tensor)

    def back(kept: tuple[torch.device, Tensor]) -> Tensor:
        device, tensor = kept
        return tensor.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(out, back)


def _addresses(model: nn.Module) -> set[int]:
    here = (one.to_local() if isinstance(one, DTensor) else one for one in model.parameters())
    return {parameter.untyped_storage().data_ptr() for parameter in here}
