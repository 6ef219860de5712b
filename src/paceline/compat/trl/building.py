"""Builds a run from a trainer's arguments; everything that needs no weights is refused before they are read."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import IntervalStrategy

from paceline import OPENMP_SPINS, SPIN_VARIABLES
from paceline.compat.trl.checks import check_best_metric
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.datasets import (
    check_columns,
    columns_of,
    held_out_sets,
    make_tasks,
    read_rows,
    settle_loaders,
    size_of,
)
from paceline.compat.trl.rewards import RewardSource, as_list, check_parameters, make_graders, reward_names
from paceline.compat.trl.schedule import check_schedule, describe_rate, make_scheduler
from paceline.compat.trl.translation import Surroundings, said_of_fields, translate
from paceline.config.reading import suggest
from paceline.config.sections import Config, ModelConfig
from paceline.errors import ConfigError, ModelError, PacelineError
from paceline.models.lora import check_adapter_kind
from paceline.models.pretrained import context_length, load_tokenizer
from paceline.reports.trackers.opening import check_trackers
from paceline.rewards.resolving import reward_context
from paceline.rewards.selecting import row_check
from paceline.runtime.devices import choose_device
from paceline.training.plan.batches import most_prompts_per_step
from paceline.training.setup.preparation import prepare
from paceline.training.setup.run_inputs import Overrides, RunInputs
from paceline.training.trainer import updates_per_step
from paceline.types import RowCheck, Task

LOGGER = logging.getLogger(__name__)

NOT_OFFERED: Mapping[str, str] = {
    "quantization_config": "a model is taken as it was loaded: give one with 4 bits of bitsandbytes and a peft_config",
    "tools": "there are no tools and no turns",
    "rollout_func": "the built-in engine samples, so that log-probabilities are known exactly",
    "environment_factory": "there are no environments; grade completions with reward_funcs",
    "data_collator": "prompts are tokenised once, before the first step, and nothing is collated",
    "model_init": "one run trains one model, made once; give model=model_init()",
    "compute_loss_func": "the loss is the objective that args describe; another one needs a new term in the source",
    "compute_metrics": "there are no predictions to compute on; a reward function may call log_metric",
    "preprocess_logits_for_metrics": "there are no predictions to compute on; a reward function may call log_metric",
}
ARGUMENTS = (
    *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "peft_config"),
    *("reward_processing_classes", "callbacks", "optimizers", "reward_model", "reward_processing_class"),
)
"""Arguments of the trainer, to suggest for a misspelt one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerArguments:
    """Arguments of a `GRPOTrainer`, under the names of its signature."""

    model: Any
    reward_funcs: RewardSource | Sequence[RewardSource] | None
    args: GRPOConfig
    train_dataset: Any
    eval_dataset: Any
    processing_class: PreTrainedTokenizerBase | None
    reward_processing_classes: Any
    optimizers: tuple[Any, Any]
    peft_config: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A run without its weights."""

    config: Config
    given: Overrides
    inputs: RunInputs
    sources: tuple[RewardSource, ...]
    notes: tuple[str, ...]
    """Sentences for the user."""


def refuse_what_is_not_offered(**given: object) -> None:
    """Refuse TRL's arguments that have no meaning here.

    Raises:
        ConfigError: one is not None, or none of TRL's; the sentence names it and the reason.
    """
    for name, value in given.items():
        if name not in NOT_OFFERED:
            raise ConfigError(
                f"GRPOTrainer has no argument {name}; {suggest(name, ARGUMENTS, otherwise='leave it out')}"
            )
        if value is not None:
            raise ConfigError(f"GRPOTrainer's {name} must be None: {NOT_OFFERED[name]}")


def one_of(**given: Any) -> Any:
    """Value of an argument that has two names.

    Raises:
        ConfigError: under both.
    """
    there = [value for value in given.values() if value is not None]
    if len(there) > 1:
        raise ConfigError(f"GRPOTrainer takes one of {' and '.join(given)}, which mean the same; leave one out")
    return there[0] if there else None


@contextmanager
def said_in_field_names() -> Iterator[None]:
    """Reword errors that name options: a program's author knows the fields behind them."""
    try:
        yield
    except PacelineError as error:
        raise type(error)(said_of_fields(error)) from error


