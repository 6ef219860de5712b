"""Loading of rows by a dataset's address: a generator, a file, a directory or a name on the Hub; several are joined."""

import dataclasses
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.base_directory import local_path
from paceline.config.packages import install_command
from paceline.config.reading import base_name, parameter_texts
from paceline.config.sections import json_or_text
from paceline.data import generated, programs, shapes, tasksets
from paceline.data.files import READABLE, data_ending, read_file
from paceline.data.rows import WHOLE, Row, RowsOnDemand, check_split, digest_of, sample_indices, split_of
from paceline.data.tables import read_split, split_names
from paceline.errors import DataError

# Function of each built-in generator that makes its rows, given split, number and parameters by name.
BUILT_IN: Mapping[str, Callable[..., Sequence[Mapping[str, object]]]] = {
    "arithmetic": generated.arithmetic_rows,
    "programs": programs.rows,
    "guess": generated.guess_rows,
    "seeds": generated.seed_rows,
    "shapes": shapes.shape_rows,
}
# The whole numbers that each parameter of a built-in generator may have.
PARAMETERS: Mapping[str, Mapping[str, range]] = {"arithmetic": generated.PARAMETERS, "shapes": shapes.PARAMETERS}

GYM_PREFIX = "reasoning_gym:"
DEFAULT_SIZE = 10_000

GYM_DRAWS = 20
"""Items that are drawn at most for each row, of which about half belong to the split."""

COUNTED = re.compile(r"(?P<place>.+)#(?P<rows>\d+)", re.DOTALL)
"""An address with a number of rows; no other name can end so."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


ReadFiles = dict[tuple[str, int | None], Sequence[Row]]
"""Rows by address and requested number: those of files already read, and rows that a program passed in."""


class ProgramRows(RowsOnDemand):
    """Rows that a program passed in, under a name instead of an address."""

    def __init__(self, rows: Any, name: str) -> None:
        """`rows` have a length, and a row at each place below it: a list of dicts, or a `datasets.Dataset`."""
        self._rows, self._name = rows, name

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, index: int) -> Row:
        """Read one row; raise a DataError where it has no columns."""
        row = self._rows[index]
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {self._name}:{index + 1} must be a dict of columns, got a {type(row).__name__}; give a list of "
                "dicts or a datasets.Dataset"
            )
        return Row(row_id=f"{self._name}:{index + 1}", columns=row)


def load_rows(
    dataset: str | Sequence[str], *, split: str, size: int | None, seed: int = 0, files: ReadFiles | None = None
) -> Sequence[Row]:
    """Return the first `size` rows of a dataset (None: all; of a generator 10,000); those of a large one on demand.

    Several are joined, and share `size` by their numbers of rows (`shares`). `#N` behind an address takes N of its
    rows, drawn by `seed`: each at most once, or where there are fewer all of them as often as it takes.

    `dataset` is `arithmetic`, `programs`, `guess`, `seeds`, `shapes`, `reasoning_gym:NAME`, `verifiers:ID`, a `.jsonl`,
    `.json`, `.jsonl.gz`, `.csv` or `.parquet` file, a directory, or a Hub name `org/name` or `org/name:config`. A file
    is one split: `split` does not matter for it. Files already in `files` are not read again, and newly read ones are
    added.

    Raises:
        DataError: nothing lies at the address (the nearest names are given), it cannot be read, or it has no rows; or
            `size` leaves one of several without a row.
    """
    addresses = (dataset,) if isinstance(dataset, str) else dataset
    counted = [_counted(address) for address in addresses]
    if len(counted) == 1 and counted[0][1] is None:
        return _load(counted[0][0], split=split, size=size, files=files)
    called = Counter(Path(name).name for name, _ in counted)
    parts = []
    for number, (name, count) in enumerate(counted, start=1):
        # A generator makes as many as are asked for.
        rows = _load(name, split=split, size=count if is_generator(name) else None, files=files)
        indices = np.arange(len(rows)) if count is None else sample_indices(count, size=len(rows), seed=seed)
        prefix = f"{number}/" if called[Path(name).name] > 1 else ""
        parts.append(DatasetPart(rows=rows, indices=indices, prefix=prefix))
    if size is not None:
        counts = shares(size, [len(part.indices) for part in parts])
        parts = [
            dataclasses.replace(part, indices=part.indices[:count]) for part, count in zip(parts, counts, strict=True)
        ]
    joined = JoinedRows(parts)
    return joined[:] if len(joined) <= WHOLE else joined


def shares(size: int, counts: Sequence[int]) -> list[int]:
    """Share `size` rows among datasets of `counts` rows: in proportion, at least one of each, in all `size` or all.

    >>> shares(10, [900, 90, 10])
    [8, 1, 1]

    Raises:
        DataError: there are more datasets than rows to take.
    """
    if size < len(counts):
        raise DataError(
            f"--dataset-size must be at least {len(counts)}, one row of each dataset, got {size}; take more, or name "
            "fewer datasets"
        )
    total = sum(counts)
    most = min(size, total)
    counts_taken = [most * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda index: (-(most * counts[index] % total), index))
    for index in by_remainder[: most - sum(counts_taken)]:
        counts_taken[index] += 1
    while 0 in counts_taken:  # one of each, from the one with most
        counts_taken[counts_taken.index(max(counts_taken))] -= 1
        counts_taken[counts_taken.index(0)] += 1
    return counts_taken


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetPart:
    """The rows that are taken of one of several datasets."""

    rows: Sequence[Row]
    indices: NDArray[np.int64]
    """Indices in the order in which rows are taken; a repeated index is another row, named `...#2`."""
    prefix: str
    """Prefix of its rows' names, if another dataset's may be the same."""


class JoinedRows(RowsOnDemand):
    """The rows of several datasets, one after the other."""

    def __init__(self, parts: Sequence[DatasetPart]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part.indices) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, index: int) -> Row:
        """Read one row."""
        number = int(np.searchsorted(self._ends, index, side="right"))
        part, offset = self._parts[number], index - (int(self._ends[number - 1]) if number else 0)
        row, times = part.rows[int(part.indices[offset])], offset // len(part.rows)
        name = f"{part.prefix}{row.row_id}" + (f"#{times + 1}" if times else "")
        return row if name == row.row_id else dataclasses.replace(row, row_id=name)

    def digest(self) -> str:
        """Hash each dataset's digest and the indices of its rows."""
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(f"{part.prefix} {digest_of(part.rows)} ".encode() + part.indices.tobytes())
        return digest.hexdigest()


