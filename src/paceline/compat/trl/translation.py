"""A `GRPOConfig` to a run's configuration: a pure function whose errors name the field.

Keywords for other libraries, as in `generation_kwargs`, become options too; those without a meaning are refused.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from paceline.compat.trl.batches import batches_of, fill_batch_fields, in_steps, interval, warmup_steps
from paceline.compat.trl.fields import DECIDED_BY, MEANINGS, Fields, Options, check_fields, options_of
from paceline.compat.trl.objective import OPTIONS, objective_options
from paceline.compat.trl.training_fields import NO_LIMIT
from paceline.config.building import build_config
from paceline.config.objective import SCHEDULERS
from paceline.config.reading import suggest
from paceline.config.sections import RESERVED_SWITCHES, Config
from paceline.errors import ConfigError, PacelineError

FIELDS: Mapping[str, str] = {
    **{option: names[0] for option, names in DECIDED_BY.items()},
    "enable_thinking": "chat_template_kwargs enable_thinking",
    "chat_template_kwargs": "chat_template_kwargs",
    "stop": "generation_kwargs stop_strings",
    "eval_temperature": "temperature",
    "lora_rank": "peft_config.r",
    "lora_alpha": "peft_config.lora_alpha",
    "lora_targets": "peft_config.target_modules",
    "lora_settings": "peft_config",
    "lr_scheduler": "lr_scheduler_type",
    "rollout_func": "rollout_func",
    "dataset": "train_dataset",
    "environment": "environment_factory",
    "prompt_column": "train_dataset's column `prompt`",
    "answer_column": "train_dataset's column `answer`",
    "resume": "output_dir",
}
"""Field of `GRPOConfig`, or argument of the trainer, behind each option."""

INSTEAD: Mapping[str, str] = {
    "long_prompts": "give a max_prompt_length that fits, which cuts them",
    "prompt_column": "",
    "answer_column": "give them in a column `answer`",
    "system_prompt": "leave the system message out where the template takes none",
    "eval_share": "",
    "eval_split": "",
    "allow_overlap": "",
    "offload": "give optim adamw_8bit or a peft_config",
    "override": "start a new run in another output_dir",
    "resume": "continue it with train(resume_from_checkpoint=True)",
}
"""What a program does where a remedy names an option without a field; empty if there is nothing that it can do."""
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

ErrorT = TypeVar("ErrorT", bound=PacelineError)

OPTION = re.compile(r"--([a-z][a-z0-9-]*[a-z0-9])")
ASIDE = re.compile(r" \(--([a-z][a-z0-9-]*[a-z0-9])[^()]*\)")
"""Option in parentheses that only names a limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
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


def translate(args: Fields, surroundings: Surroundings) -> Config:
    """Configuration of the whole run in Paceline's options.

    Rewards keep the given order, models among functions, so that weights match. Saving and evaluation intervals are in
    steps for the strategy `steps`, else 0: the trainer handles the other strategies. A ConfigError names fields.
    """
    check_fields(args)
    fill_batch_fields(args)
    _check_checkpointing(args)
    batches, prompts, limit = batches_of(args), surroundings.num_prompts, args.max_prompt_length
    fits = _fitting(args, surroundings)
    if args.temperature <= 0:
        raise ConfigError(
            f"temperature must be above 0, got {args.temperature!r}; greedy completions of one prompt are all the same"
        )
    given: Options = {
        **{name: value for name, value in options_of(args).items() if name not in OPTIONS},
        **objective_options(args),
        # keywords win over the fields of the same name
        **_model_keywords(args),
        **_sampling_keywords(args),
        **_template_keywords(args),
        **_schedule_keywords(args),
        **surroundings.layout,
        # data and rewards
        "model": surroundings.model,
        "dataset": surroundings.dataset,
        "max_prompt_length": fits if limit is None else limit,
        # the messages that a conversation goes on from cannot be cut
        "long_prompts": "error" if limit is None or surroundings.environments else "truncate_left",
        "reward_funcs": surroundings.reward_names,
        "environment": surroundings.environments,
        "max_turns": _turns(args) if surroundings.environments else None,
        "reward_weights": _weights(args, surroundings),
        # the step and the run
        "prompts_per_step": batches.prompts_per_step,
        "adam_betas": (args.adam_beta1, args.adam_beta2),
        "num_minibatches": batches.num_minibatches,
        "warmup_steps": warmup_steps(args, prompts),
        "save_steps": interval(args, "save", prompts),
        "background_save": False,  # on_save finds the checkpoint on disk, and the trainer's state as it was
        # evaluation
        "eval_steps": interval(args, "eval", prompts),
        "eval_size": None,
        "eval_generations": args.num_generations if args.num_generations_eval is None else args.num_generations_eval,
        "eval_temperature": args.temperature,
        "eval_reward_func": (*surroundings.reward_names, *surroundings.environment_rewards)[0],
    }
    if args.max_steps > 0:
        given["max_steps"] = math.ceil(args.max_steps / batches.updates_per_step)
    else:
        given["num_epochs"] = args.num_train_epochs
    if args.use_vllm:
        given["vllm_memory"] = float(args.vllm_gpu_memory_utilization)
        given["vllm_tensor_parallel"] = args.vllm_tensor_parallel_size
    if args.sync_ref_model:
        given["ref_sync"] = (_reference_steps(args, surroundings), args.ref_model_mixup_alpha)
    try:
        return build_config(given)
    except ConfigError as error:
        raise of_fields(error) from None


