"""ms-swift's command line, `swift rlhf --rlhf_type grpo`: its flags count batches and updates as TRL's do.

tables.py   every flag and its meaning here
tasks.py    model, rows, prompts, adapter, reward functions
"""

from dataclasses import replace

from paceline.compat.commands.fields import Around, field_names, from_fields
from paceline.compat.commands.flags import (
    FlagWords,
    GivenFlags,
    is_on,
    note_idle,
    number,
    one,
    options_of,
    read_flags,
    says_nothing,
)
from paceline.compat.commands.launching import VARIABLES, Started, started
from paceline.compat.commands.layouts import check_length, place, sharding
from paceline.compat.commands.swift.tables import DEFAULTS, FIELDS, KNOWN, MEANINGS
from paceline.compat.commands.swift.tasks import is_full, reward_names, tasks
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
    flags = _after_rlhf(started(command).words)
    if flags is None:
        return None
    start, refusals = started(replace(command, environment=_environment(command))), Refusals()
    environment = {name: value for name, value in start.environment.items() if name in command.environment}
    found = Translation(notes=list(start.notes), environment=environment)
    given = read_flags(flags, (*field_names(), *KNOWN), "ms-swift", found, refusals)
    kind = one(given, "rlhf_type")
    if kind != "grpo":
        raise ConfigError(
            f"--rlhf_type must be grpo, got {kind or 'none, which is dpo'}; no other training is offered here"
        )
    # each part is refused by itself, and all refusals are said at once
    note_idle(given, MEANINGS, idle := Translation(), refusals)
    with refusals():
        start = _add_places(given, start, found, repair=repair)
    about_rewards, advantage, about_rows, of_fields = (Translation() for _ in range(4))
    functions: tuple[str, ...] = ("accuracy",)
    models = given.get("reward_model", ())
    with refusals():
        functions = _functions(given, about_rewards)
    with refusals():
        _add_advantage(given, advantage)
    with refusals():
        tasks(given, about_rows)
    fields = _fields(given)
    with refusals():
        around = _around(given, fields, start, functions, models)
        of_fields = from_fields(fields, around)
        _note_defaults(fields, around, of_fields)
    refusals.check()
    for name in (*advantage.options, *about_rows.options):
        of_fields.options.pop(name, None)
    found.add(of_fields)
    found.add(about_rewards)
    check_length(given, "vllm_max_model_len", {**of_fields.options, **about_rows.options}, found)
    found.add(about_rows)
    found.add(advantage)
    if "rollout_importance_sampling_threshold" in given and not one(given, "rollout_importance_sampling_mode"):
        found.note("idle", "--rollout_importance_sampling_threshold", "rollout_importance_sampling_mode is off")
    found.add(idle)
    found.given |= options_of(given, MEANINGS) & found.options.keys()
    return found


def _functions(given: GivenFlags, found: Translation) -> FlagWords:
    """Reward functions; a feature that is refused by its own name brings rewards of its own."""
    functions = reward_names(given, found)
    if functions or "reward_model" in given:
        return functions
    if is_on(given, "use_gym_env"):
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


def _fields(given: GivenFlags) -> GivenFlags:
    """Its flags under the names of TRL's fields."""
    own = {*FIELDS, *(name for name, row in MEANINGS.items() if row.kind in ("idle", "refused"))}
    fields = {name: words for name, words in given.items() if name in field_names() and name not in own}
    for flag, name in FIELDS.items():
        if flag in given:
            fields[name] = given[flag]
    if fields.get("top_k") == ("-1",):
        fields["top_k"] = ("0",)
    if fields.get("scale_rewards") == ("gdpo",):
        del fields["scale_rewards"]
        fields["multi_objective_aggregation"] = ("normalize_then_sum",)
    if says_nothing(fields.get("vllm_importance_sampling_mode", ())):
        del fields["vllm_importance_sampling_mode"]
    if "vllm_importance_sampling_mode" not in fields:
        # alone it would ask for the correction
        fields.pop("vllm_importance_sampling_clip_max", None)
    for taken in ("use_vllm", "vllm_mode", "deepspeed", "fsdp", "report_to", "output_dir"):
        fields.pop(taken, None)
    return fields


def _around(given: GivenFlags, fields: GivenFlags, start: Started, functions: FlagWords, models: FlagWords) -> Around:
    is_whole = is_full(given)
    defaults = {**DEFAULTS, "learning_rate": FULL_RATE if is_whole else DEFAULTS["learning_rate"]}
    if "vllm_importance_sampling_mode" in fields:
        defaults["vllm_importance_sampling_clip_max"] = CORRECTION_MAX
    if "val_dataset" in given:
        defaults |= {"eval_strategy": "steps", "eval_steps": 500.0}
    more: dict[str, object] = {}
    if "enable_thinking" in given:
        more["chat_template_kwargs"] = {"enable_thinking": is_on(given, "enable_thinking")}
    if given.get("stop_words"):
        more["generation_kwargs"] = {"stop_strings": list(given["stop_words"])}
    return Around(
        tool="ms-swift",
        ranks=start.ranks,
        rewards=functions + models,
        models=models,
        adapter=not is_whole,
        defaults={name: value for name, value in defaults.items() if name not in fields},
        more=more,
        spelling={field: flag for flag, field in FIELDS.items() if flag != field and flag in given},
    )


