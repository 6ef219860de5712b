"""Addresses of datasets as options give them: one or several, and held-out sets with names of their own."""

import re
from collections.abc import Sequence

NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<address>.*)", re.DOTALL)
"""A set of held-out tasks with a name of its own; a path with an equals sign is written with a slash before it."""


def several(addresses: str | tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of an option that takes one or several."""
    return (addresses,) if isinstance(addresses, str) else addresses


def named_sets(entries: Sequence[str]) -> tuple[tuple[str | None, str], ...]:
    """Name, where one is given, and address of each entry.

    >>> named_sets(["gsm8k=test.jsonl", "math.jsonl"])
    (('gsm8k', 'test.jsonl'), (None, 'math.jsonl'))
    """
    found = [NAMED.fullmatch(entry) for entry in entries]
    return tuple(
        (None, entry) if match is None else (match["name"], match["address"])
        for entry, match in zip(entries, found, strict=True)
    )
