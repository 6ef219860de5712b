"""How accelerate, transformers and DeepSpeed say that a model lies on processes, as options.

DDP is copies (`zero_stage` 0); FSDP is stage 3, or 2 if weights stay gathered; DeepSpeed's ZeRO has our stages. What
cannot be mapped is refused by its name. Pure: files and variables come in as arguments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.config.reading import suggest
from paceline.errors import ConfigError

DEEPSPEED: Mapping[str, Mapping[str, object]] = {
    **{f"zero{stage}": {"zero_stage": stage} for stage in range(4)},
    **{f"zero{stage}_offload": {"zero_stage": stage, "offload": ("parameters",)} for stage in (2, 3)},
}
FSDP: Mapping[str, Mapping[str, object]] = {
    "full_shard": {"zero_stage": 3},
    "shard_grad_op": {"zero_stage": 2},
    "no_shard": {"zero_stage": 0},
}
DEEPSPEED_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
"""Variable of a launcher that names a file, or says None."""
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
"""Strategies of FSDP 1 in the order of their numbers, from 1."""
HOW_FAST: Mapping[str, str] = {
    "fsdp_config": (
        "version min_num_params transformer_layer_cls_to_wrap auto_wrap_policy backward_prefetch forward_prefetch "
        "limit_all_gathers use_orig_params sync_module_states cpu_ram_efficient_loading state_dict_type "
        "xla_fsdp_grad_ckpt xla_fsdp_settings"
    ),
    "zero_optimization": (
        "stage overlap_comm contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions "
        "allgather_bucket_size sub_group_size round_robin_gradients stage3_prefetch_bucket_size "
        "stage3_param_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance "
        "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save elastic_checkpoint "
        "load_from_fp32_weights ignore_unused_parameters offload_optimizer offload_param memory_efficient_linear "
        "model_persistence_threshold param_persistence_threshold use_multi_rank_bucket_allreduce override_module_apply "
        "log_trace_cache_warnings enable_sanity_checks"
    ),
    "deepspeed": (
        "zero_optimization steps_per_print wall_clock_breakdown dump_state memory_breakdown flops_profiler "
        "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer communication_data_type data_types comms_logger "
        "activation_checkpointing aio checkpoint csv_monitor wandb tensorboard prescale_gradients"
    ),
}
"""Settings on which no result depends: how messages are cut, what is written, how layers are grouped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Settings that another tool's file repeats, with the values that they must have; none: nothing is compared."""

    values: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    """Field of the trainer that has each of them."""

    def check(self, label: str, name: str, value: object) -> None:
        """Refuse a value that says something else (ConfigError); `auto` says nothing."""
        ours = self.values.get(name, value)
        if value in ("auto", None) or value == ours or (isinstance(value, str) and value == str(ours)):
            return
        remedy = f"write 'auto', or set {self.fields.get(name, name)}"
        raise ConfigError(f"{label}: {name} must be {ours!r} as in the arguments, got {value!r}; {remedy}")


ANYTHING = Agreement()


def named(
    label: str, name: str, known: Mapping[str, Mapping[str, object]], *, otherwise: str = ""
) -> dict[str, object]:
    """Options of a layout by its name; ConfigError for an unknown one."""
    if name not in known:
        raise ConfigError(
            f"{label} must be one of {', '.join(known)}, got {name!r}; {suggest(name, known, otherwise=otherwise)}"
        )
    return dict(known[name])


def moved(label: str, stage: int) -> dict[str, object]:
    """Options of a stage whose slices, moments among them, wait in main memory; ConfigError without any slices."""
    if stage == 0:
        raise ConfigError(f"{label}: an offload must go with stage 1, 2 or 3, got 0; leave it out, or raise the stage")
    return {"zero_stage": stage, "offload": ("parameters",)}


def of_deepspeed(label: str, settings: object, agreement: Agreement = ANYTHING) -> dict[str, object]:
    """Options behind DeepSpeed's own settings; ConfigError for what has no counterpart. `label` names where they are.

    >>> of_deepspeed("ds.json", {"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"})
    {'zero_stage': 2}
    """
    sections = settings if isinstance(settings, Mapping) else {}
    zero = sections.get("zero_optimization", {} if agreement.values else None)
    stage = zero.get("stage", 0 if agreement.values else None) if isinstance(zero, Mapping) else None
    if not isinstance(zero, Mapping) or isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError(f"{label} must name a stage of 0 to 3 in zero_optimization, got {stage!r}")
    options: dict[str, object] = {"zero_stage": stage}
    for name in ("offload_optimizer", "offload_param"):
        device = zero[name].get("device") if isinstance(zero.get(name), Mapping) else None
        if device not in (None, "none", "cpu"):
            raise ConfigError(f"{label}: {name} must be to cpu, got {device!r}; what is moved waits in main memory")
        if device == "cpu":
            options |= moved(f"{label}: {name}", stage)
    if not agreement.values:
        return options
    for name, value in zero.items():
        is_off = value is not True and value in (False, None, 1, -1, "auto")
        if name not in HOW_FAST["zero_optimization"].split() and not is_off:
            raise ConfigError(f"{label}: zero_optimization.{name} has no counterpart here, got {value!r}; leave it out")
    for name, value in sections.items():
        options |= _of_section(label, name, value, agreement)
    return options


