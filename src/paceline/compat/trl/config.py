"""`GRPOConfig`: transformers' TrainingArguments with TRL 1.16's fields and defaults, and a few of Paceline's own.

`grpo_fields.py` and `training_fields.py` say what each field becomes; `translation.py` computes the options. The
process among those of a launcher is here too, as scripts ask accelerate for it.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainingArguments

from paceline.compat.layouts import DEEPSPEED_FILE, Agreement, of_deepspeed, of_fsdp, of_launcher, of_sizes
from paceline.compat.trl.fields import Fields, check_fields, refuse_field
from paceline.compat.trl.grpo_fields import GRPOFields
from paceline.compat.trl.translation import field_options
from paceline.errors import ConfigError
from paceline.reports.trackers import check_trackers
from paceline.workers.torchrun.environment import Launched, device_index, launched

if TYPE_CHECKING:
    from paceline.workers.torchrun.launch import Launch

ConfigT = TypeVar("ConfigT", bound=type)
ScriptFunction = Callable[..., Any]


class ProcessState:
    """The part of accelerate's `PartialState` that applies here: this process among those of a launcher.

    Processes meet when the trainer is made. Inside one of its methods the first process leads and the others answer it,
    so there nobody waits, and what every process would have to call is refused.
    """

    fork_launched = debug = False
    initialized = True
    deepspeed_plugin = fsdp_plugin = parallelism_config = None
    is_fsdp2 = False

    def __init__(self, device: torch.device, process: Launched | None, *, mixed_precision: str = "no") -> None:
        self.device, self.mixed_precision = device, mixed_precision
        self.num_processes = 1 if process is None else process.size
        self.process_index = 0 if process is None else process.rank
        self.local_process_index = 0 if process is None else process.local_rank
        self.is_main_process, self.is_local_main_process = self.process_index == 0, self.local_process_index == 0
        self.is_last_process = self.process_index == self.num_processes - 1
        self.launch: Launch | None = None
        """The trainer's launch on several processes, once it is made."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out connections to other processes in copies and files."""
        return {**vars(self), "launch": None}

    @property
    def use_distributed(self) -> bool:
        """True for one of several processes."""
        return self.num_processes > 1

    @property
    def distributed_type(self) -> Any:
        """`DistributedType` of accelerate where a program has loaded it, or the text that equals it."""
        name = "NO" if self.num_processes == 1 else "MULTI_GPU" if self.device.type == "cuda" else "MULTI_CPU"
        known = sys.modules.get("accelerate.utils.dataclasses")
        return name if known is None else known.DistributedType(name)

    @property
    def backend(self) -> str | None:
        """Library by which processes talk; None for one process."""
        return None if self.num_processes == 1 else "nccl" if self.device.type == "cuda" else "gloo"

    @property
    def default_device(self) -> torch.device:
        """Device of this process."""
        return self.device

    def set_device(self) -> None:
        """Do nothing: the device was set when the arguments were made."""

    def destroy_process_group(self, group: Any = None) -> None:
        """Do nothing: groups end with the program."""

    @property
    def _is_led(self) -> bool:
        return self.launch is not None and self.launch.is_leading

    @property
    def _has_met(self) -> bool:
        return self.num_processes > 1 and dist.is_initialized() and dist.get_world_size() == self.num_processes

    def wait_for_everyone(self) -> None:
        """Wait until all processes have come here; not before they have met, nor where the first one leads."""
        if self._has_met and not self._is_led:
            dist.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the other processes wait until the first one has done the block."""
        with self._first(self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the other processes wait until the first one of each machine has done the block."""
        with self._first(self.is_local_main_process):
            yield

    @contextmanager
    def _first(self, is_first: bool) -> Iterator[None]:
        if not is_first:
            self.wait_for_everyone()
        yield
        if is_first:
            self.wait_for_everyone()

    def print(self, *values: Any, **options: Any) -> None:
        """Print on the first process."""
        if self.is_main_process:
            print(*values, **options)

    def on_main_process(self, function: ScriptFunction) -> ScriptFunction:
        """Return the function on the first process, and one that does nothing on the others."""
        return function if self.is_main_process else _nothing

    def on_local_main_process(self, function: ScriptFunction) -> ScriptFunction:
        """Return the function on the first process of each machine, and one that does nothing on the others."""
        return function if self.is_local_main_process else _nothing

    def on_last_process(self, function: ScriptFunction) -> ScriptFunction:
        """Return the function on the last process, and one that does nothing on the others."""
        return function if self.is_last_process else _nothing

    def on_process(self, function: ScriptFunction | None = None, process_index: int | None = None) -> ScriptFunction:
        """Return the function on one process, and one that does nothing on the others."""
        return _only(function, here=process_index == self.process_index)

    def on_local_process(
        self, function: ScriptFunction | None = None, local_process_index: int | None = None
    ) -> ScriptFunction:
        """Return the function on one process of each machine, and one that does nothing on the others."""
        return _only(function, here=local_process_index == self.local_process_index)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give this process its part of a list, a tensor, or a dict of them; the first ones have one more."""
        size = len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)
        share, more = divmod(size, self.num_processes)
        start = self.process_index * share + min(self.process_index, more)
        end = start + share + (self.process_index < more)
        longest = share + (more > 0)

        def part(values: Any) -> Any:
            share = values[start:end]
            if not apply_padding or not size or len(share) == longest:
                return share
            last = values[size - 1 :]
            return torch.cat([share, last]) if isinstance(share, Tensor) else share + last

        yield {name: part(values) for name, values in inputs.items()} if isinstance(inputs, Mapping) else part(inputs)

    def _gathered(self, name: str, value: Any) -> list[Any]:
        """Return each process's value, in their order; ConfigError where not all of them can come here."""
        if self.num_processes == 1:
            return [value]
        if self._is_led or not self._has_met:
            where = "while the trainer runs, when the first process alone leads" if self._is_led else "so early"
            raise ConfigError(
                f"accelerator.{name} must be called on all {self.num_processes} processes at once, which they cannot "
                f"{where}; call it after the trainer's method has returned, or log by log_metric"
            )
        gathered: list[Any] = [None] * self.num_processes
        dist.all_gather_object(gathered, value)
        return gathered


