"""`GRPOTrainer`: TRL's constructor and methods around Paceline's loop."""

import copy
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import DefaultFlowCallback, TrainerState, set_seed
from transformers.integrations.integration_utils import get_reporting_integration_callbacks
from transformers.trainer_callback import CallbackHandler
from transformers.trainer_utils import TrainOutput

from paceline.base_directory import held_base, working_directory
from paceline.checkpoints.existing_runs import holds_work
from paceline.compat.trl import surface
from paceline.compat.trl.arguments import (
    Callback,
    TrainerArguments,
    check_callbacks,
    read_arguments,
    refuse_what_is_not_offered,
)
from paceline.compat.trl.batches import interval
from paceline.compat.trl.building import build, held_out_evaluators, model_name
from paceline.compat.trl.checkpoints import (
    existing_run,
    publish_card,
    resume_point,
    set_run_aside,
    upload,
    write_metrics,
    write_state,
)
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.datasets import addressed, size_of
from paceline.compat.trl.environments import environment_reward
from paceline.compat.trl.fields import errors_in_field_names
from paceline.compat.trl.generate import Generated, VllmWeights, generated, of_rollout_func, sampling_by_program
from paceline.compat.trl.history import LogPrinter, LogProgress, metrics_text
from paceline.compat.trl.observer import CallbackObserver
from paceline.compat.trl.rewards import RewardLog
from paceline.compat.trl.scripts import ScriptAccelerator, ScriptMethods, gathered_on_rank_0, on_all_ranks, on_rank_0
from paceline.compat.trl.surface import overridable
from paceline.compat.trl.training_fields import ELSEWHERE
from paceline.errors import ConfigError
from paceline.metrics.statistics import mean_and_std
from paceline.rewards.model import RewardModel
from paceline.training.evaluation import EvalResult
from paceline.training.run import evaluate

LOGGER = logging.getLogger(__name__)


