CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B-Instruct \
    --dataset 'rows.jsonl#1000' --val_dataset held-out.jsonl --tuner_type lora --lora_rank 16 --target_modules q_proj v_proj \
    --reward_funcs accuracy soft_overlong cosine --soft_cache_length 128 --cosine_max_len 1024 --reward_weights 1 0.5 0.1 \
    --loss_type dapo --epsilon_high 0.28 --dynamic_sample true --max_resample_times 2 --overlong_filter true \
    --use_vllm true --vllm_mode colocate --sleep_level 1 --vllm_max_model_len 4096 --max_completion_length 1024 \
    --max_length 1024 --truncation_strategy delete --per_device_train_batch_size 4 --steps_per_generation 4 \
    --num_generations 8 --rollout_importance_sampling_mode token_truncate --report_to wandb swanlab \
    --enable_thinking false --stop_words '</answer>' --deepspeed zero2_offload --warmup_ratio 0.05 --attn_impl flash_attn
