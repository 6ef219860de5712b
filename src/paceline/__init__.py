"""Fine-tune language models with group-relative reinforcement learning on verifiable rewards."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.api.config import GRPOConfig
    from paceline.api.trainer import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]

_HOMES = {"GRPOConfig": "paceline.api.config", "GRPOTrainer": "paceline.api.trainer"}
"""Imported at first use: torch and transformers take seconds, and the command line must be able to do without."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