def _note_defaults(fields: GivenFlags, around: Around, found: Translation) -> None:
    """Note a bold learning rate, and the values of fields that are not given."""
    rates = fields.get("learning_rate", ())
    try:
        bold = bool(rates) and not around.adapter and float(rates[0]) > BOLD_RATE
    except ValueError:
        bold = False
    if bold:
        text = (
            f"kept, though bold where all weights are trained: above {BOLD_RATE:g} runs tend to fall apart, and "
            "ms-swift's own example came down to 1e-6"
        )
        found.note("mended", f"--learning_rate {rates[0]}", text)
    values = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in around.defaults.items()
        if name != "use_bias_correction_kl"
    )
    if values:
        text = f"where nothing is given ms-swift's default holds: {values}"
        found.note("settled", "what is left out", text)


def _add_advantage(given: GivenFlags, found: Translation) -> None:
    """Add the options of estimator and filter, which TRL does not have."""
    estimator = one(given, "advantage_estimator") or "grpo"
    if estimator not in ESTIMATORS:
        raise ConfigError(f"--advantage_estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    if (advantage := ESTIMATORS[estimator]) is not None:
        found.decide(advantage=advantage)
    if is_on(given, "kl_in_reward", otherwise=estimator != "grpo"):
        text = "stood in the reward of a whole completion; here it stands in the loss, token by token"
        found.note("changed", "--kl_in_reward", text)
    if is_on(given, "dynamic_sample"):
        times = one(given, "max_resample_times") or "3"
        if not times.isdecimal():
            raise ConfigError(f"--max_resample_times must be a whole number, got {times!r}")
        found.decide(filter_range=(0.0, 1.0), max_refills=int(times))
        text = (
            "groups whose rewards are all the same were replaced, and where the rounds were not enough the first batch "
            "was trained on as it was; here a group is kept whose mean of --filter-func lies inside --filter-range, "
            "and what was found is trained on"
        )
        found.note("mended", "--dynamic_sample", text)
    elif "max_resample_times" in given:
        found.note("idle", "--max_resample_times", "dynamic_sample is off")


def _add_places(given: GivenFlags, start: Started, found: Translation, *, repair: bool) -> Started:
    """Add the options of engine, processes and sharding; returns a launch with as many processes as devices.

    Without `repair` a ConfigError if vLLM's device is one that trains, or is not there.
    """
    vllm, mode = is_on(given, "use_vllm"), one(given, "vllm_mode")
    if mode not in (None, "server", "colocate"):
        raise ConfigError(f"--vllm_mode must be server or colocate, got {mode!r}")
    apart, of_device = mode == "server", Translation()
    if vllm and mode is None and "vllm_device" in given:
        start, apart = _own_device(given, start, of_device, repair=repair)
    behind = is_on(given, "async_generate")
    if behind and not (vllm and mode == "server"):
        raise ConfigError("--async_generate must be left out without --use_vllm true --vllm_mode server")
    place(given, start, found, apart=apart)
    if behind:
        found.decide(max_staleness=1)
    found.decide(**sharding(given, start))
    _add_sizes(given, start.ranks, found)
    found.add(of_device)
    for name in given:
        if name.startswith("vllm_") and not vllm:
            found.note("idle", f"--{name}", "use_vllm is off")
    return start


def _add_sizes(given: GivenFlags, ranks: int, found: Translation) -> None:
    if (tensor := number(given, "deepspeed_autotp_size", int)) is not None:
        found.decide(tensor_parallel=int(tensor))
    if (parts := number(given, "sequence_parallel_size", int)) is not None:
        if parts < 1 or ranks % parts:
            raise ConfigError(
                f"--sequence_parallel_size must divide the number of processes that train, {ranks}, got "
                f"{parts}; start more by NPROC_PER_NODE"
            )
        found.decide(context_parallel=int(parts))
    if "engine" in found.options and "vllm_enforce_eager" in given:
        found.decide(vllm_eager=str(is_on(given, "vllm_enforce_eager")).lower())
    if (most := number(given, "vllm_max_num_seqs", int)) is not None:
        found.decide(concurrent_sequences=int(most))


def _own_device(given: GivenFlags, start: Started, found: Translation, *, repair: bool) -> tuple[Started, bool]:
    """The launch, and if vLLM is apart, by version 1's `--vllm_device`: the first device that does not train."""
    device, devices = one(given, "vllm_device") or "auto", start.devices
    about, trains = f"--vllm_device {device}", start.processes
    if device != "auto":
        index = device.rpartition(":")[2]
        apart = index.isdecimal() and int(index) >= trains
        text = f"is {'none of those that train' if apart else 'one of those that train, which it shares'}"
        found.note("changed", about, text)
        return start, apart
    if devices > trains:
        found.note("changed", about, f"device {trains}, the first that does not train, is the sampler's")
        return start, True
    rule = (
        f"auto is device {trains}, and CUDA_VISIBLE_DEVICES has {devices} device{'s' * (devices > 1)}, of which "
        f"{trains} train{'s' * (trains == 1)}"
    )
    if trains == 1:
        text = f"{rule}: its first version could not start so; here vLLM shares the device with the trainer"
        found.note("mended", about, text)
        return start, False
    if not repair:
        raise ConfigError(
            f"ms-swift refuses these numbers itself: --vllm_device {rule}. The nearest that fit: "
            f"NPROC_PER_NODE={trains - 1}, or give `paceline translate --repair`"
        )
    found.note("settled", about, f"{rule}: taken as NPROC_PER_NODE={trains - 1}")
    launch = ("--nproc-per-node", str(trains - 1), *start.torchrun[2:])
    return replace(start, processes=trains - 1, torchrun=launch), True