def _nothing(*values: Any, **named: Any) -> None:
    """Do nothing."""


def _only(function: ScriptFunction | None, *, here: bool) -> ScriptFunction:
    if function is None:
        return lambda decorated: decorated if here else _nothing
    return function if here else _nothing


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

    def __new__(cls, *values: Any, **named: Any) -> "GRPOConfig":
        """Refuse names that are no field, with the name to use instead (ConfigError)."""
        known = inspect.signature(cls.__init__).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
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
        field_options(self)
        # files that the trainer reads again: the program may change its directory before
        if isinstance(self.deepspeed, str) and not self.deepspeed.lstrip().startswith("{"):
            self.deepspeed = os.path.abspath(self.deepspeed)
        if os.environ.get(DEEPSPEED_FILE, "None") != "None":
            os.environ[DEEPSPEED_FILE] = os.path.abspath(os.environ[DEEPSPEED_FILE])
        layout_options(self, os.environ)

    @property
    def launched(self) -> Launched | None:
        """This process among a launcher's; None for a single process."""
        return launched(os.environ)

    @cached_property
    def _setup_devices(self) -> torch.device:
        """Use one device for each process, without `accelerate`."""
        process, device = self.launched, torch.device("cpu")
        self._n_gpu = 0 if self.use_cpu else 1
        if not self.use_cpu:
            index = 0 if process is None else device_index(process, visible=torch.cuda.device_count())
            torch.cuda.set_device(index)  # what a program loads itself lies there too
            device = torch.device("cuda", index)
        self.distributed_state = ProcessState(device, process, mixed_precision="bf16" if self.bf16 else "no")
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


SETTINGS_OF_FIELDS = {
    "gradient_clipping": "max_grad_norm",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "lr": "learning_rate",
    "betas": "adam_beta1 and adam_beta2",
    "eps": "adam_epsilon",
    "activation_checkpointing": "gradient_checkpointing",
}
"""Fields of transformers behind settings of DeepSpeed and FSDP with other names."""


def layout_options(args: Fields, environment: Mapping[str, str]) -> dict[str, object]:
    """Options behind `deepspeed`, `fsdp`, `parallelism_config` and the launcher's variables; the fields come first.

    Raises:
        ConfigError: something has no counterpart here, or says otherwise than a field.
    """
    accelerator: Any = args.accelerator_config  # transformers has made an AcceleratorConfig of it
    if args.world_size > 1 and getattr(accelerator, "split_batches", False):
        raise ConfigError(
            "accelerator_config split_batches must be False, got True: batches are counted per process; divide "
            "per_device_train_batch_size"
        )
    micro, parts = args.per_device_train_batch_size, args.gradient_accumulation_steps
    values = {
        "gradient_clipping": args.max_grad_norm or 0.0,
        "gradient_accumulation_steps": parts,
        "train_micro_batch_size_per_gpu": micro,
        "train_batch_size": micro * parts * args.world_size,
        "bf16": bool(args.bf16),
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
        "weight_decay": args.weight_decay,
        "activation_checkpointing": bool(args.gradient_checkpointing),
    }
    agreement, sharded = (
        Agreement(values=values, fields=SETTINGS_OF_FIELDS),
        {name: getattr(args, name) for name in ("deepspeed", "fsdp")},
    )
    if all(sharded.values()):
        raise ConfigError("deepspeed and fsdp both say how the weights are sliced; leave one out")
    options = of_launcher(environment, lambda path: _json(path, "a file of DeepSpeed's"), agreement)
    if args.deepspeed:
        deepspeed: object = args.deepspeed
        label, content = "deepspeed", deepspeed
        if isinstance(deepspeed, str):
            label, content = deepspeed, _json(deepspeed, "deepspeed")
        options |= of_deepspeed(label, content, agreement)
    if args.fsdp:
        settings: Any = args.fsdp_config or {}
        settings = _json(settings, "fsdp_config") if isinstance(settings, str) else settings
        options |= of_fsdp(args.fsdp, settings, agreement)
    if args.parallelism_config:
        sizes: Any = args.parallelism_config
        options |= of_sizes("parallelism_config", sizes if isinstance(sizes, Mapping) else vars(sizes))
    if args.world_size == 1:  # all slices are this process's
        options = {name: value for name, value in options.items() if name.endswith("_parallel")}
    return options


def _json(text: str, name: str) -> Any:
    """Settings from a JSON file, or from JSON itself as a command line gives it; ConfigError for neither."""
    try:
        return json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name} must be a JSON file's path, got {text!r} ({error}); mend it, or give a dict"
        ) from None
