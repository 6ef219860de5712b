"""Arguments of a short run of GRPOTrainer: steps of two prompts with four completions each."""

SHORT = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "save_steps": 2,
    "disable_tqdm": True,
}
