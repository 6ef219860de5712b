"""Rows of a local dataset directory or of the Hugging Face Hub, through the `datasets` library."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paceline.data.rows import WHOLE, Row
from paceline.data.tables import TableRows
from paceline.errors import DataError, first_line

if TYPE_CHECKING:
    from datasets import Dataset


def read_split(dataset: str, *, split: str, size: int | None) -> Sequence[Row]:
    """Return the first `size` rows (None: all) of one split of a directory, `org/name` or `org/name:config`.

    Above `WHOLE` rows each is read when it is needed.

    Raises:
        DataError: the dataset cannot be loaded, has no such split, or the split is empty.
    """
    splits = _load(dataset)
    if split not in splits:
        have = ", ".join(splits) or "none"
        raise DataError(
            f"--dataset {dataset}: has no split {split!r}; its splits: {have} (--dataset-split, --eval-split)"
        )
    table = splits[split]
    count = len(table) if size is None else min(size, len(table))
    if count == 0:
        raise DataError(f"--dataset {dataset}: split {split!r} holds no rows; give a split with at least one")
    name = f"{Path(dataset).name}/{split}"
    if count > WHOLE:
        return TableRows(cast(Sequence[Mapping[str, object]], table), name, size=count)
    numbered = enumerate(table.select(range(count)), start=1)
    return [Row(row_id=f"{name}:{number}", columns=columns) for number, columns in numbered]


def split_names(dataset: str) -> tuple[str, ...]:
    """Return the splits of a directory or Hub dataset.

    Raises:
        DataError: the dataset cannot be loaded.
    """
    return tuple(_load(dataset))


def _load(dataset: str) -> Mapping[str, "Dataset"]:
    # Imported here: `datasets` takes seconds to import, and most runs do without.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    directory = Path(dataset).expanduser()
    try:
        if directory.is_dir():
            return _saved(directory) or cast(Mapping[str, "Dataset"], load_dataset(str(directory)))
        path, _, config = dataset.partition(":")
        return cast(Mapping[str, "Dataset"], load_dataset(path, config or None))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise DataError(f"--dataset {dataset}: cannot be loaded: {first_line(error)}") from error


def _saved(directory: Path) -> Mapping[str, "Dataset"] | None:
    """Load what `save_to_disk` wrote, if it did: `load_dataset` would take its bookkeeping files for rows."""
    from datasets import Dataset, load_from_disk

    if not any((directory / name).exists() for name in ("dataset_dict.json", "state.json")):
        return None
    saved = load_from_disk(str(directory))
    return {"train": saved} if isinstance(saved, Dataset) else cast(Mapping[str, "Dataset"], saved)
