"""Every flag of `swift rlhf --rlhf_type grpo` that is no field of `GRPOConfig` under the same name, in one row each."""

from collections.abc import Mapping

from paceline.compat.vocabulary import Meaning, flags

SAME = (
    "num_generations num_generations_eval generation_batch_size steps_per_generation num_iterations epsilon "
    "epsilon_high delta beta loss_type importance_sampling_level max_completion_length temperature top_p top_k "
    "min_p repetition_penalty reward_weights scale_rewards log_completions top_entropy_quantile warmup_ratio "
    "sync_ref_model ref_model_sync_steps ref_model_mixup_alpha router_aux_loss_coef ds3_gather_for_generation "
)
FIELDS: Mapping[str, str] = {
    **{name: name for name in SAME.split()},
    "overlong_filter": "mask_truncated_completions",
    "off_policy_sequence_mask_delta": "off_policy_mask_threshold",
    "tau_pos": "sapo_temperature_pos",
    "tau_neg": "sapo_temperature_neg",
    "dataset_shuffle": "shuffle_dataset",
    "train_dataloader_shuffle": "shuffle_dataset",
    "rollout_importance_sampling_mode": "vllm_importance_sampling_mode",
    "rollout_importance_sampling_threshold": "vllm_importance_sampling_clip_max",
    "max_length": "max_prompt_length",
    "wandb_log_unique_prompts": "log_unique_prompts",
}
"""Flags with the meaning of a field of `GRPOConfig`."""

PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "cosine": {
        "cosine_max_len": "max_length",
        "cosine_min_len_value_wrong": "min_wrong",
        "cosine_max_len_value_wrong": "max_wrong",
        "cosine_min_len_value_correct": "max_correct",
        "cosine_max_len_value_correct": "min_correct",
    },
    "repetition": {"repetition_n_grams": "ngram", "repetition_max_penalty": "max_penalty"},
    "soft_overlong": {"soft_max_length": "max_length", "soft_cache_length": "cache"},
}
"""Flags of each reward, with our parameter."""

OWN: Mapping[str, str] = {
    "model": "model",
    "lora_rank: full is 0": "tuner_type train_type sft_type",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_targets": "target_modules",
    "lora_parameters": "target_parameters",
    "dtype": "torch_dtype",
    "dataset, with #N as dataset_size": "dataset",
    "eval_dataset": "val_dataset",
    "system_prompt": "system",
    "enable_thinking": "enable_thinking",
    "long_prompts: left is truncate_left, delete is drop": "truncation_strategy",
    "stop": "stop_words",
    "reward_funcs": "reward_funcs",
    "reward_funcs: model:NAME": "reward_model",
    "filter_range": "dynamic_sample",
    "max_refills": "max_resample_times",
    "advantage": "advantage_estimator",
    "beta: the KL stands in the loss": "kl_in_reward",
    "engine": "use_vllm",
    "cluster, for server": "vllm_mode",
    "cluster, where the device is one more than those that train": "vllm_device",
    "vllm_memory": "vllm_gpu_memory_utilization",
    "vllm_tensor_parallel": "vllm_tensor_parallel_size",
    "vllm_eager": "vllm_enforce_eager",
    "max_completion_length: a completion has to fit": "vllm_max_model_len",
    "concurrent_sequences": "vllm_max_num_seqs",
    "max_staleness: 1": "async_generate",
    "train_vision: false is true, with an adapter lora_vision": "freeze_vit",
    "train_projector: false is true, with an adapter lora_vision": "freeze_aligner",
    "vision_learning_rate": "vit_lr aligner_lr",
    "image_max_pixels": "max_pixels",
    "max_images_per_prompt": "vllm_limit_mm_per_prompt",
    "zero_stage": "deepspeed fsdp",
    "tensor_parallel": "deepspeed_autotp_size",
    "context_parallel": "sequence_parallel_size",
    "output_dir": "output_dir",
    "report_to": "report_to",
}
"""Options of Paceline, and the flags that decide them."""

