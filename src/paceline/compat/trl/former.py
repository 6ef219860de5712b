"""Arguments and fields of earlier versions of TRL and transformers, each with what is written today."""

from collections.abc import Collection, Mapping

from paceline.config.reading import suggest
from paceline.errors import ConfigError

NOTHING = "leave it out"
ARGUMENTS: Mapping[str, str] = {
    "tokenizer": "give processing_class",
    "config": "give args",
    "ref_model": "the reference is the model as it is at the start; give beta in args",
    "dataset": "give train_dataset",
    "reward_function": "give reward_funcs",
    "reward_functions": "give reward_funcs",
    "env": "give environment_factory",
    "environments": "give environment_factory",
}
"""Arguments of a trainer."""
FIELDS: Mapping[str, str] = {
    # TRL
    "vllm_device": f"vLLM has the trainer's own device; {NOTHING}",
    "vllm_dtype": f"vLLM computes in the precision of the weights; {NOTHING}",
    "vllm_max_model_len": "give vllm_max_model_length",
    "vllm_guided_decoding_regex": f"completions are not held to a pattern; {NOTHING}",
    "vllm_enable_prefix_caching": f"vLLM always caches prefixes; {NOTHING}",
    "use_liger_loss": f"logits are never in memory as a whole; {NOTHING}",
    "wandb_log_unique_prompts": f"every completion is written to the run directory's rollouts/; {NOTHING}",
    "max_length": "give max_completion_length, and max_prompt_length",
    "max_new_tokens": "give max_completion_length",
    "num_return_sequences": "give num_generations",
    "kl_coef": "give beta",
    # transformers
    "evaluation_strategy": "give eval_strategy",
    "no_cuda": "give use_cpu",
    "overwrite_output_dir": "nothing overwrites a run; give another output_dir, or resume it",
    "logging_dir": f"trackers write below output_dir; {NOTHING}",
    "per_gpu_train_batch_size": "give per_device_train_batch_size",
    "per_gpu_eval_batch_size": "give per_device_eval_batch_size",
    "push_to_hub_model_id": "give hub_model_id",
    "push_to_hub_organization": "give hub_model_id='organization/name'",
    "push_to_hub_token": "give hub_token",
    "save_safetensors": f"weights are always written as safetensors; {NOTHING}",
    "group_by_length": f"prompts are not ordered by length; {NOTHING}",
    "half_precision_backend": f"torch is the only one; {NOTHING}",
    "fp16_backend": f"torch is the only one; {NOTHING}",
    "fp16_opt_level": f"half precision is not offered; {NOTHING}",
    "adafactor": "give the trainer optimizers=(optimizer, None)",
    "jit_mode_eval": f"the model is not compiled; {NOTHING}",
    "torchdynamo": f"the model is not compiled; {NOTHING}",
    "use_mps_device": f"it computes on CUDA or the CPU; {NOTHING}",
    "include_tokens_per_second": f"clock/ and tokens_generated in the log say it; {NOTHING}",
    "include_inputs_for_metrics": f"there are no predictions to compute on; {NOTHING}",
    "dispatch_batches": f"no loader runs; {NOTHING}",
    "split_batches": f"batches are counted per process; {NOTHING}",
    "fsdp_min_num_params": "give fsdp, whose slices do not depend on it",
    "fsdp_transformer_layer_cls_to_wrap": "give fsdp, which knows the layers",
}
"""Fields of a configuration."""


def refuse_field(name: str, known: Collection[str]) -> ConfigError:
    """Return the refusal of a field that GRPOConfig does not have."""
    remedy = FIELDS.get(name) or suggest(name, [*known], otherwise=NOTHING)
    return ConfigError(f"GRPOConfig has no field {name}; {remedy}")


def refuse_argument(name: str, known: Collection[str], of_config: Collection[str]) -> ConfigError:
    """Return the refusal of an argument that GRPOTrainer does not have; it may be a field of its configuration."""
    remedy = ARGUMENTS.get(name) or (
        f"give it in args: GRPOConfig({name}=...)" if name in of_config else FIELDS.get(name)
    )
    return ConfigError(f"GRPOTrainer has no argument {name}; {remedy or suggest(name, [*known], otherwise=NOTHING)}")
