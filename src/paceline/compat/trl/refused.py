"""Fields without meaning here: refused when set, or accepted with a note where no result depends on them."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any

from paceline.config.presets import PRESETS
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.compat.trl.config import GRPOConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Reason why a field must keep its default, and other values that mean the same."""

    reason: str
    also: tuple[object, ...] = ()
    switch: "Switch | None" = None
    """Feature that gives the field a meaning; while it is off the field is accepted with a note."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """A feature that gives other fields a meaning."""

    is_on: Callable[["GRPOConfig"], bool]
    off: str
    """Clause for when it is off."""


def _because(
    reason: str, *names: str, also: tuple[object, ...] = (), switch: Switch | None = None
) -> dict[str, Refusal]:
    return {name: Refusal(reason=reason, also=also, switch=switch) for name in names}


ONE_PROCESS = "the trainer runs in one process"
VLLM = (
    "completions come from the built-in engine, which shares the trainer's weights; "
    "vLLM samples for the command line only"
)
ADAPTIVE = "the entropy coefficient stays what entropy_coef says"
NO_PREDICTIONS = (
    "evaluation gives rewards and accuracies of sampled completions, there are no predictions to compute on"
)

SAPO = Switch(is_on=lambda args: _uses_sapo(args), off="loss_type is not sapo")
CORRECTION = Switch(is_on=lambda args: corrects_rollouts(args), off="rollouts are not corrected")
REFERENCE_MOVES = Switch(is_on=lambda args: bool(args.sync_ref_model), off="sync_ref_model is off")
MAY_CORRECT = Switch(
    is_on=lambda args: bool(args.vllm_importance_sampling_correction), off="vllm_importance_sampling_correction is off"
)
HALF = Switch(is_on=lambda args: bool(args.bf16), off="every product is float32 without bf16")
RISES = Switch(is_on=lambda args: args.lr_scheduler_type != "constant", off="lr_scheduler_type is constant")

REFUSED: Mapping[str, Refusal] = {
    **_because(VLLM, "use_vllm"),
    **_because(ONE_PROCESS, "deepspeed", "fsdp", "parallelism_config", also=({}, "")),
    **_because(ONE_PROCESS, "local_rank", also=(0,)),
    **_because(ADAPTIVE, "use_adaptive_entropy"),
    **_because(
        "SAPO's gate has the temperatures of its paper", "sapo_temperature_pos", "sapo_temperature_neg", switch=SAPO
    ),
    **_because("every token of a completion is trained on", "top_entropy_quantile"),
    **_because(
        "the weight of old over rollout probability has no lower bound here",
        "vllm_importance_sampling_clip_min",
        switch=CORRECTION,
    ),
    **_because(
        "the loss would be of another distribution than the one that was sampled from",
        "repetition_penalty",
        also=(None,),
    ),
    **_because("the engine has a cache of its own", "cache_implementation"),
    **_because(
        "with bf16 the logits are a bfloat16 product too, and float32 from there on; give bf16=False",
        "cast_lm_head_to_fp32",
        switch=HALF,
    ),
    **_because("a router's auxiliary loss is not computed", "router_aux_loss_coef", also=(0, 0.0)),
    **_because("there are no tools and no turns", "max_tool_calling_iterations"),
    **_because(
        "completions are not uploaded; upload the run directory's rollouts/ instead", "log_completions_hub_repo"
    ),
    **_because("half precision would need its loss scaled; use bf16 or float32", "fp16"),
    **_because("evaluation computes in the precision of training", "fp16_full_eval", "bf16_full_eval"),
    **_because("the model is not compiled", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
    **_because("layers are not replaced by other kernels", "use_liger_kernel"),
    **_because("noise in the embeddings would make the policy differ from the one that sampled", "neftune_noise_alpha"),
    **_because("there are no labels to smooth or to name", "label_smoothing_factor", "label_names"),
    **_because(
        "micro-batches are cut by micro_batch_tokens, which bounds memory already; lower that", "auto_find_batch_size"
    ),
    **_because(
        "AdamW's options have fields of their own; for another optimizer give optimizers=(optimizer, None)",
        "optim_args",
        "optim_target_modules",
        also=("",),
    ),
    **_because(
        NO_PREDICTIONS,
        "prediction_loss_only",
        "include_for_metrics",
        "batch_eval_metrics",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        also=([],),
    ),
    **_because("a resumed run continues exactly where it stopped", "ignore_data_skip"),
    **_because("callbacks of a resumed run start fresh", "restore_callback_states_from_checkpoint"),
    **_because("on a CPU a run is deterministic already; for CUDA the command line has an option", "full_determinism"),
    **_because("one seed fixes data order and sampling; give seed", "data_seed"),
    **_because("only shuffled and given order are offered (shuffle_dataset)", "train_sampling_strategy"),
    **_because("ordering by length is not offered", "length_column_name"),
    **_because("the last batch of a run is short rather than left out", "dataloader_drop_last"),
    **_because("memory is not measured by transformers here", "skip_memory_metrics"),
    **_because("transformers' debug modes belong to its own loop", "debug", also=([], None)),
}

NOT_NEEDED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "vllm_mode",
            "vllm_model_impl",
            "vllm_enable_sleep_mode",
            "vllm_structured_outputs_regex",
            "vllm_server_base_url",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_timeout",
            "vllm_group_port",
            "vllm_gpu_memory_utilization",
            "vllm_max_model_length",
            "vllm_tensor_parallel_size",
        ),
        "use_vllm is off",
    ),
    **dict.fromkeys(
        ("entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"), "use_adaptive_entropy is off"
    ),
    **dict.fromkeys(("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"), "loss_type is not vespo"),
    "fsdp_config": "fsdp is off",
    "liger_kernel_config": "use_liger_kernel is off",
    **dict.fromkeys(
        (
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
            "accelerator_config",
        ),
        "prompts are tokenised once, before the first step; no loader runs",
    ),
    **dict.fromkeys(
        (
            "average_tokens_across_devices",
            "ddp_find_unused_parameters",
            "ddp_bucket_cap_mb",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
            "ddp_backend",
            "ddp_timeout",
            "ds3_gather_for_generation",
            "log_on_each_node",
            "save_on_each_node",
            "log_level_replica",
        ),
        "there is one process",
    ),
    "log_unique_prompts": "every completion is written to the run directory's rollouts/",
    **dict.fromkeys(
        (
            "use_transformers_continuous_batching",
            "transformers_continuous_batching_config",
            "use_transformers_paged",
        ),
        "generation always batches continuously",
    ),
    **dict.fromkeys(
        ("per_device_eval_batch_size", "eval_accumulation_steps"),
        "evaluation decodes as many completions at once as there is room for",
    ),
    "hub_always_push": "there is one upload, at the end",
    "pad_to_multiple_of": "padding never reaches the loss",
    "disable_dropout": "dropout is always off, so that the policy that trains is the one that sampled",
    "remove_unused_columns": "reward functions always get every column",
    "use_cache": "generation always caches, training never does",
    "log_multimodal": "there are no images",
    "logging_nan_inf_filter": "a loss that is not finite ends the run",
    "include_num_input_tokens_seen": "tokens are always counted",
    "log_level": "it changes what is printed and no result; use transformers.logging.set_verbosity",
    "torch_empty_cache_steps": "it frees memory and changes no result",
    "save_only_model": "a checkpoint always holds what resuming needs",
    "enable_jit_checkpoint": "an interrupted run always writes a checkpoint",
}
"""Fields on which no result depends, with the reason."""

IDLE: Mapping[str, Switch] = {
    **{name: refusal.switch for name, refusal in REFUSED.items() if refusal.switch is not None},
    **dict.fromkeys(("ref_model_mixup_alpha", "ref_model_sync_steps"), REFERENCE_MOVES),
    **dict.fromkeys(
        ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"),
        MAY_CORRECT,
    ),
    **dict.fromkeys(("warmup_steps", "warmup_ratio"), RISES),
}
"""Fields that change nothing while a feature is off."""


def refuse(args: "GRPOConfig") -> None:
    """Refuse every field of `REFUSED` that is not at its default and whose switch is on.

    Raises:
        ConfigError: it names the field, its value and the reason.
    """
    for name, refusal in REFUSED.items():
        value = getattr(args, name)
        if refusal.switch is not None and not refusal.switch.is_on(args):
            continue
        if not _is_default(args, name) and not any(_same(value, other) for other in refusal.also):
            raise ConfigError(f"{name} must be left out, got {value!r}: {refusal.reason}")


def changed(args: "GRPOConfig", name: str) -> bool:
    """True if a field is not at its default."""
    return not _is_default(args, name)


def corrects_rollouts(args: "GRPOConfig") -> bool:
    """True if fields ask for the weight of old over rollout probability; at the defaults none does."""
    names = ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap")
    return bool(args.vllm_importance_sampling_correction) and any(changed(args, name) for name in names)


def _uses_sapo(args: "GRPOConfig") -> bool:
    preset = PRESETS.get(args.preset or "") if not changed(args, "loss_type") else None
    return args.loss_type == "sapo" or (preset is not None and preset.values.get("bound") == "sapo")


def without_effect(args: "GRPOConfig") -> dict[str, str]:
    """Changed fields without effect, each with the reason: those of `NOT_NEEDED`, and idle ones."""
    untouched = type(args)(output_dir=args.output_dir, use_cpu=args.use_cpu)
    if args.accelerator_config is not None:  # transformers leaves it None where accelerate is not installed
        # a dataset without a length sets it, and nobody need be told
        # (transformers has made an AcceleratorConfig of it, whatever the field's own type says)
        ours: Any = args.accelerator_config
        theirs: Any = untouched.accelerator_config
        theirs.dispatch_batches = ours.dispatch_batches
    never = {
        name: reason
        for name, reason in NOT_NEEDED.items()
        if not _is_default(args, name) and not _same(getattr(args, name), getattr(untouched, name))
    }
    idle = {name: one.off for name, one in IDLE.items() if not _is_default(args, name) and not one.is_on(args)}
    return {**never, **idle}


def accepted_without_effect(args: "GRPOConfig") -> str:
    """One line on the changed fields without effect, with reasons; empty if there are none."""
    reasons = without_effect(args)
    if not reasons:
        return ""
    return f"accepted without effect: {'; '.join(f'{name} ({reason})' for name, reason in reasons.items())}"


def _is_default(args: "GRPOConfig", name: str) -> bool:
    of_class = type(args).__dataclass_fields__[name]
    default = of_class.default if of_class.default_factory is MISSING else of_class.default_factory()
    return _same(getattr(args, name), default)


def _same(value: object, other: object) -> bool:
    """Equal, with False distinct from 0: `local_rank=False` is no rank."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
