"""ms-swift's command line, `swift rlhf --rlhf_type grpo`: its flags count batches and updates as TRL's do.

tables.py   every flag and its meaning here
tasks.py    model, rows, prompts, adapter, reward functions
"""

from dataclasses import replace

from typing_extensions import override

from paceline.compat.commands.fields import Around, field_names, from_fields
from paceline.compat.commands.flags import FlagWords, GivenFlags, is_on, notes_on, number, one, read_flags, says_nothing
from paceline.compat.commands.launching import Started, started, visible_devices
from paceline.compat.commands.layouts import model_length, placed, slices
from paceline.compat.commands.swift.tables import DEFAULTS, FIELDS, KNOWN, MEANINGS
from paceline.compat.commands.swift.tasks import is_full, reward_names, tasks
from paceline.compat.commands.translation import CommandReader, ForeignCommand, Note, Translation
from paceline.errors import ConfigError

NAME = "ms-swift"
FULL_RATE = 1e-5
"""ms-swift's learning rate for training all weights."""
BOLD_RATE = 5e-6
"""Learning rate above which training all weights is risky: its authors lowered their own example's tenfold."""
ESTIMATORS = {"grpo": None, "rloo": "leave_one_out", "reinforce_plus_plus": "group_mean_batch_std"}
"""`advantage_estimator` to `advantage`; None: as `scale_rewards` says."""
CORRECTION_MAX = 2.0


class Swift(CommandReader):
    """Reads commands of ms-swift."""

    name = NAME
    example = "swift rlhf --rlhf_type grpo --model M --dataset D ..."

    @override
    def recognises(self, command: ForeignCommand) -> bool:
        words = started(command).words
        return words[:1] in (("swift",), ("megatron",)) or _script_at(words) >= 0

    @override
    def translate(self, command: ForeignCommand, *, repair: bool) -> Translation:
        start = started(command)
        flags = _after_rlhf(start.words)
        given, repeated = read_flags(flags, (*field_names(), *KNOWN), NAME)
        _check_kind(given)
        found, start = running(given, start, command, repair=repair)
        functions, about_rewards = reward_names(given)
        models = given.get("reward_model", ())
        if not functions and not models:
            raise ConfigError("ms-swift has no default reward; give --reward_funcs accuracy format, or --reward_model")
        fields, advantage = _fields(given), _advantage(given)
        around = Around(
            tool=NAME,
            ranks=start.ranks,
            rewards=functions + models,
            models=models,
            adapter=not is_full(given),
            defaults=_defaults(given, fields),
            more=_more(given),
            spelling={field: flag for flag, field in FIELDS.items() if flag != field and flag in given},
        )
        from_them, about_rows = from_fields(fields, around), tasks(given)
        decided = {**advantage.options, **about_rows.options}
        options = {name: value for name, value in from_them.options.items() if name not in decided}
        translated = Translation(options=options, notes=(*from_them.notes, *about_rewards, *_unsaid(fields, around)))
        start_notes = Translation(notes=(*start.notes, *repeated), environment=dict(start.environment))
        if is_on(given, "use_vllm"):
            translated += model_length(given, "vllm_max_model_len", {**options, **about_rows.options})
        return (
            start_notes
            + found
            + translated
            + about_rows
            + advantage
            + _threshold_note(given)
            + notes_on(given, MEANINGS)
        )


def _script_at(words: FlagWords) -> int:
    """Index of ms-swift's own script, behind `python -m` or as a path."""
    for at, word in enumerate(words[:3]):
        if word == "swift.cli.rlhf" or word.endswith("swift/cli/rlhf.py"):
            return at
    return -1


def _after_rlhf(words: FlagWords) -> FlagWords:
    at = _script_at(words)
    if at >= 0:
        return words[at + 1 :]
    if words[0] == "megatron":
        raise ConfigError(
            "`megatron rlhf` names its layout in flags of Megatron's, and is not read; give the command of `swift rlhf`"
        )
    if words[1:2] != ("rlhf",):
        what = words[1] if len(words) > 1 else "nothing"
        raise ConfigError(f"`swift` must be followed by rlhf, got {what!r}; no other training is offered here")
    return words[2:]


