"""A `GRPOConfig` to a run's configuration: a pure function whose errors name the field."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.compat.trl.batches import batches_of, fill_batch_fields
from paceline.compat.trl.choices import OPTIMIZERS, SCHEDULES, check_choices
from paceline.compat.trl.keywords import (
    Options,
    check_checkpointing,
    model_keywords,
    sampling_keywords,
    schedule_keywords,
    template_keywords,
)
from paceline.compat.trl.lengths import NO_LIMIT, in_steps, interval, warmup_steps
from paceline.compat.trl.numbers import settle_numbers
from paceline.compat.trl.objective import SOURCES, objective_options
from paceline.compat.trl.refused import refuse
from paceline.config.building import build_config
from paceline.config.sections import Config
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig


FIELDS: Mapping[str, str] = {
    **{option: fields[0] for option, fields in SOURCES.items()},
    "prompts_per_step": "per_device_train_batch_size",
    "num_minibatches": "steps_per_generation",
    "num_epochs": "num_train_epochs",
    "shuffle": "shuffle_dataset",
    "enable_thinking": "chat_template_kwargs enable_thinking",
    "stop": "generation_kwargs stop_strings",
    "ref_sync_steps": "sync_ref_model",
    "ref_sync_mix": "ref_model_mixup_alpha",
    "correction_max": "vllm_importance_sampling_clip_max",
    "lr_schedule": "lr_scheduler_type",
    "min_lr_ratio": "lr_scheduler_kwargs",
    "adam_eps": "adam_epsilon",
    "eval_generations": "num_generations_eval",
    "eval_temperature": "temperature",
    "lora_rank": "peft_config.r",
    "lora_alpha": "peft_config.lora_alpha",
    "lora_targets": "peft_config.target_modules",
    "reward_models": "reward_funcs",
    "rollout_correction": "vllm_importance_sampling_mode",
    "dataset": "train_dataset",
    "prompt_column": "train_dataset's column `prompt`",
    "answer_column": "train_dataset's column `answer`",
    "model": "model",
    "dtype": "bf16",
    "device": "use_cpu",
}
"""Field of `GRPOConfig` behind each option with another name."""

PHRASES: Mapping[str, str] = {
    r" with --long-prompts drop": ", which cuts them",
    r"set --long-prompts to drop or truncate_left": "set max_prompt_length to what fits, which cuts them",
    r", or name another column with --prompt-column": "",
    r"name (?:the right|their) column with --answer-column": "give them in a column `answer`",
    r", or leave --system-prompt out": "",
    r"use --system-prompt '' where it takes no system message": "leave the system message out where it takes none",
    r", or --save-steps 0\b": ", or save_strategy 'no'",
    r"--resume (?=\S+ (?:is|cannot)\b)": "output_dir ",
    r"with --resume \S+,": "with train(resume_from_checkpoint=True),",
    r" \(--max-skipped-updates \S+\)": "",
    r"give --optimizer adamw_8bit, --optimizer-offload or --lora-rank": "give optim adamw_8bit or a peft_config",
    r"then --resume continues": "then train(resume_from_checkpoint=True) continues",
    r"--resume the run": "continue it with train(resume_from_checkpoint=True)",
}
"""Patterns of clauses about options without a field, and their replacements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Facts for the translation that the arguments alone do not contain."""

    model: str
    """Directory or Hub name; for a model object its `name_or_path`."""
    reward_names: tuple[str, ...]
    """Functions and models in the given order, which is that of `reward_weights`; each name once."""
    dataset: str = "train_dataset"
    """Name of the training set in the resolved configuration."""
    num_prompts: int | None = None
    """Rows of the training set, or None without a length: a share of the run needs it, or `max_steps`."""
    context_length: int | None = None
    """Context length of the model in tokens, if known: it bounds prompts while `max_prompt_length` is None."""
    adapter: bool = False
    """True if a `peft_config` or a PeftModel is trained."""


def translate(args: "GRPOConfig", surroundings: Surroundings) -> Config:
    """Configuration of the whole run in Paceline's options.

    Rewards keep the given order, models among functions, so that weights match. Saving and evaluation intervals are in
    steps for the strategy `steps`, else 0: the trainer handles the other strategies.

    Raises:
        ConfigError: a field that is refused, wrong, or at odds with another; the sentence names fields, not options.
    """
    refuse(args)
    settle_numbers(args)
    check_choices(args)
    fill_batch_fields(args)
    check_checkpointing(args)
    given = {
        **_model(args, surroundings),
        **_data(args, surroundings),
        **_sampling(args),
        **objective_options(args),
        **_update(args, surroundings),
        **_loop(args, surroundings),
    }
    try:
        return build_config(given)
    except ConfigError as error:
        raise ConfigError(in_field_names(str(error))) from None


def in_field_names(message: str) -> str:
    """Reword a sentence about options for the fields behind them.

    >>> in_field_names("--clip-eps-low must lie in [0, 1), got 1.5")
    'epsilon must lie in [0, 1), got 1.5'
    """

    for remedy, ours in PHRASES.items():
        message = re.sub(remedy, ours, message)

    def say(found: re.Match[str]) -> str:
        name = found[0].removeprefix("--").replace("-", "_")
        return FIELDS.get(name, name)

    unequal = "|".join(sorted((name for name in FIELDS if "_" in name), key=len, reverse=True))
    return re.sub(rf"--[a-z][a-z0-9-]*[a-z0-9]|(?<![\w.])(?:{unequal})\b", say, message)


def updates_per_step(config: Config) -> int:
    """Optimiser steps (transformers' `global_step`) in one step of the loop."""
    return config.optim.num_iterations * config.optim.num_minibatches


def _model(args: "GRPOConfig", surroundings: Surroundings) -> Options:
    return {
        "model": surroundings.model,
        "device": "cpu" if args.use_cpu else "auto",
        "dtype": "bfloat16" if args.bf16 else "float32",
        "gradient_checkpointing": str(bool(args.activation_checkpointing)).lower(),
        "trust_remote_code": args.trust_remote_code,
        **model_keywords(args),
    }


def _data(args: "GRPOConfig", surroundings: Surroundings) -> Options:
    limit = args.max_prompt_length
    return {
        "dataset": surroundings.dataset,
        "shuffle": bool(args.shuffle_dataset),
        "max_prompt_length": (surroundings.context_length or NO_LIMIT) if limit is None else limit,
        "long_prompts": "error" if limit is None else "truncate_left",
        "reward_funcs": surroundings.reward_names,
        "reward_weights": _weights(args, surroundings),
        "on_bad_row": args.on_bad_row,
        "reward_timeout": args.reward_timeout,
        "max_reward_failure_rate": args.max_reward_failure_rate,
        "sandbox": args.sandbox,
        "sandbox_url": args.sandbox_url,
        **template_keywords(args),
    }


def _weights(args: "GRPOConfig", surroundings: Surroundings) -> list[float] | None:
    names, weights = surroundings.reward_names, args.reward_weights
    if weights is not None and len(weights) != len(names):
        raise ConfigError(
            f"reward_weights must have one number for each of the {len(names)} rewards ({', '.join(names)}), got "
            f"{weights!r}"
        )
    return weights


def _sampling(args: "GRPOConfig") -> Options:
    if args.temperature <= 0:
        raise ConfigError(
            f"temperature must be above 0, got {args.temperature!r}; greedy completions of one prompt are all the same"
        )
    return {
        "num_generations": args.num_generations,
        "max_completion_length": args.max_completion_length,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k or 0,
        "min_p": args.min_p or 0.0,
        **sampling_keywords(args),
    }


def _update(args: "GRPOConfig", surroundings: Surroundings) -> Options:
    batches = batches_of(args)
    return {
        "optimizer": OPTIMIZERS[args.optim],
        "learning_rate": args.learning_rate,
        "lr_schedule": SCHEDULES.get(args.lr_scheduler_type, "constant"),
        "warmup_steps": warmup_steps(args, surroundings.num_prompts),
        "weight_decay": args.weight_decay,
        "adam_beta1": args.adam_beta1,
        "adam_beta2": args.adam_beta2,
        "adam_eps": args.adam_epsilon,
        "max_grad_norm": args.max_grad_norm or 0.0,
        "num_iterations": args.num_iterations,
        "num_minibatches": batches.num_minibatches,
        "micro_batch_tokens": args.micro_batch_tokens,
        **schedule_keywords(args),
        **_reference_steps(args, surroundings),
    }


def _reference_steps(args: "GRPOConfig", surroundings: Surroundings) -> Options:
    if not args.sync_ref_model:
        return {}
    if surroundings.adapter:
        raise ConfigError("sync_ref_model must be False with a PEFT model, got True: the reference is its base model")
    if args.beta == 0 and args.preset is None:
        raise ConfigError("sync_ref_model must be False while beta is 0, got True: there is no reference then")
    if args.ref_model_sync_steps < 1:
        raise ConfigError(f"ref_model_sync_steps must be at least 1, got {args.ref_model_sync_steps!r}")
    return {"ref_sync_steps": in_steps(args, "ref_model_sync_steps", args.ref_model_sync_steps, None)}


def _loop(args: "GRPOConfig", surroundings: Surroundings) -> Options:
    batches = batches_of(args)
    generations = args.num_generations if args.num_generations_eval is None else args.num_generations_eval
    return {
        "output_dir": args.output_dir,
        "prompts_per_step": batches.prompts_per_step,
        **(
            {"max_steps": math.ceil(args.max_steps / batches.updates_per_step)}
            if args.max_steps > 0
            else {"num_epochs": args.num_train_epochs}
        ),
        "seed": args.seed,
        "save_steps": interval(args, "save", surroundings.num_prompts),
        "background_save": False,  # on_save finds the checkpoint on disk, and the trainer's state as it was
        "save_total_limit": args.save_total_limit or NO_LIMIT,
        "eval_steps": interval(args, "eval", surroundings.num_prompts),
        "eval_size": None,
        "eval_generations": generations,
        "eval_temperature": args.temperature,
        "eval_reward_func": surroundings.reward_names[0],
        "report_to": args.report_to,
        "project": args.project,
    }
