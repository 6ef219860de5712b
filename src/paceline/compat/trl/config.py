"""`GRPOConfig`: transformers' TrainingArguments with TRL 1.16's fields and defaults, and a few of Paceline's own.

`grpo_fields.py` and `training_fields.py` say what each field becomes; `translation.py` computes the options.
"""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from transformers import TrainingArguments

from paceline.compat.layouts import DEEPSPEED_FILE
from paceline.compat.trl.batches import fill_batch_fields
from paceline.compat.trl.fields import Fields, check_fields
from paceline.compat.trl.former import refuse_field
from paceline.compat.trl.grpo_fields import GRPOFields
from paceline.compat.trl.layout import layout_options
from paceline.compat.trl.objective import objective_options
from paceline.compat.trl.processes import ProcessState
from paceline.reports.trackers import check_trackers
from paceline.workers.torchrun.environment import Launched, device_index, launched

ConfigT = TypeVar("ConfigT", bound=type)


def with_defaults_of_trl(cls: ConfigT) -> ConfigT:
    """Give a class below `TrainingArguments` the fields that TRL declares anew, with its defaults and help texts.

    `TrainingArguments` stands before `Fields` among the bases, as its types and help texts count for all others.
    """
    for field in fields(GRPOFields):
        if field.name in TrainingArguments.__dataclass_fields__:
            cls.__annotations__[field.name] = field.type
            setattr(cls, field.name, field)
    return cls


@dataclass(repr=False)
@with_defaults_of_trl
class GRPOConfig(TrainingArguments, Fields):  # type: ignore[misc] # TRL's types of shared fields
    """Configuration of a `GRPOTrainer`, with TRL 1.16's names and defaults; a field without meaning here is refused.

    Fields that the installed transformers lacks exist here too. On a machine without CUDA it computes on the CPU, in
    float32 unless `bf16=True` is given. A ConfigError names a field that is refused or wrong, batch numbers at odds, or
    an objective that cannot be.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [  # type: ignore[misc] # theirs is one, undeclared
        *TrainingArguments._VALID_DICT_FIELDS,
        *("model_init_kwargs", "generation_kwargs", "chat_template_kwargs", "transformers_continuous_batching_config"),
    ]

    TABLE: "ClassVar[type[GRPOConfig]]"
    """The class itself, whose defaults are TRL's; a program's own class below it may have others."""

    def __new__(cls, *given: Any, **named: Any) -> "GRPOConfig":
        """Refuse names that are no field, with what is written instead (ConfigError)."""
        known = inspect.signature(cls.__init__).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in known.values())
        for name in named:
            if name not in known and not takes_any:
                raise refuse_field(name, [*known])
        return super().__new__(cls)

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
        with self._own_layout():
            super().__post_init__()  # type: ignore[no-untyped-call]
        fill_batch_fields(self)
        objective_options(self)
        self._hold_files()
        layout_options(self, os.environ)

    def _hold_files(self) -> None:
        """Make names of files that the trainer reads again absolute: the program may change its directory before."""
        if isinstance(self.deepspeed, str) and not self.deepspeed.lstrip().startswith("{"):
            self.deepspeed = os.path.abspath(self.deepspeed)
        if os.environ.get(DEEPSPEED_FILE, "None") != "None":
            os.environ[DEEPSPEED_FILE] = os.path.abspath(os.environ[DEEPSPEED_FILE])

    @property
    def launched(self) -> Launched | None:
        """This process's place among a launcher's; None for a single process."""
        return launched(os.environ)

    @cached_property
    def _setup_devices(self) -> torch.device:
        """Use one device for each process, without `accelerate`."""
        place, device = self.launched, torch.device("cpu")
        self._n_gpu = 0 if self.use_cpu else 1
        if not self.use_cpu:
            index = 0 if place is None else device_index(place, visible=torch.cuda.device_count())
            torch.cuda.set_device(index)  # what a program loads itself lies there too
            device = torch.device("cuda", index)
        self.distributed_state = ProcessState(device, place, mixed_precision="bf16" if self.bf16 else "no")
        return device

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Let the other processes wait until the first one has done the block, once the trainer is made."""
        state = self.distributed_state
        with state.local_main_process_first() if local else state.main_process_first():
            yield

    @contextmanager
    def _own_layout(self) -> Iterator[None]:
        """Hide from transformers what would need accelerate's or DeepSpeed's engines; see `layout_options`."""
        fsdp, deepspeed, switch = self.fsdp, self.deepspeed, os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
        self.fsdp = self.deepspeed = None
        if "FSDP_CPU_RAM_EFFICIENT_LOADING" in os.environ:
            # transformers would load no weights on any rank but the first, for accelerate to send
            os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        try:
            yield
        finally:
            self.fsdp, self.deepspeed = fsdp, deepspeed
            if switch is not None:
                os.environ["ACCELERATE_USE_DEEPSPEED"] = switch


GRPOConfig.TABLE = GRPOConfig
