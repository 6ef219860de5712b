"""Fields of `GRPOConfig` given as flags, to options, by the tables and code of `compat.trl`.

Python and command lines share one translation of TRL's fields. Torch and transformers, which take seconds to load, are
not imported here.
"""

import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import NoneType, UnionType
from typing import Any

from paceline.compat.commands.flags import NO_CHANGE, OFF, ON, Flags, FlagWords, is_on
from paceline.compat.commands.translation import Translation
from paceline.compat.trl.batches import check_warmup, scheduler_words
from paceline.compat.trl.fields import DECIDED_BY, MEANINGS, Fields, without_effect
from paceline.compat.trl.translation import RunContext, translate
from paceline.config.packages import TRACKERS
from paceline.config.reading import options
from paceline.config.sections import Config
from paceline.errors import ConfigError
from paceline.training.setup.configuration import OWN_SCHEDULE

SHARES = ("eval_steps", "save_steps")
"""Fields that may be a share of the run, which depends on the number of rows."""
WARMUPS = ("warmup_ratio", "warmup_steps")
"""Fields whose share of the run `lr_scheduler` takes as it is."""
ELSEWHERE = ("engine", "cluster", "parallel", "lora")
"""Sections without fields in the Python trainer; the caller decides them."""
DECIDED_ELSEWHERE = (
    *("device", "dtype", "threads", "model", "output_dir", "report_to", "background_save", "offload"),
    *("dataset", "dataset_split", "dataset_size", "eval_dataset", "eval_split", "system_prompt", "prompt_column"),
)
"""Options that no field decides: the caller or the machine does."""
EVALUATION_OPTIONS = ("eval_steps", "eval_size", "eval_temperature", "eval_generations", "eval_reward_func")
KEPT_UNLESS_GIVEN = (
    *("gradient_checkpointing", "seed", "max_prompt_length", "long_prompts", "save_total_limit", "project"),
    "rollout_correction",
)
"""Options with a better default here than there, kept unless a field that decides them is given."""
FIELD_NAMES = tuple(MEANINGS)
ANNOTATIONS: Mapping[str, Any] = typing.get_type_hints(Fields)
PRODUCTS = "weights, gradients and moments are float32; the products are of this precision"
"""Note on a flag for the precision of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandContext:
    """Context of a command, apart from its fields."""

    tool: str
    ranks: int = 1
    """Training processes: batch fields count completions of each."""
    rewards: tuple[str, ...] = ("accuracy",)
    """Reward functions, then models."""
    models: tuple[str, ...] = ()
    """Members of `rewards` that are models."""
    adapter: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Defaults of the tool that differ from TRL 1.16's."""
    more: Mapping[str, object] = field(default_factory=dict)
    """Fields that the tool sets by other flags, whose notes are added elsewhere."""
    spelling: Mapping[str, str] = field(default_factory=dict)
    """Flag of the tool for each field with another name."""

    def flag(self, name: str) -> str:
        """Flag of a field."""
        return f"--{self.spelling.get(name, name)}"


def from_fields(flags: Flags, context: CommandContext) -> Translation:
    """Options behind the fields, and a note on each with another meaning or none; ConfigError for one that is wrong."""
    translation = Translation()
    values = {**context.defaults, **context.more, **{name: typed(name, words) for name, words in flags.items()}}
    micro = values.get("per_device_train_batch_size", 8)
    if not isinstance(micro, int) or micro < 1:
        raise ConfigError(f"per_device_train_batch_size must be a whole number of at least 1, got {micro!r}")
    _note_batch(micro, values, context, translation)
    # a share of a run is left out where the rows decide how long it is
    steps = values.get("max_steps", -1)
    rows_decide = not (isinstance(steps, int) and steps > 0)
    shares = {
        name: values.pop(name)
        for name in (*SHARES, *WARMUPS)
        if rows_decide and isinstance(share := values.get(name), float) and 0 < share < 1
    }
    for name in SHARES:
        if name in shares:
            text = "of a run whose length the rows decide: `paceline plan` prints its steps; give the number as"
            translation.note("missing", f"--{name}", f"{shares[name]} {text} --{name.replace('_', '-')}")
    values["per_device_train_batch_size"] = micro * context.ranks
    kept: dict[str, Any] = {
        name: value
        for name, value in values.items()
        if name.endswith(("_strategy", "_batch_size")) or not (MEANINGS[name].command or MEANINGS[name].note)
    }
    refused = [name for name in kept if name in flags and MEANINGS[name].kind == "refused"]
    try:
        args = Fields(output_dir="run", use_cpu=True, bf16=False, **kept)
        run = RunContext(model="model", reward_names=context.rewards, adapter=context.adapter, context_length=None)
        config = translate(args, run)
        args = replace(args, **{name: shares[name] for name in WARMUPS if name in shares})
        check_warmup(args)
        schedule = None if args.lr_scheduler_type == "constant" else scheduler_words(args)
    except ConfigError as error:
        raise ConfigError(f"{context.tool}: {_in_tool_spelling(str(error), context)}") from None
    idle = without_effect(args)
    for name in flags:
        _note_field(name, idle, context, translation)
    for name in refused:
        translation.note("idle", context.flag(name), NO_CHANGE)
    translation.options = _options(config, args, values, context, schedule)
    translation.explicit = {option for name in flags for option in MEANINGS[name].options} & translation.options.keys()
    return translation


