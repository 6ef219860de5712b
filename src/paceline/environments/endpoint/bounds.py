"""Bounds on what a request may hold, looked at before anything is rendered or proven."""

from collections.abc import Callable, Mapping
from typing import Any

MOST_TOOLS = 512
"""Tools of one request, at most."""
RANGES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "temperature": ("lie in [0, 100]", lambda value: 0 <= value <= 100),
    "top_p": ("lie in (0, 1]", lambda value: 0 < value <= 1),
    "top_k": (
        "be a whole number from 1 on, or 0 or -1 for none",
        lambda value: isinstance(value, int) and -1 <= value < 1 << 31,
    ),
    "min_p": ("lie in [0, 1)", lambda value: 0 <= value < 1),
    "seed": ("be a whole number", lambda value: isinstance(value, int)),
    "stop": (
        "hold at most 16 texts of 1 to 1000 characters",
        lambda value: len(value) <= 16 and all(1 <= len(one) <= 1000 for one in value),
    ),
    "presence_penalty": ("be 0, as there is none", lambda value: value == 0),
    "frequency_penalty": ("be 0, as there is none", lambda value: value == 0),
    "parallel_tool_calls": ("be true, as a turn may call several tools", lambda value: value is True),
}
"""Settings that a server takes: what each must do, and a test of that."""
