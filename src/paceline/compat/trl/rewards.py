"""Adapter between two signatures: reward functions of TRL's kind, and ours.

TRL calls `f(prompts=, completions=, completion_ids=, COLUMN=, ..., trainer_state=, log_extra=, log_metric=)` and gives
message lists for conversational prompts, with `environments=` where there are some. Paceline gives rendered text, and
the messages in addition.
"""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from paceline.compat.trl.rollouts import WHOLE
from paceline.config.reading import suggest
from paceline.data.row_images import has_image_parts
from paceline.errors import ConfigError, RewardError
from paceline.rewards.function import BuiltIn, RewardContext, RewardFunction, compares_group
from paceline.rewards.model import RewardModel
from paceline.rewards.model_files import check_reward_model
from paceline.rewards.resolving import BUILT_IN, has_home, resolve
from paceline.runtime.own_code import recorded_name
from paceline.training.setup.inputs import RunObjects

RewardSource = Any
"""A function, a model object, or the name of a model or of a built-in function."""

GIVEN = ("prompts", "completions", "completion_ids")
"""Arguments that every function of TRL's kind may take, beside columns and the trainer's own."""


@dataclass(kw_only=True, slots=True)
class RewardLog:
    """Values that reward functions log besides their rewards, until the next log takes them."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Extra columns for the table of completions."""
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Log one value per completion, to show beside it."""
        self.columns.setdefault(column, []).extend(values)

    def log_metric(self, name: str, value: float) -> None:
        """Log a number of the batch; several are averaged."""
        self.metrics.setdefault(name, []).append(float(value))

    def take(self) -> "RewardLog":
        """Take everything since the last call."""
        taken = RewardLog(columns=dict(self.columns), metrics=dict(self.metrics))
        self.columns.clear()
        self.metrics.clear()
        return taken

    def add(self, other: "RewardLog") -> None:
        """Add what another rank's functions have logged, behind this one's."""
        for column, values in other.columns.items():
            self.log_extra(column, values)
        for name, numbers in other.metrics.items():
            self.metrics.setdefault(name, []).extend(numbers)

    def take_metrics(self) -> dict[str, float]:
        """Take the mean of each metric since the last call."""
        taken = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        self.metrics.clear()
        return taken


def as_list(
    argument: RewardSource | Sequence[RewardSource] | None, *, may_be_empty: bool = False
) -> list[RewardSource]:
    """One reward source or several, as a list; ConfigError for something that gives no reward, or without any.

    `may_be_empty`: an environment gives rewards.
    """
    sources = list(argument) if isinstance(argument, list | tuple) else [] if argument is None else [argument]
    if not sources and not may_be_empty:
        raise ConfigError(
            "No reward source provided: reward_funcs must hold at least one reward function or model, or the class of "
            "environment_factory must have a method get_reward"
        )
    for index, source in enumerate(sources):
        if not isinstance(source, str) and not callable(source):
            raise ConfigError(
                f"reward_funcs[{index}] must be a function, a model or a model's name, got a {type(source).__name__}"
            )
    return sources


def reward_names(sources: Sequence[RewardSource]) -> tuple[str, ...]:
    """Names of the sources: a function's own, the last part of a model's; duplicates get a number."""
    names: list[str] = []
    for source in sources:
        name = _name(source)
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        names.append(next(candidate for candidate in numbered if candidate not in names))
    return tuple(names)


def _name(source: RewardSource) -> str:
    if isinstance(source, str):
        return source if has_home(source) else Path(source).name
    if isinstance(source, BuiltIn):
        return source.name
    if isinstance(source, nn.Module):
        return Path(_path(source)).name or type(source).__name__
    return recorded_name(source, ())  # a name of its own may be that of one that is built in


def make_graders(
    names: Sequence[str],
    sources: Sequence[RewardSource],
    processing_classes: PreTrainedTokenizerBase | Sequence[PreTrainedTokenizerBase | None] | None,
    *,
    context: Mapping[str, Any],
    built_in: RewardContext,
    has_environments: bool = False,
) -> RunObjects:
    """Resolve every source to a reward function or model by name; RewardError for a model without reward or tokenizer.

    `context` holds TRL's further arguments of every function; `built_in` is the context of our own functions.
    `has_environments`: there is an `environment_factory`.
    """
    classes = [None] * len(sources) if processing_classes is None else processing_classes
    tokenizers: list[Any] = list(classes) if isinstance(classes, list | tuple) else [classes]
    if len(tokenizers) != len(sources):
        raise ConfigError(
            f"reward_processing_classes must match reward_funcs, one tokenizer (or None) for each of the "
            f"{len(sources)}, got {len(tokenizers)}"
        )
    functions: dict[str, RewardFunction] = {}
    models: dict[str, str] = {}
    for name, source, tokenizer in zip(names, sources, tokenizers, strict=True):
        if isinstance(source, str) and has_home(source) and not Path(source).is_dir():
            functions[name] = resolve(source, built_in)
        elif isinstance(source, str):
            near = suggest(source, BUILT_IN, otherwise="")
            # a name without owner that is close to a built-in function's is no model on the Hub
            if near and "/" not in source and not Path(source).is_dir():
                raise ConfigError(
                    f"reward_funcs must name a reward model or one of the built-in functions {', '.join(BUILT_IN)}, "
                    f"got {source!r}; {near}"
                )
            check_reward_model(source)
            models[name] = source
        elif isinstance(source, nn.Module):
            tokenizer = _own_tokenizer(name, source) if tokenizer is None else tokenizer
            functions[name] = RewardModel(cast(Any, source), tokenizer)
        else:
            functions[name] = (
                source if isinstance(source, BuiltIn) else adapted(source, context, has_environments=has_environments)
            )
    pairs = zip(names, tokenizers, strict=True)
    return RunObjects(
        is_resolved=True,
        functions=functions,
        reward_models=models,
        reward_tokenizers={name: tokenizer for name, tokenizer in pairs if name in models and tokenizer is not None},
        needs_reward=False,
    )


def check_parameters(sources: Sequence[RewardSource], columns: Sequence[str], context: Sequence[str]) -> None:
    """Refuse functions with parameters that neither dataset nor trainer gives by name (ConfigError)."""
    known = [*GIVEN, *(column for column in columns if column != "prompt"), *context]
    for source in sources:
        if isinstance(source, str | nn.Module | BuiltIn):
            continue
        for name, parameter in inspect.signature(source).parameters.items():
            by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            starred = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if starred or (parameter.default is not parameter.empty) or (by_name and name in known):
                continue
            remedy = suggest(name, known, otherwise="rename it, give it a default, or add the column to the dataset")
            raise ConfigError(
                f"reward function {_name(source)!r} requires {name!r}, which is no column of train_dataset; what "
                f"functions are given by name: {', '.join(known)}; {remedy}"
            )


def _own_tokenizer(name: str, model: nn.Module) -> PreTrainedTokenizerBase:
    address, remedy = _path(model), "give reward_processing_classes"
    if not address:
        raise RewardError(f"reward model {name} needs its tokenizer, and was not loaded by name; {remedy}")
    try:
        return AutoTokenizer.from_pretrained(address)
    except (OSError, ValueError, KeyError) as error:
        raise RewardError(f"reward model {name} needs its tokenizer, and {address!r} has none; {remedy}") from error


def _path(model: nn.Module) -> str:
    return str(getattr(getattr(model, "config", None), "name_or_path", "") or "")


def adapted(
    function: Callable[..., Any], context: Mapping[str, Any], *, has_environments: bool = False
) -> RewardFunction:
    """Convert a function of TRL's kind, sync or async; it gets the arguments that its signature names.

    NaN is None, and None for every completion of a step is no error. Of a conversation it gets prompts as they were
    begun, all messages up to the model's last one, and all tokens, those of the environment too.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    accepts = {parameter.name for parameter in parameters}

    def made(**named: Any) -> Any:
        rows, opened = named["paceline_row"], named["prompt_messages"]
        # what an environment has begun is no longer the row's own prompt, which may even lack one
        prompts = [
            row["prompt"] if "prompt" in row and not has_environments and not has_image_parts(messages) else messages
            for row, messages in zip(rows, map(in_parts, opened), strict=True)
        ]
        texts, messages, ids = (named[name] for name in ("completions", "completion_messages", "episode_ids"))
        if WHOLE in named and all(whole is not None for whole in named[WHOLE]):  # of a rollout_func
            texts, ids = ([whole[part] for whole in named[WHOLE]] for part in (0, 1))
            messages = [[] for _ in texts]
        # a completion has the prompt's form: text, or messages
        completions = [
            text if isinstance(prompt, str) else up_to_last(conversation, text)
            for prompt, text, conversation in zip(prompts, texts, messages, strict=True)
        ]
        names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
        columns = {name: [row.get(name) for row in rows] for name in names}
        arguments = {**columns, "prompts": prompts, "completions": completions, "completion_ids": ids}
        if has_environments:
            arguments["environments"] = named["environments"]
        arguments |= context
        return function(**{name: value for name, value in arguments.items() if takes_any or name in accepts})

    # attributes that scoring reads from a function
    read = {"nan_is_none": True, "may_be_silent": True, "needs_group": compares_group(function)}
    vars(made).update(read, __signature__=_SIGNATURE)
    return cast(RewardFunction, made)


ARGUMENTS = (*("paceline_row", "prompt_messages", "completions", "completion_messages", "episode_ids", "environments"),)
"""Paceline's arguments that TRL's are made of."""
_SIGNATURE = inspect.Signature(
    [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ARGUMENTS]
    + [inspect.Parameter(WHOLE, inspect.Parameter.KEYWORD_ONLY, default=())]
)


def in_parts(messages: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    """Return messages with images as TRL has them: every content is a list of parts. Others come as they are."""
    if messages is None or not has_image_parts(messages):
        return None if messages is None else [*messages]
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]


def up_to_last(messages: Sequence[Mapping[str, Any]], text: str) -> list[Mapping[str, Any]]:
    """Return the messages of a conversation up to the model's last one; an observation that nobody read is left out."""
    places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return [*messages[: places[-1] + 1]] if places else [{"role": "assistant", "content": text}]
