"""Reads what a trainer is given, and refuses what cannot be used, before anything is loaded."""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from torch import nn
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from paceline.base_directory import local_path
from paceline.compat.trl.batches import batches_of
from paceline.compat.trl.config import GRPOConfig
from paceline.compat.trl.datasets import (
    EMPTY_PROMPT,
    AddressedRows,
    addressed,
    check_columns,
    eval_name,
    held_out_sets,
    settle_loaders,
)
from paceline.compat.trl.environments import GivenEnvironments, given_environments
from paceline.compat.trl.fields import MEANINGS, Fields, keywords_of, refuse_argument
from paceline.compat.trl.grpo_fields import ENVIRONMENT_TIMEOUT
from paceline.compat.trl.history import clip_numbers
from paceline.compat.trl.rewards import RewardSource, as_list, reward_names
from paceline.config.reading import suggest
from paceline.errors import ConfigError, ModelError, first_line
from paceline.models.lora import check_adapter_kind
from paceline.models.weight_headers import check_quantised

LOGGER = logging.getLogger(__name__)

NOT_OFFERED: Mapping[str, str] = {
    "data_collator": "prompts are tokenised once, before the first step, and nothing is collated",
    "model_init": "one run trains one model, made once; give model=model_init()",
    "compute_loss_func": "the loss is the objective that args describe; another one needs a new term in the source",
    "compute_metrics": "there are no predictions to compute on; a reward function may call log_metric",
    "preprocess_logits_for_metrics": "there are no predictions to compute on; a reward function may call log_metric",
}
EVENTS = (
    *("on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin"),
    *("on_step_end", "on_evaluate", "on_save", "on_log"),
)
"""Events that the loop tells callbacks of."""
EVALUATION_NAMES = (
    *("loss", "reward", "reward_std", "entropy", "kl", "frac_reward_zero_std", *clip_numbers(0.0, 0.0)),
    *("completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio"),
    *(f"completions/{which}_terminated_length" for which in ("mean", "min", "max")),
    *("num_samples", "num_tokens", "runtime", "samples_per_second", "steps_per_second"),
)
"""Names in `history.eval_numbers`, without single rewards."""
OUTPUT_NAMES = ("lm_head", "embed_out")
"""Usual names of the output embedding, for a model that is only named."""

Callback = TrainerCallback | type[TrainerCallback]


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
    quantization_config: Any = None
    environments: GivenEnvironments
    rollout_func: Callable[..., Any] | None = None
    """A function of the program that samples completions of a list of prompts with the trainer."""


def read_arguments(  # noqa: PLR0913 - TRL's signature
    args: GRPOConfig,
    *,
    reward_funcs: Any,
    reward_model: Any,
    reward_processing_classes: Any,
    reward_processing_class: Any,
    quantization_config: Any,
    train_dataset: Any,
    eval_dataset: Any,
    tools: Any,
    environment_factory: Any,
    rollout_func: Any,
    **others: Any,
) -> TrainerArguments:
    """Read datasets that are given by their addresses, and make the environments; `others` are taken as they are.

    An argument with two names has one value.

    Raises:
        ConfigError: environments or a `rollout_func` that cannot be used, or nothing to train on.
        DataError: nothing lies at an address.
    """
    sources = _either(reward_funcs=reward_funcs, reward_model=reward_model)
    tokenizers = _either(
        reward_processing_classes=reward_processing_classes, reward_processing_class=reward_processing_class
    )
    of_model = {
        "model_init_kwargs' quantization_config": keywords_of(args, "model_init_kwargs").get("quantization_config")
    }
    quantization = _either(quantization_config=quantization_config, **of_model)
    if isinstance(train_dataset, str):
        train_dataset = AddressedRows(train_dataset, split="train", seed=args.seed)
    eval_dataset = addressed(eval_dataset, seed=args.seed)
    turn_seconds, _ = args.environment_timeout or ENVIRONMENT_TIMEOUT
    environments = given_environments(tools, environment_factory, seconds=turn_seconds, sandbox=args.sandbox)
    if rollout_func is not None and not callable(rollout_func):
        raise ConfigError(f"rollout_func must be a function, got a {type(rollout_func).__name__}")
    if rollout_func is not None and environments:
        raise ConfigError(
            "rollout_func must be None with tools or environment_factory: it samples whole conversations itself; call "
            "them in it, or leave it out"
        )
    if train_dataset is None and environments.own_data:
        train_dataset = _rows_of_environment(args, environments)
    return TrainerArguments(
        args=args,
        reward_funcs=sources,
        reward_processing_classes=tokenizers,
        quantization_config=quantization,
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        environments=environments,
        rollout_func=rollout_func,
        **others,
    )


