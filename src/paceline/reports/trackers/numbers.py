"""A nested record of a run to the flat names that trackers draw one curve for."""

import re
from collections.abc import Iterator, Mapping

_REFUSED = re.compile(r"[^\w.: -]")
"""What some tracker refuses within a name; a slash there would also make a group where none is meant."""


def flat_numbers(record: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl` or `evals.jsonl`, nested names joined by a slash.

    None (no number this time) and text are left out; True and False are 1.0 and 0.0. What a tracker could refuse within
    a name becomes an underscore, such as the slashes of a reward function's file.

    >>> flat_numbers({"loss": 0.5, "kl": None, "rewards": {"my/file.py:f": {"mean": 1}}})
    {'loss': 0.5, 'rewards/my_file.py:f/mean': 1.0}

    Raises:
        ValueError: two names become the same one.
    """
    pairs = list(_pairs(record, ()))
    numbers = dict(pairs)
    if len(numbers) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"two numbers have the same name: {sorted({name for name in names if names.count(name) > 1})}")
    return numbers


def _pairs(record: Mapping[str, object], above: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        path = (*above, _REFUSED.sub("_", name))
        if isinstance(value, Mapping):
            yield from _pairs(value, path)
        elif isinstance(value, int | float):
            yield "/".join(path), float(value)