def _of_section(label: str, name: str, value: Any, agreement: Agreement) -> dict[str, object]:
    """Options behind one setting of DeepSpeed's; ConfigError for what has no counterpart."""
    if name in ("fp16", "bf16", "amp"):
        is_on = value.get("enabled", False) if isinstance(value, Mapping) else value
        if name == "bf16":
            agreement.check(label, "bf16", is_on)
        elif is_on not in (False, "auto"):
            raise ConfigError(f"{label}: {name} must be off, got {is_on!r}; the products are of float32 or bfloat16")
    elif name == "optimizer" and isinstance(value, Mapping) and value.get("type") in ("AdamW", "Adam"):
        for parameter, number in dict(value.get("params", {})).items():
            agreement.check(f"{label}: optimizer", parameter, tuple(number) if isinstance(number, list) else number)
    elif name == "tensor_parallel" and isinstance(value, Mapping) and "autotp_size" in value:
        return {"tensor_parallel": value["autotp_size"]}
    elif name == "sequence_parallel_size":
        return {"context_parallel": value}
    elif name in agreement.values:
        agreement.check(label, name, value)
    elif name not in HOW_FAST["deepspeed"].split() and value not in (False, None):
        remedy = "; the schedule is lr_scheduler_type" if name == "scheduler" else ""
        raise ConfigError(f"{label}: {name} has no counterpart here, got {value!r}; leave it out{remedy}")
    return {}


def of_fsdp(fsdp: object, settings: Mapping[str, Any], agreement: Agreement = ANYTHING) -> dict[str, object]:
    """Options behind transformers' `fsdp` (a switch, or words of FSDP 1) and `fsdp_config`.

    >>> of_fsdp("shard_grad_op auto_wrap", {}), of_fsdp(True, {"reshard_after_forward": False, "cpu_offload": True})
    ({'zero_stage': 2}, {'zero_stage': 2, 'offload': ('parameters',)})

    Raises:
        ConfigError: something has no counterpart here.
    """
    words = fsdp.split() if isinstance(fsdp, str) else [str(word) for word in fsdp] if isinstance(fsdp, list) else []
    words = [str(getattr(word, "value", word)) for word in words if word not in ("auto_wrap", "true", "True")]
    options = {"zero_stage": 3}
    is_moved = "offload" in words
    for word in (word for word in words if word != "offload"):
        _refuse_hybrid("fsdp", word)
        options = dict(named("fsdp", "full_shard" if word == "fsdp2" else word, FSDP))  # type: ignore[arg-type]
    plain = {name.removeprefix("fsdp_"): value for name, value in settings.items()}
    for name, value in plain.items():
        label, is_on = f"fsdp_config {name}", str(value).lower() == "true"
        if name in ("reshard_after_forward", "sharding_strategy"):
            options = _resharding(label, value)
        elif name in ("cpu_offload", "offload_params"):
            is_moved = is_moved or is_on
        elif name == "activation_checkpointing":
            agreement.check("fsdp_config", name, is_on if is_on else None)
        elif name not in HOW_FAST["fsdp_config"].split() and str(value).lower() not in ("false", "none", ""):
            remedy = suggest(name, HOW_FAST["fsdp_config"].split(), otherwise="leave it out")
            raise ConfigError(f"{label} has no counterpart here, got {value!r}; {remedy}")
    return moved("fsdp", int(options["zero_stage"])) if is_moved else dict(options)


def _resharding(label: str, value: object) -> dict[str, int]:
    """Stage behind a switch of FSDP 2, or a strategy of FSDP 1 by its name or number."""
    word = str(getattr(value, "value", value)).lower()
    word = {"true": "full_shard", "false": "shard_grad_op"}.get(word, word)
    if word.isdecimal() and 1 <= int(word) <= len(STRATEGIES):
        word = STRATEGIES[int(word) - 1]
    _refuse_hybrid(label, word)
    return named(label, word, FSDP)  # type: ignore[return-value]


