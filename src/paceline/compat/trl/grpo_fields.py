"""Fields that TRL 1.16 and Paceline add to `TrainingArguments`, with their meaning here; no torch.

The docstring of a field is its help text.
"""

# ruff: noqa: RUF009, RUF036 - rows hold no mutable default; HfArgumentParser wants None first

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.compat.trl.training_fields import RISES, Keywords, Remark, TypedKeywords
from paceline.compat.vocabulary import (
    Meaning,
    Switch,
    Table,
    becomes,
    changed,
    decides,
    idle,
    kept,
    other_default,
    refused,
    table,
)
from paceline.config.packages import TRACKERS
from paceline.config.presets import PRESETS
from paceline.config.reading import field_docstrings


def corrects_rollouts(args: Any) -> bool:
    """True if fields ask for the weight of old over rollout probability; at the defaults none does without vLLM."""
    names = [f"vllm_importance_sampling_{name}" for name in ("mode", "clip_max", "clip_min", "cap")]
    asked = args.use_vllm or any(changed(args, name) for name in names)
    return bool(args.vllm_importance_sampling_correction) and asked


def uses_sapo(args: Any) -> bool:
    """True if the loss, or the preset that takes its place, bounds ratios by SAPO's gate."""
    preset = PRESETS.get(args.preset or "") if not changed(args, "loss_type") else None
    return args.loss_type == "sapo" or (preset is not None and preset.values.get("bound") == "sapo")


ENVIRONMENT_TIMEOUT = (60.0, 600.0)

SAPO = Switch(is_on=uses_sapo, off="loss_type is not sapo")
VESPO = Switch(is_on=lambda args: bool(args.loss_type == "vespo"), off="loss_type is not vespo")
ADAPTIVE = Switch(is_on=lambda args: bool(args.use_adaptive_entropy), off="use_adaptive_entropy is off")
MAY_CORRECT = Switch(
    is_on=lambda args: bool(args.vllm_importance_sampling_correction), off="vllm_importance_sampling_correction is off"
)
VLLM = Switch(is_on=lambda args: bool(args.use_vllm), off="use_vllm is off")
REFERENCE_MOVES = Switch(is_on=lambda args: bool(args.sync_ref_model), off="sync_ref_model is off")
HALF = Switch(is_on=lambda args: bool(args.bf16), off="every product is float32 without bf16")

BATCHES_ALONE = "generation always batches continuously"
NO_PATTERN = "the loss would be of another distribution than the one that was sampled from"
NO_SERVER = "vllm_mode is colocate"
OWN_MODEL = "vLLM chooses its own implementation of the model"
SLEEPS = "vLLM gives its memory back while the same process trains"
PRODUCERS: Remark = (
    "idle",
    "the run's own samplers do that, and find each other; no server is started beside it",
)
ROLLOUTS: Remark = ("idle", "every completion is written to the run directory's rollouts/")


def _documented(cls: Table) -> Table:
    """Make the docstring of each field its help text, which HfArgumentParser shows."""
    for name, text in field_docstrings(cls).items():
        vars(cls)[name].metadata = {"help": text}
    return cls


