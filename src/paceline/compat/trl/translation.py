"""A `GRPOConfig` to a run's configuration: a pure function whose errors name the field.

Keywords for other libraries, as in `generation_kwargs`, become options too; those without a meaning are refused.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from paceline.compat.trl.batches import batches_of, fill_batch_fields, in_steps, interval, warmup_steps
from paceline.compat.trl.fields import (
    DECIDED_BY,
    Fields,
    Options,
    check_fields,
    keywords_of,
    of_fields,
    options_of,
)
from paceline.compat.trl.grpo_fields import corrects_rollouts
from paceline.compat.trl.training_fields import NO_LIMIT
from paceline.compat.vocabulary import changed
from paceline.config.building import build_config
from paceline.config.objective import SCHEDULERS
from paceline.config.presets import PRESETS
from paceline.config.reading import options, suggest
from paceline.config.sections import RESERVED_SWITCHES, Config
from paceline.errors import ConfigError

# keyword arguments for other libraries
Accepted = Mapping[str, tuple[object, ...] | None]
"""Values of a keyword that change nothing here; None for any value."""

SAMPLING_KEYS = ("top_p", "top_k", "min_p")
OTHER_WORDS = dict.fromkeys(("stop", "stop_sequences", "stop_words"), "stop_strings")
"""Names in other engines, to transformers' name."""
LENGTHS = ("max_new_tokens", "max_tokens", "max_length")
SAMPLING_ACCEPTED: Accepted = {
    "do_sample": (True,),
    "num_beams": (1,),
    "repetition_penalty": (1.0, None),
    "use_cache": (True,),
    "length_penalty": None,
    "early_stopping": None,
}
"""Accepted sampling keywords; the last two belong to beam search, which is never used."""
HUB_KEYS = ("revision", "token", "cache_dir", "local_files_only", "force_download", "subfolder")
"""Keywords that say where a model's files are."""
MODEL_ACCEPTED: Accepted = {
    "attn_implementation": None,
    "use_cache": None,
    "low_cpu_mem_usage": None,
    "use_safetensors": (True, None),
}
DTYPES = ("float32", "auto", "bfloat16")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """Facts for the translation that the arguments alone do not contain."""

    model: str
    """Directory or Hub name; for a model object its `name_or_path`."""
    reward_names: tuple[str, ...]
    """Functions and models in the given order, which is that of `reward_weights`; each name once."""
    num_prompts: int | None = None
    """Rows of the training set, or None without a length: a share of the run needs it, or `max_steps`."""
    context_length: int | None = None
    """Context length of the model in tokens, if known: it bounds prompts while `max_prompt_length` is None."""
    adapter: bool = False
    """True if a `peft_config` or a PeftModel is trained."""
    layout: Mapping[str, object] = field(default_factory=dict)
    """Options for how the model lies on ranks."""
    dataset: str = "train_dataset"
    """Address of the training rows, or the name of those that are objects."""
    environments: tuple[str, ...] = ()
    """Names or addresses of environments; empty: every completion has one turn."""
    environment_rewards: tuple[str, ...] = ()
    """Names of the rewards that environments give."""


def translate(args: Fields, context: RunContext) -> Config:
    """Configuration of the whole run in Paceline's options.

    Rewards keep the given order, models among functions, so that weights match. Saving and evaluation intervals are in
    steps for the strategy `steps`, else 0: the trainer handles the other strategies. A ConfigError names fields.
    """
    check_fields(args)  # again, as a program may have set a field since
    options, batches = field_options(args), batches_of(args)
    prompts, limit, fits = context.num_prompts, args.max_prompt_length, _fitting(args, context)
    calling, names, weights = args.max_tool_calling_iterations, context.reward_names, args.reward_weights
    if context.environments and calling is not None and calling < 0:
        raise ConfigError(f"max_tool_calling_iterations must be at least 0, got {calling!r}")
    if weights is not None and len(weights) != len(names):
        raise ConfigError(
            f"reward_weights must have one number for each of the {len(names)} rewards ({', '.join(names)}), got "
            f"{weights!r}"
        )
    options |= {
        **context.layout,
        # data and rewards
        "model": context.model,
        "dataset": context.dataset,
        "max_prompt_length": fits if limit is None else limit,
        # the messages that a conversation goes on from cannot be cut
        "long_prompts": "error" if limit is None or context.environments else "truncate_left",
        "reward_funcs": names,
        "environment": context.environments,
        "max_turns": calling + 1 if context.environments and calling is not None else None,
        "reward_weights": weights,
        # the run
        "warmup_steps": warmup_steps(args, prompts),
        "save_steps": interval(args, "save", prompts),
        "background_save": False,  # on_save finds the checkpoint on disk, and the trainer's state as it was
        "eval_steps": interval(args, "eval", prompts),
        "eval_size": None,
        "eval_reward_func": (*names, *context.environment_rewards)[0],
    }
    if args.max_steps > 0:
        options["max_steps"] = math.ceil(args.max_steps / batches.updates_per_step)
    else:
        options["num_epochs"] = args.num_train_epochs
    if args.sync_ref_model:
        options["ref_sync"] = (_reference_steps(args, context), args.ref_model_mixup_alpha)
    try:
        return build_config(options)
    except ConfigError as error:
        raise of_fields(error) from None


