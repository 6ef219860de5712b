"""Number fields given as text, since YAML reads `1e-5` as text."""

import typing
from dataclasses import fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig

MAY_BE_NONE = ("max_grad_norm", "top_k", "repetition_penalty")
"""Number fields that scripts set to None for off."""


def settle_numbers(args: "GRPOConfig") -> None:
    """Replace the text of a number by the number.

    Raises:
        ConfigError: anything else where a number must be.
    """
    for field in fields(args):
        kinds = _kinds(field.type)
        if kinds <= {int, float, NoneType} and kinds & {int, float}:
            value = getattr(args, field.name)
            may_be_none = NoneType in kinds or field.name in MAY_BE_NONE or field.default is None
            if not (value is None and may_be_none):
                settled = _number(field.name, value, whole=float not in kinds)
                if settled is not value:
                    setattr(args, field.name, settled)


def _kinds(annotation: Any) -> set[Any]:
    """Members of a union annotation; a list of numbers is no number."""
    united = typing.get_origin(annotation) in (typing.Union, UnionType)
    return set(typing.get_args(annotation)) if united else {annotation}


def _number(name: str, value: Any, *, whole: bool) -> Any:
    settled = _parsed(value, whole=whole) if isinstance(value, str) else value
    if whole and isinstance(settled, float) and settled.is_integer():
        settled = int(settled)
    if not hasattr(settled, "__float__") or (whole and not hasattr(settled, "__index__")):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name} must be {kind}, got {value!r}; write it in digits, without quotes")
    return settled


def _parsed(text: str, *, whole: bool) -> Any:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return None
