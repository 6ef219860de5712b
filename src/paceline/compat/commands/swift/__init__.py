"""ms-swift's command line, `swift rlhf --rlhf_type grpo`: its flags count batches and updates as TRL's do.

tables.py   every flag and its meaning here
tasks.py    model, rows, images, prompts, adapter, reward functions
"""

from dataclasses import replace

from paceline.compat.commands.fields import FIELD_NAMES, CommandContext, from_fields
from paceline.compat.commands.flags import (
    Flags,
    FlagWords,
    is_on,
    note_idle,
    number,
    options_of,
    read_flags,
    switches_off,
    value_of,
)
from paceline.compat.commands.launching import VARIABLES, Started, started
from paceline.compat.commands.layouts import add_processes, check_length, sharding
from paceline.compat.commands.swift.tables import DEFAULTS, FIELDS, KNOWN, MEANINGS
from paceline.compat.commands.swift.tasks import PIXELS, images, is_full, reward_names, tasks
from paceline.compat.commands.translation import ForeignCommand, Refusals, Translation
from paceline.errors import ConfigError

FULL_RATE = 1e-5
"""ms-swift's learning rate for training all weights."""
BOLD_RATE = 5e-6
"""Learning rate above which training all weights is risky: its authors lowered their own example's tenfold."""
ESTIMATORS = {"grpo": None, "rloo": "leave_one_out", "reinforce_plus_plus": "group_mean_batch_std"}
"""`advantage_estimator` to `advantage`; None: as `scale_rewards` says."""
CORRECTION_MAX = 2.0


def from_swift(command: ForeignCommand, repair: bool) -> Translation | None:
    """Translate a command of `swift`, `megatron` or ms-swift's own script."""
    words = _after_rlhf(started(command).words)
    if words is None:
        return None
    start, refusals = started(replace(command, environment=_environment(command))), Refusals()
    environment = {
        name: value
        for name, value in start.environment.items()
        if name in command.environment and name not in (variable for pair in PIXELS for variable in pair)
    }
    translation = Translation(notes=list(start.notes), environment=environment)
    flags = read_flags(words, (*FIELD_NAMES, *KNOWN), "ms-swift", translation, refusals)
    kind = value_of(flags, "rlhf_type")
    if kind != "grpo":
        raise ConfigError(
            f"--rlhf_type must be grpo, got {kind or 'none, which is dpo'}; no other training is offered here"
        )
    # each part is refused by itself, and all refusals are said at once
    note_idle(flags, MEANINGS, idle := Translation(), refusals)
    with refusals():
        start = _add_places(flags, start, translation, repair=repair)
    about_rewards, advantage, about_rows, from_trainer = (Translation() for _ in range(4))
    functions: tuple[str, ...] = ("accuracy",)
    models = flags.get("reward_model", ())
    with refusals():
        functions = _functions(flags, about_rewards)
    with refusals():
        _add_advantage(flags, advantage)
    with refusals():
        tasks(flags, about_rows)
    with refusals():
        images(flags, {**command.inherited, **command.environment}, about_rows)
    fields = _fields(flags)
    with refusals():
        context = _command_context(flags, fields, start, functions, models)
        from_trainer = from_fields(fields, context)
        _note_defaults(fields, context, from_trainer)
    refusals.check()
    for name in (*advantage.options, *about_rows.options):
        from_trainer.options.pop(name, None)
    translation.add(from_trainer)
    translation.add(about_rewards)
    check_length(flags, "vllm_max_model_len", {**from_trainer.options, **about_rows.options}, translation)
    translation.add(about_rows)
    translation.add(advantage)
    if "rollout_importance_sampling_threshold" in flags and not value_of(flags, "rollout_importance_sampling_mode"):
        translation.note("idle", "--rollout_importance_sampling_threshold", "rollout_importance_sampling_mode is off")
    translation.add(idle)
    translation.explicit |= options_of(flags, MEANINGS) & translation.options.keys()
    return translation


def _functions(flags: Flags, translation: Translation) -> FlagWords:
    """Return the reward functions; an environment, refused elsewhere, would bring its own."""
    functions = reward_names(flags, translation)
    if functions or "reward_model" in flags:
        return functions
    if is_on(flags, "use_gym_env"):
        return ("accuracy",)
    raise ConfigError("ms-swift has no default reward; give --reward_funcs accuracy format, or --reward_model")


def _environment(command: ForeignCommand) -> dict[str, str]:
    """Variables of the launch: those in front of the command, over those that were exported before it."""
    names = (*VARIABLES, "CUDA_VISIBLE_DEVICES")
    return {name: command.inherited[name] for name in names if name in command.inherited} | {**command.environment}


