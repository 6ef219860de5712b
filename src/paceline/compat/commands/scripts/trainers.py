"""A script around TRL's trainer, as flags of `trl grpo`."""

from collections.abc import Mapping, Sequence

from paceline.compat.commands.fields import field_names
from paceline.compat.commands.flags import FlagWords, GivenFlags
from paceline.compat.commands.launching import Started
from paceline.compat.commands.scripts.reading import (
    Argument,
    Made,
    Script,
    ScriptCall,
    ScriptRows,
    Written,
    rows_of,
    source_of,
)
from paceline.compat.commands.translation import Refusals, Translation
from paceline.compat.commands.trl import translate_flags
from paceline.compat.commands.trl.reading import flag_words
from paceline.errors import ConfigError

RUN_IT = "change the import to `from paceline import GRPOConfig, GRPOTrainer` and run the script"
POSITIONS = (
    *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    *("reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config"),
)
NOT_TO_CHANGE = ("args", "train_dataset", "peft_config", "reward_funcs", "reward_model")
"""Arguments that define the run: later changes by the script have to be repeated here."""
TRANSLATED = (*NOT_TO_CHANGE, "model", "eval_dataset", "processing_class")
NO_MATTER: Mapping[str, str] = {
    "attn_implementation": "attention is the built-in one, or torch's",
    "device_map": "--device says where a model lies",
    "low_cpu_mem_usage": "weights are read once, in float32",
    "use_cache": "generation caches, and training does not",
    "use_safetensors": "weights are read as safetensors",
    **dict.fromkeys(("pad_token", "pad_token_id", "padding_side", "use_fast"), "padding never reaches the loss"),
    **dict.fromkeys(
        ("streaming", "num_proc", "keep_in_memory", "download_mode"), "rows are read once, before the first step"
    ),
}
"""Arguments and attributes of models, tokenizers and datasets on which no result here depends."""
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
PEFT: Mapping[str, FlagWords] = {"lora_r": ("8",), "lora_alpha": ("8",)}
"""peft's own defaults, which differ from TRL's command line."""


def from_trainer(script: Script, start: Started, found: Translation) -> None:
    """Add literal arguments as flags, note computed ones; ConfigError where these define the run, or are unknown."""
    trainers = script.calls["GRPOTrainer"]
    if len(trainers) > 1:
        raise ConfigError(f"a script must call GRPOTrainer once to be translated, got {len(trainers)} calls; {RUN_IT}")
    arguments = _arguments("GRPOTrainer", trainers[0], POSITIONS)
    for name in NOT_TO_CHANGE:
        for change in script.changes_behind(arguments.get(name)):
            raise ConfigError(f"GRPOTrainer's {name} is changed by `{change.source}`: {RUN_IT}")
    about = Translation()
    given = _config(arguments.get("args"), about)
    given = {**_model(arguments.get("model"), script, about), **given}
    given |= _datasets(arguments.get("train_dataset"), arguments.get("eval_dataset"), script, about)
    given |= _rewards(arguments, script, about)
    given |= _adapter(arguments.get("peft_config"))
    _note_tokenizer(arguments.get("processing_class"), given["model_name_or_path"][0], script, about)
    for name, one in arguments.items():
        if name not in TRANSLATED:
            source = f" ({one.source})" if isinstance(one, Made) else ""
            about.note("missing", name, f"is Python, and stays so{source}: {RUN_IT}")
    _note_calls(script, about)
    about.notes = list(dict.fromkeys(about.notes))
    found.add(about)
    translate_flags(given, start, found, Refusals())


def _arguments(function: str, call: ScriptCall, positions: Sequence[str]) -> dict[str, Argument]:
    """Arguments by name, without those that are None; ConfigError for unexpected positions or a star."""
    given = (*call.positional, *call.named.values())
    stars = [one.source for one in given if isinstance(one, Made) and one.source.startswith("*")]
    if stars or len(call.positional) > len(positions):
        got = stars[0] if stars else f"{len(call.positional)} without names"
        raise ConfigError(f"{function}'s arguments must be written out to be translated, got {got}; {RUN_IT}")
    found = {**dict(zip(positions, call.positional, strict=False)), **call.named}
    return {name: one for name, one in found.items() if not (isinstance(one, Written) and one.value is None)}


