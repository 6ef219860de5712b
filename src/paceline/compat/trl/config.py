"""`GRPOConfig`: transformers' TrainingArguments with TRL 1.16's fields and defaults, and a few of Paceline's own.

`grpo_fields.py` and `training_fields.py` say what each field becomes; `translation.py` computes the options.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from transformers import TrainingArguments

from paceline.compat.trl.batches import fill_batch_fields
from paceline.compat.trl.fields import check_fields
from paceline.compat.trl.grpo_fields import GRPOFields
from paceline.compat.trl.objective import objective_options
from paceline.compat.trl.training_fields import TrainingFields
from paceline.errors import ConfigError
from paceline.reports.trackers.opening import check_trackers


@dataclass(repr=False)
class GRPOConfig(GRPOFields, TrainingArguments, TrainingFields):  # type: ignore[misc] # TRL's types of shared fields
    """Configuration of a `GRPOTrainer`, with TRL 1.16's names and defaults; a field without meaning here is refused.

    Fields of `TrainingFields` that the installed transformers lacks exist here too. On a machine without CUDA it
    computes on the CPU, in float32 unless `bf16=True` is given. A ConfigError names a field that is refused or wrong,
    batch numbers at odds, or an objective that cannot be.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [  # type: ignore[misc] # theirs is one, undeclared
        *TrainingArguments._VALID_DICT_FIELDS,
        *("model_init_kwargs", "generation_kwargs", "chat_template_kwargs", "transformers_continuous_batching_config"),
    ]

    def __post_init__(self) -> None:
        check_fields(self)
        if not torch.cuda.is_available():
            self.use_cpu = True
        if self.bf16 is None:
            self.bf16 = not self.use_cpu and torch.cuda.is_bf16_supported()
        # under the new name, because TrainingArguments warns of the old one even where it is a default
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing
        if self.activation_checkpointing_kwargs is None:
            self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs
        if self.report_to in ("all", ["all"]):
            self.report_to = list(check_trackers(("all",)))
        super().__post_init__()  # type: ignore[no-untyped-call]
        fill_batch_fields(self)
        objective_options(self)

    @cached_property
    def _setup_devices(self) -> torch.device:
        """Use one process and one device, without `accelerate`."""
        for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):  # in which launchers state the number of processes
            size = os.environ.get(name, "1")
            if size != "1":
                raise ConfigError(
                    f"{name} must be 1, got {size!r}: the trainer is one process; start it without a launcher, or "
                    "train with the command `paceline train`, which takes its ranks"
                )
        self.distributed_state = None
        self._n_gpu = 0 if self.use_cpu else 1
        return torch.device("cpu" if self.use_cpu else "cuda:0")
