"""A script around TRL's trainer as the flags that `trl grpo` would take for it."""

import json
from collections.abc import Mapping

from paceline.dialects.fields import field_names
from paceline.dialects.flags import Given, Words
from paceline.dialects.launching import Started
from paceline.dialects.scripts.reading import Argument, Call, Written
from paceline.dialects.translation import CommandLine, Note, Translation
from paceline.dialects.trl import translated
from paceline.errors import ConfigError

POSITIONS = ("model", "reward_funcs", "args", "train_dataset", "eval_dataset")
FROM_ELSEWHERE = ("args", "train_dataset", "peft_config", "processing_class", "reward_processing_classes")
LORA: Mapping[str, str] = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "target_modules": "lora_target_modules",
    "lora_dropout": "lora_dropout",
    "task_type": "lora_task_type",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "modules_to_save": "lora_modules_to_save",
}
PEFT: Mapping[str, Words] = {"lora_r": ("8",), "lora_alpha": ("8",)}
"""peft's own defaults, which are not those of TRL's command line."""


def from_trainer(calls: Mapping[str, Call], start: Started, command: CommandLine) -> Translation:
    """Every argument that is written out; what is computed is named.

    Raises:
        ConfigError: model, dataset or reward is computed, or an argument of which nothing here knows.
    """
    trainer = calls["GRPOTrainer"]
    arguments = {**dict(zip(POSITIONS, trainer.positional, strict=False)), **trainer.named}
    notes = list[Note]()
    given: Given = {}
    if "GRPOConfig" in calls:
        config = calls["GRPOConfig"]
        given |= _fields({**dict(zip(("output_dir",), config.positional, strict=False)), **config.named}, notes)
    given["model_name_or_path"] = (_text("model", arguments, calls),)
    given |= _dataset(arguments, calls)
    given |= _rewards(arguments, notes)
    if "peft_config" in arguments and "LoraConfig" in calls:
        given |= {"use_peft": ("true",), **PEFT, **_adapter(calls["LoraConfig"])}
    others = [name for name in arguments if name not in (*FROM_ELSEWHERE, "model", "reward_funcs", "reward_model")]
    notes += [
        Note(kind="missing", about=name, text="is Python, and stays so: change the import to `from paceline import "
             "GRPOConfig, GRPOTrainer` and run the script")
        for name in others
        if name != "eval_dataset"
    ]  # fmt: skip
    if "eval_dataset" in arguments:
        text = "the split `test` of the dataset is what is measured, unless --eval-dataset names another"
        notes.append(Note(kind="changed", about="eval_dataset", text=text))
    return Translation(notes=tuple(notes)) + translated(given, start, command)


def _fields(arguments: Mapping[str, Argument], notes: list[Note]) -> Given:
    known, given = field_names(), Given()
    for name, argument in arguments.items():
        if name not in known:
            raise ConfigError(f"GRPOConfig has no {name}; leave it out")
        if isinstance(argument, Written):
            given[name] = _words(argument.value)
        else:
            text = f"is computed ({argument.source}); give the option beside the others"
            notes.append(Note(kind="missing", about=name, text=text))
    return given


def _words(value: object) -> Words:
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    if isinstance(value, dict):
        return (json.dumps(value),)
    if value is None:
        return ("none",)
    return (str(value).lower(),) if isinstance(value, bool) else (str(value),)


def _text(name: str, arguments: Mapping[str, Argument], calls: Mapping[str, Call]) -> str:
    argument = arguments.get(name)
    if isinstance(argument, Written) and isinstance(argument.value, str):
        return argument.value
    if argument is not None and not isinstance(argument, Written) and argument.call == "from_pretrained":
        first = calls["from_pretrained"].positional[:1]
        if first and isinstance(first[0], Written):
            return str(first[0].value)
    got = "nothing" if argument is None else getattr(argument, "source", "no text")
    raise ConfigError(f"GRPOTrainer's {name} must be written out as a text to be translated, got {got}; write its name")


def _dataset(arguments: Mapping[str, Argument], calls: Mapping[str, Call]) -> Given:
    argument = arguments.get("train_dataset")
    if argument is None or isinstance(argument, Written) or "load_dataset" not in calls:
        raise ConfigError("GRPOTrainer's train_dataset must come from load_dataset(NAME) to be translated")
    load = calls["load_dataset"]
    positional = dict(zip(("dataset_name", "dataset_config"), load.positional, strict=False))
    named = {"path": "dataset_name", "name": "dataset_config", "split": "dataset_train_split"}
    given = {name: _words(one.value) for name, one in positional.items() if isinstance(one, Written)}
    for key, flag in named.items():
        if isinstance(one := load.named.get(key), Written):
            given[flag] = _words(one.value)
    if "dataset_name" not in given:
        raise ConfigError("load_dataset must be given a name that is written out, to be translated")
    return given


def _rewards(arguments: Mapping[str, Argument], notes: list[Note]) -> Given:
    given: Given = {}
    if (model := arguments.get("reward_model")) is not None:
        if not isinstance(model, Written):
            raise ConfigError("GRPOTrainer's reward_model must be written out as a text to be translated")
        given["reward_model_name_or_path"] = _words(model.value)
        text = (
            "is of TRL's first version, where a batch counted prompts, not completions, temperature was 0.9, beta 0.04 "
            "and a completion 256 tokens; what is not given has the defaults of TRL 1.16 here"
        )
        notes.append(Note(kind="changed", about="reward_model", text=text))
    functions = arguments.get("reward_funcs")
    if isinstance(functions, Written):
        given["reward_model_name_or_path"] = _words(functions.value)
    elif functions is not None:
        names = [name.strip() for name in functions.source.strip("[]()").split(",") if name.strip()]
        own = [name for name in names if not name.isidentifier()]
        if own:
            raise ConfigError(f"GRPOTrainer's reward_funcs must be names of functions, got {functions.source}")
        given["reward_funcs"] = tuple(names)
    return given


def _adapter(call: Call) -> Given:
    given: Given = {}
    for name, argument in call.named.items():
        if name in LORA and isinstance(argument, Written):
            given[LORA[name]] = _words(argument.value)
        elif not (name == "bias" and isinstance(argument, Written) and argument.value == "none"):
            raise ConfigError(f"LoraConfig's {name} is not offered; there are {', '.join(LORA)}")
    return given