def _after_rlhf(words: FlagWords) -> FlagWords | None:
    """Flags behind `swift rlhf`, or behind ms-swift's own script as a module or a path."""
    for at, word in enumerate(words[:3]):
        if word == "swift.cli.rlhf" or word.endswith("swift/cli/rlhf.py"):
            return words[at + 1 :]
    if words[:1] == ("megatron",):
        raise ConfigError(
            "`megatron rlhf` names its layout in flags of Megatron's, and is not read; give the command of `swift rlhf`"
        )
    if words[:1] != ("swift",):
        return None
    if words[1:2] != ("rlhf",):
        what = words[1] if len(words) > 1 else "nothing"
        raise ConfigError(f"`swift` must be followed by rlhf, got {what!r}; no other training is offered here")
    return words[2:]


def _fields(flags: Flags) -> Flags:
    """Its flags under the names of TRL's fields."""
    handled = {*FIELDS, *(name for name, row in MEANINGS.items() if row.kind in ("idle", "refused"))}
    fields = {name: words for name, words in flags.items() if name in FIELD_NAMES and name not in handled}
    for flag, name in FIELDS.items():
        if flag in flags:
            fields[name] = flags[flag]
    if fields.get("top_k") == ("-1",):
        fields["top_k"] = ("0",)
    if fields.get("scale_rewards") == ("gdpo",):
        del fields["scale_rewards"]
        fields["multi_objective_aggregation"] = ("normalize_then_sum",)
    if switches_off(fields.get("vllm_importance_sampling_mode", ())):
        del fields["vllm_importance_sampling_mode"]
    if "vllm_importance_sampling_mode" not in fields:
        # alone it would ask for the correction
        fields.pop("vllm_importance_sampling_clip_max", None)
    for taken in ("use_vllm", "vllm_mode", "deepspeed", "fsdp", "report_to", "output_dir"):
        fields.pop(taken, None)
    return fields


def _command_context(
    flags: Flags, fields: Flags, start: Started, functions: FlagWords, models: FlagWords
) -> CommandContext:
    is_whole = is_full(flags)
    defaults = {**DEFAULTS, "learning_rate": FULL_RATE if is_whole else DEFAULTS["learning_rate"]}
    if "vllm_importance_sampling_mode" in fields:
        defaults["vllm_importance_sampling_clip_max"] = CORRECTION_MAX
    if "val_dataset" in flags:
        defaults |= {"eval_strategy": "steps", "eval_steps": 500.0}
    more: dict[str, object] = {}
    if "enable_thinking" in flags:
        more["chat_template_kwargs"] = {"enable_thinking": is_on(flags, "enable_thinking")}
    if flags.get("stop_words"):
        more["generation_kwargs"] = {"stop_strings": list(flags["stop_words"])}
    return CommandContext(
        tool="ms-swift",
        ranks=start.ranks,
        rewards=functions + models,
        models=models,
        adapter=not is_whole,
        defaults={name: value for name, value in defaults.items() if name not in fields},
        more=more,
        spelling={field: flag for flag, field in FIELDS.items() if flag != field and flag in flags},
    )


def _note_defaults(fields: Flags, context: CommandContext, translation: Translation) -> None:
    """Note a bold learning rate, and the values of fields that are not given."""
    rates = fields.get("learning_rate", ())
    try:
        bold = bool(rates) and not context.adapter and float(rates[0]) > BOLD_RATE
    except ValueError:
        bold = False
    if bold:
        text = (
            f"kept, though bold where all weights are trained: above {BOLD_RATE:g} runs tend to fall apart, and "
            "ms-swift's own example came down to 1e-6"
        )
        translation.note("mended", f"--learning_rate {rates[0]}", text)
    values = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in context.defaults.items()
        if name != "use_bias_correction_kl"
    )
    if values:
        text = f"where nothing is given ms-swift's default holds: {values}"
        translation.note("settled", "what is left out", text)