def _turns(args: Fields) -> int | None:
    """Turns of the model: one more than may call tools."""
    iterations = args.max_tool_calling_iterations
    if iterations is not None and iterations < 0:
        raise ConfigError(f"max_tool_calling_iterations must be at least 0, got {iterations!r}")
    return None if iterations is None else iterations + 1


def _weights(args: Fields, surroundings: Surroundings) -> list[float] | None:
    names, weights = surroundings.reward_names, args.reward_weights
    if weights is not None and len(weights) != len(names):
        raise ConfigError(
            f"reward_weights must have one number for each of the {len(names)} rewards ({', '.join(names)}), got "
            f"{weights!r}"
        )
    return weights


def _fitting(args: Fields, surroundings: Surroundings) -> int:
    """Longest prompt without a `max_prompt_length`: the model's context, or what `vllm_max_model_length` leaves."""
    most, context = args.vllm_max_model_length, surroundings.context_length or NO_LIMIT
    if most is None or not args.use_vllm:
        return context
    prompt, completion = args.max_prompt_length or 1, args.max_completion_length or 0
    if most < prompt + completion:
        raise ConfigError(
            f"vllm_max_model_length must hold a prompt of {prompt} tokens and a completion of {completion}, got "
            f"{most}; raise it to at least {prompt + completion}, or lower max_completion_length"
        )
    return min(context, most - completion)


def _reference_steps(args: Fields, surroundings: Surroundings) -> int:
    if surroundings.adapter:
        raise ConfigError("sync_ref_model must be False with a PEFT model, got True: the reference is its base model")
    if args.beta == 0 and args.preset is None:
        raise ConfigError("sync_ref_model must be False while beta is 0, got True: there is no reference then")
    if args.ref_model_sync_steps < 1:
        raise ConfigError(f"ref_model_sync_steps must be at least 1, got {args.ref_model_sync_steps!r}")
    return in_steps(args, "ref_model_sync_steps", args.ref_model_sync_steps, None)


def _sampling_keywords(args: Fields) -> Options:
    given = keywords_of(args, "generation_kwargs")
    temperature = given.pop("temperature", args.temperature)
    if temperature != args.temperature:
        raise ConfigError(
            f"generation_kwargs must not have another temperature than the field ({args.temperature}), got "
            f"{temperature}: the loss is of the distribution that was sampled from; set temperature alone"
        )
    for name in LENGTHS:
        if name in given:
            raise ConfigError(f"generation_kwargs {name} is refused, got {given[name]!r}; set max_completion_length")
    options: Options = {name: given.pop(name) or 0 for name in SAMPLING_KEYS if name in given}
    stop = given.pop("stop_strings", None)
    if stop is not None:
        options["stop"] = (stop,) if isinstance(stop, str) else tuple(cast("Iterable[str]", stop))
    _refuse_rest("generation_kwargs", given, SAMPLING_ACCEPTED, (*SAMPLING_KEYS, "stop_strings"))
    return options


def _template_keywords(args: Fields) -> Options:
    given = keywords_of(args, "chat_template_kwargs")
    # a switch that the templates of several models know
    options: Options = {"enable_thinking": given.pop("enable_thinking")} if "enable_thinking" in given else {}
    if taken := sorted(RESERVED_SWITCHES.intersection(given)):
        raise ConfigError(
            f"chat_template_kwargs must not have {taken[0]!r}, got {given[taken[0]]!r}; the trainer itself gives it"
        )
    try:
        options["chat_template_kwargs"] = tuple(f"{name}={json.dumps(value)}" for name, value in given.items())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"chat_template_kwargs must hold text, numbers and what JSON has, got {given!r} ({error})"
        ) from error
    return options


