"""Fields that TRL 1.16 and Paceline add to `TrainingArguments`, or give another default; no torch."""

# ruff: noqa: RUF009, RUF036 - fields made by one function hold no mutable default; HfArgumentParser wants None first

from dataclasses import dataclass, field
from typing import Any

from paceline.compat.trl.training_fields import Keywords, TrainingFields


def _option(default: Any, meaning: str) -> Any:
    """A field with a help text for a script's command line."""
    return field(default=default, metadata={"help": meaning})


@dataclass(repr=False)
class GRPOFields:
    """Name, type, default and help text of each field."""

    # fields of TrainingArguments with another default
    learning_rate: float = _option(1e-6, "Peak learning rate of AdamW.")
    logging_steps: float = _option(10, "Log every so many updates; below 1: every such share of the run.")
    gradient_checkpointing: bool = _option(True, "Recompute activations in the backward pass: less memory, more time.")
    bf16: bool | None = _option(None, "Compute in bfloat16; None: where a CUDA device can. Weights stay float32.")
    lr_scheduler_kwargs: Keywords = _option(None, "For the schedule, such as min_lr_rate or num_cycles.")
    report_to: None | str | list[str] = _option("none", "Trackers: tensorboard, wandb, trackio, mlflow, all or none.")
    remove_unused_columns: bool | None = _option(False, "Of no effect: reward functions get every column.")

    # Paceline's own
    preset: str | None = _option(
        None, "A published objective (grpo, dapo, dr_grpo, gspo, ...); fields left at their defaults follow it."
    )
    max_prompt_length: int | None = _option(
        None, "Tokens of a prompt, at most; longer ones lose their beginning. None: as many as the model can see."
    )
    warmup_ratio: float | None = _option(None, "Share of the run over which the learning rate rises, in [0, 1).")
    filter_range: list[float] | None = _option(
        None, "Train only on groups whose mean reward lies strictly between these two numbers, such as 0 1."
    )
    max_refills: int = _option(0, "Rounds of sampling that replace groups outside filter_range.")
    oversampling: float = _option(
        1.0, "Prompts sampled at once for each group that is needed, where filter_range filters."
    )
    micro_batch_tokens: int = _option(
        0, "Tokens forwarded at once: memory and speed, never the gradient; 0: by device."
    )
    on_bad_row: str = _option("stop", "What happens to a row that cannot be used: stop, or skip and count it.")
    reward_timeout: float = _option(600.0, "Seconds that one call of a reward function may take.")
    max_reward_failure_rate: float = _option(
        0.05, "The run stops when a reward function fails on more than this share of a step's completions."
    )
    sandbox: str = _option("auto", "How programs that the reward `code` runs are isolated: auto, or a level by name.")
    sandbox_url: str | None = _option(None, "Address of a judge service that runs these programs instead.")

    # the model and its reference
    model_init_kwargs: dict[str, Any] | str | None = _option(None, "How a model given by name is loaded.")
    trust_remote_code: bool = _option(False, "Run Python code that comes with the model.")
    router_aux_loss_coef: float | None = _option(None, "Refused above 0: the router's auxiliary loss is not computed.")
    disable_dropout: bool = _option(False, "Of no effect: dropout is always off.")
    cast_lm_head_to_fp32: bool = _option(
        False, "Refused with bf16: logits are a product in the precision of the computation."
    )

    # prompts and completions
    num_generations: int | None = _option(8, "Completions per prompt, at least 2.")
    num_generations_eval: int | None = _option(None, "Completions per prompt in evaluation; None: num_generations.")
    max_completion_length: int | None = _option(512, "Tokens of a completion, at most.")
    ds3_gather_for_generation: bool = _option(True, "Of no effect: there are no weight shards to gather.")
    shuffle_dataset: bool | None = _option(True, "A new order each epoch, fixed by seed.")
    pad_to_multiple_of: int | str | None = _option("auto", "Of no effect: padding never reaches the loss.")
    generation_batch_size: int | None = _option(None, "Completions sampled together; None: by steps_per_generation.")
    steps_per_generation: int | None = _option(
        None, "Micro-batches sampled together; None: gradient_accumulation_steps."
    )
    temperature: float = _option(1.0, "Divides the logits, in sampling and in the loss alike.")
    top_p: float = _option(1.0, "Sample among the most probable tokens with this total probability; 1 is off.")
    top_k: int = _option(0, "Sample among this many most probable tokens; 0 is off.")
    min_p: float | None = _option(None, "Sample among tokens of at least this share of the top one's probability.")
    generation_kwargs: Keywords = _option(None, "More about sampling: top_p, top_k, min_p, stop_strings.")
    chat_template_kwargs: Keywords = _option(None, "For the chat template: enable_thinking.")
    repetition_penalty: float = _option(1.0, "Refused but for 1: the loss would be of another distribution.")
    cache_implementation: str | None = _option(None, "Refused: the engine has a cache of its own.")
    use_transformers_continuous_batching: bool = _option(False, "Of no effect: generation always batches so.")
    transformers_continuous_batching_config: Keywords = _option(None, "Of no effect, as the field above.")
    use_transformers_paged: bool = _option(False, "Older name of use_transformers_continuous_batching.")

    # vLLM
    use_vllm: bool = _option(False, "Refused: completions come from the built-in engine.")
    vllm_mode: str = _option("colocate", "Of no effect while use_vllm is off.")
    vllm_model_impl: str = _option("vllm", "Of no effect while use_vllm is off.")
    vllm_enable_sleep_mode: bool = _option(False, "Of no effect while use_vllm is off.")
    vllm_structured_outputs_regex: str | None = _option(None, "Of no effect while use_vllm is off.")
    vllm_server_base_url: str | None = _option(None, "Of no effect while use_vllm is off.")
    vllm_server_host: str = _option("0.0.0.0", "Of no effect while use_vllm is off.")
    vllm_server_port: int = _option(8000, "Of no effect while use_vllm is off.")
    vllm_server_timeout: float = _option(240.0, "Of no effect while use_vllm is off.")
    vllm_group_port: int = _option(51216, "Of no effect while use_vllm is off.")
    vllm_gpu_memory_utilization: float = _option(0.3, "Of no effect while use_vllm is off.")
    vllm_max_model_length: int | None = _option(None, "Of no effect while use_vllm is off.")
    vllm_tensor_parallel_size: int = _option(1, "Of no effect while use_vllm is off.")

    # the objective
    beta: float = _option(0.0, "Weight of the KL divergence to the reference model; 0 loads none.")
    num_iterations: int = _option(1, "Passes over a batch of rollouts.")
    epsilon: float = _option(0.2, "The ratio is held above 1 - epsilon.")
    delta: float | None = _option(None, "The ratio counts as this at most, also where the advantage is negative.")
    epsilon_high: float | None = _option(
        None,
        "The ratio is held below 1 + epsilon_high; with cispo its weight is this at most. None: epsilon (cispo: 5).",
    )
    sapo_temperature_neg: float = _option(1.05, "SAPO's gate for negative advantages; no other value yet.")
    sapo_temperature_pos: float = _option(1.0, "SAPO's gate for positive advantages; no other value yet.")
    vespo_k_pos: float = _option(2.0, "Of no effect: loss_type vespo is not offered.")
    vespo_lambda_pos: float = _option(3.0, "Of no effect: loss_type vespo is not offered.")
    vespo_k_neg: float = _option(3.0, "Of no effect: loss_type vespo is not offered.")
    vespo_lambda_neg: float = _option(2.0, "Of no effect: loss_type vespo is not offered.")
    importance_sampling_level: str = _option("token", "The ratio to the old policy: of a token or of a sequence.")
    reward_weights: list[float] | None = _option(None, "One weight per reward function; None: all 1.")
    multi_objective_aggregation: str = _option(
        "sum_then_normalize", "Several rewards: sum_then_normalize or normalize_then_sum."
    )
    scale_rewards: str = _option(
        "group", "What the advantage is divided by: the standard deviation of group, batch, or none."
    )
    loss_type: str = _option("dapo", "How tokens are bounded and averaged: grpo, bnpo, dr_grpo, dapo, cispo or sapo.")
    mask_truncated_completions: bool = _option(False, "No gradient from completions cut at max_completion_length.")
    sync_ref_model: bool = _option(False, "Move the reference towards the policy now and then.")
    ref_model_mixup_alpha: float = _option(0.6, "By how much: reference = alpha * policy + (1 - alpha) * reference.")
    ref_model_sync_steps: int = _option(512, "Every so many updates.")
    top_entropy_quantile: float = _option(1.0, "Refused but for 1: every token is trained on.")
    entropy_coef: float = _option(0.0, "Weight of the policy's entropy as a bonus.")
    use_adaptive_entropy: bool = _option(False, "Refused: entropy_coef stays what it is.")
    entropy_coef_min: float = _option(0.0, "Of no effect while use_adaptive_entropy is off.")
    entropy_coef_max: float = _option(1.0, "Of no effect while use_adaptive_entropy is off.")
    entropy_coef_delta: float = _option(0.005, "Of no effect while use_adaptive_entropy is off.")
    entropy_target: float = _option(0.2, "Of no effect while use_adaptive_entropy is off.")
    vllm_importance_sampling_correction: bool = _option(True, "Weigh by old over rollout probability, if configured.")
    vllm_importance_sampling_mode: str = _option(
        "sequence_mask", "token_truncate, token_mask, sequence_truncate or sequence_mask."
    )
    vllm_importance_sampling_clip_max: float | None = _option(3.0, "Bound of that weight.")
    vllm_importance_sampling_clip_min: float | None = _option(
        None, "Refused where that weight is used: it has no lower bound."
    )
    vllm_importance_sampling_cap: float | None = _option(None, "Older name of vllm_importance_sampling_clip_max.")
    off_policy_mask_threshold: float | None = _option(
        None, "Drop bad completions whose mean log of rollout over policy probability is above this."
    )
    use_bias_correction_kl: bool = _option(True, "Multiply the KL estimator k3 by the ratio.")
    max_tool_calling_iterations: int | None = _option(None, "Refused: there are no tools.")

    # what is written down
    log_completions: bool = _option(False, "Print the step's completions with every line of the log.")
    log_multimodal: bool = _option(True, "Of no effect: there are no images.")
    num_completions_to_print: int | None = _option(None, "How many of them; None: all.")
    log_unique_prompts: bool = _option(False, "Of no effect: every completion is in the run directory.")
    log_completions_hub_repo: str | None = _option(None, "Refused: completions are not uploaded.")


@dataclass(repr=False)
class Fields(GRPOFields, TrainingFields):  # type: ignore[misc] # TRL widens types of shared fields
    """All fields of `GRPOConfig` for translation alone: no transformers, no device."""

    def __post_init__(self) -> None:
        """Set fields that follow from others, as TrainingArguments does."""
        if self.activation_checkpointing is None:
            self.activation_checkpointing = self.gradient_checkpointing
        if self.eval_strategy == "steps" and not self.eval_steps:
            self.eval_steps = self.logging_steps