def _add_advantage(flags: Flags, translation: Translation) -> None:
    """Add the options of estimator and filter, which TRL does not have."""
    estimator = value_of(flags, "advantage_estimator") or "grpo"
    if estimator not in ESTIMATORS:
        raise ConfigError(f"--advantage_estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    if (advantage := ESTIMATORS[estimator]) is not None:
        translation.decide(advantage=advantage)
    if is_on(flags, "kl_in_reward", otherwise=estimator != "grpo"):
        text = "stood in the reward of a whole completion; here it stands in the loss, token by token"
        translation.note("changed", "--kl_in_reward", text)
    if is_on(flags, "dynamic_sample"):
        times = value_of(flags, "max_resample_times") or "3"
        if not times.isdecimal():
            raise ConfigError(f"--max_resample_times must be a whole number, got {times!r}")
        translation.decide(filter_range=(0.0, 1.0), max_refills=int(times))
        text = (
            "groups whose rewards are all the same were replaced, and where the rounds were not enough the first batch "
            "was trained on as it was; here a group is kept whose mean of --filter-func lies inside --filter-range, "
            "and what was found is trained on"
        )
        translation.note("mended", "--dynamic_sample", text)
    elif "max_resample_times" in flags:
        translation.note("idle", "--max_resample_times", "dynamic_sample is off")


def _add_places(flags: Flags, start: Started, translation: Translation, *, repair: bool) -> Started:
    """Add the options of engine, processes and sharding; returns a launch with as many processes as devices.

    Without `repair` a ConfigError if vLLM's device is one that trains, or is not there.
    """
    vllm, mode = is_on(flags, "use_vllm"), value_of(flags, "vllm_mode")
    if mode not in (None, "server", "colocate"):
        raise ConfigError(f"--vllm_mode must be server or colocate, got {mode!r}")
    apart, from_device = mode == "server", Translation()
    if vllm and mode is None and "vllm_device" in flags:
        start, apart = _own_device(flags, start, from_device, repair=repair)
    behind = is_on(flags, "async_generate")
    if behind and not (vllm and mode == "server"):
        raise ConfigError("--async_generate must be left out without --use_vllm true --vllm_mode server")
    add_processes(flags, start, translation, apart=apart)
    if behind:
        translation.decide(max_staleness=1)
    translation.decide(**sharding(flags, start))
    _add_sizes(flags, start.ranks, translation)
    translation.add(from_device)
    for name in flags:
        if name.startswith("vllm_") and not vllm:
            translation.note("idle", f"--{name}", "use_vllm is off")
    return start


def _add_sizes(flags: Flags, ranks: int, translation: Translation) -> None:
    if (tensor := number(flags, "deepspeed_autotp_size", int)) is not None:
        translation.decide(tensor_parallel=int(tensor))
    if (parts := number(flags, "sequence_parallel_size", int)) is not None:
        if parts < 1 or ranks % parts:
            raise ConfigError(
                f"--sequence_parallel_size must divide the number of processes that train, {ranks}, got "
                f"{parts}; start more by NPROC_PER_NODE"
            )
        translation.decide(context_parallel=int(parts))
    if "engine" in translation.options and "vllm_enforce_eager" in flags:
        translation.decide(vllm_eager=str(is_on(flags, "vllm_enforce_eager")).lower())
    if (most := number(flags, "vllm_max_num_seqs", int)) is not None:
        translation.decide(concurrent_sequences=int(most))


def _own_device(flags: Flags, start: Started, translation: Translation, *, repair: bool) -> tuple[Started, bool]:
    """The launch, and if vLLM is apart, by version 1's `--vllm_device`: the first device that does not train."""
    device, devices = value_of(flags, "vllm_device") or "auto", start.devices
    about, trains = f"--vllm_device {device}", start.processes
    if device != "auto":
        index = device.rpartition(":")[2]
        apart = index.isdecimal() and int(index) >= trains
        text = f"is {'none of those that train' if apart else 'one of those that train, which it shares'}"
        translation.note("changed", about, text)
        return start, apart
    if devices > trains:
        translation.note("changed", about, f"device {trains}, the first that does not train, is the sampler's")
        return start, True
    rule = (
        f"auto is device {trains}, and CUDA_VISIBLE_DEVICES has {devices} device{'s' * (devices > 1)}, of which "
        f"{trains} train{'s' * (trains == 1)}"
    )
    if trains == 1:
        text = f"{rule}: its first version could not start so; here vLLM shares the device with the trainer"
        translation.note("mended", about, text)
        return start, False
    if not repair:
        raise ConfigError(
            f"ms-swift refuses these numbers itself: --vllm_device {rule}. The nearest that fit: "
            f"NPROC_PER_NODE={trains - 1}, or give `paceline translate --repair`"
        )
    translation.note("settled", about, f"{rule}: taken as NPROC_PER_NODE={trains - 1}")
    launch = ("--nproc-per-node", str(trains - 1), *start.torchrun[2:])
    return replace(start, processes=trains - 1, torchrun=launch), True
