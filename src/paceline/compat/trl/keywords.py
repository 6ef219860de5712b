"""Fields with keyword arguments of other libraries: what each keyword means here; all others are refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from paceline.compat.trl.fields import Options
from paceline.compat.trl.training_fields import SCHEDULE_KEYWORDS
from paceline.config.reading import suggest
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig

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
MODEL_ACCEPTED: Accepted = {
    "attn_implementation": None,
    "device_map": (None, "auto"),
    "use_cache": None,
    "low_cpu_mem_usage": None,
    "use_safetensors": (True, None),
}
DTYPES = ("float32", "auto", "bfloat16")


def sampling_keywords(args: "GRPOConfig") -> Options:
    """Options from `generation_kwargs`, which win over the fields of the same name.

    Raises:
        ConfigError: a keyword without a meaning in sampling, or `temperature` at odds with the field.
    """
    given = _mapping(args, "generation_kwargs")
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


def template_keywords(args: "GRPOConfig") -> Options:
    """Options from `chat_template_kwargs`: a switch that several models' templates know."""
    given = _mapping(args, "chat_template_kwargs")
    options: Options = {"enable_thinking": given.pop("enable_thinking")} if "enable_thinking" in given else {}
    _refuse_rest("chat_template_kwargs", given, {}, ("enable_thinking",))
    return options


def model_keywords(args: "GRPOConfig") -> Options:
    """Options from `model_init_kwargs`: dtype of the computation (weights stay float32), and trust.

    Raises:
        ConfigError: a keyword that would change the model in a way that is not offered.
    """
    given = _mapping(args, "model_init_kwargs")
    options: Options = {}
    for name in ("dtype", "torch_dtype"):
        value = given.pop(name, None)
        word = str(value).removeprefix("torch.")
        if value is not None and word not in DTYPES:
            raise ConfigError(
                f"model_init_kwargs {name} must be one of {', '.join(DTYPES)}, got {word!r}; bfloat16 is usual"
            )
        # float32 leaves the computation to `bf16`, as mixed precision does
        options |= {"dtype": word} if word == "bfloat16" else {}
    if "trust_remote_code" in given:
        options["trust_remote_code"] = given.pop("trust_remote_code")
    _refuse_rest("model_init_kwargs", given, MODEL_ACCEPTED, ("dtype", "trust_remote_code"))
    return options


def check_checkpointing(args: "GRPOConfig") -> None:
    """Refuse old and new names that disagree; either value of `use_reentrant` gives the same gradient.

    Raises:
        ConfigError: one of the two names was set after the configuration was made, or another keyword.
    """
    if bool(args.gradient_checkpointing) != bool(args.activation_checkpointing):
        raise ConfigError(
            f"gradient_checkpointing must be activation_checkpointing ({args.activation_checkpointing}), its new name, "
            f"got {args.gradient_checkpointing!r}; set both"
        )
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        _refuse_rest(name, _mapping(args, name), {"use_reentrant": None}, ("use_reentrant",))


def schedule_keywords(args: "GRPOConfig") -> Options:
    """Option from `lr_scheduler_kwargs`: final rate of `cosine_with_min_lr`, as a share of the peak.

    Raises:
        ConfigError: a keyword that the schedule has not; neither or both of `min_lr` and `min_lr_rate` there.
    """
    given = _mapping(args, "lr_scheduler_kwargs")
    _refuse_rest("lr_scheduler_kwargs", given, dict.fromkeys(SCHEDULE_KEYWORDS[args.lr_scheduler_type]), ())
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


def _mapping(args: "GRPOConfig", name: str) -> dict[str, object]:
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