def _check_kind(given: GivenFlags) -> None:
    kind = one(given, "rlhf_type")
    if kind != "grpo":
        raise ConfigError(
            f"--rlhf_type must be grpo, got {kind or 'none, which is dpo'}; no other training is offered here"
        )


def _fields(given: GivenFlags) -> GivenFlags:
    """Its flags under the names of TRL's fields."""
    fields = {name: words for name, words in given.items() if name in field_names() and name not in FIELDS}
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


def _defaults(given: GivenFlags, fields: GivenFlags) -> dict[str, object]:
    found = {**DEFAULTS, "learning_rate": FULL_RATE if is_full(given) else DEFAULTS["learning_rate"]}
    if "vllm_importance_sampling_mode" in fields:
        found["vllm_importance_sampling_clip_max"] = CORRECTION_MAX
    if "val_dataset" in given:
        found |= {"eval_strategy": "steps", "eval_steps": 500.0}
    return {name: value for name, value in found.items() if name not in fields}


def _more(given: GivenFlags) -> dict[str, object]:
    found: dict[str, object] = {}
    if "enable_thinking" in given:
        found["chat_template_kwargs"] = {"enable_thinking": is_on(given, "enable_thinking")}
    if given.get("stop_words"):
        found["generation_kwargs"] = {"stop_strings": list(given["stop_words"])}
    return found


def _unsaid(fields: GivenFlags, around: Around) -> tuple[Note, ...]:
    values = ", ".join(
        f"{name} {_plain(value)}" for name, value in around.defaults.items() if name != "use_bias_correction_kl"
    )
    rates = fields.get("learning_rate", ())
    bold = (
        (
            Note(
                "mended",
                f"--learning_rate {rates[0]}",
                f"kept, though bold where all weights are trained: above {BOLD_RATE:g} runs tend to fall apart, "
                "and ms-swift's own example came down to 1e-6",
            ),
        )
        if rates and not around.adapter and _above(rates[0])
        else ()
    )
    text = f"where nothing is given ms-swift's default holds: {values}"
    return (*bold, *((Note("settled", "what is left out", text),) if values else ()))


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _above(text: str) -> bool:
    try:
        return float(text) > BOLD_RATE
    except ValueError:
        return False


