"""Every flag of `trl grpo` that is no field of `GRPOConfig`, in exactly one table."""

from collections.abc import Mapping

SCRIPT: Mapping[str, str] = {
    "dataset_name": "dataset",
    "dataset_config": "dataset: NAME:CONFIG",
    "dataset_train_split": "dataset_split",
    "dataset_test_split": "eval_split",
    "datasets": "dataset, where there is one",
    "reward_model_name_or_path": "reward_models",
    "reward_funcs": "reward_funcs",
    "model_name_or_path": "model",
    "dtype": "dtype: of the computation, weights are float32 always",
    "use_peft": "lora_rank",
    "lora_r": "lora_rank",
    "lora_alpha": "lora_alpha",
    "lora_target_modules": "lora_targets",
}
"""Flags of the script that become options."""

SCRIPT_IDLE: Mapping[str, str] = {
    "dataset_streaming": "rows are read once, before the first step",
    "streaming": "rows are read once, before the first step",
    "ignore_bias_buffers": "there are none that would have to be left out",
    "attn_implementation": "attention is the built-in one, or torch's",
    "lora_dropout": "nothing is dropped: the policy that trains is the one that sampled",
    "lora_task_type": "a causal language model is what is trained",
    "output_router_logits": "they take no part in the loss",
}
SCRIPT_REFUSED: Mapping[str, str] = {
    "test_split_size": "no held-out set is cut from the training rows; give a file of its own as --eval-dataset",
    "model_revision": "a Hub name is read at its main branch; download the revision and give its directory",
    "lora_target_parameters": "adapters are of linear layers",
    "lora_modules_to_save": "an adapter holds its own matrices alone",
    "use_rslora": "the adapter's scale is lora_alpha over its rank; give --lora_alpha times the root of the rank",
    "use_dora": "adapters have no magnitudes of their own",
    **dict.fromkeys(
        ("load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage"),
        "weights are not quantised; --optimizer adamw_8bit, --zero-stage and --lora-rank save memory",
    ),
}
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "model_revision": ("main",),
    "bnb_4bit_quant_type": ("nf4", "fp4"),
    "bnb_4bit_quant_storage": ("uint8",),
}
"""Values with which a refused flag means the same as its absence."""
