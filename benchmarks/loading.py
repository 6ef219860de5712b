"""Paceline's model and engine, in the precision and with the threads that they choose by themselves."""

from given import Given
from transformers import PreTrainedTokenizerFast

from paceline.config.sections import ModelConfig
from paceline.engines.local.engine import LocalEngine
from paceline.models.loaded import Loaded
from paceline.models.loading import load_model
from paceline.models.pretrained import end_token_ids


def load_policy(given: Given, *, device: str) -> Loaded:
    """The model of a workload, ready to train."""
    return load_model(ModelConfig(model=given.model, device=device))


def make_engine(given: Given, policy: Loaded) -> LocalEngine:
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
    )
