"""Fields of `GRPOConfig` on a command line, where several processes and vLLM are offered as well.

The tables of `paceline.compat.trl` translate, refuse or pass over all other fields.
"""

from collections.abc import Mapping

from paceline.compat.commands.translation import NoteKind

TAKEN: Mapping[str, str] = {
    "use_vllm": "engine: vllm",
    "vllm_mode": "cluster, with vLLM on devices of its own where it is a server",
    "vllm_gpu_memory_utilization": "vllm_gpu_share",
    "vllm_tensor_parallel_size": "vllm_tensor_parallel",
    "vllm_max_model_length": "nothing: what is below the longest prompt and completion is refused",
    "deepspeed": "zero_stage, and parameter_offload behind _offload",
    "fsdp": "zero_stage",
    "bf16": "dtype",
    "use_cpu": "device: cpu",
    "output_dir": "output_dir",
    "report_to": "report_to",
    "per_device_train_batch_size": "prompts_per_step: completions of all processes / num_generations",
}
"""Fields with a wider meaning on a command line than in `GRPOTrainer`."""

HERE: Mapping[str, tuple[NoteKind, str]] = {
    **dict.fromkeys(
        ("logging_strategy", "logging_steps", "logging_first_step"),
        ("idle", "every step is written to metrics.jsonl and shown"),
    ),
    "eval_strategy": (
        "changed",
        "held-out rows are measured before the first step and after the last, whatever it says",
    ),
    "eval_delay": ("idle", "held-out rows are measured before the first step and from --eval-steps on"),
    "eval_on_start": ("idle", "held-out rows are always measured before the first step"),
    "save_strategy": ("changed", "checkpoints are counted in steps (--save-steps), and one is written at an interrupt"),
    **dict.fromkeys(
        ("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
        ("missing", "final/ is the last model; the GRPOTrainer of Python chooses the best"),
    ),
    **dict.fromkeys(
        ("log_completions", "num_completions_to_print"),
        ("idle", "every completion is written to the run directory's rollouts/"),
    ),
    "run_name": ("idle", "trackers name a run by its directory"),
    "disable_tqdm": ("idle", "there is a progress bar where there is a terminal"),
    **dict.fromkeys(
        ("push_to_hub", "hub_model_id", "hub_strategy", "hub_token", "hub_private_repo", "hub_revision"),
        ("missing", "nothing is uploaded; `hf upload NAME RUN/final` does it, as does the GRPOTrainer of Python"),
    ),
    **dict.fromkeys(
        ("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        ("missing", "--report-to trackio writes to this machine"),
    ),
    "tf32": ("idle", "torch's own setting holds"),
    **dict.fromkeys(("do_train", "do_eval", "do_predict"), ("idle", "scripts read it, and the trainer does not")),
    "resume_from_checkpoint": ("missing", "no checkpoint of theirs can be gone on with; ours are, by --resume RUN"),
    "cast_lm_head_to_fp32": (
        "missing",
        "logits are a product in the precision of --dtype, and float32 from there on; --dtype float32 has it so too",
    ),
    **dict.fromkeys(
        (
            "vllm_server_base_url",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_timeout",
            "vllm_group_port",
        ),
        ("idle", "producers of the run's own cluster sample, and find each other; no server is started beside it"),
    ),
    "vllm_enable_sleep_mode": ("idle", "vLLM gives its memory back while the same process trains"),
    "vllm_model_impl": ("idle", "vLLM chooses its own implementation of the model"),
    "fsdp_config": ("idle", "slices are named by --zero-stage and --shard-size alone"),
    "accelerator_config": ("idle", "no accelerate is at work"),
}
"""Fields that the Python trainer reads and no option covers, with the note on each."""
