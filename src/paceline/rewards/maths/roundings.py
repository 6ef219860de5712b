"""Marks of approximation, which a rounded number may have: `\\approx 3.14`, `about 3.14`."""

import re

from paceline.rewards.maths.elements import LABEL
from paceline.rewards.maths.quantities import parse_quantity

_APPROXIMATION = re.compile(
    rf"(?:(?P<name>{LABEL} ?)?(?:\\(?:approx|sim|simeq|cong|thickapprox)(?![a-zA-Z])|=? ?\\approx(?![a-zA-Z]))"
    r"|(?:\\text\s*\{\s*)?(?:about|approximately|approx\.?|around|roughly|circa|ca\.|etwa|ungefähr|rund|environ|约|大约|約|およそ)"
    r"(?![a-zA-Z])(?:\s*\})?)\s*(?=[^\s=])"
)
"""A mark of approximation, behind the name of the value or alone."""
_NAMED_VALUE = re.compile(rf"^{LABEL} ?= ?")


def approximated(text: str) -> tuple[str, bool]:
    r"""A number without a mark of approximation, behind its name or alone; and whether it had one."""
    found = _APPROXIMATION.match(text)
    if not found or not parse_quantity(text[found.end() :]):
        return text, False
    name = f"{found['name']}= " if found["name"] else ""
    return f"{name}{text[found.end() :]}", True


def is_decimal(text: str) -> bool:
    """Return whether a text is a number that is written with a point, and so may have been rounded."""
    number = _NAMED_VALUE.sub("", text)
    return "." in number and parse_quantity(number) is not None
