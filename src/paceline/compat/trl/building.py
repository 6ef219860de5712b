"""Builds a run from a trainer's arguments; everything that needs no weights is refused before they are read."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from paceline.base_directory import base_directory, local_path
from paceline.checkpoints.existing_runs import refuse_foreign_files, refuse_unusable_directory
from paceline.compat.trl import datasets
from paceline.compat.trl.arguments import TrainerArguments, check_arguments, fetched
from paceline.compat.trl.batches import scheduler_words
from paceline.compat.trl.config import GRPOConfig, layout_options
from paceline.compat.trl.environments import GivenEnvironments
from paceline.compat.trl.fields import keywords_of
from paceline.compat.trl.images import image_input, image_processor, images_folder
from paceline.compat.trl.notes import note_of_rate, notes_of_threads
from paceline.compat.trl.rewards import RewardSource, check_parameters, make_graders, reward_names
from paceline.compat.trl.rollouts import RolloutFunction
from paceline.compat.trl.translation import HUB_KEYS, RunContext, translate
from paceline.config.objective import PROGRAM
from paceline.config.sections import Config, ModelConfig
from paceline.data.row_images import ImageInput
from paceline.data.tasks import TaskSet
from paceline.engines.vllm.window import check_vllm
from paceline.errors import ConfigError, ModelError, first_line
from paceline.models.loaded import ADAPTER_NAME, export_model
from paceline.models.loading import check_loaded
from paceline.models.lora import lora_options
from paceline.models.pretrained import (
    context_length,
    end_token_ids,
    load_tokenizer,
    positions_in,
    read_config,
    read_generation_config,
)
from paceline.models.text_part import read_model
from paceline.reports.trackers import check_trackers
from paceline.rewards.function import RewardFunction, row_check
from paceline.rewards.resolving import reward_context
from paceline.runtime.devices import choose_device
from paceline.training.backend import OneProcess, one_process
from paceline.training.evaluation import Evaluator
from paceline.training.identity import model_digests
from paceline.training.plan.batches import most_prompts_per_step
from paceline.training.setup.held_out import reward_evaluator
from paceline.training.setup.inputs import RunInputs, RunObjects
from paceline.training.setup.preparation import prepare
from paceline.training.trainer import Trainer, make_scheduler, updates_per_step
from paceline.types import Task
from paceline.workers.backend import WorkerBackend
from paceline.workers.torchrun.environment import check_launched
from paceline.workers.torchrun.launch import Launch
from paceline.workers.worker import TrainerWorker

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """A trainer's run before its first step."""

    args: GRPOConfig
    base: Path
    """The program's directory when it made the trainer."""
    config: Config
    inputs: RunInputs
    backend: OneProcess | WorkerBackend
    launch: Launch | None
    """The ranks of a launch; each has a backend, and only the first one's is used."""
    sources: list[RewardSource]
    notes: tuple[str, ...]
    """Sentences for the user before the first step."""
    makes_scheduler: bool
    """The schedule of the learning rate is the arguments', not a scheduler of the program's own."""

    @property
    def output_dir(self) -> Path:
        """The run directory."""
        return self.base / str(self.args.output_dir)

    @property
    def trainer(self) -> Trainer:
        """This process's own."""
        if isinstance(self.backend, OneProcess):
            return self.backend.trainer
        return cast(TrainerWorker, cast(Launch, self.launch).worker.trainer).trainer

    def export(self, folder: Path) -> None:
        """Write the model as transformers or peft loads it; ranks with copies need nobody else for it."""
        if self.launch is None or self.launch.is_leading:
            self.backend.export(folder)
        else:
            export_model(self.trainer.policy, self.inputs.tokenizer, folder, merge=False)


