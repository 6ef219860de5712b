"""Load policy and reference models, and run their forward pass over a micro-batch."""

from paceline.models.forward import PolicyForward, choose_forward, on_device
from paceline.models.loading import (
    Loaded,
    choose_device,
    context_length,
    load_model,
    load_tokenizer,
    model_directory,
    save_model,
)

__all__ = [
    "Loaded",
    "PolicyForward",
    "choose_device",
    "choose_forward",
    "context_length",
    "load_model",
    "load_tokenizer",
    "model_directory",
    "on_device",
    "save_model",
]
