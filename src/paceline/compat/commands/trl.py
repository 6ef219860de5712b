"""TRL's command line, `trl grpo`, its YAML file behind `--config`, and scripts that take its flags.

The fields of the trainer are translated by `fields`, with the tables of `paceline.compat.trl`.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial

import yaml

from paceline.compat.commands.fields import FIELD_NAMES, PRODUCTS, CommandContext, add_trackers, from_fields
from paceline.compat.commands.flags import Flags, FlagWords, is_on, note_idle, number, options_of, read_flags, value_of
from paceline.compat.commands.launching import (
    ACCELERATE,
    OWN_LAYOUT,
    WITHOUT_EFFECT,
    Started,
    check_precision,
    started,
    with_numbers,
)
from paceline.compat.commands.layouts import add_processes, check_length, sharding
from paceline.compat.commands.translation import ForeignCommand, Refusals, Translation
from paceline.compat.trl.fields import MEANINGS
from paceline.compat.vocabulary import Meaning, flags
from paceline.config.reading import suggest
from paceline.errors import ConfigError

DATASET_KEYS: Mapping[str, str] = {"path": "dataset_name", "name": "dataset_config", "split": "dataset_train_split"}
"""Keys in an entry of `datasets` that are flags as well."""


def known_flags() -> tuple[str, ...]:
    """Every flag of `trl grpo`, including those that it passes on, and names that earlier versions had."""
    names = (*SCRIPT_FLAGS, *FIELD_NAMES, *EARLIER, "config")
    return tuple(dict.fromkeys((*names, *ACCELERATE, *WITHOUT_EFFECT["accelerate"])))


EARLIER: Mapping[str, str] = {
    "torch_dtype": "dtype",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "use_liger_loss": "use_liger_kernel",
    "vllm_max_model_len": "vllm_max_model_length",
}
"""Names that flags had in earlier versions, and have in recipes that are still about, with today's."""


def _todays(flags: Flags, translation: Translation) -> Flags:
    """The flags under the names that TRL has now; a change of name is noted."""
    today = Flags()
    for name, words in flags.items():
        if name in EARLIER:
            translation.note("settled", f"--{name}", f"is --{EARLIER[name]} in today's TRL")
        today[EARLIER.get(name, name)] = words
    return today


def read(words: FlagWords, start: Started, translation: Translation, refusals: Refusals) -> Flags:
    """Parse flags over the lines of their file; refuses what TRL does not have, and an unreadable file."""
    flags = _todays(read_flags(words, known_flags(), "TRL", translation, refusals), translation)
    if "datasets" in flags:
        with refusals():
            raise ConfigError("--datasets must stand in the file of --config, as TRL reads it; or give --dataset_name")
    path = flags.pop("config", None)
    if path is None:
        return flags
    if len(path) != 1:
        raise ConfigError(f"--config must name one file, got {' '.join(path) or 'none'}")
    lines = _lines(path[0], start, translation, refusals)
    for name, texts in lines.items():
        if flags.get(name, texts) != texts:
            text = f"{' '.join(flags[name])}, where {path[0]} has {' '.join(texts)}; the flag counts"
            translation.note("settled", f"--{name}", text)
    return {**lines, **flags}


def _lines(path: str, start: Started, translation: Translation, refusals: Refusals) -> Flags:
    """Lines of the file as flags; its `env` is added to the environment."""
    try:
        values = yaml.safe_load(start.read(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"--config {path} is not YAML ({' '.join(str(error).split())}); mend it") from None
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"--config {path} must hold lines of `name: value`, got {type(values).__name__}")
    environment = values.pop("env", {})
    if not isinstance(environment, dict):
        raise ConfigError(f"--config {path}: env must hold names and values, got {environment!r}")
    translation.environment |= {name: str(value) for name, value in environment.items()}
    lines = _dataset(values.pop("datasets", None), path)
    lines |= {name: flag_words(value) for name, value in values.items()}
    known = known_flags()
    for name in lines:
        if name not in known:
            near = suggest(name, known, otherwise="leave it out")
            with refusals():
                raise ConfigError(f"--config {path}: TRL has no {name}; {near}")
    return _todays({name: texts for name, texts in lines.items() if name in known}, translation)


