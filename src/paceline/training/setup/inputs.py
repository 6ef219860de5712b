"""Objects of a run beside its options, and what setup makes of both before any weight of the policy is read.

No torch: the cheap stage reads keywords of a program, in which objects stand in place of what options name.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.data.sources import ProgramRows, ReadFiles
from paceline.errors import ConfigError
from paceline.rewards.function import BuiltIn, RewardFunction
from paceline.rewards.resolving import BUILT_IN, has_home
from paceline.runtime.own_code import own_name, recorded_name, recorded_names

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from paceline.data.pictures import PictureStore
    from paceline.data.row_images import ImageInput
    from paceline.data.tasks import TaskSet
    from paceline.environments import EnvironmentSpec
    from paceline.episodes.conversations import Completer, Conversations
    from paceline.objective.advantages import GroupAdvantage
    from paceline.objective.own_loss import PolicyLoss
    from paceline.training.evaluation import Evaluator
    from paceline.training.plan.batches import BatchPlan
    from paceline.types import Task

ADAPTER_OPTIONS = ("lora_rank", "lora_alpha", "lora_targets", "lora_parameters", "lora_settings")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunObjects:
    """Objects of a run beside its options: a program's own, and what the cheap stage has found behind names.

    An object of a program stands in place of what an option names; None: as configured.
    """

    model: Any = None
    """A transformers model, with or without an adapter; it is trained in place."""
    adapter: Any = None
    """A configuration of `peft` for a new adapter."""
    tokenizer: "PreTrainedTokenizerBase | None" = None
    image_processor: Any = None
    """An image processor of transformers' for `model`; None: that of the directory that it was read from."""
    files: ReadFiles = field(default_factory=dict)
    """Rows by the name that stands for them in options."""
    is_resolved: bool = False
    """True once the names in options are resolved; `prepare` then looks up none."""
    functions: Mapping[str, RewardFunction] = field(default_factory=dict)
    """Reward functions by name, without reward models: a program's own, and all of them once they are resolved."""
    measure: Mapping[str, RewardFunction] = field(default_factory=dict)
    """The one reward function that says what is right on held-out tasks, under its name."""
    system: str | None = None
    """System message of every prompt."""
    environments: "Mapping[str, EnvironmentSpec]" = field(default_factory=dict)
    """Environments of conversations by name; a program's own are named by `--environment`."""
    reward_models: Mapping[str, str] | None = None
    """Name to directory or Hub name; loaded after everything that is cheap to refuse."""
    reward_tokenizers: "Mapping[str, PreTrainedTokenizerBase]" = field(default_factory=dict)
    """Tokenizers of `reward_models` by the same names; where there is none, the model's own is read."""
    completer: "Completer | None" = None
    """A function that completes tasks in place of the engine; None: the engine does."""
    images: "ImageInput | None" = None
    """How images of rows are read, and those that were read so far; None: not yet."""
    tasks: "TaskSet | None" = None
    held_out: "Mapping[str, tuple[Task, ...]] | None" = None
    """Sets to measure the training rewards on, by name; with `tasks` None means none."""
    needs_reward: bool = True
    """Stop at a step whose completions all lack a reward; False: warn, and train on none."""
    advantage: "GroupAdvantage | None" = None
    """A function of one group's rewards; `--advantage` then holds its name."""
    policy_loss: "PolicyLoss | None" = None
    """A loss of each token; `--bound` then holds its name."""
    optimizer: "torch.optim.Optimizer | None" = None
    """Optimizer over parameters of `model`."""
    make_scheduler: "Callable[[torch.optim.Optimizer, int], Any] | None" = None
    """From the optimizer and the updates of the run to the torch scheduler that sets its rate, `step()` per update."""

    def for_actors(self) -> "RunObjects":
        """Return what actors of a cluster need; functions that have a name are loaded there by it."""
        functions = {
            name: function
            for name, function in self.functions.items()
            if not has_home(name) and not isinstance(function, BuiltIn)
        }
        return RunObjects(
            tokenizer=self.tokenizer, adapter=self.adapter, functions=functions, policy_loss=self.policy_loss
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSize:
    """Sizes that the trainer plans with before it sees any data."""

    total_steps: int
    longest_prompt: int
    """Tokens; of a large dataset an estimate."""
    images: Path | None = None
    """Folder of the run's images, absolute; None: no prompt has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInputs:
    """Checked inputs of a run, before any weight of the policy is read."""

    objects: RunObjects
    """Objects that they were made from."""
    tokenizer: "PreTrainedTokenizerBase"
    functions: Mapping[str, RewardFunction]
    """Every reward function and reward model, by name."""
    tasks: "TaskSet"
    unverified: tuple[str, ...]
    """Sampled tasks whose gold answer a reward function does not give full marks: too few to refuse the dataset."""
    unmet: tuple[str, ...]
    """A sentence on each kind of task that lacks what a reward function needs: it gives them no number."""
    evaluators: "tuple[Evaluator, ...]"
    """One per held-out set; none when there are no held-out tasks."""
    model_digests: Mapping[str, str]
    """By name, digests of the model and its tokenizer: a resumed run has the same (see `identity.model_digests`)."""
    plan: "BatchPlan"
    total_steps: int
    conversations: "Conversations | None" = None
    """Conversations with environments; None: every completion has one turn."""
    advantage: "GroupAdvantage | None" = None
    """The function that `--advantage` names, if it is one of the user's own."""
    policy_loss: "PolicyLoss | None" = None
    """The function that `--bound` names, if it is one of the user's own."""
    pictures: "PictureStore | None" = None
    """Images of prompts; None: they are text alone."""

    @property
    def run_size(self) -> RunSize:
        """Sizes that the trainer plans with."""
        folder = None if self.pictures is None else self.pictures.folder
        return RunSize(total_steps=self.total_steps, longest_prompt=self.tasks.longest_prompt, images=folder)


def objects_apart(keywords: Mapping[str, Any]) -> tuple[dict[str, object], RunObjects]:
    """Split the keywords of a program into options, in which an object has a name, and the objects themselves.

    Raises:
        ConfigError: an object is of no kind that can take the place of the option.
    """
    flags: dict[str, object] = {
        name: str(value) if isinstance(value, Path) else value for name, value in keywords.items()
    }
    objects: list[Any] = [flags.pop(name, None) for name in ("model", "tokenizer", "peft_config")]
    model, tokenizer, adapter = objects
    described = adapter if adapter is not None else getattr(model, "peft_config", {}).get("default")
    if described is not None:
        _describe_adapter(flags, described)
    if model is not None:
        flags["model"] = model if isinstance(model, str) else _name_of_model(model, tokenizer)
    files: ReadFiles = {}
    if "dataset" in flags:
        flags["dataset"] = _address(flags["dataset"], "dataset", files)
    held_out = flags.get("eval_dataset")
    if isinstance(held_out, Mapping) and not hasattr(held_out, "column_names"):
        odd = [name for name in held_out if not re.fullmatch(r"[\w.-]+", str(name))]
        if odd:
            raise ConfigError(
                f"--eval-dataset must name its sets by letters, digits, dots and hyphens, got {odd[0]!r}; rename it"
            )
        flags["eval_dataset"] = [
            f"{name}={_address(rows, f'eval_dataset.{name}', files)}" for name, rows in held_out.items()
        ]
    elif held_out is not None:
        flags["eval_dataset"] = _address(held_out, "eval_dataset", files)
    objective: dict[str, Any] = {}
    for option in ("advantage", "bound"):
        if callable(flags.get(option)):
            function: Any = flags[option]
            objective[option], flags[option] = function, own_name(function)
    functions = _name_functions(flags)
    return flags, RunObjects(
        model=None if isinstance(model, str) else model,
        tokenizer=tokenizer,
        adapter=adapter,
        files=files,
        functions=functions,
        advantage=objective.get("advantage"),
        policy_loss=objective.get("bound"),
    )


def _describe_adapter(flags: dict[str, object], described: Any) -> None:
    """Put the options of an adapter that is given as an object in place of what names it.

    Raises:
        ConfigError: it is no configuration of peft, or options describe an adapter too.
    """
    if not hasattr(described, "peft_type"):
        raise ConfigError(
            f"peft_config must be a configuration of peft, got a {type(described).__name__}; give a peft.LoraConfig"
        )
    if twice := [name for name in ADAPTER_OPTIONS if flags.get(name)]:
        raise ConfigError(
            f"--{twice[0].replace('_', '-')} must be left out with an adapter that is given as an object, got "
            f"{flags[twice[0]]}; leave one of them out"
        )
    from paceline.models.lora import lora_options  # loads torch, as has the program that made the object

    flags |= lora_options(described)


def _name_functions(flags: dict[str, object]) -> dict[str, RewardFunction]:
    """Put names into `reward_funcs` and `eval_reward_func`; returns the functions behind them."""
    sources: Any = flags.get("reward_funcs")
    several = [sources] if isinstance(sources, str) or callable(sources) else list(sources or ())
    measure = flags.get("eval_reward_func")
    objects = [source for source in several if callable(source)]
    if repeated := [function for index, function in enumerate(objects) if function in objects[:index]]:
        raise ConfigError(
            f"--reward-funcs must hold each function once, got {recorded_name(repeated[0], BUILT_IN)} twice; raise its "
            "weight instead"
        )
    if callable(measure) and measure not in objects:
        objects.append(measure)
    names = recorded_names(objects, BUILT_IN)
    if sources is not None:
        flags["reward_funcs"] = [names[objects.index(source)] if callable(source) else source for source in several]
    if callable(measure):
        flags["eval_reward_func"] = names[objects.index(measure)]
    return dict(zip(names, objects, strict=True))


def _name_of_model(model: Any, tokenizer: Any) -> str:
    if not hasattr(model, "config"):
        raise ConfigError(f"--model must be a name, a PreTrainedModel or a PeftModel, got a {type(model).__name__}")
    address = getattr(model.config, "name_or_path", "")
    if not address and tokenizer is None:
        raise ConfigError("tokenizer must be given with a model object that was not loaded by name, got None")
    return str(address or type(model).__name__)


def _address(source: Any, name: str, files: ReadFiles) -> Any:
    """Addresses as they are, or the name of rows, which are kept under it in `files`."""
    option = name.partition(".")[0].replace("_", "-")
    if isinstance(source, Path):
        return str(source)
    if isinstance(source, str):
        if (source, None) in files:
            raise ConfigError(
                f"--{option} {source} is the name of the rows that are given; write the address as a path"
            )
        return source
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | Path) for item in source):
        return [*map(str, source)]
    if not isinstance(source, Iterable) or isinstance(source, Mapping):
        raise ConfigError(
            f"--{option} must be an address or rows, got a {type(source).__name__}; give a list of "
            "dicts or a datasets.Dataset"
        )
    rows: Any = source if hasattr(source, "__len__") and hasattr(source, "__getitem__") else list(source)
    if not len(rows):
        raise ConfigError(f"--{option} must have at least one row, got none; give rows, or an address")
    files[name, None] = ProgramRows(rows, name)
    return name
