"""Paceline's model and engine, in the precision and with the threads that they choose by themselves."""

from pathlib import Path
from typing import Literal

import torch
from given import Given
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from paceline.config.sections import LoraConfig, ModelConfig
from paceline.engines.local.engine import LocalEngine
from paceline.models.loaded import Loaded
from paceline.models.loading import adopt_model, load_model
from paceline.models.pretrained import end_token_ids


def load_policy(given: Given, *, device: str, lora_rank: int = 0) -> Loaded:
    """The model of a workload, ready to train; its weights are random where its directory has none."""
    config, lora = ModelConfig(model=given.model, device=device), LoraConfig(lora_rank=lora_rank)
    if any(Path(given.model).glob("*.safetensors")):
        return load_model(config, lora)
    return adopt_model(random_model(AutoConfig.from_pretrained(given.model), device), config, lora)


def random_model(config: PretrainedConfig, device: str) -> PreTrainedModel:
    """A model with random weights in float32, made on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def make_engine(given: Given, policy: Loaded, quantization: Literal["none", "fp8"] = "none") -> LocalEngine:
    """An engine without end tokens where the workload says how long completions are."""
    tokenizer, workload = PreTrainedTokenizerFast.from_pretrained(given.model), given.workload
    return LocalEngine(
        policy.model,
        tokenizer,
        concurrent_sequences=workload.completions,
        compute_dtype=policy.compute_dtype,
        eos_token_ids=end_token_ids(tokenizer, policy.model.generation_config, policy.model.config)
        if workload.lengths == "natural"
        else frozenset(),
        quantization=quantization,
    )
