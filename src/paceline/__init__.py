"""Fine-tune language models with group-relative reinforcement learning on verifiable rewards."""

import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig
    from paceline.compat.trl.trainer import GRPOTrainer
    from paceline.library import Session, evaluate, train
    from paceline.reports.trained_run import TrainedRun
    from paceline.rewards.function import needs_group

__version__ = "0.1.0"

__all__ = ["GRPOConfig", "GRPOTrainer", "Session", "TrainedRun", "evaluate", "needs_group", "train"]

OPENMP_SPINS = "1000"
"""Rounds that a thread of torch's OpenMP library spins for the others before it sleeps: 10 to 50 microseconds.

The library's default is 300,000, which takes milliseconds. When another process uses the same cores, a spinning thread
takes the time that the awaited thread needs. Milliseconds per token of a model of 30 million weights, on two cores of
an AMD EPYC (family 26), alone and with one other process that uses a core:

    rounds     300  1,000  2,000  4,000  10,000  30,000
    alone     0.44   0.38   0.36   0.36    0.34    0.34
    one other 0.64   0.74   0.82   0.97    1.40    2.15

1,000 is what the library itself takes when it has more threads than cores. It reads the variable once, when torch is
imported.
"""
SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""What the library reads of it; where the user has set one, it stays."""
if "torch" not in sys.modules and os.environ.keys().isdisjoint(SPIN_VARIABLES):
    os.environ[SPIN_VARIABLES[0]] = OPENMP_SPINS

# It warns of a kernel that it cannot fetch for products with 4-bit weights, which Paceline does not use on a CPU.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_HOMES = {
    "GRPOConfig": "paceline.compat.trl.config",
    "GRPOTrainer": "paceline.compat.trl.trainer",
    "Session": "paceline.library",
    "TrainedRun": "paceline.reports.trained_run",
    "evaluate": "paceline.library",
    "needs_group": "paceline.rewards.function",
    "train": "paceline.library",
}
"""Imported at first use: torch and transformers take seconds, and the command line must be able to do without."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
