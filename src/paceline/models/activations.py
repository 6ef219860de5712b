"""What a forward pass keeps for the backward pass: computed again layer by layer, or held in main memory.

    forward    layer 1   layer 2   layer 3   layer 4          of layers 1 and 2 only the inputs are kept
    backward   layer 4   layer 3   2 again, 2   1 again, 1

The first layers are recomputed: when the backward pass reaches them, the activations of the others are free. So only
one layer's activations at a time come on top of what was kept. The last layer's are needed at once in any case.
"""

import contextlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

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


def in_main_memory(model: PreTrainedModel) -> contextlib.AbstractContextManager[object]:
    """Inside, what a forward pass keeps waits in main memory, and comes back for the backward pass; the weights stay.

    Layers that are computed again keep their inputs where they are.
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
    """Addresses of the storages behind the weights that lie on this rank."""
    here = (one.to_local() if isinstance(one, DTensor) else one for one in model.parameters())
    return {parameter.untyped_storage().data_ptr() for parameter in here}
