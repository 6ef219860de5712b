"""What scripts ask of accelerate: `args.distributed_state` and `trainer.accelerator`, for a process among others.

Processes meet when the trainer is made. Inside one of its methods the first process leads and the others answer it, so
there nobody waits, and what every process would have to call is refused.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.compat.trl.fields import Fields
from paceline.errors import ConfigError
from paceline.workers.torchrun.environment import Launched

if TYPE_CHECKING:
    from paceline.workers.torchrun.launch import Launch

ScriptFunction = Callable[..., Any]

NOT_OFFERED: Mapping[str, str] = {
    "the trainer's own run writes and reads its checkpoints; take save_steps, callbacks and resume_from_checkpoint": (
        "save_state load_state register_for_checkpointing register_save_state_pre_hook register_load_state_pre_hook "
        "project_configuration save_iteration should_save_model"
    ),
    "call trainer.save_model, which every layout of the weights has": "save_model",
    "trackers are the trainer's; name them in report_to": "get_tracker init_trackers",
    "the model is neither wrapped nor sharded by accelerate": (
        "deepspeed_ulysses_dl_adapter torch_device_mesh is_composable_parallelism_enabled "
        "verify_device_map lomo_backward has_lomo_optimizer tensor_parallel_rank pipeline_parallel_rank "
        "context_parallel_rank data_parallel_rank data_parallel_shard_rank maybe_context_parallel"
    ),
    "half precision with a scaled loss, and FP8, are not offered": (
        "fp8_backend fp8_enabled fp8_recipe_handler has_fp8_handler te_recipe_handler msamp_recipe_handler "
        "ao_recipe_handler delayed_fp8_autocast scaler_handler unscale_gradients autocast_handler"
    ),
    "no loader, profiler or trigger of accelerate's runs": (
        "dataloader_config ddp_handler init_handler profile profile_handler skip_first_batches flag_tensor set_trigger "
        "check_trigger trigger_sync_in_backward rng_types step gradient_state"
    ),
}
"""Names of accelerate's Accelerator that are not here, by the reason."""
REASONS: Mapping[str, str] = {name: reason for reason, names in NOT_OFFERED.items() for name in names.split()}


class ProcessState:
    """Accelerate's `PartialState`, as far as it makes sense here: this process among those of a launcher."""

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
        """What the trainer leads on several processes, once it is made."""

    def __getstate__(self) -> dict[str, Any]:
        """Be copied and stored without connections to other processes."""
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


