"""Methods of a trainer for scripts: rows, counts, callbacks, environments; and which methods all ranks call."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import CallbackHandler

from paceline.base_directory import held_base
from paceline.compat.trl.arguments import Callback, check_callbacks
from paceline.compat.trl.building import TrainingJob
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.datasets import RowOrder, row_loader, size_of
from paceline.compat.trl.environments import GivenEnvironments
from paceline.compat.trl.history import shown_metrics
from paceline.compat.trl.surface import overridable
from paceline.data.rows import task_index
from paceline.errors import ConfigError

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

    def get_total_train_batch_size(self, args: GRPOConfig) -> int:
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