def _model_keywords(args: Fields) -> Options:
    given = keywords_of(args, "model_init_kwargs")
    for name in (*HUB_KEYS, "quantization_config"):
        given.pop(name, None)  # see models.py
    options: Options = {}
    places: object = given.pop("device_map", None)
    if isinstance(places, Mapping) and len(set(places.values())) > 1:
        raise ConfigError(f"model_init_kwargs device_map must name one device, got {places!r}; leave it out")
    for name in ("dtype", "torch_dtype"):
        value = given.pop(name, None)
        word = str(value).removeprefix("torch.")
        if value is not None and word not in DTYPES:
            raise ConfigError(
                f"model_init_kwargs {name} must be one of {', '.join(DTYPES)}, got {word!r}; bfloat16 is usual"
            )
        # weights stay float32; float32 leaves the computation to `bf16`, as mixed precision does
        options |= {"dtype": word} if word == "bfloat16" else {}
    if "trust_remote_code" in given:
        options["trust_remote_code"] = given.pop("trust_remote_code")
    own = ("dtype", "trust_remote_code", *HUB_KEYS, "quantization_config", "device_map")
    _refuse_rest("model_init_kwargs", given, MODEL_ACCEPTED, own)
    return options


def _check_checkpointing(args: Fields) -> None:
    """Refuse old and new names that disagree; either value of `use_reentrant` gives the same gradient."""
    if bool(args.gradient_checkpointing) != bool(args.activation_checkpointing):
        raise ConfigError(
            f"gradient_checkpointing must be activation_checkpointing ({args.activation_checkpointing}), its new name, "
            f"got {args.gradient_checkpointing!r}; set both"
        )
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        _refuse_rest(name, keywords_of(args, name), {"use_reentrant": None}, ("use_reentrant",))


def _schedule_keywords(args: Fields) -> Options:
    given = keywords_of(args, "lr_scheduler_kwargs")
    _refuse_rest("lr_scheduler_kwargs", given, dict.fromkeys(SCHEDULERS[args.lr_scheduler_type]), ())
    if args.lr_scheduler_type != "cosine_with_min_lr":
        return {}
    if ("min_lr" in given) == ("min_lr_rate" in given):
        raise ConfigError(
            f"lr_scheduler_kwargs must have one of min_lr and min_lr_rate with cosine_with_min_lr, got {given!r}; "
            "give for example {'min_lr_rate': 0.1}"
        )
    if "min_lr_rate" in given:
        return {"min_lr_ratio": given["min_lr_rate"]}
    least, peak = given["min_lr"], args.learning_rate
    if not isinstance(least, int | float) or not 0 <= least <= peak:
        raise ConfigError(f"lr_scheduler_kwargs min_lr must lie between 0 and learning_rate ({peak}), got {least!r}")
    return {"min_lr_ratio": least / peak if peak else 0.0}


def keywords_of(args: Fields, name: str) -> dict[str, object]:
    """Keywords for another library in a field; ConfigError if it is no dictionary."""
    value: object = getattr(args, name)
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a dict, or JSON text that starts with a brace, got {value!r}")
    return dict(value)


def _refuse_rest(name: str, given: Mapping[str, object], accepted: Accepted, translated: Sequence[str]) -> None:
    known = (*translated, *accepted)
    for key, value in given.items():
        if key not in accepted:
            word = OTHER_WORDS[key] if OTHER_WORDS.get(key) in known else key
            remedy = suggest(word, known, otherwise=f"what it may hold: {', '.join(known) or 'nothing'}")
            raise ConfigError(f"{name} must not have {key!r}, got {value!r}; {remedy}")
        values = accepted[key]
        if values is not None and value not in values:
            raise ConfigError(f"{name} {key} must be {values[0]!r}, got {value!r}; leave it out")


def of_fields(error: ErrorT) -> ErrorT:
    """The same error for a program: fields instead of options, and remedies that a program has.

    >>> str(of_fields(ConfigError("--clip-eps-low is 2", remedies=["name a --prompt-column", "lower it"])))
    'epsilon is 2; lower it'
    """
    return error.reworded(in_field_names, advise=_remedy)


def _remedy(clause: str) -> str:
    lacking = next((name for found in OPTION.finditer(clause) if (name := _name(found)) in INSTEAD), None)
    return in_field_names(clause) if lacking is None else INSTEAD[lacking]


def in_field_names(text: str) -> str:
    """Replace options in a text by the fields behind them, and leave out a limit in parentheses that is no field.

    >>> in_field_names("--clip-eps-low 1.5 is left (--stop-grace 3)")
    'epsilon 1.5 is left'
    """
    text = ASIDE.sub(lambda found: found[0] if _name(found) in {*FIELDS, *MEANINGS} else "", text)
    # the option's value is its field where a program gives an object, and a program names a model without its prefix
    text = text.replace("--engine vllm", "--engine").replace(
        "--engine local", "--engine False"
    )  # a field of two values
    text = text.replace("--dataset train_dataset ", "--dataset ").replace("--reward-funcs model:", "--reward-funcs ")
    return OPTION.sub(lambda found: FIELDS.get(_name(found), _name(found)), text)


def _name(flag: re.Match[str]) -> str:
    return flag[1].replace("-", "_")
