"""Saved activations of a forward pass: recomputed layer by layer, or held in main memory.

    forward    layer 1   layer 2   layer 3   layer 4          of layers 1 and 2 only the inputs are kept
    backward   layer 4   layer 3   2 again, 2   1 again, 1

The first layers are recomputed: when the backward pass reaches them, the activations of the others are free. So only
one layer's activations at a time come on top of what was kept. The last layer's are needed at once in any case.
"""

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from paceline.models.head import decoder_of

FEW_ELEMENTS = 1 << 14
"""Elements below which a tensor stays on its device, as a transfer costs more than the space is worth."""


def recompute(model: PreTrainedModel, count: int | None) -> None:
    """Recompute the activations of the first `count` layers in the backward pass; None: of all of them.

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
    """Return whether any part of the model is recomputed in the backward pass."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def layers_of(model: nn.Module) -> list[GradientCheckpointingLayer]:
    """Return the layers that can be recomputed one by one; of a model that also reads images the language model's."""
    body = decoder_of(model) if isinstance(model, PreTrainedModel) else model
    return [module for module in body.modules() if isinstance(module, GradientCheckpointingLayer)]


def in_main_memory(model: PreTrainedModel) -> contextlib.AbstractContextManager[object]:
    """Within the context, saved activations wait in main memory for the backward pass; weights stay on the device.

    Inputs of recomputed layers stay on the device too.
    """
    weights = weight_addresses(model)

    def out(tensor: Tensor) -> tuple[torch.device, Tensor]:
        if tensor.numel() < FEW_ELEMENTS or tensor.untyped_storage().data_ptr() in weights:
            return tensor.device, tensor.detach()  # never the tensor itself, which would hold the node that holds it
        # page-locked memory is what a GPU can copy to and from by itself
        there = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
        return tensor.device, there.copy_(tensor)

    def back(kept: tuple[torch.device, Tensor]) -> Tensor:
        device, tensor = kept
        return tensor.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(out, back)


def weight_addresses(model: nn.Module) -> set[int]:
    """Return the addresses of the storages of the weights on this rank."""
    here = (parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in model.parameters())
    return {parameter.untyped_storage().data_ptr() for parameter in here}


def saved_bytes(model: nn.Module, compute: Callable[[], object]) -> int:
    """Return the bytes of all storages that autograd saves of a computation, without weights."""
    weights, saved = weight_addresses(model), dict[int, int]()

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        # the tensor itself would hold the node that holds it: a ring through C++ that is never freed
        return tensor.detach()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _alive = compute()  # keeps everything alive, so that no address is used twice
    return sum(saved.values())
