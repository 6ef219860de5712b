"""A script around TRL's trainer, as flags of `trl grpo`."""

from collections.abc import Iterable, Mapping, Sequence

from paceline.compat.commands.fields import field_names
from paceline.compat.commands.flags import FlagWords, GivenFlags
from paceline.compat.commands.launching import Started
from paceline.compat.commands.scripts.reading import Argument, Made, Script, ScriptCall, ScriptRows, Written, rows_of
from paceline.compat.commands.translation import ForeignCommand, Note, Translation
from paceline.compat.commands.trl import translated
from paceline.compat.commands.trl.reading import flag_words
from paceline.compat.vocabulary import NoteKind
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


def from_trainer(script: Script, start: Started, command: ForeignCommand) -> Translation:
    """Every literal argument as a flag; computed arguments are named in notes.

    Raises:
        ConfigError: args, model, dataset, adapter or reward is computed, or changed beside the calls; or an argument of
            which nothing here knows.
    """
    trainers = script.calls["GRPOTrainer"]
    if len(trainers) > 1:
        raise ConfigError(f"a script must call GRPOTrainer once to be translated, got {len(trainers)} calls; {RUN_IT}")
    arguments = _arguments("GRPOTrainer", trainers[0], POSITIONS)
    for name in NOT_TO_CHANGE:
        for change in script.changes_behind(arguments.get(name)):
            raise ConfigError(f"GRPOTrainer's {name} is changed by `{change.source}`: {RUN_IT}")
    notes = list[Note]()
    given = _config(arguments.get("args"), notes)
    given = {**_model(arguments.get("model"), script, notes), **given}
    rows = _rows(arguments.get("train_dataset"), notes)
    given |= _dataset(rows)
    held_out, options = _held_out(arguments.get("eval_dataset"), rows, script, notes)
    given |= held_out
    given |= _rewards(arguments, script, notes)
    given |= _adapter(arguments.get("peft_config"))
    notes += _tokenizer(arguments.get("processing_class"), given["model_name_or_path"][0], script)
    notes += [_note(name, "is Python, and stays so", one) for name, one in arguments.items() if name not in TRANSLATED]
    notes += _around(script)
    if rows.count is not None:
        options["dataset_size"] = rows.count
    return Translation(options=options, notes=tuple(dict.fromkeys(notes))) + translated(given, start, command)


def _note(about: str, text: str, argument: Argument | None = None) -> Note:
    """Note on something that a script computes or does and a command line cannot."""
    source = f" ({argument.source})" if isinstance(argument, Made) else ""
    return Note("missing", about, f"{text}{source}: {RUN_IT}")


def _arguments(function: str, call: ScriptCall, positions: Sequence[str]) -> dict[str, Argument]:
    """Arguments by name, without those that are None.

    Raises:
        ConfigError: one is given by its place where none is expected, or several at once by a star.
    """
    given = (*call.positional, *call.named.values())
    stars = [one.source for one in given if isinstance(one, Made) and one.source.startswith("*")]
    if stars or len(call.positional) > len(positions):
        got = stars[0] if stars else f"{len(call.positional)} without names"
        raise ConfigError(f"{function}'s arguments must be written out to be translated, got {got}; {RUN_IT}")
    found = {**dict(zip(positions, call.positional, strict=False)), **call.named}
    return {name: one for name, one in found.items() if not (isinstance(one, Written) and one.value is None)}


def _source(argument: Argument | None) -> str:
    if argument is None:
        return "none"
    return argument.source if isinstance(argument, Made) else repr(argument.value)


def _made_by(argument: Argument | None, function: str) -> ScriptCall | None:
    call = argument.call if isinstance(argument, Made) else None
    return call if call is not None and call.name == function else None


