"""The surface of TRL's trainer: what a program may override or set, and what each other name of TRL's says here.

A method that a program may override is marked `overridable`. All other names of TRL's and transformers' trainers are
refused where a program overrides, sets or calls them: what is refused is the complement of what is marked, whatever
those trainers have.
"""

import copy
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from transformers import GenerationConfig
from transformers.trainer import Trainer
from transformers.trainer_utils import IntervalStrategy

from paceline.compat.trl.fields import MEANINGS, Fields
from paceline.errors import ConfigError

LOGGER = logging.getLogger(__name__)
ClassT = TypeVar("ClassT", bound=type)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

OF_TRL = (
    *("_BaseTrainer__backends", "_calculate_rewards", "_compute_loss", "_generate", "_generate_and_score_completions"),
    *("_generate_single_turn", "_get_per_token_logps_and_entropies", "_get_tool_suffix_ids", "_log_completion_extra"),
    *("_log_metric", "_send_telemetry", "_tokenize_prompts", "_tool_call_loop", "get_gamma_weights"),
    *("get_high_entropy_mask", "get_off_policy_mask"),
)
"""Methods of TRL 1.16's trainer that transformers' has not."""
COSMETIC = ("_tag_names", "_name", "_paper", "_template_file")
"""Attributes of TRL's class that its model card is written from; a program's own `_tag_names` are tags here too."""
INSTEAD: Mapping[str, str] = {
    "choose the objective by loss_type, preset and the fields beside them": (
        "compute_loss _compute_loss _get_per_token_logps_and_entropies compute_loss_context_manager "
        "autocast_smart_context_manager get_off_policy_mask get_high_entropy_mask get_gamma_weights"
    ),
    "give optimizers=(optimizer, scheduler)": (
        "create_optimizer create_scheduler create_optimizer_and_scheduler get_decay_parameter_names "
        "get_optimizer_cls_and_kwargs get_optimizer_group"
    ),
    "set max_grad_norm": "_clip_grad_norm _get_grad_norm _mixed_mesh_grad_norm",
    "put the rows in the order that they are to come in, and set shuffle_dataset=False": (
        "get_train_dataloader _get_train_sampler _get_dataloader get_batch_samples"
    ),
    "give the rows as eval_dataset": "get_eval_dataloader _get_eval_sampler get_test_dataloader",
    "prepare the column `prompt` of train_dataset, and give chat_template_kwargs": (
        "_tokenize_prompts _set_signature_columns_if_needed _remove_unused_columns _prepare_input"
    ),
    "the built-in engine samples; choose how by temperature, top_p, max_completion_length and generation_kwargs, or "
    "give rollout_func": "_generate _generate_single_turn _generate_and_score_completions",
    "give tools or environment_factory": "_tool_call_loop _get_tool_suffix_ids",
    "grade completions with reward_funcs and reward_weights": "_calculate_rewards",
    "log by log_metric and log_extra, which reward functions are given": "_log_metric _log_completion_extra",
    "call evaluate, which samples and grades": "predict prediction_step evaluation_loop",
    "override save_model, or write beside a checkpoint in on_save": (
        "_save _save_checkpoint _save_optimizer_and_scheduler _save_rng_state _save_scaler _rotate_checkpoints"
    ),
    "give train resume_from_checkpoint": (
        "_load_from_checkpoint _load_optimizer_and_scheduler _load_rng_state _load_scaler _load_callback_state"
    ),
    "call it yourself after training, under another name": "create_model_card",
    "give model=model_init()": "call_model_init",
    "run one trainer for each set of arguments": "hyperparameter_search _hp_search_setup _report_to_hp_search",
}
"""Names under what does their work."""
REMEDIES: Mapping[str, str] = {name: remedy for remedy, names in INSTEAD.items() for name in names.split()}
OTHERWISE = "watch the loop with callbacks, or override log, evaluate or save_model"

