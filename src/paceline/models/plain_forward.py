"""A model's own forward pass over one row of tokens, which every other way through it is held to; and its modes.

Dropout, layer drop and jitter would make the trained distribution another one than the sampled one, so nothing is drawn
at random while a model is trained.

L tokens, V vocabulary.
"""

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

MISFITS = (AttributeError, TypeError, ValueError, KeyError, IndexError, RuntimeError, AssertionError)
"""What a model raises when it is called in a way that it was not written for."""


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, all modules are in evaluation mode; afterwards each is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def plain_logits(model: PreTrainedModel, row: Int[Tensor, " L"], dtype: torch.dtype) -> Float[Tensor, "L V"]:
    """Logits in evaluation mode, computed in `dtype`: alone, without padding, mask, positions or cache."""
    with evaluating(model), computing_in(model, dtype):
        logits: Tensor = model(input_ids=row[None].to(model.device), use_cache=False).logits[0]
    return logits


def computing_in(model: PreTrainedModel, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Inside, a forward pass computes in `dtype`, whatever precision the weights have."""
    return torch.autocast(model.device.type, dtype=dtype, enabled=dtype != model.dtype)


def without_noise(model: nn.Module) -> None:
    """Put a model in evaluation mode, but for modules that are asked whether to recompute activations.

    Those must be in training mode for it, with the shares that they drop themselves set to 0.
    """
    model.eval()
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.training = True
            for name, value in list(vars(module).items()):
                if is_noise(name, value):
                    setattr(module, name, 0.0)


def is_noise(name: str, value: object) -> bool:
    """Return whether a number by its name is the share of something that is dropped, or the size of a jitter."""
    return isinstance(value, float) and any(word in name for word in ("drop", "jitter"))
