"""TRL's datasets, with a column `prompt` of text or messages, to tasks; row loaders for scripts."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedTokenizerBase

from paceline.chat.escaping import ChatTokenizer
from paceline.chat.messages import plain_value
from paceline.compat.trl.environments import NO_ENVIRONMENTS, ROW, GivenEnvironments
from paceline.compat.trl.fields import Fields
from paceline.compat.trl.training_fields import NO_LIMIT
from paceline.config.sections import DataConfig
from paceline.data.row_images import IMAGE_COLUMNS, OTHER_MEDIA_COLUMNS, ImageInput
from paceline.data.rows import SAMPLE, WHOLE, Row, RowsOnDemand, spread, spread_indices
from paceline.data.sources import load_rows
from paceline.data.tables import read_ahead, undecoded
from paceline.data.tasks import TaskSet, build_tasks
from paceline.episodes.conversations import ENVIRONMENT
from paceline.errors import ConfigError, DataError
from paceline.types import RowCheck, Task

ANSWERS = ("answer", "solution", "ground_truth", "gt_answer")

DatasetRows = Sequence[Mapping[str, Any]]


TRAINING = "train_dataset"
"""The trainer's argument with the rows to train on."""
EMPTY_PROMPT = ({"role": "user", "content": ""},)
"""Prompt of a row without one: its environment writes it."""


def check_columns(dataset: Any, name: str, *, may_lack_prompt: bool = False) -> None:
    """Refuse an object that is no dataset of prompts, reading at most one row (ConfigError, DataError).

    `may_lack_prompt`: an environment may write the prompts.
    """
    if dataset is None:
        raise ConfigError(f"`{name}` is required: give a dataset with a column `prompt`, got None")
    if type(dataset).__module__.split(".")[0] == "pandas":
        raise ConfigError(
            f"{name} must be a dataset of rows, got a pandas {type(dataset).__name__}; give Dataset.from_pandas(frame)"
        )
    if isinstance(dataset, Mapping) and hasattr(dataset, "column_names"):
        raise ConfigError(
            f"{name} must be one split, got a {type(dataset).__name__} of {', '.join(map(str, dataset))}; "
            f"give dataset[{_split(dataset, 'train')!r}]"
        )
    if isinstance(dataset, str | bytes | Mapping) or not isinstance(dataset, Iterable):
        raise ConfigError(
            f"{name} must be a datasets.Dataset, an IterableDataset or a list of dicts, got a {type(dataset).__name__}"
        )
    columns = _listed_columns(dataset)
    if columns is not None:
        _check_names(columns, name, may_lack_prompt=may_lack_prompt)


def _listed_columns(dataset: Any) -> tuple[str, ...] | None:
    """Names of the columns of a dataset that lists them; its first row has them as its transform makes them."""
    named = getattr(dataset, "column_names", None)
    if named is None:
        return None
    return tuple(dataset[0] if size_of(dataset) else named)


class AddressedRows(Sequence[Mapping[str, Any]]):
    """Rows at an address that the option `dataset` takes, under the names that they have for every entry point."""

    def __init__(self, address: str, *, split: str, seed: int) -> None:
        """Read the rows; DataError for an address without any."""
        self.address, self.rows = address, load_rows(address, split=split, size=None, seed=seed)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self.rows[index]
        return rows.reward_columns if isinstance(rows, Row) else [row.reward_columns for row in rows]


def size_of(dataset: Any) -> int | None:
    """Number of rows, or None for a dataset without a length."""
    return len(dataset) if hasattr(dataset, "__len__") else None


def read_rows(
    dataset: Any, name: str, *, limit: int | None, whole: bool = False, may_lack_prompt: bool = False
) -> DatasetRows:
    """Rows of a dataset; of one without a length the first `limit` (None: all). DataError without rows or prompts.

    Large datasets, of more than `WHOLE` rows, are not read at once unless `whole`: indexable ones stay where they are,
    and streams go to a temporary file.
    """
    size = size_of(dataset)
    rows: DatasetRows
    if isinstance(dataset, AddressedRows):
        return dataset
    if type(dataset).__name__ == "Dataset" and dataset.format["type"] is None:
        dataset = undecoded(dataset)  # images are decoded once, and as files they take less memory
    if size is not None and size > WHOLE and not whole and hasattr(dataset, "__getitem__"):
        rows = dataset
    elif size is None and not whole and (limit is None or limit > WHOLE):
        rows = read_ahead(dataset, limit)
    else:
        rows = list(dataset) if size is not None else list(islice(dataset, limit))
    if not len(rows):
        raise DataError(f"{name} has no rows; give one with at least one prompt")
    for index in spread_indices(len(rows), SAMPLE) if len(rows) > WHOLE and not whole else range(len(rows)):
        _mapping(rows[index], row_id(name, index + 1))
    _check_names(tuple(rows[0]), name, may_lack_prompt=may_lack_prompt)
    return rows


