"""A tokenizer and models small enough for a unit test: random weights, byte-level vocabulary, no download."""

from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from paceline.engines.local.engine import LocalEngine

Kind = Literal["qwen2", "qwen3", "llama"]
"""Of architecture."""
SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|end|>", "<|im_start|>")
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


def tiny_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte (ids 0-255), then pad 256, bos 257, end 258 and <|im_start|> 259.

    Any text encodes and decodes unchanged. As with Llama, encoding puts the bos token first unless
    `add_special_tokens=False`, and the chat template writes it too: a test sees it when it is added twice.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 257)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", bos_token="<|bos|>", eos_token="<|end|>"
    )
    fast.chat_template = chat_template
    return fast


def tiny_model(
    kind: Kind = "qwen3",
    vocab_size: int = VOCAB_SIZE,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    layers: int = 2,
    key_value_heads: int = 2,
) -> PreTrainedModel:
    """A causal language model of 2 `layers`, width 32, 4 heads and 2 `key_value_heads`, in evaluation mode.

    The same `seed` gives the same weights; the global random state is left as it was. Weights are drawn in float32
    with a standard deviation of 0.2 (not the usual 0.02), so that the next-token distribution is visibly not uniform.
    """
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[kind]
    head_dim = {} if kind == "qwen2" else {"head_dim": 8}
    config = config_class(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=key_value_heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.2,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
        **head_dim,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    return model.to(dtype).eval()


def make_unfamiliar(model: PreTrainedModel) -> PreTrainedModel:
    """Give the model a class of no known name, so that only the plain path takes it; in place."""
    model.__class__ = type("UnfamiliarForCausalLM", (type(model),), {})
    return model


def local_engine(
    model: PreTrainedModel, *, slots: int = 64, dtype: torch.dtype | None = None, eos=(), path: str = "fused", **options
) -> LocalEngine:
    """An engine with the tiny tokenizer, which has taken this path."""
    engine = LocalEngine(
        model,
        tiny_tokenizer(),
        concurrent_sequences=slots,
        compute_dtype=dtype or model.dtype,
        eos_token_ids=frozenset(eos),
        **options,
    )
    assert engine.path == path, engine.path_reason
    return engine


def tiny_reward_model(
    kind: Literal["llama", "qwen2"] = "llama", *, num_labels: int = 1, **settings: object
) -> PreTrainedModel:
    """A sequence-classification model of the same size, in evaluation mode; `settings` are its configuration's."""
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForSequenceClassification),
        "qwen2": (Qwen2Config, Qwen2ForSequenceClassification),
    }[kind]
    given = {"pad_token_id": 256, "max_position_embeddings": 256} | settings
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        num_labels=num_labels,
        **given,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return model_class(config).eval()


def with_exact_norms(model: PreTrainedModel) -> PreTrainedModel:
    """The model with norms that keep float64: transformers' own compute in float32 whatever they are given.

    A float32 rounding in between would turn two orders of summation, equal to 1e-16, into a difference of 1e-8.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                exact = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=child.weight.dtype)
                exact.weight = child.weight
                setattr(module, name, exact)
    return model