def field_options(args: Fields) -> Options:
    """Translate all that checked fields decide by themselves; ConfigError for fields that contradict each other.

    `GRPOConfig` calls this for its refusals, `translate` for its options: each rule and each option stands here once.
    """
    batches = fill_batch_fields(args)
    if bool(args.gradient_checkpointing) != bool(args.activation_checkpointing):
        raise ConfigError(
            f"gradient_checkpointing must be activation_checkpointing ({args.activation_checkpointing}), its new name, "
            f"got {args.gradient_checkpointing!r}; set both"
        )
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        # either value of `use_reentrant` gives the same gradient
        _refuse_rest(name, keywords_of(args, name), {"use_reentrant": None}, ("use_reentrant",))
    if args.temperature <= 0:
        raise ConfigError(
            f"temperature must be above 0, got {args.temperature!r}; greedy completions of one prompt are all the same"
        )
    options: Options = {
        **_objective(args),
        # keywords win over the fields of the same name
        **_model_keywords(args),
        **_sampling_keywords(args),
        **_template_keywords(args),
        **_schedule_keywords(args),
        "prompts_per_step": batches.prompts_per_step,
        "num_minibatches": batches.num_minibatches,
        "adam_betas": (args.adam_beta1, args.adam_beta2),
        "eval_generations": args.num_generations if args.num_generations_eval is None else args.num_generations_eval,
        "eval_temperature": args.temperature,
    }
    if args.use_vllm:
        options["vllm_memory"] = float(args.vllm_gpu_memory_utilization)
        options["vllm_tensor_parallel"] = args.vllm_tensor_parallel_size
    return options


def _fitting(args: Fields, context: RunContext) -> int:
    """Longest prompt without a `max_prompt_length`: the model's context, or what `vllm_max_model_length` leaves."""
    most, positions = args.vllm_max_model_length, context.context_length or NO_LIMIT
    if most is None or not args.use_vllm:
        return positions
    prompt, completion = args.max_prompt_length or 1, args.max_completion_length or 0
    if most < prompt + completion:
        raise ConfigError(
            f"vllm_max_model_length must hold a prompt of {prompt} tokens and a completion of {completion}, got "
            f"{most}; raise it to at least {prompt + completion}, or lower max_completion_length"
        )
    return min(positions, most - completion)


def _reference_steps(args: Fields, context: RunContext) -> int:
    if context.adapter:
        raise ConfigError("sync_ref_model must be False with a PEFT model, got True: the reference is its base model")
    if args.beta == 0 and args.preset is None:
        raise ConfigError("sync_ref_model must be False while beta is 0, got True: there is no reference then")
    if args.ref_model_sync_steps < 1:
        raise ConfigError(f"ref_model_sync_steps must be at least 1, got {args.ref_model_sync_steps!r}")
    return in_steps(args, "ref_model_sync_steps", args.ref_model_sync_steps, None)


def _sampling_keywords(args: Fields) -> Options:
    keywords = keywords_of(args, "generation_kwargs")
    temperature = keywords.pop("temperature", args.temperature)
    if temperature != args.temperature:
        raise ConfigError(
            f"generation_kwargs must not have another temperature than the field ({args.temperature}), got "
            f"{temperature}: the loss is of the distribution that was sampled from; set temperature alone"
        )
    for name in LENGTHS:
        if name in keywords:
            raise ConfigError(f"generation_kwargs {name} is refused, got {keywords[name]!r}; set max_completion_length")
    options: Options = {name: keywords.pop(name) or 0 for name in SAMPLING_KEYS if name in keywords}
    stop = keywords.pop("stop_strings", None)
    if stop is not None:
        options["stop"] = (stop,) if isinstance(stop, str) else tuple(cast("Iterable[str]", stop))
    _refuse_rest("generation_kwargs", keywords, SAMPLING_ACCEPTED, (*SAMPLING_KEYS, "stop_strings"))
    return options


