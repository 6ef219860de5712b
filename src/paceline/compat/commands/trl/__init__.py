"""TRL's command line, `trl grpo`, and scripts that take its flags.

reading.py  every flag and its meaning, and the YAML file behind `--config`; the trainer's fields are in
            `paceline.compat.trl`
"""

from collections.abc import Callable, Mapping
from functools import partial

from paceline.compat.commands.fields import PRODUCTS, CommandContext, add_trackers, field_names, from_fields
from paceline.compat.commands.flags import Flags, FlagWords, is_on, note_idle, number, options_of, value_of
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
from paceline.compat.commands.trl.reading import MEANINGS as SCRIPT_FLAGS
from paceline.compat.commands.trl.reading import read
from paceline.compat.trl.fields import MEANINGS
from paceline.config.reading import suggest
from paceline.errors import ConfigError

PEFT_RANK, PEFT_ALPHA = 16, 32.0
"""TRL's own defaults."""
REWARD_FLAGS = {"reward_funcs", "reward_model_name_or_path"}
OF_MACHINES = {
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
    idle, about_rewards, of_fields, *parts = (Translation() for _ in range(7))
    note_idle(flags, SCRIPT_FLAGS, idle, refusals)
    functions: FlagWords = ("accuracy",)
    models: FlagWords = ()
    with refusals():
        functions, models = _rewards(flags, start, about_rewards)
    adds: tuple[Callable[..., None], ...] = (_task, _adapter, _precision, partial(_places, start=start))
    for add, part in zip(adds, parts, strict=True):
        with refusals():
            add(flags, found=part)
    fields = {name: words for name, words in flags.items() if name in field_names()}
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
        of_fields = from_fields(fields, context)
    refusals.check()
    translation.add(of_fields)
    translation.add(about_rewards)
    check_length(flags, "vllm_max_model_length", of_fields.options, translation)
    for part in (*parts, idle):
        translation.add(part)
    translation.launch = parts[-1].launch
    for name in flags:
        if name in WITHOUT_EFFECT["accelerate"]:
            check_precision(f"--{name}", name, value_of(flags, name))
            translation.note("idle", f"--{name}", OWN_LAYOUT)
        elif name in OF_MACHINES and OF_MACHINES[name] not in translation.launch:
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
    names = [name for name in ("lora_r", "lora_alpha", "lora_target_modules") if name in flags]
    if not is_on(flags, "use_peft"):
        for name in names:
            translation.note("idle", f"--{name}", "no adapter is trained without --use_peft")
        return
    translation.decide(lora_rank=int(number(flags, "lora_r", int) or PEFT_RANK))
    translation.decide(lora_alpha=number(flags, "lora_alpha") or PEFT_ALPHA)
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
"""Those that open-r1's script has as well."""


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