def _dataset(entries: object, path: str) -> Flags:
    if entries is None:
        return {}
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise ConfigError(
            f"--config {path}: datasets must hold one entry, got {entries!r}; a mixture is made beforehand, as one file"
        )
    entry = dict(entries[0])
    if isinstance(entry.get("data_files"), str):
        # rows of a kind of file, which here are named by themselves
        entry["path"] = entry.pop("data_files")
    for name in entry:
        if name not in DATASET_KEYS:
            raise ConfigError(f"--config {path}: datasets: {name} is not offered; {', '.join(DATASET_KEYS)} are")
    return {DATASET_KEYS[name]: (str(value),) for name, value in entry.items()}


def flag_words(value: object) -> FlagWords:
    """A value of a file or a script as the words of a flag."""
    if isinstance(value, list | tuple):
        return tuple(word for item in value for word in flag_words(item))
    if isinstance(value, dict):
        return (json.dumps(value),)
    if value is None:
        return ("none",)
    return (str(value).lower(),) if isinstance(value, bool) else (str(value),)


SCRIPT_FLAGS: Mapping[str, Meaning] = {
    **flags(
        "option",
        {
            "dataset": "dataset_name dataset_config datasets",
            "dataset_split": "dataset_train_split",
            "eval_split": "dataset_test_split",
            "prompt_column": "dataset_prompt_column",
            "system_prompt": "system_prompt",
            "reward_funcs: model:NAME": "reward_model_name_or_path",
            "reward_funcs": "reward_funcs",
            "model": "model_name_or_path",
            "dtype: of the computation, weights are float32 always": "dtype",
            "lora_rank": "use_peft lora_r",
            "lora_alpha": "lora_alpha",
            "lora_targets": "lora_target_modules",
            "lora_parameters": "lora_target_parameters",
        },
    ),
    **flags(
        "idle",
        {
            "rows are read once, before the first step": "dataset_streaming streaming",
            "there are none that would have to be left out": "ignore_bias_buffers",
            "attention is the built-in one, or torch's": "attn_implementation",
            "nothing is dropped: the policy that trains is the one that sampled": "lora_dropout",
            "a causal language model is what is trained": "lora_task_type",
            "they take no part in the loss": "output_router_logits",
        },
    ),
    **flags(
        "refused",
        {
            "no held-out set is cut from the training rows; "
            "give a file of its own as --eval-dataset": "test_split_size",
            "a Hub name is read at its main branch; download the revision and give its directory": "model_revision",
            "an adapter holds its own matrices alone": "lora_modules_to_save",
            "the adapter's scale is lora_alpha over its rank; "
            "give --lora_alpha times the root of the rank": "use_rslora",
            "adapters have no magnitudes of their own": "use_dora",
            "weights are not quantised; --optimizer adamw_8bit, --zero-stage and --lora-rank save memory": (
                "load_in_8bit load_in_4bit bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage"
            ),
        },
        also={
            "model_revision": ("main",),
            "bnb_4bit_quant_type": ("nf4", "fp4"),
            "bnb_4bit_quant_storage": ("uint8",),
        },
    ),
}
"""`also`: values with which a refused flag means the same as its absence."""


PEFT_RANK, PEFT_ALPHA = 16, 32.0
"""TRL's own defaults."""
REWARD_FLAGS = {"reward_funcs", "reward_model_name_or_path"}
MACHINE_FLAGS = {
    "machine_rank": "--node-rank",
    "main_process_ip": "--master-addr",
    "main_process_port": "--master-port",
}
"""Flags of accelerate's that several machines need, with torchrun's."""


def from_trl(command: ForeignCommand, repair: bool) -> Translation | None:
    """Translate `trl grpo`, or a Python script with flags; there is nothing to repair."""
    start = started(command)
    words = _flags(start.words)
    if words is None:
        return None
    translation = Translation(notes=list(start.notes), environment=dict(start.environment))
    refusals = Refusals()
    flags = read(words, start, translation, refusals)
    # flags of accelerate, which `trl grpo` passes on
    if named := {ACCELERATE[name]: flags[name][-1] for name in ACCELERATE if flags.get(name)}:
        start = with_numbers(start, named)
    script = next((word for word in start.words if word.endswith(".py")), None)
    if script is not None and not REWARD_FLAGS & flags.keys():
        raise ConfigError(
            f"{script} is given no rewards by its flags: TRL's own script needs --reward_funcs accuracy_reward; one "
            "that names its rewards itself is a program, so change its import to `from paceline import GRPOConfig, "
            "GRPOTrainer` and run it with the same flags"
        )
    translate_flags(flags, start, translation, refusals)
    return translation


