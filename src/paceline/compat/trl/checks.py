"""Checks of the program around a trainer: overridden methods, callbacks, the best metric, changed arguments."""

import copy
import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import nn
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from paceline.compat.trl.batches import interval
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.fields import MEANINGS
from paceline.compat.trl.history import clip_numbers
from paceline.config.reading import suggest
from paceline.config.sections import Config
from paceline.errors import ConfigError

LOGGER = logging.getLogger(__name__)

_LOSS = "choose the objective by loss_type, preset and the fields beside them"
_OPTIMIZER = "give optimizers=(optimizer, scheduler)"
_GENERATION = (
    "the built-in engine samples; choose how by temperature, top_p, max_completion_length and generation_kwargs"
)
_REWARDS = "grade completions with reward_funcs and reward_weights"
_LOOP = "watch the loop with callbacks"

NEVER_CALLED: Mapping[str, str] = {
    **dict.fromkeys(("compute_loss", "_compute_loss", "_get_per_token_logps_and_entropies"), _LOSS),
    **dict.fromkeys(
        ("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler", "get_decay_parameter_names"),
        _OPTIMIZER,
    ),
    **dict.fromkeys(("_generate", "_generate_single_turn", "_generate_and_score_completions"), _GENERATION),
    "_calculate_rewards": _REWARDS,
    **dict.fromkeys(
        ("training_step", "prediction_step", "evaluation_loop", "_prepare_inputs", "_inner_training_loop"), _LOOP
    ),
    **dict.fromkeys(("_maybe_log_save_evaluate", "_save_checkpoint"), "override log, evaluate or save_model"),
}
"""Methods of TRL's trainer without a counterpart here, and what does their work."""

EVENTS_THAT_DO_NOT_OCCUR = ("on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_prediction_step")

Callback = TrainerCallback | type[TrainerCallback]


def refuse_hooks(trainer: type) -> None:
    """Refuse a subclass whose methods would never be called.

    Raises:
        ConfigError: the first of them, with the remedy.
    """
    for name, remedy in NEVER_CALLED.items():
        if hasattr(trainer, name):
            raise ConfigError(f"{trainer.__name__}.{name} would never be called by this loop; {remedy}")


def check_callbacks(callbacks: Iterable[Callback], args: GRPOConfig) -> None:
    """Refuse early stopping without a metric to compare, and warn of events that do not occur.

    Raises:
        ConfigError: EarlyStoppingCallback without a metric or without evaluation.
    """
    for callback in callbacks:
        kind = callback if isinstance(callback, type) else type(callback)
        if issubclass(kind, EarlyStoppingCallback):
            _check_early_stopping(args)
        silent = [
            name for name in EVENTS_THAT_DO_NOT_OCCUR if getattr(kind, name) is not getattr(TrainerCallback, name)
        ]
        if silent:
            LOGGER.warning(
                "%s of %s will not be called: a callback's step is one batch of rollouts with all its updates; "
                "take on_step_begin or on_step_end",
                " and ".join(silent),
                kind.__name__,
            )


def _check_early_stopping(args: GRPOConfig) -> None:
    if args.metric_for_best_model is None:
        raise ConfigError(
            "EarlyStoppingCallback needs metric_for_best_model, got None; give one, such as 'eval_reward' with "
            "greater_is_better=True"
        )
    if args.eval_strategy == IntervalStrategy.NO:
        raise ConfigError(
            "EarlyStoppingCallback needs evaluations to compare, got eval_strategy 'no'; give eval_strategy='steps', "
            "eval_steps and eval_dataset"
        )


OF_EVALUATION = (
    "loss",
    "reward",
    "reward_std",
    "entropy",
    "kl",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
    *clip_numbers(0.0, 0.0),
    "num_samples",
    "num_tokens",
    "runtime",
    "samples_per_second",
    "steps_per_second",
)
"""Names in `history.eval_numbers`, without single rewards."""


def evaluation_names(eval_dataset: Any, reward_names: Sequence[str]) -> tuple[str, ...]:
    """Every metric name of an evaluation; several sets have a prefix each, and a mean of their rewards."""
    names = [*OF_EVALUATION, *(f"rewards/{name}/{key}" for name in reward_names for key in ("mean", "std"))]
    if not isinstance(eval_dataset, Mapping):
        return tuple(f"eval_{name}" for name in names)
    return ("eval_reward", *(f"eval_{one}_{name}" for one in eval_dataset for name in names))


def check_best_metric(args: GRPOConfig, eval_dataset: Any, reward_names: Sequence[str], sources: Iterable[Any]) -> None:
    """Refuse a `metric_for_best_model` that no evaluation reports.

    Names that reward functions log by `log_metric` are unknown before they run. If one takes `log_metric`, any name is
    accepted that is not close to one of evaluation's own.

    Raises:
        ConfigError: the sentence has the nearest right names.
    """
    name = args.metric_for_best_model
    if name is None or not (
        args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST or eval_dataset is not None
    ):
        return
    offered = evaluation_names(eval_dataset, reward_names)
    wanted = name if name.startswith("eval_") else f"eval_{name}"
    if wanted in offered:
        return
    near = suggest(wanted, offered, otherwise="")
    if near or not any(_may_log(source) for source in sources):
        rewards = [one for one in offered if one.endswith("reward")]
        raise ConfigError(
            f"metric_for_best_model must be a number that evaluation gives, got {name!r}; "
            f"{near or 'take ' + ' or '.join(rewards)}"
        )


def _may_log(source: Any) -> bool:
    """True if a reward function takes `log_metric`."""
    if isinstance(source, str | nn.Module) or not callable(source):
        return False
    parameters = inspect.signature(source).parameters.values()
    return any(one.name == "log_metric" or one.kind is one.VAR_KEYWORD for one in parameters)


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
    late = [name for name in now if not MEANINGS[name].late and now[name] != built[name]]
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