class ScriptAccelerator(ProcessState):
    """Accelerate's `Accelerator`, as far as it makes sense around a trainer that wraps no model."""

    sync_gradients = device_placement = even_batches = use_seedable_sampler = step_scheduler_with_optimizer = True
    split_batches = native_amp = non_blocking = use_stateful_dataloader = optimizer_step_was_skipped = False
    dispatch_batches = scaler = None

    def __init__(
        self,
        args: Fields,
        state: ProcessState,
        process: Launched | None,
        log: Callable[[Mapping[str, Any], int | None], None],
    ) -> None:
        """`state` is that of `args`; `log`: takes numbers and their step to the trainer's trackers."""
        self.state = state
        super().__init__(state.device, process, mixed_precision="bf16" if args.bf16 else "no")
        self.project_dir = self.logging_dir = args.output_dir
        self.gradient_accumulation_steps, self.log_with = args.gradient_accumulation_steps, list(args.report_to or ())
        self.trackers: list[Any] = []
        self._log = log

    def __getattr__(self, name: str) -> NoReturn:
        reason = REASONS.get(name)
        raise AttributeError(f"trainer.accelerator has no {name}" + (f": {reason}" if reason else ""))

    @property
    def multi_device(self) -> bool:
        """True for one of several processes."""
        return self.use_distributed

    def unwrap_model(self, model: Any, **options: Any) -> Any:
        """Return the model itself, which nothing wraps."""
        return model

    def gather(self, tensor: Any) -> Any:
        """Concatenate the tensors of all processes, also inside lists, tuples and dicts."""
        return _joined(self._gathered("gather", tensor))

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Concatenate the tensors of all processes, or their lists of other objects."""
        gathered = self._gathered("gather_for_metrics", input_data)
        is_objects = use_gather_object or (isinstance(input_data, list) and not _has_tensor(input_data))
        return [item for items in gathered for item in items] if is_objects else _joined(gathered)

    def reduce(self, tensor: Tensor, reduction: str = "sum", scale: float = 1.0) -> Tensor:
        """Return the sum or mean of the tensors of all processes, or this one's own for `none`."""
        if reduction not in ("sum", "mean", "none"):
            raise ConfigError(f"accelerator.reduce takes sum, mean or none, got {reduction!r}")
        if reduction == "none":
            return tensor
        total = torch.stack(self._gathered("reduce", tensor)).sum(0) * scale
        return total / self.num_processes if reduction == "mean" else total

    def pad_across_processes(self, tensor: Tensor, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Tensor:
        """Pad a dimension to its longest over all processes."""
        missing = max(self._gathered("pad_across_processes", tensor.shape[dim])) - tensor.shape[dim]
        shape = list(tensor.shape)
        shape[dim] = missing
        padding = tensor.new_full(shape, pad_index)
        return torch.cat([padding, tensor] if pad_first else [tensor, padding], dim)

    def prepare(self, *objects: Any, **options: Any) -> Any:
        """Return what a loop of a script's own is given, in one process."""
        self._refuse_own_loop("prepare")
        return objects[0] if len(objects) == 1 else objects

    prepare_model = prepare_optimizer = prepare_scheduler = prepare_data_loader = prepare

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Compute gradients of a script's own loss, in one process."""
        self._refuse_own_loop("backward")
        loss.backward(**options)

    def _refuse_own_loop(self, name: str) -> None:
        if self.num_processes > 1:
            raise ConfigError(
                f"accelerator.{name} must be called in one process, got {self.num_processes}: gradients of a loop of "
                "your own are not summed over processes; make an accelerate.Accelerator for it"
            )

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        """Clip gradients; returns their norm before."""
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Hold each gradient within a bound."""
        nn.utils.clip_grad_value_(parameters, clip_value)

    def autocast(self, autocast_handler: Any = None) -> Any:
        """Compute in bfloat16 inside, if the arguments say so."""
        kind = self.device.type
        return torch.autocast(kind, torch.bfloat16) if self.mixed_precision == "bf16" else nullcontext()

    def accumulate(self, *models: Any) -> Any:
        """Do nothing: every backward pass adds to the gradients."""
        return nullcontext()

    def no_sync(self, model: Any) -> Any:
        """Do nothing: no wrapper sums gradients."""
        return nullcontext()

    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Any:
        """Do nothing: no wrapper waits for other processes."""
        return nullcontext()

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Return the weights of a model, which is whole on this process."""
        return model.state_dict()

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write an object to a file, on the first process of each machine."""
        if self.is_local_main_process:
            save_file(obj, f) if safe_serialization else torch.save(obj, f)

    def log(self, values: Mapping[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        """Give numbers to the trainer's trackers, on the first process."""
        if self.is_main_process:
            self._log(values, step)

    def free_memory(self, *objects: Any) -> list[None]:
        """Give cached memory back; returns None for each object."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return [None for _ in objects]

    clear = free_memory

    def end_training(self) -> None:
        """Do nothing: trackers end with `train`."""


def _nothing(*values: Any, **named: Any) -> None:
    """Do nothing."""


def _only(function: ScriptFunction | None, *, here: bool) -> ScriptFunction:
    if function is None:
        return lambda decorated: decorated if here else _nothing
    return function if here else _nothing


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(map(_has_tensor, value)))


def _joined(values: list[Any]) -> Any:
    """Concatenate tensors of one shape but for the first dimension; numbers become a row of them."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: _joined([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(_joined([value[index] for value in values]) for index in range(len(first)))
    if not isinstance(first, Tensor) or len(values) == 1:
        return first if len(values) == 1 else values
    return torch.cat(
        [value.to(first.device).reshape(-1) if value.ndim == 0 else value.to(first.device) for value in values]
    )
