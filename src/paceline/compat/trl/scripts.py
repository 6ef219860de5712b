"""What scripts ask of a trainer beside training: rows, counts, callbacks, accelerate's interface; all ranks' calls."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import CallbackHandler

from paceline.base_directory import held_base
from paceline.compat.trl.arguments import Callback, check_callbacks
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.config import GRPOConfig, ProcessState
from paceline.compat.trl.datasets import RowOrder, row_loader, size_of
from paceline.compat.trl.environments import GivenEnvironments
from paceline.compat.trl.fields import Fields
from paceline.compat.trl.history import shown_metrics
from paceline.compat.trl.surface import overridable
from paceline.data.rows import task_index
from paceline.errors import ConfigError
from paceline.workers.torchrun.environment import Launched

if TYPE_CHECKING:
    Trainer = object  # what is overridden takes other arguments
else:
    from transformers.trainer import Trainer


class ScriptMethods(Trainer):
    """Base of `GRPOTrainer`, which sets what these methods read; nothing of transformers' own loop runs."""

    if TYPE_CHECKING:
        args: GRPOConfig
        train_dataset: Any
        eval_dataset: Any
        state: TrainerState
        model: Any
        optimizer: Any
        callback_handler: CallbackHandler
        _job: TrainingJob
        _environments: GivenEnvironments

    @property
    def environments(self) -> list[Any]:
        """Objects of `environment_factory` in the order of the completions since the present step began."""
        return self._environments.objects

    @property
    def _env_tools(self) -> dict[str | None, list[Any]]:
        """Functions of each environment under TRL's name for them: by its key, or None where there is one alone."""
        chosen = self._environments.are_chosen
        return {name if chosen else None: list(tools) for name, tools in self._environments.offered.items()}

    @property
    def _environment_pool(self) -> dict[str | None, list[Any]]:
        """Objects of each environment that no conversation has, by the same names."""
        chosen = self._environments.are_chosen
        return {name if chosen else None: pool.free for name, pool in self._environments.pools.items()}

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus as it is now; `use_adaptive_entropy` changes it with every update."""
        return self._job.trainer.learner.entropy_control[0]

    @overridable
    def get_learning_rates(self) -> list[float]:
        """Rate of each parameter group at its last update."""
        return [group["lr"] for group in self.optimizer.param_groups]

    @overridable
    def get_num_trainable_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    @overridable
    def add_callback(self, callback: Callback) -> None:
        """Add a callback."""
        check_callbacks([callback], self.args)
        self.callback_handler.add_callback(callback)

    @overridable
    def pop_callback(self, callback: Callback) -> TrainerCallback | None:
        """Remove a callback and return it; None if there is no such one."""
        removed: TrainerCallback | None = self.callback_handler.pop_callback(callback)
        return removed

    @overridable
    def remove_callback(self, callback: Callback) -> None:
        """Remove a callback."""
        self.callback_handler.remove_callback(callback)

    @overridable
    def is_world_process_zero(self) -> bool:
        """True on the first process."""
        return bool(self.args.process_index == 0)

    @overridable
    def is_local_process_zero(self) -> bool:
        """True on the first process of each machine."""
        return bool(self.args.local_process_index == 0)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of rows in the order of the first epoch's steps; the loop itself does not use it."""
        size, config = size_of(self.train_dataset), self._job.config
        shuffle, seed = config.data.shuffle, config.loop.seed
        return row_loader(
            self.train_dataset,
            batch_size=config.loop.prompts_per_step,
            order=RowOrder(size or 0, lambda at: task_index(at, size=size or 0, seed=seed, shuffle=shuffle)),
            num_workers=self.args.dataloader_num_workers,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of rows in order, of `eval_dataset` or of one of several by name."""
        named = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        dataset = self.eval_dataset if named is None else named
        if dataset is None or isinstance(dataset, Mapping):
            raise ConfigError("get_eval_dataloader needs one dataset, or the name of one of several")
        size = max(1, self.args.per_device_eval_batch_size // self._job.config.evaluation.eval_generations)
        return row_loader(dataset, batch_size=size, order=None, num_workers=self.args.dataloader_num_workers)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        """Batches of rows in order."""
        return self.get_eval_dataloader(test_dataset)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Number of rows behind a loader."""
        return len(dataloader.dataset)  # type: ignore[arg-type] # torch's own is Sized

    def get_total_train_batch_size(self, args: Fields) -> int:
        """Completions of an update, on all processes."""
        return int(args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size)

    @overridable
    def metrics_format(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers as text for a person, as `log_metrics` has them."""
        return shown_metrics(metrics)


MethodT = TypeVar("MethodT", bound=Callable[..., Any])


def on_all_ranks(method: MethodT) -> MethodT:
    """Wrap a method that all ranks call: rank 0 does it with the others' help, and all return its result."""

    @wraps(method)
    def on_each_rank(trainer: ScriptMethods, *values: Any, **named: Any) -> Any:
        launch = trainer._job.launch
        with held_base(trainer._job.base):
            if launch is None or launch.is_leading:
                return method(trainer, *values, **named)
            if not launch.process.leads:
                return launch.follow(method.__name__)
            with launch.lead(method.__name__):
                launch.result = method(trainer, *values, **named)
                launch.call("be_at", vars(trainer.state))
            return launch.result

    return cast(MethodT, on_each_rank)


def on_rank_0(method: MethodT) -> MethodT:
    """Wrap a method that rank 0 does alone; on the others nothing happens."""

    @wraps(method)
    def on_first_rank(trainer: ScriptMethods, *values: Any, **named: Any) -> Any:
        return method(trainer, *values, **named) if trainer.is_world_process_zero() else None

    return cast(MethodT, on_first_rank)


def gathered_on_rank_0(method: MethodT) -> MethodT:
    """Wrap a method that rank 0 does alone, or with the help of all where each rank holds a part of the weights."""
    of_parts, of_copies = on_all_ranks(method), on_rank_0(method)

    @wraps(method)
    def on_first_rank(trainer: ScriptMethods, *values: Any, **named: Any) -> Any:
        launch = trainer._job.launch
        return (of_parts if launch is not None and launch.worker.is_split else of_copies)(trainer, *values, **named)

    return cast(MethodT, on_first_rank)


NOT_ACCELERATED: Mapping[str, str] = {
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
REASONS: Mapping[str, str] = {name: reason for reason, names in NOT_ACCELERATED.items() for name in names.split()}


class ScriptAccelerator(ProcessState):
    """The part of accelerate's `Accelerator` that applies to a trainer which wraps no model."""

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

    def no_sync(self, *models: Any, **options: Any) -> Any:
        """Do nothing: every backward pass adds to the gradients, and no wrapper sums them or waits for others."""
        return nullcontext()

    accumulate = join_uneven_inputs = no_sync

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