def columns_of(dataset: Any, rows: DatasetRows) -> list[str]:
    """Names of all columns; if a large dataset does not list them, those of a sample."""
    named = _listed_columns(dataset) if len(rows) > WHOLE else None
    seen = [*named] if named else rows if len(rows) <= WHOLE else spread(rows, SAMPLE)
    return list(dict.fromkeys(name for row in seen for name in ([row] if isinstance(row, str) else row)))


def eval_name(name: str) -> str:
    """Name of an evaluation dataset in messages."""
    return name if name == "eval_dataset" else f"eval_dataset[{name!r}]"


def row_id(name: str, number: int) -> str:
    """Name of a row in messages and files; rows count from 1.

    >>> row_id("train_dataset", 1), row_id("eval_dataset['hard']", 2)
    ('train:1', 'hard:2')
    """
    of_set = re.fullmatch(r"eval_dataset\['(.+)'\]", name)
    return f"{'train' if name == 'train_dataset' else of_set[1] if of_set else name}:{number}"


def make_tasks(  # noqa: PLR0913 - rows and all that makes tasks of them, bound by two callers
    rows: DatasetRows,
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    *,
    name: str,
    room: int | None = None,
    check: RowCheck | None = None,
    environments: GivenEnvironments = NO_ENVIRONMENTS,
    images: ImageInput | None = None,
) -> TaskSet:
    """Tasks from rows; each keeps its whole row for reward functions of TRL's kind.

    `room` is the prompt length that the model's context leaves if `max_prompt_length` is unset. `check` returns the
    objection of built-in reward functions to a row. `environments`: prompts show their tools, and `images` reads their
    images. Of a held-out set all tasks are made at once, however many. DataError and ModelError for a prompt that
    cannot be used, one that is too long, or messages without a template.
    """
    whole = name != TRAINING
    unlimited = data.long_prompts == "error"
    limit = NO_LIMIT if unlimited else data.max_prompt_length
    options = replace(data, prompt_column="prompt", max_prompt_length=limit)
    named: Sequence[Row] = TrainerRows(rows, name, may_lack_prompt=environments.own_data)
    if isinstance(rows, AddressedRows):
        options, named = replace(data, max_prompt_length=limit), rows.rows
    seen = named if len(rows) > WHOLE and not whole else [*named]
    built = build_tasks(
        seen,
        cast(ChatTokenizer, tokenizer),
        options,
        system=None,
        check=check,
        whole=whole,
        tools_of=environments.tools_of,
        images=images,
    )
    if environments:
        built.add_check(environments.check)

    def check_lengths(tasks: Sequence[Task]) -> None:
        """Limit prompts by the model's context if the user sets no limit, and by the user's where none is cut."""
        limit = data.max_prompt_length
        long = [task for task in tasks if len(task.prompt_ids) > limit]
        if long:
            if environments:
                of, cut = f"the {limit} of a conversation", "raise max_prompt_length if it is set, as it cuts none here"
            else:
                of, cut = f"the model's {limit} positions", "set max_prompt_length"
                cut += f"={room}, which cuts it" if room else ""
            raise DataError(
                f"row {long[0].task_id}: its prompt has {len(long[0].prompt_ids)} tokens, above {of} "
                f"({len(long)} of {len(tasks)} rows are); {cut}, or remove the row"
            )

    if unlimited:
        built.add_check(check_lengths)
    return built


