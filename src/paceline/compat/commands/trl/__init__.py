"""TRL's command line, `trl grpo`, and scripts that take its flags.

reading.py  every flag and its meaning, and the YAML file behind `--config`; the trainer's fields are in
            `paceline.compat.trl`
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from typing_extensions import override

from paceline.compat.commands.fields import Around, field_names, from_fields
from paceline.compat.commands.flags import GivenFlags, is_on, notes_on, number, one
from paceline.compat.commands.launching import ACCELERATE, WITHOUT_EFFECT, Started, numbers, started
from paceline.compat.commands.layouts import model_length, placed, slices
from paceline.compat.commands.translation import CommandReader, ForeignCommand, Note, Translation
from paceline.compat.commands.trl.reading import MEANINGS as SCRIPT_FLAGS
from paceline.compat.commands.trl.reading import read
from paceline.compat.trl.fields import MEANINGS
from paceline.config.reading import suggest
from paceline.errors import ConfigError

NAME = "TRL"
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
PEFT_RANK, PEFT_ALPHA = 16, 32.0
"""TRL's own defaults."""


class Trl(CommandReader):
    """Reads commands of TRL."""

    name = NAME
    example = "trl grpo --model_name_or_path M --dataset_name D ..."

    @override
    def recognises(self, command: ForeignCommand) -> bool:
        words = started(command).words
        return words[:1] == ("trl",) or _is_script(words)

    @override
    def translate(self, command: ForeignCommand, *, repair: bool) -> Translation:
        start = started(command)
        words = start.words
        if words[0] == "trl" and words[1:2] != ("grpo",):
            what = words[1] if len(words) > 1 else "nothing"
            raise ConfigError(f"`trl` must be followed by grpo, got {what!r}; no other training is offered here")
        flags = words[2:] if words[0] == "trl" else words[_script_at(words) + 1 :]
        read_here = read(flags, command)
        given = read_here.given
        start = _with_launch_flags(start, given, command)
        environment = {**dict(start.environment), **read_here.environment}
        notes = Translation(notes=(*start.notes, *read_here.notes), environment=environment)
        return notes + translated(given, start, command)


def translated(given: GivenFlags, start: Started, command: ForeignCommand) -> Translation:
    """Translation of parsed flags and fields from any source."""
    functions, models, about_rewards = _rewards(given)
    fields = {name: words for name, words in given.items() if name in field_names()}
    if functions and models and fields.get("reward_weights"):
        # the model comes first there, and last here
        fields["reward_weights"] = (*fields["reward_weights"][1:], fields["reward_weights"][0])
    around = Around(
        tool=NAME,
        ranks=start.ranks,
        rewards=functions + models,
        models=models,
        adapter=is_on(given, "use_peft"),
    )
    found = from_fields(fields, around) + Translation(notes=about_rewards)
    if is_on(given, "use_vllm"):
        found += model_length(given, "vllm_max_model_length", found.options)
    return (
        found
        + _task(given)
        + _adapter(given)
        + _precision(given)
        + _places(given, start, command)
        + notes_on(given, SCRIPT_FLAGS)
        + _launch_notes(given)
    )


def _is_script(words: tuple[str, ...]) -> bool:
    at = _script_at(words)
    return at >= 0 and len(words) > at + 1 and words[at + 1].startswith("--")


def _script_at(words: tuple[str, ...]) -> int:
    """Index of a Python script with flags: first, or behind `python` or `python -m`."""
    if words[:1] and words[0].endswith(".py"):
        return 0
    if words[:1] and words[0].rpartition("/")[2].startswith("python"):
        if words[1:3] == ("-m", "trl.scripts.grpo"):
            return 2
        if words[1:2] and words[1].endswith(".py"):
            return 1
    return -1


def _with_launch_flags(start: Started, given: GivenFlags, command: ForeignCommand) -> Started:
    """Add flags of accelerate, which `trl grpo` passes on."""
    named = {ACCELERATE[name]: given[name][-1] for name in ACCELERATE if given.get(name)}
    if not named:
        return start
    told = numbers(named, command, start.environment)
    return replace(told, words=start.words, notes=start.notes)


def _rewards(given: GivenFlags) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Note, ...]]:
    functions, notes = reward_names(given.get("reward_funcs", ()))
    model = one(given, "reward_model_name_or_path")
    models = () if model is None else (model,)
    if not functions and not models:
        raise ConfigError(
            "TRL has no default reward: give --reward_funcs accuracy_reward, or --reward_model_name_or_path NAME"
        )
    if models and functions and "reward_weights" in given:
        text = "the model's weight comes first there, and last here"
        notes += (Note("changed", "--reward_weights", text),)
    return functions, models, notes


def _task(given: GivenFlags) -> Translation:
    options: dict[str, object] = {}
    model, dataset = one(given, "model_name_or_path"), one(given, "dataset_name")
    if model is None or dataset is None:
        missing = "--model_name_or_path" if model is None else "--dataset_name"
        raise ConfigError(f"TRL needs {missing}, got none; give it, or one entry in `datasets` of its --config file")
    config = one(given, "dataset_config")
    options = {"model": model, "dataset": dataset if config is None else f"{dataset}:{config}"}
    for flag, option in (("dataset_train_split", "dataset_split"), ("dataset_test_split", "eval_split")):
        if (split := one(given, flag)) is not None:
            options[option] = split
    if (place := one(given, "output_dir")) is not None:
        options["output_dir"] = place
    text = (
        "has no limit there, and nothing is said of what does not fit; here a prompt above --max-prompt-length, 512 "
        "tokens, is an error before the first step"
    )
    long = () if "max_prompt_length" in given else (Note("mended", "--dataset_name", text),)
    return Translation(options=options, notes=long) + _trackers(given.get("report_to", ()))