def refuse_what_is_not_offered(**unknown: object) -> None:
    """Refuse TRL's arguments that have no meaning here, and names of none (ConfigError)."""
    known = [argument.name for argument in fields(TrainerArguments)]
    known += ["callbacks", "reward_model", "reward_processing_class", "tools", "environment_factory", "rollout_func"]
    for name, value in unknown.items():
        if name not in NOT_OFFERED:
            raise refuse_argument(name, known, MEANINGS)
        if value is not None:
            raise ConfigError(f"GRPOTrainer's {name} must be None: {NOT_OFFERED[name]}")


def _rows_of_environment(args: Fields, environments: GivenEnvironments) -> list[Mapping[str, Any]]:
    """Rows of a trainer whose environment writes the prompts, as many as one batch of rollouts takes.

    Raises:
        ConfigError: nothing says how long to train, or which of several environments a row has.
    """
    if environments.are_chosen:
        raise ConfigError(
            "a dict environment_factory requires a `train_dataset` with a column `environment`, which chooses one for "
            "each row, got None; give the rows, or a single environment"
        )
    if args.max_steps <= 0:
        raise ConfigError(
            f"max_steps must be above 0 without train_dataset, got {args.max_steps}: the environment writes the "
            "prompts, and nothing else says how long to train"
        )
    return [{"prompt": [dict(EMPTY_PROMPT[0])]} for _ in range(batches_of(args).prompts_per_step)]


def _either(**values: Any) -> Any:
    """Value of an argument that has two names; ConfigError under both."""
    there = [value for value in values.values() if value is not None]
    if len(there) > 1:
        raise ConfigError(f"GRPOTrainer takes one of {' and '.join(values)}, which mean the same; leave one out")
    return there[0] if there else None


def check_callbacks(callbacks: Iterable[Callback], args: Fields) -> None:
    """Refuse early stopping without a metric to compare (ConfigError), and warn of events that do not occur."""
    for callback in callbacks:
        kind = callback if isinstance(callback, type) else type(callback)
        stops_early = issubclass(kind, EarlyStoppingCallback)
        if stops_early and args.metric_for_best_model is None:
            raise ConfigError(
                "EarlyStoppingCallback needs metric_for_best_model, got None; give one, such as 'eval_reward' with "
                "greater_is_better=True"
            )
        if stops_early and args.eval_strategy == IntervalStrategy.NO:
            raise ConfigError(
                "EarlyStoppingCallback needs evaluations to compare, got eval_strategy 'no'; give "
                "eval_strategy='steps', eval_steps and eval_dataset"
            )
        silent = [
            name
            for name, plain in vars(TrainerCallback).items()
            if name.startswith("on_") and name not in EVENTS and _own_event(callback, name) is not plain
        ]
        if silent:
            LOGGER.warning(
                "%s of %s will not be called: a callback's step is one batch of rollouts with all its updates; "
                "take on_step_begin or on_step_end",
                " and ".join(silent),
                kind.__name__,
            )