def is_file(dataset: str, files: ReadFiles | None = None) -> bool:
    """Return True if a dataset is one file, or a program's rows; DataError if nothing is at the address."""
    return _kind(_counted(dataset)[0], files or {}) == "file"


def is_on_disk(dataset: str, files: ReadFiles | None = None) -> bool:
    """Return True if a dataset is a file, a directory, or a program's rows; DataError if nothing is at the address."""
    return _kind(_counted(dataset)[0], files or {}) in ("file", "directory")


def has_split(dataset: str, split: str, files: ReadFiles | None = None) -> bool:
    """Return True if a dataset has this split: a generator always, a file never, others as `datasets` says.

    Raises:
        DataError: nothing lies at the address, or it cannot be loaded.
    """
    name, _ = _counted(dataset)
    kind = _kind(name, files or {})
    return split in split_names(name) if kind in ("directory", "hub") else kind == "generator"


def _counted(address: str) -> tuple[str, int | None]:
    """Split an address into itself without `#N`, and N."""
    match = COUNTED.fullmatch(address)
    if match is None:
        return address, None
    if int(match["rows"]) < 1:
        raise DataError(f"--dataset {address}: must take at least one row, got #0; leave the dataset out")
    return match["place"], int(match["rows"])


def is_generator(dataset: str) -> bool:
    """Return True for a generator's name, which wins over a file of that name (`./arithmetic` is the file)."""
    return base_name(dataset) in (*BUILT_IN, "reasoning_gym") or dataset.startswith((GYM_PREFIX, tasksets.PREFIX))


def _load(dataset: str, *, split: str, size: int | None, files: ReadFiles | None) -> Sequence[Row]:
    known_files = {} if files is None else files
    kind = _kind(dataset, known_files)
    if kind == "file":
        whole = known_files.get((dataset, None), ())
        if isinstance(whole, ProgramRows) or 0 < len(whole) <= WHOLE:
            return whole if size is None and len(whole) > WHOLE else whole[:size]
        if (dataset, size) not in known_files:
            known_files[dataset, size] = read_file(local_path(dataset), size=size, named=dataset)
        return known_files[dataset, size]
    if kind != "generator":
        return read_split(dataset, split=split, size=size)
    count = DEFAULT_SIZE if size is None else size
    made: Sequence[Mapping[str, object]]
    if base_name(dataset) in BUILT_IN:
        made = BUILT_IN[base_name(dataset)](split, count, **_built_in_settings(dataset))
    elif dataset.startswith(tasksets.PREFIX):
        made = tasksets.taskset_rows(dataset, split, count)
    else:
        made = _gym_columns(dataset, split, count)
    return [Row(row_id=f"{dataset}/{split}:{number}", columns=columns) for number, columns in enumerate(made, start=1)]


def _built_in_settings(dataset: str) -> dict[str, int]:
    """The values in the brackets of a built-in generator's address."""
    known = PARAMETERS.get(base_name(dataset), {})
    settings = dict[str, int]()
    for name, value in _settings(dataset, list(known)).items():
        if not isinstance(value, int) or isinstance(value, bool) or value not in known[name]:
            raise DataError(
                f"--dataset {dataset}: {name} must be a whole number from {known[name][0]} to {known[name][-1]}, got "
                f"{value}; choose one of these"
            )
        settings[name] = value
    return settings