def _trackers(names: tuple[str, ...], flag: str = "--report_to") -> Translation:
    kept = tuple(name for name in names if name in TRACKERS)
    others = [name for name in names if name not in (*TRACKERS, "none", "all")]
    notes = [Note("missing", flag, f"{name}; there are {', '.join(TRACKERS)}") for name in others]
    if "all" in names:
        notes.append(Note("changed", flag, "all: name those that are wanted, as --report-to wandb"))
    return Translation(options={"report_to": kept} if kept else {}, notes=tuple(notes))


def _adapter(given: GivenFlags) -> Translation:
    names = [name for name in ("lora_r", "lora_alpha", "lora_target_modules") if name in given]
    if not is_on(given, "use_peft"):
        text = "no adapter is trained without --use_peft"
        return Translation(notes=tuple(Note("idle", f"--{name}", text) for name in names))
    options: dict[str, object] = {
        "lora_rank": int(number(given, "lora_r", int) or PEFT_RANK),
        "lora_alpha": number(given, "lora_alpha") or PEFT_ALPHA,
    }
    if "lora_target_modules" in given:
        return Translation(options={**options, "lora_targets": given["lora_target_modules"]})
    text = "without --lora_target_modules all linear layers have an adapter, where peft takes some by the model's kind"
    return Translation(options=options, notes=(Note("changed", "--use_peft", text),))


def _precision(given: GivenFlags) -> Translation:
    options: dict[str, object] = {}
    dtype = one(given, "dtype")
    if dtype not in (None, "auto", "float32", "bfloat16"):
        raise ConfigError(f"--dtype must be auto, float32 or bfloat16, got {dtype!r}; half precision is not offered")
    if dtype == "bfloat16" or ("bf16" in given and is_on(given, "bf16")):
        options["dtype"] = "bfloat16"
    elif "bf16" in given:
        options["dtype"] = "float32"
    if is_on(given, "use_cpu"):
        options["device"] = "cpu"
    text = "weights, gradients and moments are float32; the products are of this precision"
    notes = (Note("changed", "--dtype", text),) if "dtype" in given else ()
    return Translation(options=options, notes=notes)


def _places(given: GivenFlags, start: Started, command: ForeignCommand) -> Translation:
    options: dict[str, object] = {} if start.zero_stage is None else {"zero_stage": start.zero_stage}
    for name in ("deepspeed", "fsdp"):
        value = one(given, name)
        if value:
            options |= slices(f"--{name}", value, command.read)
    mode = one(given, "vllm_mode") or "colocate"
    if mode not in ("colocate", "server"):
        raise ConfigError(f"--vllm_mode must be colocate or server, got {mode!r}")
    where = placed(
        start,
        vllm=is_on(given, "use_vllm"),
        apart=mode == "server",
        share=number(given, "vllm_gpu_memory_utilization"),
        tensor=int(number(given, "vllm_tensor_parallel_size", int) or 1),
    )
    idle = tuple(
        Note("idle", f"--{name}", "use_vllm is off")
        for name, one in MEANINGS.items()
        if name.startswith("vllm_") and one.command and name in given and not is_on(given, "use_vllm")
    )
    return Translation(options=options, notes=idle) + where


def _launch_notes(given: GivenFlags) -> Translation:
    text = "the layout and precision of a run are options of its own here"
    names = [name for name in given if name in WITHOUT_EFFECT["accelerate"]]
    return Translation(notes=tuple(Note("idle", f"--{name}", text) for name in names))


REWARDS: Mapping[str, tuple[str, str]] = {
    "accuracy_reward": ("accuracy", "the last box or tag outside the thinking is read, and 1,2 is not 12"),
    "reasoning_accuracy_reward": ("accuracy", "nothing inside <think> is an answer, there as here"),
    "think_format_reward": ("format", "asks for <answer>...</answer> behind the thought as well"),
    "get_soft_overlong_punishment": (
        "soft_overlong(max_length=1280, cache=256)",
        "with the lengths that TRL's command line fixes; leave the parentheses out for --max-completion-length",
    ),
}
"""Our name of each reward function, and the difference."""


def reward_names(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[Note, ...]]:
    """Rewards of a command line as ours; a dotted path becomes `module:function`.

    Raises:
        ConfigError: a name that is neither.
    """
    found, notes = list[str](), list[Note]()
    for name in names:
        if name in REWARDS:
            ours, text = REWARDS[name]
            notes.append(Note("changed", f"--reward_funcs {name}", f"{ours}: {text}"))
        elif "." in name:
            module, _, function = name.rpartition(".")
            ours = f"{module}:{function}"
        else:
            near = suggest(name, REWARDS, otherwise="give the dotted path of a function of your own")
            raise ConfigError(f"--reward_funcs must be of {', '.join(REWARDS)}, or a dotted path, got {name!r}; {near}")
        found.append(ours)
    return tuple(dict.fromkeys(found)), tuple(notes)
