"""Stand-ins for what scripts expect of transformers' Trainer: row loaders and an accelerator. The loop uses none."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.datasets import held_out_sets, size_of
from paceline.errors import ConfigError


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Rows of a dataset without a length, as torch's loader needs them."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def settle_loaders(args: GRPOConfig, train_dataset: Any, eval_dataset: Any) -> None:
    """Set loader fields for a dataset without a length as TRL does.

    Raises:
        ConfigError: `accelerator_config` says the opposite.
    """
    streams = [one for one in (train_dataset, *held_out_sets(eval_dataset).values()) if size_of(one) is None]
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


def row_loader(dataset: Any, *, batch_size: int, order: Iterable[int] | None, num_workers: int) -> DataLoader[Any]:
    """Batches of rows, each a list of dicts, in `order` if it is given and the dataset has a length."""
    streamed = size_of(dataset) is None
    return DataLoader(
        Stream(dataset) if streamed else dataset,
        batch_size=batch_size,
        sampler=None if streamed or order is None else list(order),
        num_workers=0 if streamed else num_workers,
        collate_fn=list,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptAccelerator:
    """Replaces `trainer.accelerator` for scripts: one process, and no wrapped model."""

    device: torch.device
    is_main_process: bool = True
    is_local_main_process: bool = True
    is_last_process: bool = True
    process_index: int = 0
    local_process_index: int = 0
    num_processes: int = 1

    def print(self, *values: Any, **options: Any) -> None:
        """Print."""
        print(*values, **options)

    def wait_for_everyone(self) -> None:
        """Return at once: there is one process."""

    def unwrap_model(self, model: Any, **options: Any) -> Any:
        """The model itself."""
        return model
