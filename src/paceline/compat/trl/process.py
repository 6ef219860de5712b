"""What scripts ask an accelerator for, answered for the one process that there is."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class OneProcess:
    """Stands where scripts expect `trainer.accelerator`: one process, whose model is not wrapped."""

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
        """There is nobody to wait for."""

    def unwrap_model(self, model: Any, **options: Any) -> Any:
        """The model itself."""
        return model
