"""Fields of `GRPOConfig` with a meaning here: those that become options, and those that the trainer reads.

With `refused.py` every field is in exactly one table.
"""

from collections.abc import Mapping

TRANSLATED: Mapping[str, str] = {
    # batches and length of the run
    "per_device_train_batch_size": "prompts_per_step: completions of a batch / num_generations",
    "gradient_accumulation_steps": "prompts_per_step and num_minibatches",
    "generation_batch_size": "prompts_per_step",
    "steps_per_generation": "prompts_per_step; num_minibatches = steps_per_generation / gradient_accumulation_steps",
    "num_generations": "num_generations",
    "num_iterations": "num_iterations",
    "num_train_epochs": "num_epochs",
    "max_steps": "max_steps: updates, rounded up to whole batches of rollouts",
    "micro_batch_tokens": "micro_batch_tokens",
    # the model
    "model_init_kwargs": "dtype and trust_remote_code; attn_implementation, device_map and use_cache say nothing here",
    "trust_remote_code": "trust_remote_code",
    "bf16": "dtype: bfloat16 or float32",
    "use_cpu": "device: cpu",
    "gradient_checkpointing": "gradient_checkpointing",
    "gradient_checkpointing_kwargs": "use_reentrant is accepted: the gradient is the same",
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "as gradient_checkpointing_kwargs",
    # data and sampling
    "max_prompt_length": "max_prompt_length and long_prompts=truncate_left; None: the model's context",
    "max_completion_length": "max_completion_length",
    "shuffle_dataset": "shuffle",
    "chat_template_kwargs": "enable_thinking",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "generation_kwargs": "top_p, top_k, min_p, and stop_strings as stop",
    "num_generations_eval": "eval_generations, sampled at temperature",
    "seed": "seed",
    # rewards
    "on_bad_row": "on_bad_row",
    "reward_timeout": "reward_timeout",
    "max_reward_failure_rate": "max_reward_failure_rate",
    "sandbox": "sandbox",
    "sandbox_url": "sandbox_url",
    # the objective
    "preset": "preset",
    "filter_range": "filter_range",
    "max_refills": "max_refills",
    "oversampling": "oversampling",
    "loss_type": "bound, average and average_over=all",
    "scale_rewards": "advantage: group, group_mean_reward_std or none",
    "multi_objective_aggregation": "reward_aggregation; normalize_then_sum also advantage=batch",
    "reward_weights": "reward_weights",
    "importance_sampling_level": "ratio_level",
    "epsilon": "clip_eps_low, and clip_eps_high while epsilon_high is None",
    "epsilon_high": "clip_eps_high; cispo_max_ratio with loss_type cispo",
    "delta": "dual_clip",
    "beta": "beta",
    "use_bias_correction_kl": "kl: k3_ratio or k3",
    "sync_ref_model": "ref_sync_steps above 0",
    "ref_model_mixup_alpha": "ref_sync_mix",
    "ref_model_sync_steps": "ref_sync_steps: updates, rounded up to whole batches of rollouts",
    "mask_truncated_completions": "mask_truncated",
    "off_policy_mask_threshold": "off_policy_threshold",
    "entropy_coef": "entropy_coef",
    "vllm_importance_sampling_correction": "rollout_correction, when one of the next three is set as well",
    "vllm_importance_sampling_mode": "rollout_correction and correction_level",
    "vllm_importance_sampling_clip_max": "correction_max",
    "vllm_importance_sampling_cap": "correction_max",
    # the update
    "optim": "optimizer: adamw_torch and its fused kind are the same here, adamw_8bit is bitsandbytes'",
    "learning_rate": "learning_rate",
    "lr_scheduler_type": "transformers' schedule, update by update; lr_schedule where the options have a word for it",
    "lr_scheduler_kwargs": "for that schedule; min_lr_ratio with cosine_with_min_lr",
    "warmup_steps": "updates, below 1 a share of the run; the option has them in whole batches, rounded up",
    "warmup_ratio": "a share of the run, as warmup_steps below 1",
    "weight_decay": "weight_decay",
    "adam_beta1": "adam_beta1",
    "adam_beta2": "adam_beta2",
    "adam_epsilon": "adam_eps",
    "max_grad_norm": "max_grad_norm",
    # what is kept
    "output_dir": "output_dir",
    "save_steps": "save_steps: updates, rounded up to whole batches of rollouts (a share of the run below 1)",
    "eval_steps": "eval_steps, as save_steps",
    "save_total_limit": "save_total_limit; None keeps all",
    "report_to": "report_to",
    "project": "project",
}
"""Option or options that each field becomes, and how."""

KEPT: Mapping[str, str] = {
    **dict.fromkeys(("logging_strategy", "logging_steps", "logging_first_step"), "when numbers reach on_log"),
    **dict.fromkeys(("eval_strategy", "eval_delay", "eval_on_start"), "when held-out prompts are evaluated"),
    "save_strategy": "when a checkpoint is written",
    **dict.fromkeys(
        ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"), "which checkpoint is the best"
    ),
    **dict.fromkeys(
        ("log_completions", "num_completions_to_print"),
        "whether, and how many, completions are printed when numbers are logged",
    ),
    "run_name": "the run's name in trackers and callbacks",
    "disable_tqdm": "whether progress is shown",
    **dict.fromkeys(
        (
            "push_to_hub",
            "hub_model_id",
            "hub_strategy",
            "hub_token",
            "hub_private_repo",
            "hub_revision",
        ),
        "whether and where the model is uploaded",
    ),
    **dict.fromkeys(
        ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"), "for transformers' TrackioCallback"
    ),
    "tf32": "set for the process when the configuration is made, by transformers",
    **dict.fromkeys(
        ("do_train", "do_eval", "do_predict", "resume_from_checkpoint"), "for the user's script to read, as ever"
    ),
}
"""Purpose of each field that the trainer, its callbacks or the user's script reads."""
