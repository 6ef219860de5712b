"""Learning-rate schedules of transformers, counted in updates."""

import math
from typing import TYPE_CHECKING, Any

import torch
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType

from paceline.compat.trl.batches import warmup_field
from paceline.compat.trl.training_fields import SCHEDULES
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig


def warmup_updates(args: "GRPOConfig", total: int) -> int:
    """Updates before the peak in transformers' sense: from 1 on a number, below 1 a share, rounded up."""
    value = getattr(args, warmup_field(args))
    return math.ceil(value * total) if 0 < value < 1 else int(value)


def make_scheduler(args: "GRPOConfig", optimizer: torch.optim.Optimizer, *, total: int) -> Any:
    """transformers' scheduler for `total` updates over the optimiser's own rates; call `step()` after each."""
    return get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        num_warmup_steps=warmup_updates(args, total),
        num_training_steps=total,
        scheduler_specific_kwargs=_keywords(args),
    )


def check_schedule(args: "GRPOConfig", *, total: int) -> None:
    """Refuse values that the schedule cannot take, before an optimiser exists.

    Raises:
        ConfigError: it cannot be made of them; the sentence is transformers' own.
    """
    trial = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=args.learning_rate)
    try:
        make_scheduler(args, trial, total=total)
    except (TypeError, ValueError, ArithmeticError) as error:
        kind = SchedulerType(args.lr_scheduler_type).value
        raise ConfigError(
            f"lr_scheduler_kwargs must be such that {kind!r} can be made, got {_keywords(args)!r}: {error}"
        ) from error


def describe_rate(args: "GRPOConfig", *, total: int) -> str:
    """One line on the schedule, and on what the run's configuration cannot express of it."""
    kind = SchedulerType(args.lr_scheduler_type).value
    line = f"learning rate: transformers' schedule {kind!r} over {total} updates, {warmup_updates(args, total)} of them"
    line += " warm-up, set anew for every update"
    if kind in SCHEDULES:
        return line
    return f"{line}; config.yaml has no word for it, its lr_schedule, warmup_steps and min_lr_ratio do not describe it"


def _keywords(args: "GRPOConfig") -> dict[str, Any]:
    given = args.lr_scheduler_kwargs
    return dict(given) if isinstance(given, dict) else {}