def _template_keywords(args: Fields) -> Options:
    keywords = keywords_of(args, "chat_template_kwargs")
    # a switch that the templates of several models know
    options: Options = {"enable_thinking": keywords.pop("enable_thinking")} if "enable_thinking" in keywords else {}
    if taken := sorted(RESERVED_SWITCHES.intersection(keywords)):
        raise ConfigError(
            f"chat_template_kwargs must not have {taken[0]!r}, got {keywords[taken[0]]!r}; the trainer itself gives it"
        )
    try:
        options["chat_template_kwargs"] = tuple(f"{name}={json.dumps(value)}" for name, value in keywords.items())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"chat_template_kwargs must hold text, numbers and what JSON has, got {keywords!r} ({error})"
        ) from error
    return options


def _model_keywords(args: Fields) -> Options:
    keywords = keywords_of(args, "model_init_kwargs")
    for name in (*HUB_KEYS, "quantization_config"):
        keywords.pop(name, None)  # see models.py
    options: Options = {}
    places: object = keywords.pop("device_map", None)
    if isinstance(places, Mapping) and len(set(places.values())) > 1:
        raise ConfigError(f"model_init_kwargs device_map must name one device, got {places!r}; leave it out")
    for name in ("dtype", "torch_dtype"):
        value = keywords.pop(name, None)
        word = str(value).removeprefix("torch.")
        if value is not None and word not in DTYPES:
            raise ConfigError(
                f"model_init_kwargs {name} must be one of {', '.join(DTYPES)}, got {word!r}; bfloat16 is usual"
            )
        # weights stay float32; float32 leaves the computation to `bf16`, as mixed precision does
        options |= {"dtype": word} if word == "bfloat16" else {}
    if "trust_remote_code" in keywords:
        options["trust_remote_code"] = keywords.pop("trust_remote_code")
    translated = ("dtype", "trust_remote_code", *HUB_KEYS, "quantization_config", "device_map")
    _refuse_rest("model_init_kwargs", keywords, MODEL_ACCEPTED, translated)
    return options


def _schedule_keywords(args: Fields) -> Options:
    keywords = keywords_of(args, "lr_scheduler_kwargs")
    _refuse_rest("lr_scheduler_kwargs", keywords, dict.fromkeys(SCHEDULERS[args.lr_scheduler_type]), ())
    if args.lr_scheduler_type != "cosine_with_min_lr":
        return {}
    if ("min_lr" in keywords) == ("min_lr_rate" in keywords):
        raise ConfigError(
            f"lr_scheduler_kwargs must have one of min_lr and min_lr_rate with cosine_with_min_lr, got {keywords!r}; "
            "give for example {'min_lr_rate': 0.1}"
        )
    if "min_lr_rate" in keywords:
        return {"min_lr_ratio": keywords["min_lr_rate"]}
    least, peak = keywords["min_lr"], args.learning_rate
    if not isinstance(least, int | float) or not 0 <= least <= peak:
        raise ConfigError(f"lr_scheduler_kwargs min_lr must lie between 0 and learning_rate ({peak}), got {least!r}")
    return {"min_lr_ratio": least / peak if peak else 0.0}


def _refuse_rest(name: str, keywords: Mapping[str, object], accepted: Accepted, translated: Sequence[str]) -> None:
    known = (*translated, *accepted)
    for key, value in keywords.items():
        if key not in accepted:
            word = OTHER_WORDS[key] if OTHER_WORDS.get(key) in known else key
            remedy = suggest(word, known, otherwise=f"what it may hold: {', '.join(known) or 'nothing'}")
            raise ConfigError(f"{name} must not have {key!r}, got {value!r}; {remedy}")
        values = accepted[key]
        if values is not None and value not in values:
            raise ConfigError(f"{name} {key} must be {values[0]!r}, got {value!r}; leave it out")


LOSSES: Mapping[str, tuple[str, str]] = {
    "grpo": ("clip", "sequence"),
    "bnpo": ("clip", "token"),
    "dr_grpo": ("clip", "constant"),
    "dapo": ("clip", "token"),
    "cispo": ("cispo", "token"),
    "sapo": ("sapo", "sequence"),
    "luspo": ("clip", "sequence_sum"),
    "vespo": ("vespo", "token"),
}
"""`loss_type` to bound and average."""
ADVANTAGES: Mapping[str, str] = {"group": "group", "batch": "group_mean_reward_std", "none": "none"}
CISPO_MAX_RATIO = 5.0
"""ScaleRL's value; TRL's default for cispo is `epsilon`, which bounds every weight at 0.2."""
NO_BOUND = 3.4e38
"""Above every weight that float32 can hold."""
OPTIONS = tuple(
    option.name for option in options() if option.section in ("advantage", "loss") and option.name in DECIDED_BY
)
"""Options of the objective that fields decide."""
UNSET = ("preset", "ref_sync", "rollout_correction", "correction_bounds")
"""Options of the objective that no preset sets."""