@dataclass(repr=False)
@_documented
@table
class GRPOFields:
    """Name, type, default, help text and meaning of each field."""

    MEANINGS: ClassVar[Mapping[str, Meaning]]

    # fields of TrainingArguments with another default
    learning_rate: float = other_default(1e-6, "Peak learning rate of AdamW.")
    logging_steps: float = other_default(10, "Log every so many updates; below 1: every such share of the run.")
    gradient_checkpointing: bool = other_default(
        True, "Recompute activations in the backward pass: less memory, more time."
    )
    bf16: bool | None = other_default(None, "Compute in bfloat16; None: where a CUDA device can. Weights stay float32.")
    lr_scheduler_kwargs: Keywords = other_default(None, "For the schedule, such as min_lr_rate or num_cycles.")
    report_to: None | str | list[str] = other_default("none", f"Trackers: {', '.join(TRACKERS)}, all or none.")
    remove_unused_columns: bool | None = other_default(False, "Of no effect: reward functions get every column.")

    # Paceline's own
    preset: str | None = decides(None, "preset", choices=tuple(PRESETS))
    """A published objective (grpo, dapo, dr_grpo, gspo, ...); fields left at their defaults follow it."""
    max_prompt_length: int | None = decides(
        None,
        "max_prompt_length long_prompts",
        "max_prompt_length and long_prompts=truncate_left; None: the model's context",
    )
    """Tokens of a prompt, at most; longer ones lose their beginning. None: as many as the model can see."""
    warmup_ratio: float | None = decides(
        None, "warmup_steps", "warmup of lr_scheduler: a share of the run", switch=RISES
    )
    """Share of the run over which the learning rate rises, in [0, 1)."""
    micro_batch_tokens: int = becomes(0, "micro_batch_tokens")
    """Tokens forwarded at once: memory and speed, never the gradient; 0: by device."""
    on_bad_row: str = becomes("stop", "on_bad_row", choices=("stop", "skip"))
    """What happens to a row that cannot be used: stop, or skip and count it."""
    image_max_pixels: int | None = becomes(None, "image_max_pixels")
    """Pixels of an image as the model reads it, at most; None: as the model's own settings say."""
    image_min_pixels: int | None = becomes(None, "image_min_pixels")
    """Pixels of an image, at least, for models that choose an image's size by its own."""
    max_images_per_prompt: int = becomes(16, "max_images_per_prompt")
    """Images of a prompt, at most."""
    image_urls: bool = becomes(False, "image_urls")
    """Fetch images that rows name by http:// or https://."""
    train_vision: bool = becomes(False, "train_vision")
    """Train the vision encoder too, which TRL does wherever there is one."""
    train_projector: bool = becomes(False, "train_projector")
    """Train the layers between vision encoder and language model too, as TRL does."""
    vision_learning_rate: float | None = becomes(None, "vision_learning_rate")
    """Peak learning rate of both; None: learning_rate."""
    lora_vision: bool = becomes(False, "lora_vision")
    """Give a LoRA adapter to their linear layers too."""
    reward_timeout: float = becomes(600.0, "reward_timeout")
    """Seconds that one call of a reward function may take."""
    max_reward_failure_rate: float = becomes(0.05, "max_reward_failure_rate")
    """The run stops when a reward function fails on more than this share of a step's completions."""
    step_timeout: float = becomes(3600.0, "step_timeout")
    """Seconds without any sign of progress, after which the run ends."""
    sandbox: str = becomes("auto", "sandbox")
    """Isolation of what `code` runs: auto, a level by name, or a judge service's address."""
    max_turn_length: int | None = becomes(None, "max_turn_length")
    """Tokens that the model may sample in one turn of a conversation; None: what is left of max_completion_length."""
    max_observation_length: int | None = becomes(None, "max_observation_length")
    """Tokens of one result of a tool; a longer one is cut with a mark. None: one that does not fit ends it."""
    environment_timeout: list[float] | None = becomes(
        None, "environment_timeout", convert=lambda seconds: seconds or ENVIRONMENT_TIMEOUT
    )
    """Seconds that tools and environments may take for one turn, and for all of a conversation; None: 60 and 600."""
    turn_credit: float | None = becomes(None, "turn_credit")
    """Discount per turn of rewards that environments give for turns; None: all turns share one advantage."""
    history: str = becomes("auto", "history", choices=("auto", "append", "branch"))
    """Context of later turns where the template rewrites earlier ones: append, branch, or auto."""

    # the model and its reference
    model_init_kwargs: TypedKeywords = decides(
        None,
        "dtype trust_remote_code",
        "dtype and trust_remote_code; attn_implementation, device_map and use_cache say nothing here",
    )
    """How a model given by name is loaded."""
    trust_remote_code: bool = becomes(False, "trust_remote_code")
    """Run Python code that comes with the model."""
    router_aux_loss_coef: float | None = refused(
        None,
        "a router's auxiliary loss is a product of averages over a micro-batch, so a step's gradient would depend on "
        "how it is cut",
        also=(0, 0.0),
    )
    disable_dropout: bool = idle(False, "dropout is always off, so that the policy that trains is the one that sampled")
    cast_lm_head_to_fp32: bool = refused(
        False,
        "with bf16 the logits are a bfloat16 product too, and float32 from there on; give bf16=False",
        switch=HALF,
        note=(
            "missing",
            "logits are a product in the precision of --dtype, and float32 from there on; --dtype float32 has it so "
            "too",
        ),
    )

    # prompts and completions
    num_generations: int | None = becomes(8, "num_generations")
    """Completions per prompt, at least 2."""
    num_generations_eval: int | None = decides(None, "eval_generations", "eval_generations, sampled at temperature")
    """Completions per prompt in evaluation; None: num_generations."""
    max_completion_length: int | None = becomes(512, "max_completion_length")
    """Tokens of a completion, at most."""
    ds3_gather_for_generation: bool = idle(True, "ranks that hold slices sample from a whole copy")
    shuffle_dataset: bool | None = becomes(True, "shuffle", convert=bool)
    """A new order each epoch, fixed by seed."""
    pad_to_multiple_of: int | str | None = idle("auto", "padding never reaches the loss")
    generation_batch_size: int | None = decides(None, "prompts_per_step")
    """Completions sampled together; None: by steps_per_generation."""
    # num_minibatches = steps_per_generation / gradient_accumulation_steps
    steps_per_generation: int | None = decides(None, "num_minibatches prompts_per_step")
    """Micro-batches sampled together; None: gradient_accumulation_steps."""
    temperature: float = becomes(1.0, "temperature")
    """Divides the logits, in sampling and in the loss alike."""
    top_p: float = becomes(1.0, "top_p")
    """Sample among the most probable tokens with this total probability; 1 is off."""
    top_k: int = becomes(0, "top_k", convert=lambda count: count or 0, may_be_none=True)
    """Sample among this many most probable tokens; 0 is off."""
    min_p: float | None = becomes(None, "min_p", convert=lambda share: share or 0.0)
    """Sample among tokens of at least this share of the top one's probability."""
    generation_kwargs: Keywords = decides(None, "stop", "top_p, top_k, min_p, and stop_strings as stop")
    """More about sampling: top_p, top_k, min_p, stop_strings."""
    chat_template_kwargs: Keywords = decides(None, "chat_template_kwargs enable_thinking")
    """For the chat template, such as enable_thinking or reasoning_effort."""
    repetition_penalty: float = refused(
        1.0,
        "the loss would be of another distribution than the one that was sampled from",
        also=(None,),
        may_be_none=True,
    )
    cache_implementation: str | None = idle(None, "the engine has a cache of its own")
    use_transformers_continuous_batching: bool = idle(False, BATCHES_ALONE)
    transformers_continuous_batching_config: Keywords = idle(None, BATCHES_ALONE)
    use_transformers_paged: bool = idle(False, BATCHES_ALONE)

    # vLLM
    use_vllm: bool = becomes(
        False, "engine", "engine: vllm", convert=lambda on: "vllm" if on else "local", command="engine: vllm"
    )
    """Sample with vLLM in this process, from a copy of the weights that is renewed after every step."""
    vllm_mode: str = refused(
        "colocate",
        "a server of vLLM takes weights over NCCL alone and draws tokens by seeds of its own; a cluster of the command "
        "`paceline train` has vLLM on devices of its own",
        switch=VLLM,
        command="cluster, with vLLM on devices of its own where it is a server",
    )
    vllm_model_impl: str = idle("vllm", OWN_MODEL, switch=VLLM, note=("idle", OWN_MODEL))
    vllm_enable_sleep_mode: bool = idle(False, SLEEPS, switch=VLLM, note=("idle", SLEEPS))
    vllm_structured_outputs_regex: str | None = refused(
        None, NO_PATTERN, switch=VLLM, note=("missing", "completions are not held to a pattern")
    )
    vllm_server_base_url: str | None = idle(None, NO_SERVER, switch=VLLM, note=PRODUCERS)
    vllm_server_host: str = idle("0.0.0.0", NO_SERVER, switch=VLLM, note=PRODUCERS)
    vllm_server_port: int = idle(8000, NO_SERVER, switch=VLLM, note=PRODUCERS)
    vllm_server_timeout: float = idle(240.0, NO_SERVER, switch=VLLM, note=PRODUCERS)
    vllm_group_port: int = idle(51216, NO_SERVER, switch=VLLM, note=PRODUCERS)
    vllm_gpu_memory_utilization: float = decides(0.3, "vllm_memory", switch=VLLM, command="vllm_memory")
    """Share of a CUDA device's memory for vLLM's weights and cache; a CPU has a cache by its need."""
    vllm_max_model_length: int | None = decides(
        None,
        "max_prompt_length",
        "max_prompt_length: what it leaves beside max_completion_length",
        switch=VLLM,
        command="nothing: what is below the longest prompt and completion is refused",
    )
    """Tokens of a prompt and its completion, at most; None: as many as the model can see."""
    vllm_tensor_parallel_size: int = decides(1, "vllm_tensor_parallel", switch=VLLM, command="vllm_tensor_parallel")
    """Devices that vLLM spreads each layer over."""

    # the objective
    scale_rewards: str = decides(
        "group", "advantage", "advantage: group, group_mean_reward_std or none", choices=("group", "batch", "none")
    )
    """What the advantage is divided by: the standard deviation of group, batch, or none."""
    # normalize_then_sum also sets advantage=batch
    multi_objective_aggregation: str = decides(
        "sum_then_normalize", "reward_aggregation advantage", choices=("sum_then_normalize", "normalize_then_sum")
    )
    """Several rewards: sum_then_normalize or normalize_then_sum."""
    reward_weights: list[float] | None = decides(None, "reward_weights")
    """One weight per reward function; None: all 1."""
    filter_range: list[float] | None = becomes(None, "filter_range")
    """Train only on groups whose mean reward lies strictly between these two numbers, such as 0 1."""
    max_refills: int = becomes(0, "max_refills")
    """Rounds of sampling that replace groups outside filter_range."""
    oversampling: float = becomes(1.0, "oversampling")
    """Prompts sampled at once for each group that is needed, where filter_range filters."""
    num_iterations: int = becomes(1, "num_iterations")
    """Passes over a batch of rollouts."""
    importance_sampling_level: str = becomes("token", "ratio_level", choices=("token", "sequence"))
    """The ratio to the old policy: of a token or of a sequence."""
    loss_type: str = decides(
        "dapo",
        "bound average average_over",
        "bound, average and average_over=all",
        choices=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"),
    )
    """How tokens are bounded and averaged: grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo or vespo."""
    epsilon: float = decides(
        0.2, "clip_eps_low clip_eps_high", "clip_eps_low, and clip_eps_high while epsilon_high is None"
    )
    """The ratio is held above 1 - epsilon."""
    epsilon_high: float | None = decides(None, "clip_eps_high")
    """The ratio is held below 1 + epsilon_high; with cispo its weight is this at most. None: epsilon (cispo: 5)."""
    delta: float | None = decides(None, "bound_shape")
    """The ratio counts as this at most, also where the advantage is negative."""
    sapo_temperature_neg: float = decides(1.05, "bound_shape", switch=SAPO)
    """Temperature of sapo's gate for negative advantages."""
    sapo_temperature_pos: float = decides(1.0, "bound_shape", switch=SAPO)
    """And for positive ones."""
    vespo_k_pos: float = decides(2.0, "bound_shape", switch=VESPO)
    """Power of vespo's weight for advantages from 0 on."""
    vespo_lambda_pos: float = decides(3.0, "bound_shape", switch=VESPO)
    """How soon large weights vanish there."""
    vespo_k_neg: float = decides(3.0, "bound_shape", switch=VESPO)
    """Power of vespo's weight for negative advantages."""
    vespo_lambda_neg: float = decides(2.0, "bound_shape", switch=VESPO)
    """How soon large weights vanish there."""
    beta: float = becomes(0.0, "beta")
    """Weight of the KL divergence to the reference model; 0 loads none."""
    use_bias_correction_kl: bool = becomes(
        True, "kl", "kl: k3_ratio or k3", convert=lambda corrected: "k3_ratio" if corrected else "k3"
    )
    """Multiply the KL estimator k3 by the ratio."""
    sync_ref_model: bool = decides(False, "ref_sync")
    """Move the reference towards the policy now and then."""
    ref_model_mixup_alpha: float = decides(0.6, "ref_sync", switch=REFERENCE_MOVES)
    """By how much: reference = alpha * policy + (1 - alpha) * reference."""
    ref_model_sync_steps: int = decides(
        512,
        "ref_sync",
        "ref_sync: updates, rounded up to whole batches of rollouts",
        switch=REFERENCE_MOVES,
    )
    """Every so many updates."""
    top_entropy_quantile: float = becomes(1.0, "top_entropy_quantile")
    """Share of an update's tokens, those of the highest entropy, whose policy term counts."""
    entropy_coef: float = becomes(0.0, "entropy_coef")
    """Weight of the policy's entropy as a bonus."""
    use_adaptive_entropy: bool = decides(False, "entropy_target")
    """Let the weight of the entropy follow entropy_target, from entropy_coef on."""
    entropy_coef_min: float = decides(0.0, "entropy_target", switch=ADAPTIVE)
    """The least weight."""
    entropy_coef_max: float = decides(1.0, "entropy_target", switch=ADAPTIVE)
    """The largest weight."""
    entropy_coef_delta: float = decides(0.005, "entropy_target", switch=ADAPTIVE)
    """Change of the weight per update."""
    entropy_target: float = decides(0.2, "entropy_target", switch=ADAPTIVE)
    """Entropy in nats per token up to which the weight rises and counts."""
    mask_truncated_completions: bool = becomes(False, "mask_truncated")
    """No gradient from completions cut at max_completion_length."""
    off_policy_mask_threshold: float | None = becomes(None, "off_policy_threshold")
    """Drop bad completions whose mean log of rollout over policy probability is above this."""
    vllm_importance_sampling_mode: str = decides(
        "sequence_mask",
        "rollout_correction",
        switch=MAY_CORRECT,
        choices=("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    )
    """token_truncate, token_mask, sequence_truncate or sequence_mask."""
    vllm_importance_sampling_correction: bool = decides(
        True, "rollout_correction", "rollout_correction, with use_vllm or when one of the next four is set"
    )
    """Weigh by old over rollout probability, where vLLM samples or one of the next fields is set."""
    vllm_importance_sampling_clip_max: float | None = decides(
        3.0, "correction_bounds rollout_correction", switch=MAY_CORRECT
    )
    """Upper bound of that weight."""
    vllm_importance_sampling_clip_min: float | None = decides(
        None, "correction_bounds rollout_correction", switch=MAY_CORRECT
    )
    """Lower bound of that weight; None: 0."""
    vllm_importance_sampling_cap: float | None = decides(
        None, "correction_bounds rollout_correction", switch=MAY_CORRECT
    )
    """Older name of vllm_importance_sampling_clip_max."""
    max_tool_calling_iterations: int | None = decides(None, "max_turns", "max_turns: one turn more")
    """Turns that call tools, at most; None: as many as max_completion_length has room for."""

    # what is written down
    log_completions: bool = kept(False, ROLLOUTS)
    """Print the step's completions with every line of the log."""
    log_multimodal: bool = idle(True, "images of prompts are in the run directory, and its pages show them")
    num_completions_to_print: int | None = kept(None, ROLLOUTS)
    """How many of them; None: all."""
    log_unique_prompts: bool = idle(False, "every completion is written to the run directory's rollouts/")
    log_completions_hub_repo: str | None = refused(
        None, "completions are not uploaded; upload the run directory's rollouts/ instead"
    )