def build(arguments: TrainerArguments, context: Mapping[str, Any]) -> TrainingJob:
    """Build everything but the weights, then load them; errors name arguments. `context` is for reward functions."""
    args, dataset = arguments.args, arguments.train_dataset
    sources = check_arguments(arguments)
    if isinstance(arguments.model, str):
        keywords = keywords_of(args, "model_init_kwargs")
        files = {name: keywords[name] for name in HUB_KEYS if name in keywords}
        arguments = replace(arguments, model=fetched(arguments.model, files))
    config = _with_objects(translate(args, _run_context(arguments, reward_names(sources))), arguments)
    if config.loss.ratio_level == "sequence" and config.loss.average in ("token", "constant"):
        LOGGER.warning(
            "importance_sampling_level 'sequence' with loss_type %r weights each sequence by its completion length; "
            "loss_type 'grpo' weighs all alike, as GSPO does",
            args.loss_type,
        )
    check_trackers(config.loop.report_to)
    if config.engine.engine == "vllm":
        check_vllm(None)
    limit = _rows_needed(dataset, config)
    rows = datasets.read_rows(dataset, "train_dataset", limit=limit, may_lack_prompt=arguments.environments.own_data)
    inputs = prepare(config, _objects(arguments, config, sources, rows, context), images=images_folder(arguments))
    read = () if limit is None else (f"train_dataset has no length: its first {len(rows)} rows are read for max_steps",)
    rate = note_of_rate(arguments, inputs.total_steps * updates_per_step(config))
    has_turns = args.max_tool_calling_iterations is None or bool(arguments.environments)
    turns = () if has_turns else ("max_tool_calling_iterations changes nothing without tools or environment_factory",)
    notes = (*read, rate, *turns, *notes_of_threads(config))
    refuse_unusable_directory(local_path(str(args.output_dir)))
    refuse_foreign_files(local_path(str(args.output_dir)))
    if args.launched is not None:
        check_launched(config, args.launched)
    if arguments.quantization_config is not None:
        model = _load_quantised(config.model, arguments.quantization_config)
        digests = model_digests(config, inputs.tokenizer, model, has_adapter=True)
        inputs = replace(inputs, model_digests=digests, objects=replace(inputs.objects, model=model))
    objects = replace(inputs.objects, functions=inputs.functions)
    launch = None if args.launched is None else Launch(args.launched, config, objects)
    return TrainingJob(
        args=args,
        base=base_directory(),
        config=config,
        inputs=inputs,
        backend=one_process(config, inputs) if launch is None else _on_ranks(launch, config, inputs),
        launch=launch,
        sources=sources,
        notes=notes,
        makes_scheduler=arguments.optimizers[1] is None,
    )


def _load_quantised(model: ModelConfig, quantization_config: Any) -> PreTrainedModel:
    """The model with its linear layers in fewer bits, the rest in float32, on the run's device.

    ModelError: a library for it is missing, or a weight cannot be read.
    """
    try:
        loaded, report = read_model(
            model.model,
            trust_remote_code=model.trust_remote_code,
            quantization_config=quantization_config,
            device_map={"": choose_device(model)},
        )
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"model {model.model!r} cannot be loaded with quantization_config ({type(error).__name__}: "
            f"{first_line(error)})"
        ) from error
    check_loaded(loaded, report, f"model {model.model!r}")
    return loaded


def _with_objects(config: Config, arguments: TrainerArguments) -> Config:
    """Record optimizer, schedule and adapter, so that another entry point trains the same or refuses."""
    args = arguments.args
    words: str | None = scheduler_words(args)
    if arguments.optimizers[1] is not None:
        words = PROGRAM
    elif args.lr_scheduler_type == "constant":  # the options' own is the same
        words = None
    optimizer = config.optim.optimizer if arguments.optimizers[0] is None else PROGRAM
    config = replace(config, optim=replace(config.optim, optimizer=optimizer, lr_scheduler=words))
    if arguments.rollout_func is not None:
        config = replace(config, sampling=replace(config.sampling, rollout_func=PROGRAM))
    adapter = arguments.peft_config or getattr(arguments.model, "peft_config", {}).get(ADAPTER_NAME)
    if adapter is None:
        return config
    settings: dict[str, Any] = lora_options(adapter)
    return replace(config, lora=replace(config.lora, **settings))


def _objects(
    arguments: TrainerArguments,
    config: Config,
    sources: list[RewardSource],
    rows: datasets.DatasetRows,
    context: Mapping[str, Any],
) -> RunObjects:
    """Tokenizer, tasks, graders, model and optimiser of a program, in the places of what options name."""
    args, tokenizer = arguments.args, _tokenizer(arguments, config)
    if isinstance(rows, datasets.AddressedRows) and not all(isinstance(source, str) for source in sources):
        raise ConfigError(
            f"reward_funcs must be names with train_dataset {rows.address!r}, got a function; give the rows themselves "
            "as train_dataset, or the function as 'file.py:function'"
        )
    environments, own_data = arguments.environments, arguments.environments.own_data
    columns = datasets.columns_of(arguments.train_dataset, rows)
    check_parameters(sources, columns, [*context, *(["environments"] if own_data else [])])
    graders = make_graders(
        reward_names(sources),
        sources,
        arguments.reward_processing_classes,
        context=context,
        built_in=reward_context(config.rewards, config.sampling, seed=config.loop.seed),
        has_environments=own_data,
    )
    images = image_input(arguments, config, tokenizer)
    reading = _reading(config, tokenizer, graders.functions, environments, images)
    return replace(
        graders,
        environments=environments.specs,
        completer=_completer(arguments, config, tokenizer),
        model=None if isinstance(arguments.model, str) else arguments.model,
        adapter=arguments.peft_config,
        tokenizer=tokenizer,
        image_processor=image_processor(arguments),
        images=images,
        tasks=reading(rows, name=datasets.TRAINING),
        held_out={
            name: _held_out_tasks(held_out, name, reading, own_data=own_data)
            for name, held_out in datasets.held_out_sets(arguments.eval_dataset).items()
        },
        optimizer=arguments.optimizers[0],
        make_scheduler=lambda optimizer, total: (
            arguments.optimizers[1] or make_scheduler(scheduler_words(args), optimizer, total=total)
        ),
    )


