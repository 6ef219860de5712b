"""Fields of transformers' `TrainingArguments` with their meaning here, without loading transformers."""

# ruff: noqa: RUF009 - rows hold no mutable default

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.compat.vocabulary import Meaning, NoteKind, Switch, becomes, decides, idle, kept, refused, table
from paceline.config.objective import SCHEDULERS

Keywords = dict | str | None  # type: ignore[type-arg] # the annotations are theirs, word for word
TypedKeywords = dict[str, Any] | str | None
"""Keyword arguments: a mapping, or its JSON text from a command line."""
NO_LIMIT = 2**31 - 1
"""Replaces None in an option that needs a number: prompt tokens, checkpoints to keep."""

OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "paged_adamw_32bit"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"), "adamw_8bit"),
}
"""`optim` to `optimizer`; fused and paged kinds compute the same as the others."""
SCHEDULES: Mapping[str, str] = {
    **dict.fromkeys(("constant", "constant_with_warmup"), "constant"),
    "linear": "linear",
    **dict.fromkeys(("cosine", "cosine_with_min_lr"), "cosine"),
}
"""`lr_scheduler_type` to `lr_schedule`, where an option exists."""
RISES = Switch(is_on=lambda args: args.lr_scheduler_type != "constant", off="lr_scheduler_type is constant")

INTERVALS = ("no", "steps", "epoch")
ADAMW = "AdamW's options have fields of their own; for another optimizer give optimizers=(optimizer, None)"
EVALUATION = "evaluation decodes as many completions at once as there is room for"
LOADER = "prompts are tokenised once, before the first step; no loader runs"
NO_COMPILER = "the model is not compiled"
NO_LABELS = "there are no labels to smooth or to name"
NO_PREDICTIONS = "evaluation samples completions, there are no predictions to compute on"
OWN_KERNELS = "layers keep their own kernels, and logits are never in memory as a whole"
ONE_PRECISION = "evaluation computes in the precision of training"
FIRST_RANK = "the first process writes and logs, alone"
GRADIENTS = "gradients are summed in messages of its own, whose waits have deadlines"
SHARDED = Switch(is_on=lambda args: bool(args.fsdp), off="fsdp is off")

# what `paceline translate` says of fields that the trainer reads and no option covers
Remark = tuple[NoteKind, str]
BEST: Remark = ("missing", "final/ is the last model; the GRPOTrainer of Python chooses the best")
LOGGED: Remark = ("idle", "every step is written to metrics.jsonl and shown")
SCRIPT: Remark = ("idle", "scripts read it, and the trainer does not")
TRACKIO: Remark = ("missing", "--report-to trackio writes to this machine")
UPLOAD: Remark = (
    "missing",
    "nothing is uploaded; `hf upload NAME RUN/final` does it, as does the GRPOTrainer of Python",
)


ELSEWHERE = (
    *("azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow", "neptune", "swanlab"),
)
"""Names for `report_to` that transformers' own callbacks serve, since Paceline has no tracker for them."""


def own_trackers(names: str | list[str] | None) -> str | tuple[str, ...] | None:
    """`report_to` without the trackers that transformers' own callbacks serve."""
    if names is None or isinstance(names, str):
        return "none" if names in ELSEWHERE else names
    return tuple(name for name in names if name not in ELSEWHERE)