def _own_event(callback: Callback, name: str) -> Any:
    """Return what a callback has for an event, on itself or in its class."""
    on_object: Mapping[str, Any] = {} if isinstance(callback, type) else getattr(callback, "__dict__", {})
    return on_object.get(name) or getattr(callback if isinstance(callback, type) else type(callback), name)


def check_arguments(arguments: TrainerArguments) -> list[RewardSource]:
    """Refuse arguments that cannot be used, before anything is read; returns the reward sources."""
    args, held_out = arguments.args, arguments.eval_dataset
    if not isinstance(args, GRPOConfig):
        raise ConfigError(f"args must be a GRPOConfig of paceline, got a {type(args).__module__}.{type(args).__name__}")
    environments = arguments.environments
    sources = as_list(arguments.reward_funcs, may_be_empty=bool(environments.kinds))
    check_columns(arguments.train_dataset, "train_dataset", may_lack_prompt=environments.own_data)
    for name, dataset in held_out_sets(held_out).items():
        check_columns(dataset, eval_name(name), may_lack_prompt=environments.own_data)
    settle_loaders(args, arguments.train_dataset, held_out)
    if not held_out_sets(held_out) and (args.eval_strategy != IntervalStrategy.NO or args.eval_on_start):
        raise ConfigError(
            f"eval_strategy must be 'no' without eval_dataset, got {IntervalStrategy(args.eval_strategy).value!r}; "
            "give eval_dataset"
        )
    _check_best_metric(args, held_out, sources, tuple(environments.kinds))
    _check_optimizers(arguments.optimizers, arguments.model, adapted=arguments.peft_config is not None)
    _check_adapter(arguments.peft_config, arguments.model)
    adapted = arguments.peft_config is not None
    check_quantization(arguments.quantization_config, arguments.model, adapted=adapted, use_vllm=args.use_vllm)
    return sources


def _check_best_metric(
    args: Fields, eval_dataset: Any, sources: Sequence[RewardSource], environment_rewards: Sequence[str]
) -> None:
    """Refuse a `metric_for_best_model` that no evaluation reports (ConfigError, with the nearest right names).

    `own`: names of rewards that environments give. Names that reward functions log by `log_metric` are unknown before
    they run. If one takes `log_metric`, any name is accepted that is not close to one of evaluation's own.
    """
    name = args.metric_for_best_model
    if name is None or not (
        args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST or eval_dataset is not None
    ):
        return
    # several sets have a prefix each, and a mean of their rewards
    names = [
        *EVALUATION_NAMES,
        *(
            f"rewards/{reward}/{key}"
            for reward in (*reward_names(sources), *environment_rewards)
            for key in ("mean", "std")
        ),
    ]
    offered = [f"eval_{number}" for number in names]
    if isinstance(eval_dataset, Mapping):
        offered = [
            "eval_reward",
            *(f"eval_{dataset_name}_{number}" for dataset_name in eval_dataset for number in names),
        ]
    wanted = name if name.startswith("eval_") else f"eval_{name}"
    near = suggest(wanted, offered, otherwise="")
    if wanted not in offered and (near or not any(_may_log(source) for source in sources)):
        rewards = [metric for metric in offered if metric.endswith("reward")]
        raise ConfigError(
            f"metric_for_best_model must be a number that evaluation gives, got {name!r}; "
            f"{near or 'take ' + ' or '.join(rewards)}"
        )


