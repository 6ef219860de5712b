"""Rows of a local dataset directory or of the Hugging Face Hub, through the `datasets` library."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from paceline.data.rows import Row
from paceline.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


def read_split(dataset: str, *, split: str, size: int | None) -> list[Row]:
    """The first `size` rows (None: all) of one split of a directory, `org/name` or `org/name:config`.

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
    name = Path(dataset).name
    numbered = enumerate(table.select(range(count)), start=1)
    return [Row(row_id=f"{name}/{split}:{number}", columns=columns) for number, columns in numbered]


def split_names(dataset: str) -> tuple[str, ...]:
    """The splits of a directory or Hub dataset.

    Raises:
        DataError: the dataset cannot be loaded.
    """
    return tuple(_load(dataset))


def _load(dataset: str) -> Mapping[str, "Dataset"]:
    # Imported here: `datasets` takes seconds to import, and most runs do without.
    from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
    from datasets.exceptions import DatasetsError

    is_directory = Path(dataset).expanduser().is_dir()
    path, _, config = (dataset, "", "") if is_directory else dataset.partition(":")
    try:
        if is_directory and _is_saved(Path(path).expanduser()):
            saved = load_from_disk(str(Path(path).expanduser()))
            return {"train": saved} if isinstance(saved, Dataset) else saved
        return cast(DatasetDict, load_dataset(str(Path(path).expanduser()) if is_directory else path, config or None))
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise DataError(f"--dataset {dataset}: cannot be loaded: {_first_line(error)}") from error


def _is_saved(path: Path) -> bool:
    """Whether `save_to_disk` wrote this directory: `load_dataset` would take its bookkeeping files for rows."""
    return (path / "dataset_dict.json").exists() or (path / "state.json").exists()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
