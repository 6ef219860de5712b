"""Rules for the values of options: bounds, which stand beside the fields, and the refusal of a value."""

import functools
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Bound:
    """Condition on the value of a field, written in its annotation: `beta: Annotated[float, AT_LEAST_0] = 0.0`."""

    holds: Callable[[Any], object]
    """Predicate of allowed values; never called with None."""
    rule: str
    """Rule as the refusal quotes it, to follow "must"."""
    remedy: str = ""


AT_LEAST_0 = Bound(lambda value: value >= 0, "be at least 0")
AT_LEAST_1 = Bound(lambda value: value >= 1, "be at least 1")
ABOVE_0 = Bound(lambda value: value > 0, "be above 0")
FROM_0_TO_1 = Bound(lambda value: 0 <= value <= 1, "lie in [0, 1]")
FROM_0_BELOW_1 = Bound(lambda value: 0 <= value < 1, "lie in [0, 1)")


def check_bounds(section: Any) -> None:
    """Check the bounds beside a section's fields; raises the `refusal` of the first value outside of them."""
    for name, bound in _bounds(section.__class__):
        value = getattr(section, name)
        require(value is None or bool(bound.holds(value)), name, value, bound.rule, bound.remedy)


@functools.cache
def _bounds(section_class: type) -> tuple[tuple[str, Bound], ...]:
    hints = typing.get_type_hints(section_class, include_extras=True)
    marks = ((name, mark) for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ()))
    return tuple((name, mark) for name, mark in marks if isinstance(mark, Bound))


def check_unused(section: Any, names: Iterable[str], *, without: str, why: str) -> None:
    """Refuse options that are not at their defaults and have no effect without another option."""
    for name in names:
        default = section.__dataclass_fields__[name].default
        usual = f"{default:g}" if isinstance(default, float) else default
        rule = "be left out" if default is None else f"be {usual}"
        require(getattr(section, name) == default, name, getattr(section, name), f"{rule} without {without}", why)


def refusal(option: str, value: object, rule: str, remedy: str = "") -> ConfigError:
    """Return the error that names option, value, rule and remedy."""
    flag = option.replace("_", "-")
    error = ConfigError(f"--{flag} must {rule}, got {value!r}", remedies=[remedy] if remedy else [])
    error.option, error.value, error.rule = option, value, rule
    return error


def require(condition: bool, option: str, value: object, rule: str, remedy: str = "") -> None:
    """Raise the `refusal` unless `condition` holds."""
    if not condition:
        raise refusal(option, value, rule, remedy)
