"""TRL's durations, counted in updates, as steps of the loop: one batch of rollouts with all its updates."""

import math
from typing import TYPE_CHECKING

from paceline.compat.trl.batches import batches_of
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig


NO_LIMIT = 2**31 - 1
"""Replaces None in an option that needs a number: prompt tokens, checkpoints to keep."""


def total_updates(args: "GRPOConfig", num_prompts: int | None) -> int | None:
    """Optimiser steps of the run from `max_steps` or the epochs; None for a dataset without a length."""
    batches = batches_of(args)
    if args.max_steps > 0:
        return math.ceil(args.max_steps / batches.updates_per_step) * batches.updates_per_step
    if num_prompts is None:
        return None
    return max(1, math.ceil(round(args.num_train_epochs * num_prompts) / batches.prompts_per_step)) * (
        batches.updates_per_step
    )


def in_steps(args: "GRPOConfig", name: str, value: float, num_prompts: int | None) -> int:
    """A number of updates, or below 1 a share of the run's, as steps of the loop, rounded up.

    Raises:
        ConfigError: a share of a run whose length nobody knows, or a number of updates that is not whole.
    """
    if value > 1 and value != int(value):
        raise ConfigError(f"{name} must be a whole number above 1, got {value!r}; below 1 it is a share of the run")
    total = total_updates(args, num_prompts)
    if 0 < value < 1 and total is None:
        raise ConfigError(f"{name} must be 1 or more for a dataset without a length, got {value!r}; or give max_steps")
    updates = math.ceil(value * total) if 0 < value < 1 and total is not None else int(value)
    return math.ceil(updates / batches_of(args).updates_per_step)


def warmup_field(args: "GRPOConfig") -> str:
    """Name of the field that sets the warm-up."""
    return "warmup_steps" if args.warmup_ratio is None else "warmup_ratio"


def warmup_steps(args: "GRPOConfig", num_prompts: int | None) -> int:
    """Warm-up as steps of the loop, rounded up; 0 for a constant rate, which has none.

    Raises:
        ConfigError: two warm-ups, or one that the run's length leaves without effect.
    """
    name = warmup_field(args)
    value = getattr(args, name)
    if args.warmup_ratio is not None and not 0 <= args.warmup_ratio < 1:
        raise ConfigError(f"warmup_ratio must lie in [0, 1), got {value!r}; warmup_steps takes a number of updates")
    if args.warmup_ratio is not None and args.warmup_steps:
        raise ConfigError(f"warmup_steps must be 0 with warmup_ratio, got {args.warmup_steps!r}; give one of them")
    if value < 0:
        raise ConfigError(f"{name} must be at least 0, got {value!r}")
    if args.lr_scheduler_type == "constant":
        return 0
    if value > args.max_steps > 0:
        raise ConfigError(
            f"{name} must be at most max_steps ({args.max_steps}), got {value!r}; the peak would never be reached"
        )
    return in_steps(args, name, value, num_prompts)


def interval(args: "GRPOConfig", kind: str, num_prompts: int | None) -> int:
    """Steps between two checkpoints (`save`) or evaluations (`eval`) with the strategy `steps`; 0 for other
    strategies."""
    if getattr(args, f"{kind}_strategy") != "steps":
        return 0
    return in_steps(args, f"{kind}_steps", getattr(args, f"{kind}_steps"), num_prompts)
