"""The parameters that the name of a built-in reward function may carry: `cosine(max_length=512, max_wrong=-0.5)`.

Values are numbers, true or false, words, or text without commas. They are read by the annotation of the parameter,
never as code.
"""

import inspect
import math
import types
import typing
from collections.abc import Callable
from contextlib import suppress

from paceline.config.reading import base_name, parameter_texts, suggest
from paceline.errors import RewardError


def parameters_of(name: str, maker: Callable[..., object]) -> dict[str, object]:
    """The parameters in a name, as values of the types that `maker` gives them.

    Raises:
        RewardError: it names the parameter, the value, and what there is to choose from.
    """
    given = parameter_texts(name, label=f"--reward-funcs {name}", error=RewardError)
    known = annotations(maker) if given else {}
    for parameter in given:
        if parameter not in known:
            base, near = base_name(name), suggest(parameter, known, otherwise="")
            what = f"has no parameter {parameter!r}; {near + ' ' if near else ''}it takes {', '.join(known)}"
            if not known:
                what = f"takes no parameters, got {parameter!r}; write {base}"
            raise RewardError(f"--reward-funcs {name}: {base!r} {what}")
    return {parameter: _read(name, parameter, known[parameter], value) for parameter, value in given.items()}


def annotations(maker: Callable[..., object]) -> dict[str, object]:
    """The keyword parameters of a maker with their types."""
    hints = typing.get_type_hints(maker)
    keywords = [one for one in inspect.signature(maker).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return {one.name: hints[one.name] for one in keywords}


def _read(name: str, parameter: str, annotation: object, text: str) -> object:
    kind = annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        kind = next(one for one in typing.get_args(annotation) if one is not type(None))
    value: object = None
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        rule, value = f"one of {', '.join(choices)}", text if text in choices else None
    elif kind is str:
        return text
    elif kind is bool:
        rule, value = "true or false", {"true": True, "false": False}.get(text.lower())
    else:
        assert kind in (int, float), f"{parameter}: a maker's parameters are numbers, booleans, text or literals"
        rule = "a whole number" if kind is int else "a number"
        with suppress(ValueError):
            number = int(text) if kind is int else float(text)
            value = number if math.isfinite(number) else None
    if value is None:
        raise RewardError(f"--reward-funcs {name}: {parameter} must be {rule}, got {text!r}; correct the value")
    return value