def _gym_columns(dataset: str, split: str, size: int) -> Sequence[Mapping[str, object]]:
    """Generate items of reasoning-gym, always the same, of which there may be fewer than `size`.

    A question may repeat in training. It is never in both splits, and only once in the held-out one.

    Parameters of the task stand in brackets behind its name: `reasoning_gym:chain_sum(max_terms=3, max_digits=1)`.

    `answer` is None where many answers are right. `reasoning_gym` is the package's own entry: a reward function scores
    with `get_score_answer_fn(entry["metadata"]["source_dataset"])(answer, entry)`.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise DataError(
            f"--dataset reasoning_gym:NAME needs the package reasoning-gym; `{install_command('reasoning-gym')}`"
        ) from error
    gym: Any = reasoning_gym
    name = base_name(dataset).removeprefix(GYM_PREFIX)
    known = sorted(gym.factory.DATASETS)
    if name not in known:
        nearest = get_close_matches(name, known, n=3, cutoff=0.4) or ["chain_sum", "leg_counting", "gcd"]
        raise DataError(f"--dataset {GYM_PREFIX}{name}: no such task among {len(known)}; nearest: {', '.join(nearest)}")
    check_split(f"{GYM_PREFIX}{name}", split)
    fields = dataclasses.fields(gym.factory.DATASETS[name][1])
    settings = _settings(dataset, [field.name for field in fields if field.name not in ("seed", "size")])
    try:
        entries = gym.create_dataset(name, seed=generated.FIRST_SEEDS[split], size=GYM_DRAWS * (size + 100), **settings)
    except (AssertionError, ValueError, TypeError) as error:
        what = "does not go together" if settings else "has no defaults to run on"
        raise DataError(f"--dataset {dataset}: {what} ({error}); take another task or other parameters") from error
    drawn = (entry for entry in map(entries.__getitem__, range(len(entries))) if split_of(entry["question"]) == split)
    # an interval of held-out accuracy counts each question once
    entries_taken = list(islice(_once(islice(drawn, 4 * size)) if split == "test" else drawn, size))
    if not entries_taken:
        raise DataError(f"--dataset {dataset} has no question in the split {split!r}; take other parameters")
    return [
        {"question": entry["question"], "answer": entry["answer"], "reasoning_gym": entry} for entry in entries_taken
    ]


def _once(entries: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    seen = set[str]()
    for entry in entries:
        if entry["question"] not in seen:
            seen.add(entry["question"])
            yield entry


def _settings(dataset: str, known: Sequence[str]) -> dict[str, object]:
    """The values in the brackets of an address: whole numbers, numbers, true and false, and words."""
    settings = dict[str, object]()
    for name, value in parameter_texts(dataset, label=f"--dataset {dataset}", error=DataError).items():
        if name not in known:
            offered = ", ".join(known) or "none"
            raise DataError(f"--dataset {dataset}: there is no parameter {name!r}; it takes {offered}")
        settings[name] = json_or_text(value)
    return settings


def _kind(dataset: str, files: ReadFiles) -> Literal["generator", "file", "directory", "hub"]:
    if isinstance(files.get((dataset, None)), ProgramRows):
        return "file"
    if is_generator(dataset):
        return "generator"
    if not dataset.strip():
        raise DataError(
            f"--dataset must name a dataset, got {dataset!r}; give a file, a directory, org/name, or arithmetic"
        )
    if URL.match(dataset):
        raise DataError(
            f"--dataset {dataset}: nothing is fetched from an address on the network; download the file and give its "
            "path, or give org/name for a dataset of the Hub"
        )
    path = local_path(dataset)
    if os.path.isfile(path):
        return "file"
    if os.path.isdir(path):
        return "directory"
    # `data/train` where a directory `data` exists is a slip, not a Hub name.
    first = dataset.partition("/")[0]
    looks_local = first in (".", "..", "~") or local_path(first).is_dir() or data_ending(Path(dataset)) in READABLE
    if HUB_NAME.fullmatch(dataset) and not looks_local:
        return "hub"
    # name the first part of the path that does not exist, and what is there instead
    missing = path
    while not os.path.isdir(missing.parent):
        missing = missing.parent
    others = sorted(os.listdir(missing.parent)) if os.access(missing.parent, os.R_OK) else []
    offered = others if "/" in dataset else [*others, *BUILT_IN, "reasoning_gym:NAME"]
    nearest = get_close_matches(missing.name, offered, n=3, cutoff=0.5)
    hint = f"nearest: {', '.join(nearest)}" if nearest else "give a file, a directory, org/name, or arithmetic"
    raise DataError(f"--dataset {dataset}: there is no {missing.name!r} in {missing.parent.resolve()}; {hint}")