def _flags(words: FlagWords) -> FlagWords | None:
    """Flags behind `trl grpo`, or behind a Python script that comes first or after `python` or `python -m`."""
    if words[:1] == ("trl",):
        if words[1:2] != ("grpo",):
            what = words[1] if len(words) > 1 else "nothing"
            raise ConfigError(f"`trl` must be followed by grpo, got {what!r}; no other training is offered here")
        return words[2:]
    flags: FlagWords = ()
    if words[:1] and words[0].endswith(".py"):
        flags = words[1:]
    elif words[:1] and words[0].rpartition("/")[2].startswith("python"):
        if words[1:3] == ("-m", "trl"):
            return _flags(words[2:])
        if words[1:3] == ("-m", "trl.scripts.grpo"):
            flags = words[3:]
        elif words[1:2] and words[1].endswith(".py"):
            flags = words[2:]
    return flags if flags and flags[0].startswith("--") else None


def translate_flags(flags: Flags, start: Started, translation: Translation, refusals: Refusals) -> None:
    """Add the translation of parsed flags and fields from any source; `refusals` are those of their reading."""
    # each part is refused by itself, and all refusals are said at once
    idle, about_rewards, from_trainer, *parts = (Translation() for _ in range(7))
    note_idle(flags, SCRIPT_FLAGS, idle, refusals)
    functions: FlagWords = ("accuracy",)
    models: FlagWords = ()
    with refusals():
        functions, models = _rewards(flags, start, about_rewards)
    adds: tuple[Callable[..., None], ...] = (_task, _adapter, _precision, partial(_places, start=start))
    for add, part in zip(adds, parts, strict=True):
        with refusals():
            add(flags, translation=part)
    fields = {name: words for name, words in flags.items() if name in FIELD_NAMES}
    if models and functions and "reward_weights" in flags:
        about_rewards.note("changed", "--reward_weights", "the model's weight comes first there, and last here")
        fields["reward_weights"] = (*fields["reward_weights"][1:], *fields["reward_weights"][:1])
    with refusals():
        context = CommandContext(
            tool="TRL",
            ranks=start.ranks,
            rewards=functions + models,
            models=models,
            adapter=is_on(flags, "use_peft"),
        )
        from_trainer = from_fields(fields, context)
    refusals.check()
    translation.add(from_trainer)
    translation.add(about_rewards)
    check_length(flags, "vllm_max_model_length", from_trainer.options, translation)
    for part in (*parts, idle):
        translation.add(part)
    translation.launch = parts[-1].launch
    for name in flags:
        if name in WITHOUT_EFFECT["accelerate"]:
            check_precision(f"--{name}", name, value_of(flags, name))
            translation.note("idle", f"--{name}", OWN_LAYOUT)
        elif name in MACHINE_FLAGS and MACHINE_FLAGS[name] not in translation.launch:
            translation.note("idle", f"--{name}", "all processes are on one machine, or actors of Ray")
    translation.explicit |= options_of(flags, SCRIPT_FLAGS) & translation.options.keys()


def _rewards(flags: Flags, start: Started, translation: Translation) -> tuple[FlagWords, FlagWords]:
    """Reward functions and reward models."""
    is_script = any(word.endswith(".py") for word in start.words)
    known = {**REWARDS, **OPEN_R1_REWARDS} if is_script else REWARDS
    functions = reward_names(flags.get("reward_funcs", ()), known, translation)
    model = value_of(flags, "reward_model_name_or_path")
    if not functions and model is None:
        raise ConfigError(
            "TRL has no default reward: give --reward_funcs accuracy_reward, or --reward_model_name_or_path NAME"
        )
    return functions, () if model is None else (model,)


def _precision(flags: Flags, translation: Translation) -> None:
    dtype = value_of(flags, "dtype")
    if dtype not in (None, "auto", "float32", "bfloat16"):
        raise ConfigError(f"--dtype must be auto, float32 or bfloat16, got {dtype!r}; half precision is not offered")
    if dtype == "bfloat16" or ("bf16" in flags and is_on(flags, "bf16")):
        translation.decide(dtype="bfloat16")
    elif "bf16" in flags:
        translation.decide(dtype="float32")
    if is_on(flags, "use_cpu"):
        translation.decide(device="cpu")
    if "dtype" in flags:
        translation.note("changed", "--dtype", PRODUCTS)