def _made_by(argument: Argument | None, function: str) -> ScriptCall | None:
    call = argument.call if isinstance(argument, Made) else None
    return call if call is not None and call.name == function else None


def _config(argument: Argument | None, about: Translation) -> GivenFlags:
    if argument is None:
        return {}
    call = _made_by(argument, "GRPOConfig")
    if call is None:
        raise ConfigError(
            f"GRPOTrainer's args must be GRPOConfig(...), written out, to be translated, got {source_of(argument)}; "
            f"{RUN_IT}"
        )
    known, given = field_names(), GivenFlags()
    # a field that is None may have another default
    written = {**dict(zip(("output_dir",), call.positional, strict=False)), **call.named}
    _arguments("GRPOConfig", call, ("output_dir",))
    for name, one in written.items():
        if name not in known:
            raise ConfigError(f"GRPOConfig has no {name}; leave it out")
        if isinstance(one, Written):
            given[name] = flag_words(one.value)
        else:
            about.note("missing", name, f"is computed ({one.source}); give the option beside the others")
    return given


def _loaded(argument: Argument | None) -> tuple[Argument | None, dict[str, Argument]]:
    """Name and other arguments of `from_pretrained(NAME, ...)`."""
    call = _made_by(argument, "from_pretrained")
    given = {} if call is None else _arguments("from_pretrained", call, ("pretrained_model_name_or_path",))
    return given.pop("pretrained_model_name_or_path", None), given


def _model(argument: Argument | None, script: Script, about: Translation) -> GivenFlags:
    """Flags of a model name, or of `from_pretrained(NAME, ...)`."""
    for change in script.changes_behind(argument):
        _note_part(about, change.source, change.attribute, "is not done here")
    if isinstance(argument, Written) and isinstance(argument.value, str):
        return {"model_name_or_path": (argument.value,)}
    name, given = _loaded(argument)
    if not (isinstance(name, Written) and isinstance(name.value, str)):
        raise ConfigError(
            f"GRPOTrainer's model must be written out as a text to be translated, got {source_of(argument)}; write its "
            f"name, or {RUN_IT}"
        )
    found: GivenFlags = {"model_name_or_path": (name.value,)}
    for key, one in given.items():
        if key == "quantization_config":
            raise ConfigError(
                f"from_pretrained's quantization_config must be left out, got {source_of(one)}: weights are not "
                "quantised; --optimizer adamw_8bit, --zero-stage and --lora-rank save memory"
            )
        dtype = source_of(one).strip("'").removeprefix("torch.")
        if key in ("torch_dtype", "dtype") and dtype.isidentifier():
            found["dtype"] = (dtype,)
        elif key in ("revision", "trust_remote_code", "load_in_8bit", "load_in_4bit") and isinstance(one, Written):
            found["model_revision" if key == "revision" else key] = flag_words(one.value)
        else:
            _note_part(about, f"from_pretrained {key}", key, f"{source_of(one)} is not looked at")
    return found


def _note_part(about: Translation, subject: str, name: str, text: str) -> None:
    """Note an argument or a change of a model, a tokenizer or a dataset without a flag."""
    if name in NO_MATTER:
        about.note("idle", subject, NO_MATTER[name])
    else:
        about.note("missing", subject, f"{text}; {RUN_IT}")


def _datasets(argument: Argument | None, held_out: Argument | None, script: Script, about: Translation) -> GivenFlags:
    """Flags of the training rows and of held-out ones: a split of the same dataset, or another, which is an option."""
    rows = rows_of(argument)
    if rows is None:
        raise ConfigError(
            "GRPOTrainer's train_dataset must come from load_dataset(NAME), one file or a Hub name, with nothing but "
            f"[SPLIT] and .select(range(N)) behind it, to be translated, got {source_of(argument)}; {RUN_IT}"
        )
    _note_others(rows, about)
    texts = {"dataset_name": rows.place, "dataset_config": rows.config, "dataset_train_split": rows.split}
    tested = None if script.changes_behind(held_out) else rows_of(held_out)
    if tested is not None:
        if tested.count is not None:
            about.note("missing", "eval_dataset", f"all rows are measured, not {tested.count}: {RUN_IT}")
        _note_others(tested, about)
        texts["dataset_test_split"] = tested.split
        if tested.split is None or (tested.place, tested.config) != (rows.place, rows.config):
            address = tested.place if tested.config is None else f"{tested.place}:{tested.config}"
            about.decide(eval_dataset=(address,))
    elif held_out is not None:
        text = "the split `test` of the dataset is measured, unless --eval-dataset names another"
        about.note("missing", "eval_dataset", f"is computed ({source_of(held_out)}); {text}")
    if rows.count is not None:
        about.decide(dataset_size=rows.count)
    return {name: (text,) for name, text in texts.items() if text is not None}


