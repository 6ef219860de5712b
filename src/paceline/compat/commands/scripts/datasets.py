"""The dataset of a script's `load_dataset(...)`: address, split and number of rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.compat.commands.scripts.reading import ITEM, Argument, Made, ScriptCall, Written

FILES = ("json", "parquet")
"""File kinds that `load_dataset` takes by name and Paceline by their suffix."""
POSITIONS = ("path", "name", "data_dir", "data_files", "split")
FIRST_ROWS = re.compile(r"(?P<split>[\w.-]+)(?:\[:(?P<count>\d+)\])?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptRows:
    """A dataset written out in the script."""

    place: str
    config: str | None = None
    split: str | None = None
    """None if not given, or for a file's only split."""
    count: int | None = None
    """None for all rows."""
    is_file: bool = False
    others: Mapping[str, Argument]
    """Arguments of the call outside the other fields."""


def rows_of(argument: Argument | None) -> ScriptRows | None:
    """Dataset of `load_dataset(NAME)[SPLIT].select(range(N))`, every part optional; None for other expressions."""
    call = argument.call if isinstance(argument, Made) else None
    if call is None:
        return None
    if call.name == "load_dataset":
        return _loaded(call)
    rows = rows_of(call.receiver)
    if rows is None or rows.count is not None or len(call.positional) != 1 or call.named:
        return None
    only = call.positional[0]
    if call.name == ITEM and rows.split is None and isinstance(only, Written) and isinstance(only.value, str):
        return replace(rows, split=None if rows.is_file else only.value)
    if call.name == "select" and isinstance(only, Made) and only.call is not None and only.call.name == "range":
        count = only.call.positional[0] if len(only.call.positional) == 1 else None
        if isinstance(count, Written) and isinstance(count.value, int):
            return replace(rows, count=count.value)
    return None


def _loaded(call: ScriptCall) -> ScriptRows | None:
    given = {**dict(zip(POSITIONS, call.positional, strict=False)), **call.named}
    texts = {name: one.value for name, one in given.items() if isinstance(one, Written)}
    if len(call.positional) > len(POSITIONS) or any(name not in texts and name in POSITIONS for name in given):
        return None
    path, config, files, split = (texts.get(name) for name in ("path", "name", "data_files", "split"))
    found = FIRST_ROWS.fullmatch(split) if isinstance(split, str) else None
    if not isinstance(path, str) or texts.get("data_dir") is not None or (split is not None and found is None):
        return None
    count = int(found["count"]) if found is not None and found["count"] else None
    others = {name: one for name, one in given.items() if name not in POSITIONS}
    if path in FILES:
        is_one = isinstance(files, str) and "*" not in files and "://" not in files and config is None
        only_split = found is None or found["split"] == "train"
        return ScriptRows(place=str(files), count=count, is_file=True, others=others) if is_one and only_split else None
    if files is not None:
        return None
    return ScriptRows(
        place=path,
        config=None if config is None else str(config),
        split=None if found is None else found["split"],
        count=count,
        others=others,
    )
