trl grpo --model_name_or_path Qwen/Qwen2-0.5B-Instruct --reward_model_name_or_path weqweasdas/RM-Gemma-2B \
    --dataset_name trl-lib/tldr --output_dir Qwen2-0.5B-GRPO --learning_rate 1e-5 --gradient_accumulation_steps 16 \
    --max_completion_length 128 --num_processes 8 --report_to wandb
