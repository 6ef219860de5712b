"""Models that vLLM computes, and an engine on each."""

import itertools
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from paceline.engines import Request, TakeNewer, sample_key
from paceline.engines.local.engine import LocalEngine
from tests.support.tiny import tiny_tokenizer

END = 258
LENGTH = 192
DEVICE = os.environ.get("PACELINE_TEST_DEVICE", "cpu")
"""Device that vLLM is tested on: the installed build must be for it."""


def tied_model(*, seed: int = 0, heads: int = 2) -> PreTrainedModel:
    """Two layers of width 64 whose head is the embedding: Qwen2 with heads of 32, Llama with narrower ones."""
    size = {"vocab_size": 260, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    alike = {"max_position_embeddings": 256, "tie_word_embeddings": True, "initializer_range": 0.2, "eos_token_id": END}
    kind, config = (Qwen2ForCausalLM, Qwen2Config) if heads == 2 else (LlamaForCausalLM, LlamaConfig)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config(num_attention_heads=heads, num_key_value_heads=2, **size, **alike)).eval()


def take_over(model: PreTrainedModel, other: PreTrainedModel) -> None:
    """Give a model the weights of another, in place, as an optimiser would."""
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)


def arriving(model: PreTrainedModel, other: PreTrainedModel, *, before: int, version: int) -> TakeNewer:
    """By which another model's weights are there before token number `before`, counted from 0."""
    asked = itertools.count()

    def take() -> int | None:
        if next(asked) != before:
            return None
        take_over(model, other)
        return version

    return take


def local_engine(model: PreTrainedModel, take_newer: TakeNewer | None = None) -> LocalEngine:
    return LocalEngine(
        model,
        tiny_tokenizer(),
        concurrent_sequences=64,
        compute_dtype=torch.float32,
        eos_token_ids=frozenset([END]),
        take_newer=take_newer,
    )


def request(name: str, samples: int, *, length: int = 12) -> Request:
    """Made-up tokens, different for each name."""
    prompt = tuple((sum(name.encode()) * 31 + index * 7) % 256 for index in range(length))
    return Request(prompt_ids=prompt, keys=tuple(sample_key(0, "test", name, 0, index) for index in range(samples)))
