"""Paceline's model as `load_model` makes it ready, in the precision and with the threads that it chooses by itself."""

from dataclasses import replace

from given import Given

from paceline.config import ModelConfig
from paceline.models import Loaded, load_model


def load_policy(given: Given, *, device: str) -> Loaded:
    """The policy, without end tokens where the workload says how long completions are."""
    policy = load_model(ModelConfig(model=given.model, device=device))
    if given.workload.lengths != "natural":
        policy = replace(policy, eos_token_ids=frozenset())
    return policy