def _on_ranks(launch: Launch, config: Config, inputs: RunInputs) -> WorkerBackend:
    """Meet the other ranks and build all of them; only the first one's backend is ever asked for something."""
    if not launch.process.leads:
        launch.follow("GRPOTrainer")
        return launch.backend(config, inputs, None)
    with launch.lead("GRPOTrainer"):
        sentences = launch.build(config, inputs, None)
    return launch.backend(config, inputs, None, sentences)


def _run_context(arguments: TrainerArguments, names: tuple[str, ...]) -> RunContext:
    model, environments = model_name(arguments.model), arguments.environments
    if isinstance(arguments.model, str):
        limit = context_length(ModelConfig(model=model, trust_remote_code=arguments.args.trust_remote_code))
    else:
        limit = positions_in(arguments.model.config)
    return RunContext(
        model=model,
        reward_names=names,
        num_prompts=datasets.size_of(arguments.train_dataset),
        context_length=limit,
        adapter=arguments.peft_config is not None or hasattr(arguments.model, "peft_config"),
        layout=layout_options(arguments.args, os.environ),
        dataset=getattr(arguments.train_dataset, "address", "train_dataset"),
        environments=environments.options,
        environment_rewards=tuple(environments.kinds),
    )


def model_name(model: Any) -> str:
    """Directory or Hub name of a model, or the class of an object without either."""
    if isinstance(model, str):
        return model
    if not hasattr(model, "config"):
        raise ConfigError(f"model must be a name, a PreTrainedModel or a PeftModel, got a {type(model).__name__}")
    return str(getattr(model.config, "name_or_path", "") or type(model).__name__)


def _tokenizer(arguments: TrainerArguments, config: Config) -> PreTrainedTokenizerBase:
    tokenizer, model = arguments.processing_class, arguments.model
    if tokenizer is None and not isinstance(model, str) and not getattr(model.config, "name_or_path", ""):
        raise ConfigError("processing_class must be given with a model object that was not loaded by name, got None")
    if tokenizer is None:
        return load_tokenizer(config.model)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor has one
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(
            f"processing_class must be a tokenizer or a processor of transformers, got a {type(tokenizer).__name__}"
        )
    return tokenizer


def _rows_needed(dataset: Any, config: Config) -> int | None:
    if datasets.size_of(dataset) is not None:
        return None
    if config.loop.max_steps is None:
        raise ConfigError("max_steps must be above 0 with an IterableDataset, whose length nobody knows")
    return config.loop.max_steps * most_prompts_per_step(config)


def held_out_evaluators(job: TrainingJob, environments: GivenEnvironments, dataset: Any) -> list[Evaluator]:
    """Measure the training rewards on held-out sets; DataError for a set that cannot be used."""
    config, inputs = job.config, job.inputs
    reading = _reading(config, inputs.tokenizer, inputs.functions, environments, inputs.objects.images)
    return [
        reward_evaluator(
            config,
            name,
            _held_out_tasks(rows, name, reading, own_data=environments.own_data),
            inputs.functions,
            inputs.conversations,
            inputs.objects.completer,
        )
        for name, rows in datasets.held_out_sets(dataset).items()
    ]


def _reading(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    functions: Mapping[str, RewardFunction],
    environments: GivenEnvironments,
    images: ImageInput | None,
) -> Callable[..., TaskSet]:
    """What makes tasks of the rows of a dataset, by its `name`."""
    return partial(
        datasets.make_tasks,
        tokenizer=tokenizer,
        data=config.data,
        room=_room(config),
        check=row_check(functions),
        environments=environments,
        images=images,
    )


def _held_out_tasks(dataset: Any, name: str, reading: Callable[..., TaskSet], *, own_data: bool) -> tuple[Task, ...]:
    """Tasks of one evaluation dataset, from all of its rows; `reading` makes them."""
    title = datasets.eval_name(name)
    datasets.check_columns(dataset, title, may_lack_prompt=own_data)
    rows = datasets.read_rows(dataset, title, limit=None, whole=True, may_lack_prompt=own_data)
    return reading(rows, name=name).looked_at


def _completer(
    arguments: TrainerArguments, config: Config, tokenizer: PreTrainedTokenizerBase
) -> RolloutFunction | None:
    """The program's own sampler, if it has one."""
    if arguments.rollout_func is None:
        return None
    model = None if isinstance(arguments.model, str) else arguments.model
    described = read_config(config.model) if model is None else model.config
    generation = read_generation_config(config.model) if model is None else model.generation_config
    padding = frozenset() if tokenizer.pad_token_id is None else frozenset({tokenizer.pad_token_id})
    return RolloutFunction(
        function=arguments.rollout_func,
        tokenizer=tokenizer,
        ends=end_token_ids(tokenizer, generation, described) | padding,
        positions=positions_in(described),
    )


def _room(config: Config) -> int | None:
    """Tokens that the model's context leaves for a prompt, next to the longest completion."""
    room = config.data.max_prompt_length - config.sampling.max_completion_length
    return room if room > 0 else None
