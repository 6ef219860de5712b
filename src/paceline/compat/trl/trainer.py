"""`GRPOTrainer`: TRL's constructor and methods around Paceline's loop."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import DefaultFlowCallback, TrainerCallback, TrainerState, set_seed
from transformers.trainer_callback import CallbackHandler
from transformers.trainer_utils import TrainOutput

from paceline.checkpoints.existing_runs import holds_work, refuse_foreign_files
from paceline.compat.trl import checks
from paceline.compat.trl.building import (
    Built,
    TrainerArguments,
    build,
    default_args,
    held_out_tasks,
    one_of,
    refuse_what_is_not_offered,
    said_in_field_names,
)
from paceline.compat.trl.callbacks import CallbackObserver, Outlook, write_state
from paceline.compat.trl.checkpoints import existing_run, resume_point, updates_at
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.datasets import ScriptAccelerator, held_out_sets, row_loader, size_of
from paceline.compat.trl.display import LogPrinter, LogProgress, metrics_text, print_completions, write_metrics
from paceline.compat.trl.history import mean_of
from paceline.compat.trl.publishing import publish_card, upload
from paceline.compat.trl.rewards import RewardLog
from paceline.compat.trl.running import TrainingJob, run_training
from paceline.compat.trl.translation import in_field_names, updates_per_step
from paceline.data.order import task_index
from paceline.errors import ConfigError
from paceline.models.exporting import export_model
from paceline.rewards.model import RewardModel
from paceline.rewards.selecting import row_check
from paceline.training.backend import OneProcess, one_process
from paceline.training.rollouts.sampler import RolloutBatch
from paceline.training.run import evaluate
from paceline.training.setup.evaluators import EvalResult, reward_evaluator

LOGGER = logging.getLogger(__name__)


class GRPOTrainer:
    """Trains a language model on reward functions, in TRL's words.

        trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=shorter, train_dataset=prompts)
        trainer.train()

    `args.output_dir` is a run directory: `config.yaml`, `metrics.jsonl`, every completion under `rollouts/`,
    `checkpoints/`, `final/` and `report.html`. A Paceline step, one batch of rollouts with all its updates, is one step
    of the callbacks; `state.global_step` counts updates.
    """

    def __init__(  # noqa: PLR0913 - TRL's signature
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[checks.Callback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
        *,
        reward_model: Any = None,
        reward_processing_class: Any = None,
        **others: Any,
    ) -> None:
        """Check everything, then load the weights; `reward_model` is an early name of `reward_funcs`.

        `others` are arguments of transformers' trainers, all refused.

        Raises:
            PacelineError: an argument cannot be used; the sentence names it, its value and the remedy.
        """
        checks.refuse_hooks(type(self))
        refuse_what_is_not_offered(
            quantization_config=quantization_config,
            tools=tools,
            rollout_func=rollout_func,
            environment_factory=environment_factory,
            **others,
        )
        self.args = default_args(model) if args is None else args
        checks.check_callbacks(callbacks or [], self.args)
        self.state = TrainerState()
        self._reward_log = RewardLog()
        arguments = TrainerArguments(
            model=model,
            reward_funcs=one_of(reward_funcs=reward_funcs, reward_model=reward_model),
            args=self.args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            reward_processing_classes=one_of(
                reward_processing_classes=reward_processing_classes, reward_processing_class=reward_processing_class
            ),
            optimizers=optimizers,
            peft_config=peft_config,
        )
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        built, backend = self._make_backend(arguments)
        self.callback_handler = self._make_callbacks(callbacks or [])
        self._console = Console()
        self._job = self._make_job(built, backend)
        self.callback_handler.on_init_end(self.args, self.state, self.control)
        self._built_from, self._built_eval, self._started = checks.values_of(self.args), eval_dataset, False

    def _make_backend(self, arguments: TrainerArguments) -> tuple[Built, OneProcess]:
        set_seed(self.args.seed)
        context = {
            "trainer_state": self.state,
            "log_extra": self._reward_log.log_extra,
            "log_metric": self._reward_log.log_metric,
        }
        with said_in_field_names():
            built = build(arguments, context)
            self._reward_log.clear()
            refuse_foreign_files(Path(str(self.args.output_dir)))
            self._warn_of_existing_run()
            backend = one_process(built.config, built.inputs, built.given)
        trainer = backend.trainer
        policy, reference = trainer.policy, trainer.learner.reference
        self.model = policy.model if policy.adapter is None else policy.adapter
        self.ref_model = reference.model if reference not in (None, policy) else None
        self.optimizer = trainer.learner.optimizer
        self.lr_scheduler = trainer.rate.scheduler if trainer.rate else None
        self.processing_class = built.inputs.tokenizer
        self.reward_funcs, self.reward_func_names = list(built.sources), list(built.config.rewards.names)
        self.reward_processing_classes = [
            one.tokenizer if isinstance(one, RewardModel) else None for one in built.inputs.functions.values()
        ]
        self.reward_weights = torch.tensor(list(built.config.rewards.weights.values()), dtype=torch.float32)
        return built, backend

    def _warn_of_existing_run(self) -> None:
        place = Path(str(self.args.output_dir))
        if not self.args.resume_from_checkpoint and holds_work(place):
            LOGGER.warning(existing_run(place))  # train() may still be asked to resume

    def _make_callbacks(self, callbacks: list[checks.Callback]) -> CallbackHandler:
        shown = LogPrinter if self.args.disable_tqdm else LogProgress
        flow = [DefaultFlowCallback, *callbacks, shown]
        return CallbackHandler(flow, self.model, self.processing_class, self.optimizer, self.lr_scheduler)

    def _make_job(self, built: Built, backend: OneProcess) -> TrainingJob:
        observer = CallbackObserver(
            self.callback_handler,
            self.args,
            self.state,
            self._reward_log,
            Outlook(
                updates_per_step=updates_per_step(built.config),
                entropy_coef=built.config.loss.entropy_coef,
                measure=backend.trainer.learner.measure,
                show=self._show,
                say=self._say,
                # looked up when called: a subclass, or a program, may put others in their place
                log=lambda logs: self.log(logs),
                evaluate=lambda: self.evaluate(),
                save_model=lambda place: self.save_model(place, _internal_call=True),
            ),
        )
        return TrainingJob(
            args=self.args,
            config=built.config,
            inputs=built.inputs,
            backend=backend,
            notes=built.notes,
            observer=observer,
            console=self._console,
            is_stream=size_of(self.train_dataset) is None,
        )

    @property
    def tokenizer(self) -> Any:
        """Older name of `processing_class`."""
        return self.processing_class

    @property
    def aux_loss_enabled(self) -> bool:
        """False: no auxiliary router loss is computed."""
        return False

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus."""
        return self._job.config.loss.entropy_coef

    @property
    def control(self) -> Any:
        """Latest requests of the callbacks."""
        return self._job.observer.control

    @property
    def model_wrapped(self) -> Any:
        """The model, which nothing wraps."""
        return self.model

    @property
    def accelerator(self) -> ScriptAccelerator:
        """Stand-in for the accelerator of transformers' trainer."""
        return ScriptAccelerator(device=self.args.device)

    @property
    def num_generations(self) -> int:
        """Completions per prompt."""
        return self._job.config.sampling.num_generations

    @property
    def beta(self) -> float:
        """Weight of the KL from the reference."""
        return self._job.config.loss.beta

    def get_learning_rates(self) -> list[float]:
        """Rate of each parameter group at its last update."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_num_trainable_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters() if parameter.requires_grad)

    def add_callback(self, callback: checks.Callback) -> None:
        """Add a callback."""
        checks.check_callbacks([callback], self.args)
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: checks.Callback) -> TrainerCallback | None:
        """Remove a callback and return it; None if there is no such one."""
        found: TrainerCallback | None = self.callback_handler.pop_callback(callback)
        return found

    def remove_callback(self, callback: checks.Callback) -> None:
        """Remove a callback."""
        self.callback_handler.remove_callback(callback)

    def is_world_process_zero(self) -> bool:
        """True: there is one process."""
        return True

    def is_local_process_zero(self) -> bool:
        """True: there is one process."""
        return True

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **others: None) -> TrainOutput:
        """Train to the end, or until a callback stops it; then load the best model if the arguments say so.

        `resume_from_checkpoint`: True for the newest checkpoint of `args.output_dir`, or the path of one of them.

        Raises:
            ConfigError: `args.output_dir` already holds a run that is not resumed, the trainer has trained before, or
                `args` have changed.
            CheckpointError: there is nothing to resume.
            TrainingError: the run failed.
            KeyboardInterrupt: Ctrl-C; the step was finished and a checkpoint written to resume from.
        """
        if any(value is not None for value in others.values()):
            raise ConfigError(f"train takes resume_from_checkpoint alone, got {', '.join(others)}")
        if self._started and not resume_from_checkpoint:
            raise ConfigError("train() was called before and a trainer trains once; make a new GRPOTrainer")
        checks.refuse_changes(self.args, self._built_from, evaluates=self._built_eval is not None)
        resume = resume_point(self._job.output_dir, resume_from_checkpoint)
        config = checks.with_intervals(self._job.config, self.args, size_of(self.train_dataset))
        self._job, self._started = replace(self._job, config=config), True
        with said_in_field_names():
            output = run_training(self._job, resume)
        if self.args.push_to_hub:
            self.push_to_hub()
        return output

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float | None]:
        """Rewards and loss on held-out prompts with the current weights; several datasets each under its name.

        Raises:
            DataError: a dataset cannot be used.
        """
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        if given is None:
            raise ConfigError("evaluate needs eval_dataset, here or in the trainer, got None")
        several, metrics = isinstance(given, Mapping), dict[str, float | None]()
        for one in self._measure(given):
            prefix = f"{metric_key_prefix}_{one.name}" if several else metric_key_prefix
            metrics |= self._job.observer.report(one, prefix=prefix)
        if several:
            metrics[f"{metric_key_prefix}_reward"] = mean_of(
                [metrics[f"{metric_key_prefix}_{name}_reward"] for name in given]
            )
        return metrics

    def _measure(self, given: Any) -> Iterable[EvalResult]:
        job, run = self._job, self._job.observer.run
        if run is not None and given is self._built_eval:
            return evaluate(run, run.inputs.evaluators)
        generations, functions = job.config.evaluation.eval_generations, job.inputs.functions
        evaluators = [
            reward_evaluator(
                job.config,
                functions,
                name=name,
                tasks=held_out_tasks(dataset, name, self.processing_class, job.config, check=row_check(functions)),
                generations=generations,
            )
            for name, dataset in held_out_sets(given).items()
        ]
        return (evaluator.evaluate(job.backend.engine, step=self.state.global_step) for evaluator in evaluators)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of rows in the order of the first epoch's steps; the loop itself does not use it."""
        size, config = size_of(self.train_dataset), self._job.config
        shuffle, seed = config.data.shuffle, config.loop.seed
        return row_loader(
            self.train_dataset,
            batch_size=config.loop.prompts_per_step,
            order=[task_index(at, size=size, seed=seed, shuffle=shuffle) for at in range(size)] if size else [],
            num_workers=self.args.dataloader_num_workers,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of rows in order, of `eval_dataset` or of one of several by name."""
        given = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        dataset = self.eval_dataset if given is None else given
        if dataset is None or isinstance(dataset, Mapping):
            raise ConfigError("get_eval_dataloader needs one dataset, or the name of one of several")
        size = max(1, self.args.per_device_eval_batch_size // self._job.config.evaluation.eval_generations)
        return row_loader(dataset, batch_size=size, order=None, num_workers=self.args.dataloader_num_workers)

    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Write a directory that transformers (for an adapter, peft) loads; every checkpoint already is one.

        Raises:
            ConfigError: `output_dir` is a checkpoint, which stays as it was saved.
        """
        place = Path(output_dir or str(self.args.output_dir))
        updates = updates_at(place)
        if updates is not None and (
            self._job.observer.run is None or updates != self._job.backend.trainer.policy_version
        ):
            raise ConfigError(f"save_model must not write into a checkpoint, got {place}; give another directory")
        if updates is not None:
            return
        export_model(self._job.backend.trainer.policy, self.processing_class, place, merge=False)

    def save_state(self) -> None:
        """Write `trainer_state.json` into the run directory."""
        self._job.output_dir.mkdir(parents=True, exist_ok=True)
        write_state(self.state, self._job.output_dir)

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Print numbers under a heading, aligned."""
        print(metrics_text(split, metrics))

    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        """Write `{split}_results.json` into the run directory, and update its `all_results.json`."""
        write_metrics(self._job.output_dir, split, metrics, combined=combined)

    def log(self, logs: dict[str, float | None], start_time: float | None = None) -> None:
        """Add a line of numbers to `state.log_history`, the callbacks and the trackers."""
        self._job.observer.log(logs)

    def create_model_card(
        self, model_name: str | None = None, dataset_name: str | None = None, tags: str | list[str] | None = None
    ) -> None:
        """Write `README.md` into the run directory: model, data, objective, results."""
        publish_card(self._job, self._job.output_dir, name=model_name, dataset=dataset_name, tags=tags)

    def push_to_hub(self, commit_message: str = "End of training", blocking: bool = True, **card: Any) -> str:
        """Upload the model with its card to `args.hub_model_id`; returns the commit's address.

        Raises:
            ModelError: the Hub refused.
        """
        return upload(self._job, commit_message, card)

    def _show(self, batch: RolloutBatch, step: int) -> None:
        limit, columns = self.args.num_completions_to_print, self._reward_log.columns
        print_completions(self._console, batch, step=step, limit=limit, columns=columns)

    def _say(self, sentence: str) -> None:
        self._console.print(in_field_names(sentence), highlight=False, markup=False, soft_wrap=True)