def _task(flags: Flags, translation: Translation) -> None:
    model, dataset = value_of(flags, "model_name_or_path"), value_of(flags, "dataset_name")
    if model is None or dataset is None:
        missing = "--model_name_or_path" if model is None else "--dataset_name"
        raise ConfigError(f"TRL needs {missing}, got none; give it, or one entry in `datasets` of its --config file")
    config = value_of(flags, "dataset_config")
    translation.decide(model=model, dataset=dataset if config is None else f"{dataset}:{config}")
    options = {
        "dataset_train_split": "dataset_split",
        "dataset_test_split": "eval_split",
        "output_dir": "output_dir",
        "dataset_prompt_column": "prompt_column",
        "system_prompt": "system_prompt",
    }
    for flag, option in options.items():
        if (value := value_of(flags, flag)) is not None:
            translation.decide(**{option: value})
    if "max_prompt_length" not in flags:
        text = (
            "has no limit there, and nothing is said of what does not fit; here a prompt above --max-prompt-length, "
            "512 tokens, is an error before the first step"
        )
        translation.note("mended", "--dataset_name", text)
    names = flags.get("report_to", ())
    add_trackers(names, translation, words=("none", "all"))
    if "all" in names:
        translation.note("changed", "--report_to", "all: name those that are wanted, as --report-to wandb")


def _adapter(flags: Flags, translation: Translation) -> None:
    names = [
        name for name in ("lora_r", "lora_alpha", "lora_target_modules", "lora_target_parameters") if name in flags
    ]
    if not is_on(flags, "use_peft"):
        for name in names:
            translation.note("idle", f"--{name}", "no adapter is trained without --use_peft")
        return
    translation.decide(lora_rank=int(number(flags, "lora_r", int) or PEFT_RANK))
    translation.decide(lora_alpha=number(flags, "lora_alpha") or PEFT_ALPHA)
    if "lora_target_parameters" in flags:
        translation.decide(lora_parameters=flags["lora_target_parameters"])
    if "lora_target_modules" in flags:
        translation.decide(lora_targets=flags["lora_target_modules"])
        return
    text = "without --lora_target_modules all linear layers have an adapter, where peft takes some by the model's kind"
    translation.note("changed", "--use_peft", text)


def _places(flags: Flags, start: Started, translation: Translation) -> None:
    translation.decide(**sharding(flags, start))
    mode = value_of(flags, "vllm_mode") or "colocate"
    if mode not in ("colocate", "server"):
        raise ConfigError(f"--vllm_mode must be colocate or server, got {mode!r}")
    if not is_on(flags, "use_vllm"):
        for name, row in MEANINGS.items():
            if name.startswith("vllm_") and row.command and name in flags:
                translation.note("idle", f"--{name}", "use_vllm is off")
    add_processes(flags, start, translation, apart=mode == "server")


REWARDS: Mapping[str, tuple[str, str]] = {
    "accuracy_reward": ("accuracy", "the last box or tag outside the thinking is read, and 1,2 is not 12"),
    "reasoning_accuracy_reward": ("accuracy", "nothing inside <think> is an answer, there as here"),
    "think_format_reward": ("format", "asks for <answer>...</answer> behind the thought as well"),
    "get_soft_overlong_punishment": (
        "soft_overlong(max_length=1280, cache=256)",
        "with the lengths that TRL's command line fixes; leave the parentheses out for --max-completion-length",
    ),
}
"""Our name of each reward function of TRL's, and the difference."""
OPEN_R1_REWARDS: Mapping[str, tuple[str, str]] = {
    "accuracy": REWARDS["accuracy_reward"],
    "format": ("format", "open-r1 asks for line breaks around the thought and the answer, and this does not"),
}
"""Further reward functions of open-r1's script."""


def reward_names(names: FlagWords, known: Mapping[str, tuple[str, str]], translation: Translation) -> tuple[str, ...]:
    """Rewards of a command line as ours, a dotted path as `module:function`; ConfigError for any other name."""
    ours = list[str]()
    for name in names:
        if name in known:
            reward, text = known[name]
            translation.note("changed", f"--reward_funcs {name}", f"{reward}: {text}")
        elif "." in name:
            module, _, function = name.rpartition(".")
            reward = f"{module}:{function}"
            text = "`completions` are text also where prompts are messages; `completion_messages` has these as lists"
            translation.note("changed", f"--reward_funcs {name}", text)
        else:
            near = suggest(name, known, otherwise="give the dotted path of a function of your own")
            raise ConfigError(f"--reward_funcs must be of {', '.join(known)}, or a dotted path, got {name!r}; {near}")
        ours.append(reward)
    return tuple(dict.fromkeys(ours))