def _advantage(given: GivenFlags) -> Translation:
    """Options for estimator and filter, which TRL does not have."""
    options: dict[str, object] = {}
    notes = list[Note]()
    estimator = one(given, "advantage_estimator") or "grpo"
    if estimator not in ESTIMATORS:
        raise ConfigError(f"--advantage_estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    if (advantage := ESTIMATORS[estimator]) is not None:
        options["advantage"] = advantage
    if is_on(given, "kl_in_reward", otherwise=estimator != "grpo"):
        text = "stood in the reward of a whole completion; here it stands in the loss, token by token"
        notes.append(Note("changed", "--kl_in_reward", text))
    if is_on(given, "dynamic_sample"):
        times = one(given, "max_resample_times") or "3"
        if not times.isdecimal():
            raise ConfigError(f"--max_resample_times must be a whole number, got {times!r}")
        options |= {"filter_range": (0.0, 1.0), "max_refills": int(times)}
        text = (
            "groups whose rewards are all the same were replaced, and where the rounds were not enough the first batch "
            "was trained on as it was; here a group is kept whose mean of --filter-func lies inside --filter-range, "
            "and what was found is trained on"
        )
        notes.append(Note("mended", "--dynamic_sample", text))
    elif "max_resample_times" in given:
        notes.append(Note("idle", "--max_resample_times", "dynamic_sample is off"))
    return Translation(options=options, notes=tuple(notes))


def _threshold_note(given: GivenFlags) -> Translation:
    if "rollout_importance_sampling_threshold" not in given or one(given, "rollout_importance_sampling_mode"):
        return Translation()
    text = "rollout_importance_sampling_mode is off"
    return Translation(notes=(Note("idle", "--rollout_importance_sampling_threshold", text),))


def running(given: GivenFlags, start: Started, command: ForeignCommand, *, repair: bool) -> tuple[Translation, Started]:
    """Options for engine, processes and sharding, and a launch with as many processes as devices.

    Raises:
        ConfigError: vLLM's device is one that trains, or is not there, without `repair`.
    """
    vllm, mode = is_on(given, "use_vllm"), one(given, "vllm_mode")
    if mode not in (None, "server", "colocate"):
        raise ConfigError(f"--vllm_mode must be server or colocate, got {mode!r}")
    notes = list[Note]()
    apart = mode == "server"
    if vllm and mode is None and "vllm_device" in given:
        start, apart, notes = _own_device(given, start, command, repair=repair)
    behind = is_on(given, "async_generate")
    if behind and not (vllm and mode == "server"):
        raise ConfigError("--async_generate must be left out without --use_vllm true --vllm_mode server")
    where = placed(
        start,
        vllm=vllm,
        apart=apart,
        share=number(given, "vllm_gpu_memory_utilization"),
        tensor=int(number(given, "vllm_tensor_parallel_size", int) or 1),
    )
    options: dict[str, object] = {"max_staleness": 1} if behind else {}
    for name in ("deepspeed", "fsdp"):
        if value := one(given, name):
            options |= slices(f"--{name}", value, command.read)
    if start.zero_stage is not None and "zero_stage" not in options:
        options["zero_stage"] = start.zero_stage
    if (tensor := number(given, "deepspeed_autotp_size", int)) is not None:
        options["tensor_parallel"] = int(tensor)
    if (parts := number(given, "sequence_parallel_size", int)) is not None:
        options["context_parallel"] = _context(int(parts), start.ranks)
    options |= _engine(given, vllm=vllm and "engine" in where.options)
    idle = tuple(
        Note("idle", f"--{name}", "use_vllm is off") for name in given if name.startswith("vllm_") and not vllm
    )
    return where + Translation(options=options, notes=(*notes, *idle)), start


def _context(parts: int, ranks: int) -> int:
    if parts < 1 or ranks % parts:
        raise ConfigError(
            f"--sequence_parallel_size must divide the number of processes that train, {ranks}, got {parts}; start "
            "more by NPROC_PER_NODE"
        )
    return parts


def _engine(given: GivenFlags, *, vllm: bool) -> dict[str, object]:
    options: dict[str, object] = {}
    if vllm and "vllm_enforce_eager" in given:
        options["vllm_eager"] = str(is_on(given, "vllm_enforce_eager")).lower()
    if (most := number(given, "vllm_max_num_seqs", int)) is not None:
        options["concurrent_sequences"] = int(most)
    return options


def _own_device(
    given: GivenFlags, start: Started, command: ForeignCommand, *, repair: bool
) -> tuple[Started, bool, list[Note]]:
    """Meaning of version 1's `--vllm_device`: the first device that does not train."""
    device, devices = one(given, "vllm_device") or "auto", visible_devices(command)
    if device != "auto":
        index = device.rpartition(":")[2]
        apart = index.isdecimal() and int(index) >= start.processes
        text = f"is {'none of those that train' if apart else 'one of those that train, which it shares'}"
        return start, apart, [Note("changed", f"--vllm_device {device}", text)]
    if devices > start.processes:
        text = f"device {start.processes}, the first that does not train, is the producer's"
        return start, True, [Note("changed", "--vllm_device auto", text)]
    rule = (
        f"auto is device {start.processes}, and CUDA_VISIBLE_DEVICES has {devices} device{'s' * (devices > 1)}, of "
        f"which {start.processes} train{'s' * (start.processes == 1)}"
    )
    if start.processes == 1:
        text = f"{rule}: its first version could not start so; here vLLM shares the device with the trainer"
        return start, False, [Note("mended", "--vllm_device auto", text)]
    fewer = start.processes - 1
    if not repair:
        raise ConfigError(
            f"ms-swift refuses these numbers itself: --vllm_device {rule}. The nearest that fit: "
            f"NPROC_PER_NODE={fewer}, or give `paceline translate --repair`"
        )
    text = f"{rule}: taken as NPROC_PER_NODE={fewer}"
    launch = ("--nproc-per-node", str(fewer), *start.torchrun[2:])
    return replace(start, processes=fewer, torchrun=launch), True, [Note("settled", "--vllm_device auto", text)]