def build(arguments: TrainerArguments, context: Mapping[str, Any]) -> Built:
    """Build configuration, tokenizer, tasks and reward functions; `context` reaches reward functions beside the batch.

    Raises:
        PacelineError: an argument cannot be used; the sentence names it and the remedy.
    """
    args = arguments.args
    if not isinstance(args, GRPOConfig):
        raise ConfigError(f"args must be a GRPOConfig of paceline, got a {type(args).__module__}.{type(args).__name__}")
    sources = as_list(arguments.reward_funcs)
    names = reward_names(sources)
    check_columns(arguments.train_dataset, "train_dataset")
    for name, dataset in held_out_sets(arguments.eval_dataset).items():
        check_columns(dataset, _eval_name(name))
    settle_loaders(args, arguments.train_dataset, arguments.eval_dataset)
    _check_evaluation(args, arguments.eval_dataset)
    check_best_metric(args, arguments.eval_dataset, names, sources)
    _check_optimizers(arguments)
    check_adapter(arguments.peft_config, arguments.model)
    config = translate(args, _surroundings(arguments, names))
    _warn_of_lengths(args, config)
    check_trackers(config.loop.report_to)
    tokenizer = _tokenizer(arguments, config)
    limit = _rows_needed(arguments.train_dataset, config)
    rows = read_rows(arguments.train_dataset, "train_dataset", limit=limit)
    check_parameters(sources, columns_of(arguments.train_dataset, rows), list(context))
    processing = arguments.reward_processing_classes
    built_in = reward_context(config.rewards, config.sampling)
    graders = make_graders(names, sources, processing, context=context, built_in=built_in)
    check, room = row_check(graders.functions), _room(config)
    tasks = make_tasks(rows, tokenizer, config.data, name="train_dataset", room=room, check=check)
    given = Overrides(
        model=None if isinstance(arguments.model, str) else arguments.model,
        adapter=arguments.peft_config,
        tokenizer=tokenizer,
        functions=graders.functions,
        reward_models=graders.models,
        reward_tokenizers=graders.tokenizers,
        tasks=tasks,
        held_out={
            name: held_out_tasks(dataset, name, tokenizer, config, check=check)
            for name, dataset in held_out_sets(arguments.eval_dataset).items()
        },
        optimizer=arguments.optimizers[0],
        make_scheduler=lambda optimizer, total: arguments.optimizers[1] or make_scheduler(args, optimizer, total=total),
    )
    inputs = prepare(config, given)
    total = inputs.total_steps * updates_per_step(config)
    notes = (*_notes_of_rows(limit, len(rows)), _note_of_rate(arguments, total), *notes_of_threads(config))
    return Built(config=config, given=given, inputs=inputs, sources=tuple(sources), notes=notes)


def _notes_of_rows(limit: int | None, count: int) -> tuple[str, ...]:
    return () if limit is None else (f"train_dataset has no length: its first {count} rows are read for max_steps",)


def notes_of_threads(config: Config) -> tuple[str, ...]:
    """Remedy for several CPU threads that spin instead of sleeping: see `OPENMP_SPINS`."""
    threads = config.model.threads or torch.get_num_threads()
    if threads == 1 or choose_device(config.model).type != "cpu" or not set(SPIN_VARIABLES).isdisjoint(os.environ):
        return ()
    return (
        "torch was imported before paceline, so threads that wait for each other do not sleep, which is many times "
        f"slower beside other processes: import paceline first, or set {SPIN_VARIABLES[0]}={OPENMP_SPINS}",
    )


def _note_of_rate(arguments: TrainerArguments, total: int) -> str:
    """Note on the source of the learning rate; the check needs the run's length."""
    if arguments.optimizers[1] is not None:
        return (
            f"learning rate: set by the program's own {type(arguments.optimizers[1]).__name__}, which config.yaml's "
            "learning_rate, lr_schedule and warmup_steps do not describe"
        )
    check_schedule(arguments.args, total=total)
    return describe_rate(arguments.args, total=total)


def _room(config: Config) -> int | None:
    """Tokens that the model's context leaves for a prompt, next to the longest completion."""
    room = config.data.max_prompt_length - config.sampling.max_completion_length
    return room if room > 0 else None


def held_out_tasks(
    dataset: Any, name: str, tokenizer: PreTrainedTokenizerBase, config: Config, *, check: RowCheck | None
) -> tuple[Task, ...]:
    """Tasks of one evaluation dataset, from all of its rows."""
    check_columns(dataset, _eval_name(name))
    rows = read_rows(dataset, _eval_name(name), limit=None, whole=True)
    return make_tasks(rows, tokenizer, config.data, name=name, room=_room(config), check=check, whole=True).looked_at


def default_args(model: Any) -> GRPOConfig:
    """Default configuration of a trainer: a run directory named after the model."""
    return GRPOConfig(output_dir=f"{Path(model_name(model)).name}-GRPO")


def model_name(model: Any) -> str:
    """Directory or Hub name of a model, or the class of an object without either."""
    if isinstance(model, str):
        return model
    if not hasattr(model, "config"):
        raise ConfigError(f"model must be a name, a PreTrainedModel or a PeftModel, got a {type(model).__name__}")
    return str(getattr(model.config, "name_or_path", "") or type(model).__name__)


def _eval_name(name: str) -> str:
    return name if name == "eval_dataset" else f"eval_dataset[{name!r}]"


