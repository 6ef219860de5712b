"""Checks of what a program overrides: methods of a subclass, events of a callback."""

import logging
from collections.abc import Iterable, Mapping

from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.trainer_utils import IntervalStrategy

from paceline.compat.trl.config import GRPOConfig
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