MAY_BE_SET = frozenset({"rollout_func", "eval_dataset", "_metrics", *COSMETIC})
"""Attributes that the loop reads anew whenever it needs them."""
OF_GENERATE = frozenset({"use_vllm", "vllm_generation"})
"""Attributes that `_generate` reads anew, but training does not."""
LARGE = ("train_dataset", "eval_dataset")
"""Attributes that are not compared item by item."""
OTHER_VALUES: Mapping[str, str] = {
    "reward_weights": "weigh rewards inside a reward function, which may read trainer_state.global_step",
    "reward_funcs": "choose inside a reward function, which may read trainer_state.global_step",
    "train_dataset": "make a new GRPOTrainer with these rows; train(resume_from_checkpoint=True) goes on with them",
    "hub_model_id": "set args.hub_model_id",
    "callback_handler": "call add_callback and remove_callback",
    "model": "make a new GRPOTrainer with this model",
    "optimizer": "give optimizers=(optimizer, scheduler) to the constructor",
    "lr_scheduler": "give optimizers=(optimizer, scheduler) to the constructor",
    "entropy_coef": "set use_adaptive_entropy, or entropy_coef in args",
}
"""Remedy for an attribute that cannot be set."""
NOT_HERE: Mapping[str, str] = {
    "_logs": "completions with prompts and rewards are in the run directory's rollouts/",
    "_buffered_inputs": "a batch of rollouts is trained on as a whole",
    "_pending_metrics": "log by log_metric, which reward functions are given",
    "_pending_extra_logs": "log by log_extra, which reward functions are given",
    "_total_train_tokens": "state.num_input_tokens_seen counts them",
    "_current_train_step_time": "the log has step_time and clock/",
    "_memory_tracker": "memory is not measured by transformers here",
    "_signature_columns": "reward functions always get every column",
    "_dist": "processes are Paceline's own",
}
"""Attributes of TRL's trainer, with where to find their values here."""
STATE = (
    *("_async_tool_dicts", "_batch_environments", "_created_lr_scheduler", "_entropy_bonus_enabled", "async_loop"),
    *("_entropy_window_stats", "_has_async_funcs", "_image_pad_token_id", "_is_vlm", "_last_world_entropy"),
    *("_loggers_initialized", "_loss_shifts_labels", "_mixed_mesh_grads", "_multi_environment", "async_loop_thread"),
    *("current_gradient_accumulation_steps",),
    *("_standalone_tools", "_sync_tool_dicts", "_video_pad_token_id", "async_loop_ready_event", "commit_scheduler"),
)
"""Attributes in which the loops of TRL and transformers keep their own state, which is of another form here."""


PLAIN: Mapping[str, Any] = {name: plain for name, plain in vars(Trainer).items() if inspect.isfunction(plain)}
"""Methods of transformers' trainer, as they were when this was imported."""


def overridable(method: FunctionT) -> FunctionT:
    """Mark a method that a program may override: the loop calls it through the trainer, or programs alone do."""
    vars(method)["is_overridable"] = True
    return method


def is_overridable(function: object) -> bool:
    """True for a method that a program may override."""
    return bool(getattr(function, "is_overridable", False))


def _of_theirs() -> frozenset[str]:
    return frozenset(name for name in dir(Trainer) if not name.startswith("__")) | {*OF_TRL}


def complete(cls: ClassT) -> ClassT:
    """Give a trainer all methods of TRL's that it does not define, each of which refuses to be called."""
    defined = {name for base in cls.__mro__ if not issubclass(Trainer, base) for name in vars(base)}
    for name in sorted(_of_theirs() - defined):
        if not callable(getattr(Trainer, name, None)) and name not in OF_TRL:
            continue
        setattr(cls, name, _refusing(name))
    made: Any = cls
    made._originals = {name: inspect.getattr_static(cls, name, None) for name in _of_theirs()}
    return cls


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: Any, *values: Any, **named: Any) -> Any:
        raise ConfigError(f"GRPOTrainer.{name} is part of TRL's loop, which does not run here; {remedy_of(name)}")

    method.__name__ = name
    method.__doc__ = f"Refuse the call: {remedy_of(name)}."
    return method


def remedy_of(name: str) -> str:
    """Return what a program does instead of overriding or calling a method."""
    return REMEDIES.get(name, OTHERWISE)


def refuse_hooks(trainer: Any) -> None:
    """Refuse methods of TRL's that a class, its mixins, a patch or the object have replaced, and this loop never calls.

    Raises:
        ConfigError: such a method is there, with what does its work here.
    """
    kind = type(trainer)
    for name, original in kind._originals.items():
        if name in COSMETIC or is_overridable(original):
            continue
        present = vars(trainer).get(name, original) if callable(original) else original
        if present is not original or inspect.getattr_static(kind, name, None) is not original:
            raise never_called(kind, name)
    patched = [name for name, plain in PLAIN.items() if inspect.getattr_static(Trainer, name, None) is not plain]
    if patched:
        LOGGER.warning("%s of transformers' Trainer are patched, and this loop never calls them", ", ".join(patched))


def never_called(trainer: type, name: str) -> ConfigError:
    """Return the refusal of a method that a program has replaced."""
    return ConfigError(f"{trainer.__name__}.{name} would never be called by this loop; {remedy_of(name)}")


def refuse_set(trainer: Any, name: str, value: Any) -> None:
    """Refuse another value for an attribute that the loop does not read any more, or a method that it never calls.

    `trainer` is made. Names that TRL's trainer does not have are the program's own.
    """
    originals = type(trainer)._originals
    if name in MAY_BE_SET | OF_GENERATE or is_overridable(originals.get(name)):
        return
    if name in trainer._attributes and _same(vars(trainer)[name], value):
        return
    if callable(originals.get(name)):
        raise never_called(type(trainer), name)
    is_computed = isinstance(inspect.getattr_static(type(trainer), name, None), property)
    if is_computed or name in (*trainer._attributes, *originals, *NOT_HERE, *STATE):
        raise changed(type(trainer), name)


def changed(trainer: type, name: str) -> ConfigError:
    """Return the refusal of an attribute that is no longer as it was when the trainer was made."""
    remedy = OTHER_VALUES.get(name, "give it to the constructor or in args, and make a new GRPOTrainer")
    return ConfigError(f"{trainer.__name__}.{name} must stay as it was when the trainer was made; {remedy}")


