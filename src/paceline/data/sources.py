"""Loading of rows by a dataset's address: a generator, a file, a directory or a name on the Hub."""

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from paceline.data.files import READABLE, data_ending, read_file
from paceline.data.generators import BUILT_IN, generate_rows, is_generator
from paceline.data.hub import read_split, split_names
from paceline.data.joining import join
from paceline.data.rows import Row
from paceline.errors import DataError

COUNTED = re.compile(r"(?P<place>.+)#(?P<rows>\d+)", re.DOTALL)
"""An address with a number of rows; no other name can end so."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


def load_rows(dataset: str | Sequence[str], *, split: str, size: int | None, seed: int = 0) -> Sequence[Row]:
    """Return the first `size` rows of a dataset (None: all; of a generator 10,000); those of a large one on demand.

    Several are joined. `#N` behind an address takes N of its rows, drawn by `seed`.

    `dataset` is `arithmetic`, `programs`, `reasoning_gym:NAME`, a `.jsonl`, `.json`, `.jsonl.gz` or `.parquet` file, a
    directory, or a Hub name `org/name` or `org/name:config`. A file is one split: `split` does not matter for it.

    Raises:
        DataError: nothing lies at the address (the nearest names are given), it cannot be read, or it has no rows.
    """
    addresses = (dataset,) if isinstance(dataset, str) else dataset
    counted = [_counted(address) for address in addresses]
    if len(counted) == 1 and counted[0][1] is None:
        return _load(counted[0][0], split=split, size=size)
    # a generator makes as many as are asked for
    made = [
        (place, _load(place, split=split, size=count if is_generator(place) else None), count)
        for place, count in counted
    ]
    return join(made, size=size, seed=seed)


def _counted(address: str) -> tuple[str, int | None]:
    """Split an address into itself without `#N`, and N."""
    found = COUNTED.fullmatch(address)
    if found is None:
        return address, None
    if int(found["rows"]) < 1:
        raise DataError(f"--dataset {address}: must take at least one row, got #0; leave the dataset out")
    return found["place"], int(found["rows"])


def _load(dataset: str, *, split: str, size: int | None) -> Sequence[Row]:
    kind = _kind(dataset)
    if kind == "generator":
        return generate_rows(dataset, split=split, size=size)
    if kind == "file":
        return read_file(Path(dataset).expanduser(), size=size)
    return read_split(dataset, split=split, size=size)


def is_file(dataset: str) -> bool:
    """Return True if a dataset is one file.

    Raises:
        DataError: nothing lies at the address.
    """
    return _kind(_counted(dataset)[0]) == "file"


def has_split(dataset: str, split: str) -> bool:
    """Return True if a dataset has this split: a generator always, a file never, others as `datasets` says.

    Raises:
        DataError: nothing lies at the address, or it cannot be loaded.
    """
    place, _ = _counted(dataset)
    kind = _kind(place)
    if kind in ("generator", "file"):
        return kind == "generator"
    return split in split_names(place)


def _kind(dataset: str) -> Literal["generator", "file", "directory", "hub"]:
    if is_generator(dataset):
        return "generator"
    if not dataset.strip():
        raise DataError(
            f"--dataset must name a dataset, got {dataset!r}; give a file, a directory, org/name, or arithmetic"
        )
    path = Path(dataset).expanduser()
    if os.path.isfile(path):
        return "file"
    if os.path.isdir(path):
        return "directory"
    if HUB_NAME.fullmatch(dataset) and not _looks_local(dataset):
        return "hub"
    raise DataError(_missing(dataset, path))


def _looks_local(dataset: str) -> bool:
    """Return True for a name such as `data/train` where a directory `data` exists: a slip, not a Hub name."""
    first = dataset.partition("/")[0]
    return first in (".", "..", "~") or os.path.isdir(first) or data_ending(Path(dataset)) in READABLE


def _missing(dataset: str, path: Path) -> str:
    """Name the first part of the path that does not exist, and what is there instead."""
    missing = path
    while not os.path.isdir(missing.parent):
        missing = missing.parent
    others = sorted(os.listdir(missing.parent)) if os.access(missing.parent, os.R_OK) else []
    offered = others if "/" in dataset else [*others, *BUILT_IN, "reasoning_gym:NAME"]
    nearest = get_close_matches(missing.name, offered, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(nearest)}" if nearest else "give a file, a directory, org/name, or arithmetic"
    return f"--dataset {dataset}: there is no {missing.name!r} in {missing.parent.resolve()}; {hint}"