def _config(argument: Argument | None, notes: list[Note]) -> GivenFlags:
    if argument is None:
        return {}
    call = _made_by(argument, "GRPOConfig")
    if call is None:
        raise ConfigError(
            f"GRPOTrainer's args must be GRPOConfig(...), written out, to be translated, got {_source(argument)}; "
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
            text = f"is computed ({one.source}); give the option beside the others"
            notes.append(Note("missing", name, text))
    return given


def _model(argument: Argument | None, script: Script, notes: list[Note]) -> GivenFlags:
    """Flags of a model name, or of `from_pretrained(NAME, ...)`."""
    for change in script.changes_behind(argument):
        kind: NoteKind = "idle" if change.attribute in NO_MATTER else "missing"
        text = NO_MATTER[change.attribute] if kind == "idle" else f"is not done here; {RUN_IT}"
        notes.append(Note(kind, change.source, text))
    if isinstance(argument, Written) and isinstance(argument.value, str):
        return {"model_name_or_path": (argument.value,)}
    call = _made_by(argument, "from_pretrained")
    given = {} if call is None else _arguments("from_pretrained", call, ("pretrained_model_name_or_path",))
    name = given.pop("pretrained_model_name_or_path", None)
    if not (isinstance(name, Written) and isinstance(name.value, str)):
        raise ConfigError(
            f"GRPOTrainer's model must be written out as a text to be translated, got {_source(argument)}; write its "
            f"name, or {RUN_IT}"
        )
    found: GivenFlags = {"model_name_or_path": (name.value,)}
    for key, one in given.items():
        if key == "quantization_config":
            raise ConfigError(
                f"from_pretrained's quantization_config must be left out, got {_source(one)}: weights are not "
                "quantised; --optimizer adamw_8bit, --zero-stage and --lora-rank save memory"
            )
        dtype = _source(one).strip("'").removeprefix("torch.")
        if key in ("torch_dtype", "dtype") and dtype.isidentifier():
            found["dtype"] = (dtype,)
        elif key in ("revision", "trust_remote_code", "load_in_8bit", "load_in_4bit") and isinstance(one, Written):
            found["model_revision" if key == "revision" else key] = flag_words(one.value)
        else:
            notes.append(_of_a_call("from_pretrained", key, one))
    return found


def _of_a_call(function: str, name: str, argument: Argument) -> Note:
    """Note on an argument of a model, a tokenizer or a dataset without a flag."""
    if name in NO_MATTER:
        return Note("idle", f"{function} {name}", NO_MATTER[name])
    return Note("missing", f"{function} {name}", f"{_source(argument)} is not looked at; {RUN_IT}")


def _rows(argument: Argument | None, notes: list[Note]) -> ScriptRows:
    rows = rows_of(argument)
    if rows is None:
        raise ConfigError(
            "GRPOTrainer's train_dataset must come from load_dataset(NAME), one file or a Hub name, with nothing but "
            f"[SPLIT] and .select(range(N)) behind it, to be translated, got {_source(argument)}; {RUN_IT}"
        )
    notes += [_of_a_call("load_dataset", name, one) for name, one in rows.others.items() if _says_something(one)]
    return rows


def _says_something(argument: Argument) -> bool:
    return not (isinstance(argument, Written) and argument.value in (None, "main"))


def _dataset(rows: ScriptRows) -> GivenFlags:
    given: GivenFlags = {"dataset_name": (rows.place,)}
    if rows.config is not None:
        given["dataset_config"] = (rows.config,)
    if rows.split is not None:
        given["dataset_train_split"] = (rows.split,)
    return given


def _held_out(
    argument: Argument | None, trained: ScriptRows, script: Script, notes: list[Note]
) -> tuple[GivenFlags, dict[str, object]]:
    """Held-out flags: a split of the same dataset, or another dataset; otherwise a note and the split `test`."""
    if argument is None:
        return {}, {}
    rows = rows_of(argument)
    if rows is None or script.changes_behind(argument):
        text = "the split `test` of the dataset is measured, unless --eval-dataset names another"
        notes.append(Note("missing", "eval_dataset", f"is computed ({_source(argument)}); {text}"))
        return {}, {}
    if rows.count is not None:
        notes.append(_note("eval_dataset", f"all rows are measured, not {rows.count}"))
    notes += [_of_a_call("load_dataset", name, one) for name, one in rows.others.items() if _says_something(one)]
    given: GivenFlags = {} if rows.split is None else {"dataset_test_split": (rows.split,)}
    if (rows.place, rows.config) == (trained.place, trained.config) and rows.split is not None:
        return given, {}
    address = rows.place if rows.config is None else f"{rows.place}:{rows.config}"
    return given, {"eval_dataset": (address,)}


def _rewards(arguments: Mapping[str, Argument], script: Script, notes: list[Note]) -> GivenFlags:
    given: GivenFlags = {}
    if (model := arguments.get("reward_model")) is not None:
        if not isinstance(model, Written):
            raise ConfigError("GRPOTrainer's reward_model must be written out as a text to be translated")
        given["reward_model_name_or_path"] = flag_words(model.value)
        text = (
            "is of TRL's first version, where a batch counted prompts, not completions, temperature was 0.9, beta 0.04 "
            "and a completion 256 tokens; what is not given has the defaults of TRL 1.16 here"
        )
        notes.append(Note("changed", "reward_model", text))
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
            f"{_source(argument)}; without it all weights would be trained; {RUN_IT}"
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


def _tokenizer(argument: Argument | None, model: str, script: Script) -> Iterable[Note]:
    """Notes on a tokenizer other than the model's own."""
    if argument is None:
        return
    call = _made_by(argument, "from_pretrained")
    given = {} if call is None else _arguments("from_pretrained", call, ("pretrained_model_name_or_path",))
    name = given.pop("pretrained_model_name_or_path", None)
    if not (isinstance(name, Written) and name.value == model):
        text = f"the tokenizer is the one that lies with {model}, and not {_source(name or argument)}"
        yield Note("missing", "processing_class", f"{text}; {RUN_IT}")
    for key, one in given.items():
        yield _of_a_call("processing_class", key, one)
    for change in script.changes_behind(argument):
        if change.attribute in NO_MATTER:
            yield Note("idle", change.source, NO_MATTER[change.attribute])
        else:
            yield Note("missing", change.source, f"the tokenizer is as it lies with the model; {RUN_IT}")


def _around(script: Script) -> Iterable[Note]:
    """Notes on what a script does with its trainer beyond `train()` and saving."""
    for call in script.trainer:
        given = _arguments(f"trainer.{call.name}", call, ("resume_from_checkpoint",))
        if call.name == "train":
            yield from (_note(name, "is not done here; `paceline train --resume RUN` goes on") for name in given)
        elif call.name == "save_model":
            yield Note("changed", "save_model", "the trained model lies in the run directory's final/")
        else:
            yield _note(f"trainer.{call.name}", "is Python, and stays so")
    for name in sorted(script.trainer_names):
        for change in script.changes.get(name, ()):
            if not change.is_call:
                yield _note(change.source, "is not done here")