def _refuse_hybrid(label: str, word: str) -> None:
    if word.startswith("hybrid"):
        raise ConfigError(
            f"{label} must not be {word}: slices lie on all processes that train, and not on each machine's; take "
            "full_shard or shard_grad_op"
        )


def of_sizes(label: str, sizes: Mapping[str, Any]) -> dict[str, object]:
    """Options behind the sizes of accelerate's ParallelismConfig; ConfigError for slices within copies."""
    number = {name: int(sizes.get(f"{name}_size") or 1) for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    if number["dp_replicate"] > 1 and number["dp_shard"] > 1:
        raise ConfigError(
            f"{label}: dp_replicate_size must be 1 with dp_shard_size {number['dp_shard']}, got "
            f"{number['dp_replicate']}; slices lie on all processes that train"
        )
    options: dict[str, object] = {"zero_stage": 3} if number["dp_shard"] > 1 else {}
    if number["tp"] > 1:
        options["tensor_parallel"] = number["tp"]
    if number["cp"] * number["sp"] > 1:
        options["context_parallel"] = number["cp"] * number["sp"]
    return options


def of_launcher(
    environment: Mapping[str, str], read: Callable[[str], object], agreement: Agreement = ANYTHING
) -> dict[str, object]:
    """Options behind the variables that `accelerate launch` sets; `read` reads a JSON file.

    >>> of_launcher({"ACCELERATE_USE_FSDP": "true", "FSDP_RESHARD_AFTER_FORWARD": "true"}, open)
    {'zero_stage': 3}

    Raises:
        ConfigError: something has no counterpart here.
    """

    def is_on(name: str) -> bool:
        return environment.get(name, "").lower() in ("true", "1", "yes")

    if is_on("ACCELERATE_USE_MEGATRON_LM"):
        raise ConfigError("ACCELERATE_USE_MEGATRON_LM must be off: no layers of Megatron's run here; take FSDP")
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision not in ("no", "bf16"):
        raise ConfigError(
            f"ACCELERATE_MIXED_PRECISION must be no or bf16, got {precision!r}; the products are of float32 or bfloat16"
        )
    options: dict[str, object] = {}
    if is_on("ACCELERATE_USE_DEEPSPEED"):
        options |= _of_deepspeed_variables(environment, read, agreement)
    elif is_on("ACCELERATE_USE_FSDP"):
        options |= _of_fsdp_variables(environment, agreement)
    if is_on("ACCELERATE_USE_PARALLELISM_CONFIG"):
        prefix = "PARALLELISM_CONFIG_"
        sizes = {
            name.removeprefix(prefix).lower(): value
            for name, value in environment.items()
            if name.startswith(prefix) and name.endswith("_SIZE")
        }
        options |= of_sizes("PARALLELISM_CONFIG", sizes)
    return options


def _of_deepspeed_variables(
    environment: Mapping[str, str], read: Callable[[str], object], agreement: Agreement
) -> dict[str, object]:
    path, prefix = environment.get(DEEPSPEED_FILE, "None"), "ACCELERATE_DEEPSPEED_"
    if path != "None":
        return of_deepspeed(path, read(path), agreement)
    for name in ("GRADIENT_ACCUMULATION_STEPS", "GRADIENT_CLIPPING"):
        value = environment.get(f"ACCELERATE_{name}", "auto").lower()
        number = float(value) if value.replace(".", "", 1).isdecimal() else None
        agreement.check(f"ACCELERATE_{name}", name.lower(), number)
    settings: dict[str, Any] = {"stage": int(environment.get(f"{prefix}ZERO_STAGE", "2"))}
    for name in ("OPTIMIZER", "PARAM"):
        settings[f"offload_{name.lower()}"] = {"device": environment.get(f"{prefix}OFFLOAD_{name}_DEVICE", "none")}
    return of_deepspeed("accelerate's DeepSpeed", {"zero_optimization": settings})


def _of_fsdp_variables(environment: Mapping[str, str], agreement: Agreement) -> dict[str, object]:
    names = ("OFFLOAD_PARAMS", "ACTIVATION_CHECKPOINTING", "RESHARD_AFTER_FORWARD")
    settings = {name: environment[f"FSDP_{name}"] for name in names if f"FSDP_{name}" in environment}
    # FSDP 1 has strategies, and accelerate gives its switch a value there too
    if environment.get("FSDP_VERSION", "1") == "1" and "FSDP_SHARDING_STRATEGY" in environment:
        settings["RESHARD_AFTER_FORWARD"] = environment["FSDP_SHARDING_STRATEGY"]
    return of_fsdp(True, {name.lower(): value for name, value in settings.items()}, agreement)