MEANINGS: Mapping[str, Meaning] = {
    "rlhf_type": Meaning(kind="option", text="grpo alone"),
    **flags("option", OWN),
    **flags("option", {f"a parameter of {reward}": " ".join(names) for reward, names in PARAMETERS.items()}),
    **flags(
        "idle",
        {
            "it is an option of another --rlhf_type": (
                "num_ppo_epochs whiten_rewards kl_coef cliprange vf_coef cliprange_value gamma lam num_mini_batches "
                "local_rollout_forward_batch_size num_sample_generations response_length missing_eos_penalty "
                "label_smoothing rpo_alpha ld_alpha discopop_tau loss_weights cpo_alpha simpo_gamma "
                "desirable_weight undesirable_weight center_rewards_coefficient sft_alpha lmbda seq_kd "
                "gkd_logits_topk max_new_tokens"
            ),
            "its own feature is off": (
                "teacher_adapters teacher_model_type teacher_model_revision teacher_deepspeed offload_teacher_model "
                "teacher_kl_coef teacher_tag_key rlsd_lambda rlsd_reweight_clip_range rlsd_lambda_warmup_steps "
                "rlsd_lambda_decay_steps rlsd_negative_only sdar_gate_beta real_tau fipo_decay_rate fipo_clip_range "
                "fipo_clip_high_only fipo_safety_threshold chord_sft_per_device_train_batch_size "
                "chord_enable_phi_function chord_mu_warmup_steps chord_mu_decay_steps chord_mu_peak chord_mu_valley "
                "vllm_server_pass_dataset reward_adapters reward_model_type "
                "reward_model_revision reward_template ref_adapters ref_model_type ref_model_revision "
                "packing_length packing_num_proc packing_strategy interleave_prob stopping_strategy "
                "shuffle_buffer_size lora_dtype lorap_lr_ratio hqq_axis bnb_4bit_compute_dtype bnb_4bit_quant_type "
                "bnb_4bit_use_double_quant bnb_4bit_quant_storage galore_target_modules "
                "galore_rank galore_update_proj_gap galore_scale galore_proj_type galore_optim_per_parameter "
                "galore_with_embedding galore_quantization galore_proj_quant galore_proj_bits "
                "galore_proj_group_size galore_cos_threshold galore_gamma_proj galore_queue_size lisa_step_interval "
                "eval_dataset_args eval_limit eval_generation_config extra_eval_args early_stop_interval mrl_dims "
                "init_strategy num_labels problem_type lora_ga_batch_size lora_ga_iters lora_ga_max_length "
                "lora_ga_direction lora_ga_scale lora_ga_stable_gamma fourier_n_frequency fourier_scaling "
                "boft_block_size boft_block_num boft_n_butterfly_factor boft_dropout vera_rank "
                "vera_projection_prng_key vera_dropout vera_d_initial adapter_act adapter_length adalora_target_r "
                "adalora_init_r adalora_tinit adalora_tfinal adalora_deltaT adalora_beta1 adalora_beta2 "
                "adalora_orth_reg_weight llamapro_num_new_blocks llamapro_num_groups reft_layer_key reft_layers "
                "reft_rank reft_intervention_type reft_args lora_bias init_weights"
            ),
            "there is one turn; with an --environment --max-turns and --max-turn-length say it": (
                "max_turns completion_length_limit_scope"
            ),
            "activations of a vision encoder are kept while it is trained": "vit_gradient_checkpointing",
            "each image is prepared once per run": "vllm_mm_processor_cache_gb",
            "rows are read and tokenised once, before the first step": (
                "dataset_num_proc load_from_cache_file streaming download_mode lazy_tokenize strict "
                "val_dataset_shuffle custom_dataset_info disable_auto_column_mapping"
            ),
            "the tokenizer's own chat template makes the prompt": (
                "template template_backend use_chat_template add_non_thinking_prefix preserve_thinking "
                "disable_ignore_empty_think is_binary_loss_scale loss_scale padding_side agent_template"
            ),
            "micro-batches are always packed, without padding": "padding_free packing acc_strategy use_logits_to_keep",
            "the built-in engine and vLLM find their own way": (
                "vllm_pipeline_parallel_size vllm_enable_expert_parallel vllm_disable_custom_all_reduce "
                "vllm_max_lora_rank vllm_enable_prefix_caching vllm_use_async_engine vllm_disable_cascade_attn "
                "vllm_engine_kwargs vllm_enable_lora enable_flattened_weight_sync sleep_level move_model_batches "
                "offload_model offload_optimizer vllm_data_parallel_size"
            ),
            "the run's own samplers do that, and find each other; no server is started beside it": (
                "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_server_group_port"
            ),
            "every step measures it": "log_entropy log_rollout_offpolicy_metrics",
            "weights are safetensors, in files as transformers sizes them": "safe_serialization max_shard_size",
            "no account of SwanLab's is used": (
                "swanlab_token swanlab_project swanlab_workspace swanlab_exp_name swanlab_mode "
                "swanlab_notification_method swanlab_webhook_url swanlab_secret swanlab_sender_email "
                "swanlab_receiver_email swanlab_smtp_server swanlab_smtp_port swanlab_email_language"
            ),
            "the run directory is the one that is named": "add_version create_checkpoint_symlink logging_dir",
            "attention is the built-in one, or torch's": "attn_impl experts_impl",
            "the model's own files say it": (
                "model_type task_type check_model local_repo_path enable_npu_model_patch model_kwargs"
            ),
            "an earlier run's arguments are not read": "load_args load_data_args ignore_args_error",
            "names are looked up at Hugging Face": "use_hf",
            "memory is for the processes to share out": "max_memory device_map zero_hpz_partition_size",
            "adapters are peft's": "tuner_backend use_swift_lora lora_dropout",
            "its reward functions are named as file.py:function in --reward_funcs": "external_plugins",
            "it is of the older plugin mechanism": "custom_register_path",
            "files do not end with a name of a model": "model_name model_author",
            "the greatest length is --max-prompt-length and --max-completion-length": "max_model_len",
            "accuracy of sampled answers is what is measured": "eval_metric",
            "checkpoints are written while nothing else runs": "use_flash_ckpt",
            "a loss by channel is not recorded; rewards are, by function and row": "enable_channel_loss",
            "the length of a run is its epochs or --max_steps": "max_epochs",
            "completions are printed as they are written": "stream logprobs top_logprobs num_beams",
            "ms-swift itself has it no more, and no result depended on it": (
                "gc_collect_after_offload num_infer_workers tensor_parallel_size mini_batch_size metric_warmup_step "
                "fsdp_num acc_steps eval_datasets eval_datasets_args use_lmdeploy lmdeploy_device "
                "lmdeploy_session_len lmdeploy_cache_max_entry_count"
            ),
        },
    ),
    **flags(
        "refused",
        {
            "no teacher is trained towards": "teacher_model teacher_model_server",
            "advantages are of rewards alone": "advantage_reweight sdar_loss_coef",
            "no loss of supervised rows is mixed in": "chord_sft_dataset enable_dft_loss",
            "it edits requests of ms-swift's own; write its step as an environment's `observe` (docs/environments.md), "
            "and give that as --environment file.py:NAME": "multi_turn_scheduler multi_turn_func",
            "its environments have an interface of their own; write one with begin, observe and close "
            "(docs/environments.md), and give that as --environment file.py:NAME": "use_gym_env gym_env",
            "a reward model gives one number, by its own head": "reward_model_plugin",
            "the reference is the model that the run starts from": "ref_model",
            "an adapter to go on from is given as --model": "adapters",
            "weights are not quantised": "quant_method quant_bits vllm_quantization",
            "all weights are trained, or an adapter": (
                "freeze_parameters freeze_parameters_regex freeze_parameters_ratio trainable_parameters "
                "trainable_parameters_regex freeze_llm target_regex modules_to_save use_galore "
                "lisa_activated_layers"
            ),
            "the adapter's scale is lora_alpha over its rank, without magnitudes": "use_rslora use_dora",
            "AdamW is the optimiser, or adamw_8bit": "optimizer",
            "no held-out set is cut from the training rows; give --val_dataset": "split_dataset_ratio",
            "rows are read from a file, a directory or the Hub": "cached_dataset cached_val_dataset",
            "name the columns with --prompt-column and --answer-column": "columns",
            "boxes of a column `objects` are not written into texts; write them there": "norm_bbox",
            "a Hub name is read at its main branch; download the revision": "model_revision",
            "the tokens of a model are those it came with": "new_special_tokens rope_scaling",
            "a completion begins where the prompt ends": "response_prefix",
            "the loss would be of another distribution than the one that was sampled from": (
                "structured_outputs_regex vllm_reasoning_parser vllm_speculative_config"
            ),
            "evalscope is not called; `paceline eval` measures": "eval_use_evalscope eval_dataset",
            "callbacks are for the GRPOTrainer of Python": "callbacks",
            "a checkpoint holds all that resuming needs": "resume_only_model",
            "no order by length is offered": "group_by_length",
        },
        also={
            "sdar_loss_coef": ("0.0",),
            "split_dataset_ratio": ("0.0",),
            "freeze_parameters_ratio": ("0.0",),
            "optimizer": ("adamw", "adamw_torch"),
            "model_revision": ("main", "master"),
        },
    ),
}
"""Meaning of each flag that is no field; `also` are values with which a refused one means the same as its absence."""

KNOWN = (*FIELDS, *MEANINGS)
"""All flags except TrainingArguments' own."""

DEFAULTS: Mapping[str, object] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-4,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "temperature": 0.9,
    "beta": 0.04,
    "loss_type": "grpo",
    "use_bias_correction_kl": False,
    "num_train_epochs": 3.0,
    "max_completion_length": 512,
    "num_generations": 8,
}
"""ms-swift 4.6's defaults of fields that differ elsewhere or decide a run."""
