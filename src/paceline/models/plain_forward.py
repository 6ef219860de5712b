"""A model's own forward pass over one row of tokens: what every other way through the model is held to.

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
