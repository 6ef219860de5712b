"""Reads the rows of `grpo_fields.py` and `training_fields.py`: refuses, converts, and says what has no effect."""

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ClassVar

from paceline.compat.trl.grpo_fields import GRPOFields
from paceline.compat.trl.training_fields import TrainingFields
from paceline.compat.vocabulary import Meaning, changed, fields_by_option, same
from paceline.config.reading import suggest
from paceline.errors import ConfigError

MEANINGS: Mapping[str, Meaning] = {**TrainingFields.MEANINGS, **GRPOFields.MEANINGS}
"""Meaning of every field of `GRPOConfig`."""
DECIDED_BY: Mapping[str, tuple[str, ...]] = fields_by_option(MEANINGS)
"""Fields that decide each option; the first is named in errors about it."""

Options = dict[str, object]


@dataclass(repr=False)
class Fields(GRPOFields, TrainingFields):  # type: ignore[misc] # TRL widens types of shared fields
    """All fields of `GRPOConfig`, its base; by itself, the fields of a command: no transformers, no device."""

    TABLE: "ClassVar[type[Fields]]"
    """Class whose defaults are TRL's; a program's own class below it may have others."""

    def __post_init__(self) -> None:
        """Set fields that follow from others, as TrainingArguments does."""
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing
        if self.eval_strategy == "steps" and not self.eval_steps:
            self.eval_steps = self.logging_steps

    @property
    def world_size(self) -> int:
        """Number of processes that the batch numbers are counted for; 1 for a command, which counts all together."""
        return 1


Fields.TABLE = Fields


def check_fields(args: Fields) -> None:
    """Check every field by itself (ConfigError); text of a number becomes the number."""
    for name, one in MEANINGS.items():
        if one.kind == "refused" and changed(args, name) and (one.switch is None or one.switch.is_on(args)):
            value = getattr(args, name)
            if not any(same(value, other) for other in one.also):
                raise ConfigError(f"{name} must be left out, got {value!r}: {one.text}")
    _settle_numbers(args)
    scaled: object = args.scale_rewards
    if isinstance(scaled, bool):
        args.scale_rewards = "group" if scaled else "none"
    for name, one in MEANINGS.items():
        value = getattr(args, name)
        if one.choices and value not in one.choices and (value is not None or changed(args, name)):
            value, choices = value.value if isinstance(value, Enum) else value, ", ".join(one.choices)
            if value in one.absent:
                raise ConfigError(f"{name} {value!r} is not offered: {one.absent[value]}; take one of {choices}")
            remedy = suggest(str(value), one.choices, otherwise=one.remedy)
            raise ConfigError(f"{name} must be one of {choices}, got {value!r}", remedies=[remedy] if remedy else [])


def _settle_numbers(args: Fields) -> None:
    for field in fields(args):
        if field.name not in MEANINGS:  # of a program's own class below GRPOConfig
            continue
        is_union = typing.get_origin(field.type) in (typing.Union, UnionType)
        kinds: set[Any] = set(typing.get_args(field.type)) if is_union else {field.type}
        if kinds <= {int, float, NoneType} and kinds & {int, float}:
            value = getattr(args, field.name)
            may_be_none = NoneType in kinds or MEANINGS[field.name].may_be_none or field.default is None
            if not (value is None and may_be_none):
                settled = _number(field.name, value, whole=float not in kinds)
                if settled is not value:
                    setattr(args, field.name, settled)


def _number(name: str, value: Any, *, whole: bool) -> Any:
    """Number behind a value, also behind its text, since YAML reads `1e-5` as text."""
    settled = value
    if isinstance(value, str):
        try:
            settled = int(value) if whole else float(value)
        except ValueError:
            settled = None
    if whole and isinstance(settled, float) and settled.is_integer():
        settled = int(settled)
    if not hasattr(settled, "__float__") or (whole and not hasattr(settled, "__index__")):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name} must be {kind}, got {value!r}; write it in digits, without quotes")
    return settled


def options_of(args: Fields) -> Options:
    """Options of fields that become one by themselves."""
    return {one.options[0]: one.convert(getattr(args, name)) for name, one in MEANINGS.items() if one.convert}


def without_effect(args: Fields) -> dict[str, str]:
    """Changed fields without effect, each with the reason: some never have any, some while a feature is off."""
    untouched = args.TABLE(output_dir=args.output_dir, use_cpu=args.use_cpu)
    if args.accelerator_config is not None:  # transformers leaves it None where accelerate is not installed
        # a dataset without a length sets it, and nobody need be told
        # (transformers has made an AcceleratorConfig of it, whatever the field's own type says)
        ours: Any = args.accelerator_config
        theirs: Any = untouched.accelerator_config
        theirs.dispatch_batches = ours.dispatch_batches
    never = {
        name: one.text
        for name, one in MEANINGS.items()
        if one.kind == "idle" and changed(args, name) and not same(getattr(args, name), getattr(untouched, name))
    }
    switched_off = {
        name: one.switch.off
        for name, one in MEANINGS.items()
        if one.switch is not None and changed(args, name) and not one.switch.is_on(args)
    }
    return {**never, **switched_off}


def accepted_without_effect(args: Fields) -> str:
    """One line on the changed fields without effect, with reasons; empty if there are none."""
    reasons = "; ".join(f"{name} ({reason})" for name, reason in without_effect(args).items())
    return reasons and f"accepted without effect: {reasons}"