def _may_log(source: Any) -> bool:
    """True if a reward function takes `log_metric`."""
    if isinstance(source, str | nn.Module) or not callable(source):
        return False
    parameters = inspect.signature(source).parameters.values()
    return any(parameter.name == "log_metric" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _check_optimizers(optimizers: Any, model: Any, *, adapted: bool) -> None:
    if not isinstance(optimizers, tuple | list) or len(optimizers) != 2:
        raise ConfigError("optimizers must be a pair (optimizer, scheduler), either of them None")
    optimizer, scheduler = optimizers
    if optimizer is None and scheduler is not None:
        raise ConfigError("optimizers must hold the optimizer too that the scheduler sets the rate of, got None")
    if optimizer is None:
        return
    if isinstance(model, str) or adapted:
        raise ConfigError(
            "optimizers must be (None, None) while the trainer itself makes the model or its adapter; "
            "give the model object whose parameters the optimizer has"
        )
    known = {id(parameter) for parameter in model.parameters()}
    strange = [
        parameter for group in optimizer.param_groups for parameter in group["params"] if id(parameter) not in known
    ]
    if strange:
        raise ConfigError(
            f"optimizers: {len(strange)} parameters of the optimizer are not the model's; make it from "
            "model.parameters()"
        )


def _check_adapter(peft_config: Any, model: Any) -> None:
    if peft_config is None:
        return
    if not hasattr(peft_config, "peft_type"):
        hint = f"give peft.LoraConfig(**{peft_config!r})" if isinstance(peft_config, dict) else "give a peft.LoraConfig"
        raise ConfigError(f"peft_config must be a configuration of peft, got a {type(peft_config).__name__}; {hint}")
    try:
        check_adapter_kind(peft_config)
    except ModelError as error:
        raise ConfigError(f"peft_config: {error}") from error
    # the output embedding's own weight gives the logprobs, so it cannot be replaced
    outputs = OUTPUT_NAMES
    if hasattr(model, "get_output_embeddings"):
        head = model.get_output_embeddings()
        of_model = tuple(name.rsplit(".", 1)[-1] for name, module in model.named_modules() if module is head)
        outputs = of_model or OUTPUT_NAMES
    for name in ("modules_to_save", "target_modules"):
        modules = getattr(peft_config, name, None)
        for module in [modules] if isinstance(modules, str) else list(modules or ()):
            if str(module).rsplit(".", 1)[-1] in outputs:
                raise ConfigError(
                    f"peft_config.{name} must leave out the output embedding, got {module!r}: log-probabilities are "
                    "computed from its own weight; target_modules='all-linear' leaves it out"
                )


FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py")
"""Files of a model and its tokenizer."""


def fetched(model: str, keywords: Mapping[str, Any]) -> str:
    """Directory of the model in the revision, cache or subfolder that keywords name; without any, `model` itself.

    None, False and the revision `main` say what is so anyway, and count as no keyword.

    ModelError: the Hub has no such revision, or cannot be reached.
    """
    settings = {name: value for name, value in keywords.items() if value is not None and value is not False}
    settings = {name: value for name, value in settings.items() if (name, value) != ("revision", "main")}
    if not settings:
        return model
    subfolder, folder = str(settings.pop("subfolder", "")), local_path(model)
    if settings and not folder.is_dir():
        try:
            folder = Path(snapshot_download(model, allow_patterns=list(FILES), **settings))
        except (OSError, ValueError) as error:
            shown = ", ".join(f"{name} {value!r}" for name, value in settings.items() if name != "token")
            raise ModelError(
                f"model {model!r} cannot be fetched with {shown} ({type(error).__name__}: {first_line(error)}); look "
                "at the name and at the connection"
            ) from error
    return str(folder / subfolder) if subfolder else str(folder)


def check_quantization(quantization_config: Any, model: Any, *, adapted: bool, use_vllm: bool) -> None:
    """Refuse weights in fewer bits that cannot be trained on, before they are read (ConfigError, ModelError)."""
    if quantization_config is None:
        return
    if not isinstance(model, str):
        raise ConfigError("quantization_config must be None with a model object; load the object with it")
    if not hasattr(quantization_config, "to_dict"):
        raise ConfigError(
            f"quantization_config must be a BitsAndBytesConfig, got a {type(quantization_config).__name__}"
        )
    if use_vllm:
        raise ConfigError("use_vllm must be False with quantization_config, got True: vLLM takes weights in full")
    check_quantised({"quantization_config": quantization_config.to_dict()}, "the model", has_adapter=adapted)