def objective_fields() -> tuple[str, ...]:
    """Fields that a preset decides unless they are changed."""
    return tuple(dict.fromkeys(name for option in OPTIONS if option not in UNSET for name in DECIDED_BY[option]))


def _objective(args: Fields) -> Options:
    """Options of fields that become one by themselves, and of the objective but for the reference's steps.

    ConfigError for a field that its loss leaves idle.
    """
    bound, average = LOSSES[args.loss_type]
    loss = f"loss_type {args.loss_type!r}"
    if args.preset is not None and not changed(args, "loss_type"):
        bound, loss = str(PRESETS[args.preset].values.get("bound", "clip")), f"preset {args.preset!r}"
    # the bound leaves some fields without effect
    for name in {"clip": (), "cispo": ("epsilon", "delta")}.get(bound, ("epsilon", "epsilon_high", "delta")):
        if changed(args, name):
            raise ConfigError(
                f"{name} must be left out with {loss}, got {getattr(args, name)!r}: its ratio is not clipped"
            )
    both = args.multi_objective_aggregation == "normalize_then_sum"
    if both and changed(args, "scale_rewards"):
        raise ConfigError(
            f"scale_rewards must be left out with multi_objective_aggregation 'normalize_then_sum', got "
            f"{args.scale_rewards!r}: each reward is divided by its group's std, their sum by the batch's"
        )
    decided = {**options_of(args), "average": average, "average_over": "all", **_bound(args, bound)}
    decided["reward_aggregation"] = args.multi_objective_aggregation
    decided["advantage"] = "batch" if both else ADVANTAGES[args.scale_rewards]
    if args.preset is not None:
        by_preset = {name for name in OPTIONS if not any(changed(args, key) for key in DECIDED_BY[name])}
        decided = {name: value for name, value in decided.items() if name not in by_preset} | {"preset": args.preset}
    if args.use_adaptive_entropy:
        bounds = (args.entropy_coef_min, args.entropy_coef_max)
        decided["entropy_target"] = (args.entropy_target, *bounds, args.entropy_coef_delta)
    return {**decided, **_correction(args)}


def _bound(args: Fields, bound: str) -> Options:
    low, high, delta = args.epsilon, args.epsilon_high, args.delta
    if bound == "cispo":
        if high is not None and high < 1:
            raise ConfigError(
                "epsilon_high must be at least 1 with the bound of cispo, where it is the ratio's own upper bound, got "
                f"{high!r}; {CISPO_MAX_RATIO} is usual"
            )
        return {"bound": bound, "clip_eps_high": (CISPO_MAX_RATIO if high is None else high) - 1}
    if bound == "sapo":
        return {"bound": bound, "bound_shape": (args.sapo_temperature_pos, args.sapo_temperature_neg)}
    if bound == "vespo":
        of_good, of_bad = (args.vespo_k_pos, args.vespo_lambda_pos), (args.vespo_k_neg, args.vespo_lambda_neg)
        return {"bound": bound, "bound_shape": (*of_good, *of_bad)}
    if bound != "clip":
        return {"bound": bound}
    if not 0 <= low < 1:
        raise ConfigError(f"epsilon must lie in [0, 1), got {low!r}: the ratio is held above 1 - epsilon; 0.2 is usual")
    if high is not None and high < 0:
        raise ConfigError(
            f"epsilon_high must be at least 0, got {high!r}: the ratio is held below 1 + epsilon_high; 0.28 is usual"
        )
    high = low if high is None else high
    above = high
    if args.preset is not None and not any(changed(args, name) for name in DECIDED_BY["clip_eps_high"]):
        above = cast(float, PRESETS[args.preset].values.get("clip_eps_high", high))
    if delta is not None and delta <= 1 + above:
        raise ConfigError(f"delta must be above 1 + epsilon_high ({above}), got {delta!r}; 3 is usual, None is off")
    shape = None if delta is None else (delta,)
    return {"bound": bound, "clip_eps_low": low, "clip_eps_high": high, "bound_shape": shape}


def _correction(args: Fields) -> Options:
    """Rollout correction, off by default: the engine uses the trainer's weights, and TRL corrects for vLLM only."""
    if not corrects_rollouts(args):
        return {}
    cap = args.vllm_importance_sampling_cap
    most = args.vllm_importance_sampling_clip_max if cap is None else cap
    least = args.vllm_importance_sampling_clip_min
    if most is None and least is None:
        raise ConfigError(
            "vllm_importance_sampling_clip_max must be a number, got None: the weight has no other bound; 3.0 is usual"
        )
    bounds = (least or 0.0, NO_BOUND if most is None else most)
    return {"rollout_correction": args.vllm_importance_sampling_mode, "correction_bounds": bounds}