@dataclass(repr=False)
@table
class TrainingFields:
    """Name, type, default and meaning of each field in transformers 5.23; enumerations are text here."""

    MEANINGS: ClassVar[Mapping[str, Meaning]]

    # batches and length of the run
    output_dir: str | None = becomes(None, "output_dir", command="output_dir")
    per_device_train_batch_size: int = decides(
        8, "prompts_per_step", command="prompts_per_step: completions of all processes / num_generations"
    )
    gradient_accumulation_steps: int = decides(1, "prompts_per_step num_minibatches")
    num_train_epochs: float = decides(3.0, "num_epochs")
    max_steps: int = decides(-1, "max_steps", "max_steps: updates, rounded up to whole batches of rollouts")
    seed: int = becomes(42, "seed")

    # the update
    learning_rate: float = becomes(5e-05, "learning_rate")
    lr_scheduler_type: str = becomes(
        "linear",
        "lr_schedule",
        "lr_scheduler: transformers' schedule, update by update; lr_schedule where it is constant",
        convert=lambda kind: SCHEDULES.get(kind, "constant"),
        choices=tuple(SCHEDULERS),
        remedy="for any other schedule give the trainer optimizers=(optimizer, scheduler)",
    )
    lr_scheduler_kwargs: Keywords = decides(None, "min_lr_ratio", "parameters of lr_scheduler, in brackets")
    warmup_steps: float = decides(
        0,
        "warmup_steps",
        "warmup of lr_scheduler: updates, below 1 a share of the run",
        switch=RISES,
    )
    optim: str = becomes(
        "adamw_torch_fused",
        "optimizer",
        "optimizer: fused and paged kinds are the same here, adamw_8bit is bitsandbytes'",
        convert=OPTIMIZERS.__getitem__,
        choices=tuple(OPTIMIZERS),
        remedy="for any other optimizer give the trainer optimizers=(optimizer, None)",
    )
    optim_args: str | None = refused(None, ADAMW, also=("",))
    optim_target_modules: str | list[str] | None = refused(None, ADAMW, also=("",))
    weight_decay: float = becomes(0.0, "weight_decay")
    adam_beta1: float = decides(0.9, "adam_betas")
    adam_beta2: float = decides(0.999, "adam_betas")
    adam_epsilon: float = becomes(1e-08, "adam_eps")
    max_grad_norm: float = becomes(1.0, "max_grad_norm", convert=lambda norm: norm or 0.0, may_be_none=True)
    average_tokens_across_devices: bool = idle(True, "averages are over the completions of all processes")
    label_smoothing_factor: float = idle(0.0, NO_LABELS)
    label_names: list[str] | None = idle(None, NO_LABELS)
    neftune_noise_alpha: float | None = refused(
        None, "noise in the embeddings would make the policy differ from the one that sampled"
    )
    auto_find_batch_size: bool = refused(
        False, "micro-batches are cut by micro_batch_tokens, which bounds memory already; lower that"
    )

    # precision, memory, devices
    use_cpu: bool = becomes(
        False, "device", "device: cpu", convert=lambda cpu: "cpu" if cpu else "auto", command="device: cpu"
    )
    bf16: bool = becomes(
        False,
        "dtype",
        "dtype: bfloat16 or float32",
        convert=lambda half: "bfloat16" if half else "float32",
        command="dtype",
    )
    fp16: bool = refused(False, "half precision would need its loss scaled; use bf16 or float32")
    bf16_full_eval: bool = idle(False, ONE_PRECISION)
    fp16_full_eval: bool = idle(False, ONE_PRECISION)
    tf32: bool | None = kept(None, ("idle", "torch's own setting holds"), late=False)
    activation_checkpointing: bool | None = becomes(
        None, "gradient_checkpointing", convert=lambda on: str(bool(on)).lower()
    )
    activation_checkpointing_kwargs: TypedKeywords = decides(None, "", "as gradient_checkpointing_kwargs")
    gradient_checkpointing: bool | None = decides(None, "gradient_checkpointing")
    gradient_checkpointing_kwargs: TypedKeywords = decides(
        None, "", "use_reentrant is accepted: the gradient is the same"
    )
    torch_compile: bool = idle(False, NO_COMPILER)
    torch_compile_backend: str | None = idle(None, NO_COMPILER)
    torch_compile_mode: str | None = idle(None, NO_COMPILER)
    use_liger_kernel: bool = idle(False, OWN_KERNELS)
    liger_kernel_config: dict[str, bool] | None = idle(None, OWN_KERNELS)
    use_cache: bool = idle(False, "generation always caches, training never does")
    torch_empty_cache_steps: int | None = idle(None, "it frees memory and changes no result")
    full_determinism: bool = becomes(False, "deterministic")
    data_seed: int | None = idle(None, "seed fixes data order and sampling")
    accelerator_config: Keywords = idle(None, LOADER, note=("idle", "no accelerate is at work"))
    parallelism_config: Any = kept(
        None, ("missing", "give --tensor-parallel, --context-parallel and --zero-stage"), late=False
    )
    fsdp: str | None = decides(None, "zero_stage offload", "zero_stage 3; 2 without resharding", command="zero_stage")
    fsdp_config: TypedKeywords = decides(
        None, "zero_stage offload", switch=SHARDED, note=("idle", "slices are named by --zero-stage alone")
    )
    deepspeed: Keywords = decides(
        None,
        "zero_stage offload",
        "zero_stage by its stage, offload by its own",
        command="zero_stage, and offload behind _offload",
    )
    local_rank: int = idle(-1, "the launcher's variables say it")
    ddp_find_unused_parameters: bool | None = idle(None, GRADIENTS)
    ddp_bucket_cap_mb: int | None = idle(None, GRADIENTS)
    ddp_broadcast_buffers: bool | None = idle(None, GRADIENTS)
    ddp_static_graph: bool | None = idle(None, GRADIENTS)
    ddp_backend: str | None = kept(
        None,
        ("idle", "processes of GPUs talk over NCCL, of CPUs over gloo"),
        late=False,
        choices=("nccl", "gloo"),
        remedy="processes of GPUs talk over nccl, of CPUs over gloo",
    )
    ddp_timeout: int = idle(1800, GRADIENTS)

    # logging and trackers
    logging_strategy: str = kept("steps", LOGGED, choices=INTERVALS)
    logging_steps: float = kept(500, LOGGED)
    logging_first_step: bool = kept(False, LOGGED)
    log_on_each_node: bool = idle(True, FIRST_RANK)
    logging_nan_inf_filter: bool = idle(True, "a loss that is not finite ends the run")
    include_num_input_tokens_seen: str | bool = idle("no", "tokens are always counted")
    log_level: str = idle("passive", "it changes what is printed and no result; use transformers.logging.set_verbosity")
    log_level_replica: str = idle("warning", FIRST_RANK)
    disable_tqdm: bool | None = kept(None, ("idle", "there is a progress bar where there is a terminal"), late=False)
    report_to: str | list[str] | None = becomes("none", "report_to", convert=own_trackers, command="report_to")
    run_name: str | None = kept(None, ("idle", "trackers name a run by its directory"))
    project: str = becomes("huggingface", "project")
    trackio_space_id: str | None = kept(None, TRACKIO, late=False)
    trackio_bucket_id: str | None = kept(None, TRACKIO, late=False)
    trackio_static_space_id: str | bool | None = kept(None, TRACKIO, late=False)
    skip_memory_metrics: bool = idle(True, "memory is not measured by transformers here")
    debug: str | list[str] = refused("", "transformers' debug modes belong to its own loop", also=([], None))

    # evaluation
    eval_strategy: str = kept(
        "no",
        ("changed", "held-out rows are measured before the first step and after the last, whatever it says"),
        choices=INTERVALS,
    )
    eval_steps: float | None = decides(None, "eval_steps", "eval_steps, as save_steps", late=True)
    eval_delay: float = kept(0, ("idle", "held-out rows are measured before the first step and from --eval-steps on"))
    eval_on_start: bool = kept(False, ("idle", "held-out rows are always measured before the first step"))
    per_device_eval_batch_size: int = idle(8, EVALUATION)
    eval_accumulation_steps: int | None = idle(None, EVALUATION)
    prediction_loss_only: bool = idle(False, NO_PREDICTIONS)
    eval_do_concat_batches: bool = idle(True, NO_PREDICTIONS)
    eval_use_gather_object: bool = idle(False, NO_PREDICTIONS)
    include_for_metrics: list[str] = idle([], NO_PREDICTIONS)
    batch_eval_metrics: bool = idle(False, NO_PREDICTIONS)

    # checkpoints and the final model
    save_strategy: str = kept(
        "steps",
        ("changed", "checkpoints are counted in steps (--save-steps), and one is written at an interrupt"),
        choices=(*INTERVALS, "best"),
    )
    save_steps: float = decides(
        500,
        "save_steps",
        "save_steps: updates, rounded up to whole batches of rollouts (a share of the run below 1)",
        late=True,
    )
    save_total_limit: int | None = becomes(None, "save_total_limit", convert=lambda limit: limit or NO_LIMIT)
    save_only_model: bool = idle(False, "a checkpoint always holds what resuming needs")
    save_on_each_node: bool = idle(False, FIRST_RANK)
    enable_jit_checkpoint: bool = idle(False, "an interrupted run always writes a checkpoint")
    load_best_model_at_end: bool = kept(False, BEST)
    metric_for_best_model: str | None = kept(None, BEST)
    greater_is_better: bool | None = kept(None, BEST)
    push_to_hub: bool = kept(False, UPLOAD)
    hub_token: str | None = kept(None, UPLOAD)
    hub_private_repo: bool | None = kept(None, UPLOAD)
    hub_model_id: str | None = kept(None, UPLOAD)
    hub_strategy: str = kept(
        "every_save",
        UPLOAD,
        late=False,
        choices=("every_save", "end"),
        remedy="the model is uploaded once, at the end; checkpoints stay in the run directory",
    )
    hub_always_push: bool = idle(False, "there is one upload, at the end")
    hub_revision: str | None = kept(None, UPLOAD)
    ignore_data_skip: bool = idle(False, "a resumed run continues exactly where it stopped")
    restore_callback_states_from_checkpoint: bool = refused(False, "callbacks of a resumed run start fresh")

    # rows
    dataloader_drop_last: bool = idle(False, "the last batch of a run is short rather than left out")
    dataloader_num_workers: int = idle(0, LOADER)
    dataloader_pin_memory: bool = idle(True, LOADER)
    dataloader_persistent_workers: bool = idle(False, LOADER)
    dataloader_prefetch_factor: int | None = idle(None, LOADER)
    dataloader_multiprocessing_context: str | None = idle(None, LOADER)
    dataloader_in_order: bool = idle(True, LOADER)
    remove_unused_columns: bool = idle(True, "reward functions always get every column")
    train_sampling_strategy: str = idle("random", "prompts come shuffled, or in the given order (shuffle_dataset)")
    length_column_name: str = idle("length", "prompts are not ordered by length")

    # for the user's script
    do_train: bool = kept(False, SCRIPT)
    do_eval: bool = kept(False, SCRIPT)
    do_predict: bool = kept(False, SCRIPT)
    resume_from_checkpoint: str | None = kept(
        None, ("missing", "no checkpoint of theirs can be gone on with; ours are, by --resume RUN")
    )