def _note_others(rows: ScriptRows, about: Translation) -> None:
    for name, one in rows.others.items():
        if not (isinstance(one, Written) and one.value in (None, "main")):
            _note_part(about, f"load_dataset {name}", name, f"{source_of(one)} is not looked at")


def _rewards(arguments: Mapping[str, Argument], script: Script, about: Translation) -> GivenFlags:
    given: GivenFlags = {}
    if (model := arguments.get("reward_model")) is not None:
        if not isinstance(model, Written):
            raise ConfigError("GRPOTrainer's reward_model must be written out as a text to be translated")
        given["reward_model_name_or_path"] = flag_words(model.value)
        text = (
            "is of TRL's first version, where a batch counted prompts, not completions, temperature was 0.9, beta 0.04 "
            "and a completion 256 tokens; what is not given has the defaults of TRL 1.16 here"
        )
        about.note("changed", "reward_model", text)
    functions = arguments.get("reward_funcs")
    if isinstance(functions, Written):
        given["reward_model_name_or_path"] = flag_words(functions.value)
    elif functions is not None:
        names = [one.name if isinstance(one, Made) else None for one in functions.items or (functions,)]
        if None in names or script.functions & set(names):
            raise ConfigError(
                "GRPOTrainer's reward_funcs must be names of TRL's functions to be translated, got "
                f"{functions.source}; name your own as --reward-funcs file.py:function, or {RUN_IT}"
            )
        given["reward_funcs"] = tuple(str(name) for name in names)
    return given


def _adapter(argument: Argument | None) -> GivenFlags:
    if argument is None:
        return {}
    call = _made_by(argument, "LoraConfig")
    if call is None:
        raise ConfigError(
            "GRPOTrainer's peft_config must be LoraConfig(...), written out, to be translated, got "
            f"{source_of(argument)}; without it all weights would be trained; {RUN_IT}"
        )
    given: GivenFlags = {"use_peft": ("true",), **PEFT}
    for name, one in _arguments("LoraConfig", call, ()).items():
        if isinstance(one, Made):
            raise ConfigError(f"LoraConfig's {name} must be written out to be translated, got {one.source}; {RUN_IT}")
        if name in LORA:
            given[LORA[name]] = flag_words(one.value)
        elif not (name == "bias" and one.value == "none"):
            raise ConfigError(f"LoraConfig's {name} is not offered; there are {', '.join(LORA)}")
    return given


def _note_tokenizer(argument: Argument | None, model: str, script: Script, about: Translation) -> None:
    if argument is None:
        return
    name, given = _loaded(argument)
    if not (isinstance(name, Written) and name.value == model):
        text = f"the tokenizer is the one that lies with {model}, and not {source_of(name or argument)}"
        about.note("missing", "processing_class", f"{text}; {RUN_IT}")
    for key, one in given.items():
        _note_part(about, f"processing_class {key}", key, f"{source_of(one)} is not looked at")
    for change in script.changes_behind(argument):
        _note_part(about, change.source, change.attribute, "the tokenizer is as it lies with the model")


def _note_calls(script: Script, about: Translation) -> None:
    """Note what a script does with its trainer beyond `train()` and saving."""
    for call in script.trainer:
        given = _arguments(f"trainer.{call.name}", call, ("resume_from_checkpoint",))
        if call.name == "train":
            for name in given:
                about.note("missing", name, f"is not done here; `paceline train --resume RUN` goes on: {RUN_IT}")
        elif call.name == "save_model":
            about.note("changed", "save_model", "the trained model lies in the run directory's final/")
        else:
            about.note("missing", f"trainer.{call.name}", f"is Python, and stays so: {RUN_IT}")
    for name in sorted(script.trainer_names):
        for change in script.changes.get(name, ()):
            if not change.is_call:
                about.note("missing", change.source, f"is not done here: {RUN_IT}")