def _surroundings(arguments: TrainerArguments, names: tuple[str, ...]) -> Surroundings:
    model = model_name(arguments.model)
    if isinstance(arguments.model, str):
        limit = context_length(ModelConfig(model=model, trust_remote_code=arguments.args.trust_remote_code))
    else:
        limit = getattr(arguments.model.config.get_text_config(), "max_position_embeddings", None)
    return Surroundings(
        model=model,
        reward_names=names,
        num_prompts=size_of(arguments.train_dataset),
        context_length=limit,
        adapter=arguments.peft_config is not None or hasattr(arguments.model, "peft_config"),
    )


def _tokenizer(arguments: TrainerArguments, config: Config) -> PreTrainedTokenizerBase:
    given = arguments.processing_class
    model = arguments.model
    if given is None and not isinstance(model, str) and not getattr(model.config, "name_or_path", ""):
        raise ConfigError("processing_class must be given with a model object that was not loaded by name, got None")
    if given is None:
        return load_tokenizer(config.model)
    if not isinstance(given, PreTrainedTokenizerBase):
        raise ConfigError(f"processing_class must be a tokenizer of transformers, got a {type(given).__name__}")
    return given


def _rows_needed(dataset: Any, config: Config) -> int | None:
    if size_of(dataset) is not None:
        return None
    if config.loop.max_steps is None:
        raise ConfigError("max_steps must be above 0 with an IterableDataset, whose length nobody knows")
    return config.loop.max_steps * most_prompts_per_step(config)


def _check_evaluation(args: GRPOConfig, eval_dataset: Any) -> None:
    sets = held_out_sets(eval_dataset)
    if not sets and (args.eval_strategy != IntervalStrategy.NO or args.eval_on_start):
        raise ConfigError(
            f"eval_strategy must be 'no' without eval_dataset, got {IntervalStrategy(args.eval_strategy).value!r}; "
            "give eval_dataset"
        )


def _warn_of_lengths(args: GRPOConfig, config: Config) -> None:
    if config.loss.ratio_level == "sequence" and config.loss.average in ("token", "constant"):
        LOGGER.warning(
            "importance_sampling_level 'sequence' with loss_type %r weights each sequence by its completion length; "
            "loss_type 'grpo' weighs all alike, as GSPO does",
            args.loss_type,
        )


def _check_optimizers(arguments: TrainerArguments) -> None:
    if not isinstance(arguments.optimizers, tuple | list) or len(arguments.optimizers) != 2:
        raise ConfigError("optimizers must be a pair (optimizer, scheduler), either of them None")
    optimizer, scheduler = arguments.optimizers
    if optimizer is None and scheduler is not None:
        raise ConfigError("optimizers must hold the optimizer too that the scheduler sets the rate of, got None")
    if optimizer is None:
        return
    if isinstance(arguments.model, str) or arguments.peft_config is not None:
        raise ConfigError(
            "optimizers must be (None, None) while the trainer itself makes the model or its adapter; "
            "give the model object whose parameters the optimizer has"
        )
    known = {id(parameter) for parameter in arguments.model.parameters()}
    strange = [one for group in optimizer.param_groups for one in group["params"] if id(one) not in known]
    if strange:
        raise ConfigError(
            f"optimizers: {len(strange)} parameters of the optimizer are not the model's; make it from "
            "model.parameters()"
        )


OUTPUT_NAMES = ("lm_head", "embed_out")
"""Usual names of the output embedding, for a model that is only named."""


def check_adapter(peft_config: Any, model: Any) -> None:
    """Refuse an adapter configuration that cannot be trained here.

    Raises:
        ConfigError: the sentence names the field of `peft_config`, its value and the remedy.
    """
    if peft_config is None:
        return
    if not hasattr(peft_config, "peft_type"):
        hint = f"give peft.LoraConfig(**{peft_config!r})" if isinstance(peft_config, dict) else "give a peft.LoraConfig"
        raise ConfigError(f"peft_config must be a configuration of peft, got a {type(peft_config).__name__}; {hint}")
    try:
        check_adapter_kind(peft_config)
    except ModelError as error:
        raise ConfigError(f"peft_config: {error}") from error
    for name in ("modules_to_save", "target_modules"):
        _check_output(name, getattr(peft_config, name, None), model)


def _check_output(name: str, modules: Any, model: Any) -> None:
    """Refuse replacing the output embedding, whose own weight gives the logprobs."""
    given = [modules] if isinstance(modules, str) else list(modules or ())
    for module in given:
        if str(module).rsplit(".", 1)[-1] in _output_names(model):
            raise ConfigError(
                f"peft_config.{name} must leave out the output embedding, got {module!r}: log-probabilities are "
                "computed from its own weight; target_modules='all-linear' leaves it out"
            )


def _output_names(model: Any) -> tuple[str, ...]:
    if not hasattr(model, "get_output_embeddings"):
        return OUTPUT_NAMES
    head = model.get_output_embeddings()
    names = [name.rsplit(".", 1)[-1] for name, module in model.named_modules() if module is head]
    return tuple(names) or OUTPUT_NAMES
