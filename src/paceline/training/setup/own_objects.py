"""Keywords of a program: options, and objects in the place of what options name; no torch."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.data.sources import ProgramRows, ReadFiles
from paceline.errors import ConfigError
from paceline.rewards.function import RewardFunction
from paceline.rewards.resolving import BUILT_IN
from paceline.runtime.own_code import own_name, recorded_name, recorded_names

if TYPE_CHECKING:
    from paceline.training.setup.run_inputs import Overrides


ADAPTER_OPTIONS = ("lora_rank", "lora_alpha", "lora_targets", "lora_settings")


@dataclass(kw_only=True, slots=True)
class OwnObjects:
    """Keywords apart: options, in which an object has a name that config.yaml has too, and the objects themselves."""

    flags: dict[str, object] = field(default_factory=dict)
    model: Any = None
    """A transformers model, with or without an adapter; it is trained in place."""
    tokenizer: Any = None
    adapter: Any = None
    """A configuration of peft for a new adapter."""
    rows: ReadFiles = field(default_factory=dict)
    functions: dict[str, RewardFunction] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)
    """Functions by the option that they take the place of, `advantage` or `bound`."""

    def overrides(self, functions: Mapping[str, RewardFunction]) -> "Overrides":
        """Return the objects that take the place of what the configuration names.

        `functions` are all that reward, as the cheap stage has found them: the program's own and those that are named.
        """
        from paceline.training.setup.run_inputs import Overrides

        return Overrides(
            model=self.model,
            tokenizer=self.tokenizer,
            adapter=self.adapter,
            functions=functions if self.functions else None,
            advantage=self.objective.get("advantage"),
            policy_loss=self.objective.get("bound"),
        )


def objects_apart(keywords: Mapping[str, Any]) -> OwnObjects:
    """Tell options from objects.

    Raises:
        ConfigError: an object is of no kind that can take the place of the option.
    """
    flags = {name: str(value) if isinstance(value, Path) else value for name, value in keywords.items()}
    model, tokenizer, adapter = (flags.pop(name, None) for name in ("model", "tokenizer", "peft_config"))
    found = OwnObjects(flags=flags, tokenizer=tokenizer, adapter=adapter)
    described = adapter if adapter is not None else getattr(model, "peft_config", {}).get("default")
    if described is not None:
        _describe_adapter(flags, described)
    if isinstance(model, str):
        flags["model"] = model
    elif model is not None:
        found.model, flags["model"] = model, _name_of_model(model, tokenizer)
    if "dataset" in flags:
        flags["dataset"] = _address(flags["dataset"], "dataset", found.rows)
    held_out = flags.get("eval_dataset")
    if isinstance(held_out, Mapping) and not hasattr(held_out, "column_names"):
        odd = [name for name in held_out if not re.fullmatch(r"[\w.-]+", str(name))]
        if odd:
            raise ConfigError(
                f"--eval-dataset must name its sets by letters, digits, dots and hyphens, got {odd[0]!r}; rename it"
            )
        flags["eval_dataset"] = [
            f"{name}={_address(one, f'eval_dataset.{name}', found.rows)}" for name, one in held_out.items()
        ]
    elif held_out is not None:
        flags["eval_dataset"] = _address(held_out, "eval_dataset", found.rows)
    for option in ("advantage", "bound"):
        if callable(flags.get(option)):
            function: Any = flags[option]
            found.objective[option], flags[option] = function, own_name(function)
    _name_functions(flags, found)
    return found


def _describe_adapter(flags: dict[str, object], described: Any) -> None:
    """Put the options of an adapter that is given as an object in the place of what names it.

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


def _name_functions(flags: dict[str, object], found: OwnObjects) -> None:
    """Put names into `reward_funcs` and `eval_reward_func`, and keep the functions behind them."""
    sources: Any = flags.get("reward_funcs")
    several = [sources] if isinstance(sources, str) or callable(sources) else list(sources or ())
    measure = flags.get("eval_reward_func")
    objects = [one for one in several if callable(one)]
    if repeated := [one for place, one in enumerate(objects) if one in objects[:place]]:
        raise ConfigError(
            f"--reward-funcs must hold each function once, got {recorded_name(repeated[0], BUILT_IN)} twice; raise its "
            "weight instead"
        )
    if callable(measure) and measure not in objects:
        objects.append(measure)
    names = recorded_names(objects, BUILT_IN)
    found.functions = dict(zip(names, objects, strict=True))
    if sources is not None:
        flags["reward_funcs"] = [names[objects.index(one)] if callable(one) else one for one in several]
    if callable(measure):
        flags["eval_reward_func"] = names[objects.index(measure)]


def _name_of_model(model: Any, tokenizer: Any) -> str:
    if not hasattr(model, "config"):
        raise ConfigError(f"--model must be a name, a PreTrainedModel or a PeftModel, got a {type(model).__name__}")
    place = getattr(model.config, "name_or_path", "")
    if not place and tokenizer is None:
        raise ConfigError("tokenizer must be given with a model object that was not loaded by name, got None")
    return str(place or type(model).__name__)


def _address(given: Any, name: str, rows: ReadFiles) -> Any:
    """Addresses as they are, or the name of rows, which are kept under it."""
    option = name.partition(".")[0].replace("_", "-")
    if isinstance(given, Path):
        return str(given)
    if isinstance(given, str):
        if (given, None) in rows:
            raise ConfigError(f"--{option} {given} is the name of the rows that are given; write the address as a path")
        return given
    if isinstance(given, list | tuple) and given and all(isinstance(one, str | Path) for one in given):
        return [*map(str, given)]
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ConfigError(
            f"--{option} must be an address or rows, got a {type(given).__name__}; give a list of "
            "dicts or a datasets.Dataset"
        )
    taken: Any = given if hasattr(given, "__len__") and hasattr(given, "__getitem__") else list(given)
    if not len(taken):
        raise ConfigError(f"--{option} must have at least one row, got none; give rows, or an address")
    rows[name, None] = ProgramRows(taken, name)
    return name