def _options(
    config: Config, args: Fields, values: Mapping[str, object], context: CommandContext, schedule: str | None
) -> dict[str, object]:
    """Options that the fields decide; the rest keeps our defaults.

    `schedule`: value of `lr_scheduler`; None: a constant rate.
    """
    if schedule is not None:
        config = replace(config, optim=replace(config.optim, lr_scheduler=schedule))
    left_out = {*DECIDED_ELSEWHERE, *(OWN_SCHEDULE if schedule is not None else ("lr_scheduler",))}
    left_out |= {name for name in KEPT_UNLESS_GIVEN if not values.keys() & set(DECIDED_BY[name])}
    if args.eval_strategy == "no":
        left_out |= set(EVALUATION_OPTIONS)
    if values.get("num_generations_eval") is not None:
        left_out -= {"eval_generations", "eval_temperature"}
    if not config.loss.beta:
        left_out.add("kl")
    if config.data.long_prompts == "error" and "max_prompt_length" not in values:
        left_out.add("max_prompt_length")
    if "save_steps" in values and values["save_steps"] is None:
        left_out.add("save_steps")
    chosen: dict[str, object] = {
        option.name: getattr(getattr(config, option.section), option.name)
        for option in options()
        if option.section not in ELSEWHERE and option.name not in left_out
    }
    functions = tuple(name for name in context.rewards if name not in context.models)
    chosen["reward_funcs"] = (*functions, *(f"model:{name}" for name in context.models))
    if "eval_reward_func" in chosen:
        chosen["eval_reward_func"] = functions[0] if functions else "accuracy"
    return chosen


def _note_batch(micro: int, values: Mapping[str, object], context: CommandContext, translation: Translation) -> None:
    """Note that counts a batch in both units."""
    group = values.get("num_generations", 8)
    accumulated = values.get("gradient_accumulation_steps") or 1
    parts = values.get("steps_per_generation") or accumulated
    whole = values.get("generation_batch_size")
    if not (isinstance(parts, int) and isinstance(group, int) and group > 0):
        return
    # what is updated on at once may be more than what is generated at once
    parts = max(parts, accumulated) if isinstance(accumulated, int) else parts
    total = whole if isinstance(whole, int) else micro * parts * context.ranks
    if total % group == 0:
        text = (
            f"{micro} completions of {context.ranks} process{'es' * (context.ranks > 1)}, {parts} times, are {total} "
            f"in a step: {total // group} prompts of {group}; memory is bounded by --micro-batch-tokens, which changes "
            "no gradient"
        )
        translation.note("changed", context.flag("per_device_train_batch_size"), text)


def _note_field(name: str, idle: Mapping[str, str], context: CommandContext, translation: Translation) -> None:
    """Note on a given field that is not an option with the same name and meaning."""
    row, about = MEANINGS[name], context.flag(name)
    if row.note is not None:
        translation.note(row.note[0], about, row.note[1])
    elif row.command:
        return
    elif name in idle or row.kind == "idle":
        translation.note("idle", about, idle.get(name, row.text))
    elif row.kind == "option" and row.text:
        translation.note("changed", about, f"becomes {row.text}")


def add_trackers(names: FlagWords, translation: Translation, words: tuple[str, ...]) -> None:
    """Add the trackers of `report_to` that there are, and note each other name that is not among `words`."""
    if kept := tuple(name for name in names if name in TRACKERS):
        translation.decide(report_to=kept)
    for name in names:
        if name not in (*TRACKERS, *words):
            translation.note("missing", "--report_to", f"{name}; there are {', '.join(TRACKERS)}")


def _in_tool_spelling(sentence: str, context: CommandContext) -> str:
    for name, theirs in context.spelling.items():
        sentence = sentence.replace(name, theirs)
    if context.ranks > 1 and "per_device_train_batch_size" in sentence:
        sentence += f" (per_device_train_batch_size is counted over all {context.ranks} processes here)"
    return " ".join(sentence.split())


def typed(name: str, words: FlagWords) -> Any:
    """Text of a flag as a value of the field's type; ConfigError if it is none.

    >>> typed("num_generations", ("7",)), typed("reward_weights", ("1", "0.5"))
    (7, [1.0, 0.5])
    """
    annotation = ANNOTATIONS[name]
    united = typing.get_origin(annotation) in (typing.Union, UnionType)
    kinds = set(typing.get_args(annotation)) if united else {annotation}
    items = next((typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is list), None)
    plain = {kind for kind in kinds if typing.get_origin(kind) is None}
    if items is not None and (len(words) != 1 or str not in plain):
        return [_scalar(name, word, {items}) for word in words]
    if bool in plain and not words:
        return True
    if len(words) != 1:
        raise ConfigError(f"--{name} must have one value, got {' '.join(words) or 'none'}; put quotes around it")
    if words[0].startswith("{") and plain & {dict, str}:
        try:
            return json.loads(words[0])
        except ValueError:
            rule = "names and texts stand in double quotes"
            raise ConfigError(f"--{name} must be JSON, got {words[0]!r}; {rule}") from None
    return _scalar(name, words[0], plain)


def _scalar(name: str, word: str, kinds: set[Any]) -> object:
    if word.lower() in ("none", "null") and (NoneType in kinds or str not in kinds):
        return None
    if bool in kinds and word.lower() in (*ON, *OFF):
        return is_on({name: (word,)}, name)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                continue
    if kinds & {int, float, bool} and str not in kinds:
        rule = "true or false" if bool in kinds else "a number"
        raise ConfigError(f"--{name} must be {rule}, got {word!r}")
    return word
