"""Arguments changed after a trainer was built from them: applied when training starts, or refused."""

import copy
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from transformers.trainer_utils import IntervalStrategy

from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.lengths import interval
from paceline.config.sections import Config
from paceline.errors import ConfigError

READ_WHEN_TRAINING = frozenset(
    {
        *("logging_steps", "logging_strategy", "logging_first_step", "log_completions", "num_completions_to_print"),
        *("eval_steps", "eval_strategy", "eval_delay", "eval_on_start"),
        *("save_steps", "save_strategy"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        *("push_to_hub", "hub_model_id", "hub_token", "hub_private_repo", "hub_revision", "run_name"),
        *("do_train", "do_eval", "do_predict", "resume_from_checkpoint"),
    }
)
"""Fields on when to log, evaluate and save, and on the final model."""

FieldValues = Mapping[str, Any]


def values_of(args: GRPOConfig) -> FieldValues:
    """Copy of every field."""
    return {field.name: copy.deepcopy(getattr(args, field.name)) for field in fields(args)}


def refuse_changes(args: GRPOConfig, built: FieldValues, *, evaluates: bool) -> None:
    """Refuse fields that changed since the trainer was built.

    Args:
        args: current fields.
        built: fields when the trainer was built.
        evaluates: True if the trainer has an evaluation dataset.

    Raises:
        ConfigError: the names and values of what was changed too late, or an evaluation without a dataset.
    """
    now = values_of(args)
    late = [name for name in now if name not in READ_WHEN_TRAINING and now[name] != built[name]]
    if late:
        changes = ", ".join(f"{name} (from {built[name]!r} to {now[name]!r})" for name in late)
        raise ConfigError(
            f"args must stay as they were when the trainer was made, got {changes} changed since; make a new "
            "GRPOTrainer from the changed arguments"
        )
    if not evaluates and (args.eval_strategy != IntervalStrategy.NO or args.eval_on_start):
        raise ConfigError(
            f"eval_strategy must be 'no' without eval_dataset, got {args.eval_strategy!r}; make a new GRPOTrainer "
            "with eval_dataset"
        )


def with_intervals(config: Config, args: GRPOConfig, num_prompts: int | None) -> Config:
    """Configuration with the current intervals of saving and evaluation."""
    loop = replace(config.loop, save_steps=interval(args, "save", num_prompts))
    evaluation = replace(config.evaluation, eval_steps=interval(args, "eval", num_prompts))
    return replace(config, loop=loop, evaluation=evaluation)
