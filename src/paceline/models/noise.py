"""Dropout, layer drop and jitter: what a model draws at random in training mode, and none of it while it is trained.

It would make the trained distribution another one than the sampled one.
"""

from torch import nn


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