def snapshot(trainer: Any) -> dict[str, Any]:
    """Return what an attribute was when the trainer was made, for those that may change unseen."""
    kept = {name: getattr(trainer, name) for name in OF_GENERATE}
    for name in trainer._attributes:
        value = vars(trainer)[name]
        if name not in MAY_BE_SET and name not in LARGE and (copied := _copied(value)) is not None:
            kept[name] = copied
    return kept


def refuse_changed(trainer: Any, built: Mapping[str, Any]) -> None:
    """Refuse attributes that have changed in place since they were `built` (ConfigError)."""
    for name, value in built.items():
        if not _same(value, vars(trainer)[name]):
            raise changed(type(trainer), name)


def values_of(args: Fields) -> Mapping[str, Any]:
    """Copy of every field of GRPOConfig; those of a program's own class below it are the program's."""
    return {name: copy.deepcopy(getattr(args, name)) for name in MEANINGS}


def refuse_changes(args: Fields, built: Mapping[str, Any], *, evaluates: bool) -> None:
    """Refuse fields that changed since the trainer was `built`, or evaluation without a dataset (ConfigError)."""
    now = values_of(args)
    late = [name for name in now if not MEANINGS[name].late and now[name] != built[name]]
    if late:
        changes = ", ".join(f"{name} (from {built[name]!r} to {now[name]!r})" for name in late)
        raise ConfigError(
            f"args must stay as they were when the trainer was made, got {changes} changed since; make a new "
            "GRPOTrainer from the changed arguments"
        )
    evaluation = (
        ("eval_strategy", IntervalStrategy(args.eval_strategy).value, "no"),
        ("eval_on_start", args.eval_on_start, False),
    )
    for name, value, without in evaluation:
        if not evaluates and value != without:
            raise ConfigError(
                f"{name} must be {without!r} without eval_dataset, got {value!r}; make a new GRPOTrainer with "
                "eval_dataset"
            )


def _same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(value, other)
    plain = (bool, int, float, str, list, dict, tuple, GenerationConfig)
    return isinstance(value, plain) and type(value) is type(other) and bool(value == other)


def _copied(value: Any) -> Any:
    """Return a copy of a value that may change in place; None of any other."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, GenerationConfig):
        return copy.deepcopy(value)
    return copy.copy(value) if type(value) in (list, dict) else None


MIRRORED = (
    *("max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "vllm_mode"),
    *("use_transformers_continuous_batching", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"),
    *("vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max"),
    *("vllm_importance_sampling_clip_min", "loss_type", "multi_objective_aggregation", "scale_rewards"),
    *("importance_sampling_level", "off_policy_mask_threshold", "mask_truncated_completions", "use_vllm"),
    *("top_entropy_quantile", "use_adaptive_entropy", "shuffle_dataset", "num_iterations", "log_completions"),
    *("log_multimodal", "log_unique_prompts", "num_completions_to_print", "neftune_noise_alpha"),
)
"""Fields of the arguments that TRL's trainer has under the same names."""


def attributes_of(args: Fields, tokenizer: Any, model: Any) -> dict[str, Any]:
    """Attributes of TRL's trainer that follow from its arguments, with TRL's meaning."""
    return {
        **{name: getattr(args, name) for name in MIRRORED},
        "epsilon_low": args.epsilon,
        "epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high,
        "num_generations_eval": args.num_generations_eval or args.num_generations,
        "max_tool_calling_iterations": args.max_tool_calling_iterations or sys.maxsize,
        "chat_template_kwargs": dict(args.chat_template_kwargs or {}),  # type: ignore[arg-type] # text is read by then
        "router_aux_loss_coef": 0.0,
        "pad_to_multiple_of": None,
        "continuous_batching_config": None,
        "generation_config": copy.deepcopy(getattr(model, "generation_config", None)),
        "generation_kwargs": dict(args.generation_kwargs or {}),  # type: ignore[arg-type] # as above
        "chat_template": None,
        "eos_token_ids": [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id],
        # what scripts ask before they save: nothing is wrapped
        **dict.fromkeys(("is_deepspeed_enabled", "is_fsdp_enabled", "is_model_parallel"), False),
        **dict.fromkeys(("is_fsdp_xla_enabled", "is_fsdp_xla_v1_enabled", "is_fsdp_xla_v2_enabled"), False),
        **dict.fromkeys(("is_distributed_loading_by_transformers", "can_return_loss"), False),
        "place_model_on_device": True,
        "model_accepts_loss_kwargs": False,
        **dict.fromkeys(("deepspeed", "model_init", "compute_loss_func", "compute_metrics", "label_smoother"), None),
        **dict.fromkeys(("preprocess_logits_for_metrics", "optimizer_cls_and_kwargs", "hp_name"), None),
        "hp_search_backend": None,
        "current_flos": 0,
        "data_collator": list,
        "_tokenizer": tokenizer,
        "_train_batch_size": args.per_device_train_batch_size,
    }