class TrainerRows(RowsOnDemand):
    """Rows of a trainer's dataset: a task has the prompt and the answer, functions get the whole row."""

    def __init__(self, rows: DatasetRows, name: str, *, may_lack_prompt: bool) -> None:
        """`name`: the trainer's argument that they come from; `may_lack_prompt`: an environment may write prompts."""
        self._rows, self._name, self._may_lack_prompt = rows, name, may_lack_prompt

    def __len__(self) -> int:
        return len(self._rows)

    def at(self, index: int) -> Row:
        """Read one row: the prompt, and text answers for built-in reward functions; DataError without a prompt."""
        name = row_id(self._name, index + 1)
        row = _mapping(self._rows[index], name)
        if "prompt" not in row and not self._may_lack_prompt:
            raise DataError(f"row {name} has no `prompt`; mend or remove the row")
        prompt = row.get("prompt", [*EMPTY_PROMPT])
        answers = {
            column: row[column]
            for column in ANSWERS
            if isinstance(plain_value(row.get(column)), str | int | float | Decimal)
        }
        read = (ENVIRONMENT, "tools", *IMAGE_COLUMNS, *OTHER_MEDIA_COLUMNS, "objects")
        others = {column: row[column] for column in read if row.get(column) is not None}
        return Row(
            row_id=name,
            columns={"prompt": prompt, **answers, **others},
            passed={**row, ROW: row},
            may_be_empty=self._may_lack_prompt,
        )


def _mapping(row: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise DataError(f"row {name} is a {type(row).__name__}; every row must be a dict with a prompt")
    return row


def addressed(eval_dataset: Any, *, seed: int) -> Any:
    """Read held-out sets that are given by their addresses, of the split `test` where one has splits (DataError)."""
    if isinstance(eval_dataset, str):
        return AddressedRows(eval_dataset, split="test", seed=seed)
    if type(eval_dataset) is dict and any(isinstance(rows, str) for rows in eval_dataset.values()):
        return {
            name: addressed(rows, seed=seed) if isinstance(rows, str) else rows for name, rows in eval_dataset.items()
        }
    return eval_dataset


def held_out_sets(eval_dataset: Any) -> dict[str, Any]:
    """Held-out sets by name; ConfigError for a dictionary of splits, one of them for training."""
    if eval_dataset is None:
        return {}
    if isinstance(eval_dataset, Mapping) and hasattr(eval_dataset, "column_names") and "train" in eval_dataset:
        raise ConfigError(
            f"eval_dataset must hold no split to train on, got a {type(eval_dataset).__name__} of "
            f"{', '.join(map(str, eval_dataset))}; give dataset[{_split(eval_dataset, 'test')!r}]"
        )
    if isinstance(eval_dataset, Mapping):
        return dict(eval_dataset)
    return {"eval_dataset": eval_dataset}


def _split(splits: Mapping[str, Any], wanted: str) -> str:
    """Split to recommend: the wanted one, else one that is not `train`, else any."""
    others = [str(name) for name in splits if name != "train"]
    return wanted if wanted in splits or not splits else (others or [str(name) for name in splits])[-1]


def _check_names(columns: Sequence[str], name: str, *, may_lack_prompt: bool) -> None:
    if "prompt" not in columns and not may_lack_prompt:
        raise DataError(
            f"{name} has no column `prompt`, its columns: {', '.join(columns) or '(none)'}; "
            f"rename the one with the prompts: dataset.rename_column(..., 'prompt')"
        )


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Rows of a dataset without a length, as torch's loader needs them."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def settle_loaders(args: Fields, train_dataset: Any, eval_dataset: Any) -> None:
    """Set loader fields for a dataset without a length as TRL does; ConfigError where one says the opposite."""
    streams = [rows for rows in (train_dataset, *held_out_sets(eval_dataset).values()) if size_of(rows) is None]
    if not streams:
        return
    accelerator: Any = args.accelerator_config  # transformers has made an AcceleratorConfig of it
    if accelerator is not None:  # transformers leaves it None where accelerate is not installed
        if accelerator.dispatch_batches:
            raise ConfigError(
                "accelerator_config: Iterable datasets require `dispatch_batches=False`, got True; leave it out"
            )
        accelerator.dispatch_batches = False
    if size_of(train_dataset) is None:
        args.dataloader_num_workers = 0


class RowOrder:
    """The places of rows in the order of an epoch, each computed when it is asked for."""

    def __init__(self, size: int, at: Callable[[int], int]) -> None:
        """`at`: index of the n-th row."""
        self._size, self._at = size, at

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return map(self._at, range(self._size))


def row_loader(
    dataset: Any, *, batch_size: int, order: RowOrder | Sequence[int] | None, num_workers: int
) -> DataLoader[Any]:
    """Batches of rows, each a list of dicts, in `order` if it is given and the dataset has a length."""
    streamed = size_of(dataset) is None
    return DataLoader(
        Stream(dataset) if streamed else dataset,
        batch_size=batch_size,
        sampler=None if streamed else order,
        num_workers=0 if streamed else num_workers,
        collate_fn=list,
    )