@surface.complete
class GRPOTrainer(ScriptMethods):  # what transformers' own loop does is refused; see `surface`
    """Trains a language model on reward functions, in TRL's words.

        trainer = GRPOTrainer("Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=shorter, train_dataset=prompts)
        trainer.train()

    `args.output_dir` is a run directory: `config.yaml`, `metrics.jsonl`, every completion under `rollouts/`,
    `checkpoints/`, `final/` and `report.html`. A Paceline step, one batch of rollouts with all its updates, is one step
    of the callbacks; `state.global_step` counts updates.
    """

    _originals: ClassVar[Mapping[str, Any]]
    """Attributes of this class under the names of TRL's trainer; see `surface.refuse_hooks`."""
    _tag_names: ClassVar[list[str]] = []
    """Tags of the model card, which a class below may have."""
    _attributes: tuple[str, ...] = ()
    """Names of all public attributes, once they are made; see `surface.refuse_set`."""

    def __init__(  # noqa: PLR0913 - TRL's signature
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[Callback] | None = None,
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

        `others` are arguments of transformers' trainers, all refused. A PacelineError names an argument that cannot be
        used, its value and the remedy.
        """
        surface.refuse_hooks(self)
        refuse_what_is_not_offered(**others)
        self.args = GRPOConfig(output_dir=f"{Path(model_name(model)).name}-GRPO") if args is None else args
        with errors_in_field_names():
            arguments = read_arguments(
                self.args,
                model=model,
                reward_funcs=reward_funcs,
                reward_model=reward_model,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                reward_processing_classes=reward_processing_classes,
                reward_processing_class=reward_processing_class,
                optimizers=optimizers,
                peft_config=peft_config,
                quantization_config=quantization_config,
                tools=tools,
                environment_factory=environment_factory,
                rollout_func=rollout_func,
            )
        check_callbacks(callbacks or [], self.args)
        self.train_dataset, self.eval_dataset = arguments.train_dataset, arguments.eval_dataset
        self.rollout_func, self._environments = rollout_func, arguments.environments
        self.state, self._reward_log = TrainerState(), RewardLog()
        self._build(arguments)
        self._show_parts()
        self._observe(callbacks or [])
        self._built_from, self._built_eval = surface.values_of(self.args), self.eval_dataset
        self.label_names: list[str] = []
        self.is_in_train = False
        self._attributes = tuple(name for name in vars(self) if not name.startswith("_"))
        self._in_place = surface.snapshot(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._attributes:
            surface.refuse_set(self, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        reason = surface.NOT_HERE.get(name)
        raise AttributeError(f"{type(self).__name__} has no {name}" + (f": {reason}" if reason else ""))

    def _refuse_late_changes(self) -> None:
        """Refuse hooks, arguments and attributes that changed since the trainer was made (ConfigError)."""
        surface.refuse_hooks(self)
        surface.refuse_changes(self.args, self._built_from, evaluates=self._built_eval is not None)
        surface.refuse_changed(self, self._in_place)

    def _build(self, arguments: TrainerArguments) -> None:
        """Build the run."""
        set_seed(self.args.seed)
        log = self._reward_log
        context = {"trainer_state": self.state, "log_extra": log.log_extra, "log_metric": log.log_metric}
        if arguments.rollout_func is not None:
            arguments = replace(arguments, rollout_func=lambda prompts: self.rollout_func(prompts, self))
        with errors_in_field_names(), held_base(working_directory()):
            self._job = build(arguments, context)
        if not self.args.resume_from_checkpoint and holds_work(self._job.output_dir):
            LOGGER.warning(existing_run(self.args.output_dir))  # train() may still be asked to resume
        log.take()  # what the trial call before the first step logged

    def _show_parts(self) -> None:
        """Show the parts of the run as the attributes that TRL's trainer has."""
        config, inputs, trainer = self._job.config, self._job.inputs, self._job.trainer
        policy, reference = trainer.policy, trainer.learner.reference
        self.model = self.model_wrapped = policy.model if policy.adapter is None else policy.adapter
        self.ref_model = reference.model if reference not in (None, policy) else None
        self.optimizer = trainer.learner.optimizer
        self.lr_scheduler = trainer.rate.scheduler if trainer.rate else None
        self.processing_class = self.tokenizer = inputs.tokenizer
        kinds = self._environments.kinds
        self.reward_funcs = [*self._job.sources, *map(environment_reward, kinds.values())]
        self.reward_func_names = [*config.rewards.names, *kinds]
        self.reward_processing_classes = [
            function.tokenizer if isinstance(function, RewardModel) else None for function in inputs.functions.values()
        ]
        self.reward_processing_classes += [None] * len(kinds)
        weights = [*config.rewards.weights.values(), *(1.0 for _ in kinds)]
        self.reward_weights = torch.tensor(weights, dtype=torch.float32)
        self.tools = list(self._environments.tools)
        self.num_generations = config.sampling.num_generations
        self.beta, self.aux_loss_enabled = config.loss.beta, False
        self.use_vllm, self.vllm_generation = self.args.use_vllm, VllmWeights(self._job.backend)
        self._last_loaded_step, self._calls = 0, count(1)  # of `_generate`
        self.hub_model_id = self.args.hub_model_id or self._job.output_dir.name
        state: Any = self.args.distributed_state  # transformers takes it for accelerate's
        self.accelerator = ScriptAccelerator(self.args, state, self.args.launched, self._log_to_trackers)
        self.accelerator.launch = self.accelerator.state.launch = self._job.launch
        self.gather_function = self.accelerator.gather_for_metrics
        self.environment_factories = None if not kinds else dict(kinds)
        self._metrics = {mode: defaultdict[str, list[float]](list) for mode in ("train", "eval")}
        self.__dict__.update(surface.attributes_of(self.args, self.tokenizer, self.model))

    def _observe(self, callbacks: list[Callback]) -> None:
        """Make the callbacks' handler and the observer of the loop that drives it."""
        shown = LogPrinter if self.args.disable_tqdm else LogProgress
        names = [name for name in self.args.report_to or () if name in ELSEWHERE]
        flow = [DefaultFlowCallback, *get_reporting_integration_callbacks(names), *callbacks, shown]
        self.callback_handler = CallbackHandler(
            flow, self.model, self.processing_class, self.optimizer, self.lr_scheduler
        )
        self._observer = CallbackObserver(self, self._job, self._reward_log)
        if self._job.launch is not None:
            self._job.launch.program = self._observer
        self.callback_handler.on_init_end(self.args, self.state, self.control)

    def _log_to_trackers(self, values: Mapping[str, Any], step: int | None) -> None:
        self._observer.trackers.log(dict(values), self.state.global_step if step is None else step)

    @property
    def control(self) -> Any:
        """Latest requests of the callbacks."""
        return self._observer.control

    @property
    def _step(self) -> int:
        """Batches of `per_device_train_batch_size` that were trained on so far, as TRL's subclasses count them."""
        return int(self.state.global_step) * self.args.gradient_accumulation_steps

    @overridable
    @on_all_ranks
    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **others: None) -> TrainOutput:
        """Train to the end, or until a callback stops it; then load the best model if the arguments say so.

        A second call is another run from the weights and the optimizer's state as they are; what the first one wrote
        moves to `aside/` of the run directory. `resume_from_checkpoint`: True for the newest checkpoint of
        `args.output_dir`, or the path of one of them.

        Raises:
            ConfigError: `args.output_dir` already holds another trainer's run that is not resumed, or `args` have
                changed.
            CheckpointError: there is nothing to resume, or another process writes to the directory.
            TrainingError: the run failed.
            KeyboardInterrupt: Ctrl-C; the step was finished and a checkpoint written to resume from.
        """
        if any(value is not None for value in others.values()):
            raise ConfigError(f"train takes resume_from_checkpoint alone, got {', '.join(others)}")
        self._refuse_late_changes()
        job, before = self._job, ""
        if (self.rollout_func is None) != (job.inputs.objects.completer is None):
            raise ConfigError(
                "rollout_func must be given to the constructor, and may be replaced by another one later, got a change "
                f"to {self.rollout_func!r}; make a new GRPOTrainer"
            )
        if self._observer.has_begun and not resume_from_checkpoint:
            before = set_run_aside(job.output_dir)
            if job.launch is None:
                self._observer.restart_rate()
            else:
                job.launch.call("restart_rate")
        resume = resume_point(job.output_dir, resume_from_checkpoint, named=str(self.args.output_dir))
        config, rows = job.config, size_of(self.train_dataset)
        loop = replace(config.loop, save_steps=interval(self.args, "save", rows))
        evaluation = replace(config.evaluation, eval_steps=interval(self.args, "eval", rows))
        self._job = replace(job, config=replace(config, loop=loop, evaluation=evaluation))
        self.__dict__["is_in_train"] = True
        try:
            with errors_in_field_names(), sampling_by_program(self._job):
                output = self._observer.train(self._job, resume, before=before)
        finally:
            self.__dict__["is_in_train"] = False
        if self.args.push_to_hub:
            self.push_to_hub()
        return output

    @overridable
    @on_all_ranks
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float | None]:
        """Rewards and loss on held-out prompts, several sets each under its name (DataError: one cannot be used)."""
        dataset = addressed(self.eval_dataset if eval_dataset is None else eval_dataset, seed=self.args.seed)
        if dataset is None:
            raise ConfigError("evaluate needs eval_dataset, here or in the trainer, got None")
        surface.refuse_changed(self, self._in_place)
        run = self._observer.run
        results: Iterable[EvalResult]
        if run is not None and dataset is self._built_eval:
            results = evaluate(run, run.inputs.evaluators)
        else:
            evaluators = held_out_evaluators(self._job, self._environments, dataset)
            # the engine is chosen where the results are asked for
            results = (
                held_out.evaluate(self._job.backend.engine, step=self.state.global_step) for held_out in evaluators
            )
        several, metrics = isinstance(dataset, Mapping), dict[str, float | None]()
        with self._hosts(), sampling_by_program(self._job):
            for result in results:
                prefix = f"{metric_key_prefix}_{result.name}" if several else metric_key_prefix
                metrics |= self._observer.report(result, prefix=prefix)
        if several:
            rewards = [metrics[f"{metric_key_prefix}_{name}_reward"] for name in dataset]
            metrics[f"{metric_key_prefix}_reward"] = mean_and_std(rewards)[0]
        return metrics

    def _hosts(self) -> AbstractContextManager[object]:
        """Processes of environments, to be open for one call; a run has opened them already."""
        conversations = self._job.inputs.conversations
        if self._observer.run is not None or conversations is None:
            return nullcontext()
        return conversations.hosts

    def _generate(self, prompts: list[Any]) -> Generated:
        """Sample one completion of each prompt, as TRL's method of this name does."""
        with errors_in_field_names():
            if self._job.launch is not None and self.rollout_func is None:
                raise ConfigError(
                    "_generate must be called in one process, got several; call evaluate, or give rollout_func"
                )
            # vLLM has a copy of the weights, which the program may have changed
            if self.use_vllm and self._last_loaded_step != self.state.global_step:
                self.vllm_generation.sync_weights()
                self._last_loaded_step = self.state.global_step
            if self.rollout_func is not None:
                output = self.rollout_func(copy.deepcopy(prompts), self)
                return of_rollout_func(output, prompts, self.processing_class)
            return generated(self._job, self._environments, prompts, calls=self._calls, hosts=self._hosts())

    @overridable
    @gathered_on_rank_0
    def save_model(self, output_dir: str | Path | None = None, _internal_call: bool = False) -> None:
        """Write a directory that transformers (or peft) loads; ConfigError for a checkpoint, which stays as it is."""
        run = str(self.args.output_dir)
        folder = self._job.output_dir if str(output_dir or run) == run else Path(str(output_dir))
        progress = folder / "progress.json"  # of a checkpoint
        updates = json.loads(progress.read_text(encoding="utf-8"))["policy_version"] if progress.exists() else None
        if updates is None:
            self._job.export(folder)
        elif self._observer.run is None or updates != self._job.trainer.policy_version:
            raise ConfigError(f"save_model must not write into a checkpoint, got {folder}; give another directory")

    @overridable
    def end(self) -> None:
        """Do nothing: trackers end with `train`, and process groups with the program."""

    @overridable
    @on_rank_0
    def save_state(self) -> None:
        """Write `trainer_state.json` into the run directory."""
        self._job.output_dir.mkdir(parents=True, exist_ok=True)
        write_state(self.state, self._job.output_dir)

    @overridable
    @on_rank_0
    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Print numbers under a heading, aligned."""
        print(metrics_text(split, metrics))

    @overridable
    @on_rank_0
    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        """Write `{split}_results.json` into the run directory, and update its `all_results.json`."""
        self._job.output_dir.mkdir(parents=True, exist_ok=True)
        write_metrics(self._job.output_dir, split, metrics, combined=combined)

    @overridable
    @on_rank_0
    def log(self, logs: dict[str, float | None], start_time: float | None = None) -> None:
        """Add a line of numbers to `state.log_history`, the callbacks and the trackers."""
        self._observer.log(logs)

    @on_rank_0
    def create_model_card(
        self,
        model_name: str | Mapping[str, Any] | None = None,
        dataset_name: str | None = None,
        tags: str | list[str] | None = None,
    ) -> None:
        """Write `README.md` into the run directory: model, data, objective, results.

        Scripts give a dict of these arguments in place of the first one.
        """
        card: dict[str, Any] = {"model_name": model_name, "dataset_name": dataset_name, "tags": tags}
        if isinstance(model_name, Mapping):
            if unknown := [name for name in model_name if name not in card]:
                raise ConfigError(f"create_model_card takes model_name, dataset_name and tags, got {unknown[0]!r}")
            card |= {"model_name": None, **model_name}
        card["tags"] = card["tags"] or self._tag_names
        publish_card(self._job, self.state, self._job.output_dir, card)

    @overridable
    @gathered_on_rank_0
    def push_to_hub(self, commit_message: str = "End of training", blocking: bool = True, **card: Any) -> str:
        """Upload the model with its card to `args.hub_model_id`; returns the commit's address (ModelError: refused)."""
        return upload(self._job, self.state, commit_message, {"tags": self._tag_names, **card})
