"""A model's own forward pass over one row of tokens, the reference for every other; and its modes.

Dropout, layer drop and jitter would make the trained distribution differ from the sampled one, so all randomness is off
during training.

L tokens, V vocabulary.
"""

import contextlib
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

MISFITS = (AttributeError, TypeError, ValueError, KeyError, IndexError, RuntimeError, AssertionError)
"""Exceptions of a model that does not support the way it is called."""


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules in evaluation mode within the context; restore each one's mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def plain_logits(model: PreTrainedModel, row: Int[Tensor, " L"], dtype: torch.dtype) -> Float[Tensor, "L V"]:
    """Return the logits of a single row in evaluation mode, computed in `dtype` without padding, mask or cache."""
    with evaluating(model), computing_in(model, dtype):
        logits: Tensor = model(input_ids=row[None].to(model.device), use_cache=False).logits[0]
    return logits


def computing_in(model: PreTrainedModel, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Compute forward passes in `dtype` within the context, whatever the weights' precision."""
    return torch.autocast(model.device.type, dtype=dtype, enabled=dtype != model.dtype)


def keep_score_cap(model: PreTrainedModel) -> None:
    """Have a model that caps its attention scores compute attention by the formulas.

    Older releases of transformers choose torch's scaled-dot-product attention for it, and drop the cap silently.
    """
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")


def without_noise(model: nn.Module) -> None:
    """Put a model in evaluation mode, except modules that may recompute activations.

    Those only do so in training mode, so their own dropout rates are set to 0.
    """
    model.eval()
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.training = True
            for name, value in list(vars(module).items()):
                if is_noise(name, value):
                    setattr(module, name, 0.0)


def is_noise(name: str, value: object) -> bool:
    """Return whether an attribute is, by its name, a dropout rate or the size of a jitter."""
    return isinstance(value, float) and any(word in name for word in ("drop", "jitter"))
