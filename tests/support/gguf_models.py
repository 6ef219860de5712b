"""A small model whose tokenizer divides text as llama.cpp knows it."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config

from paceline.models.gguf import WORDS
from tests.support.tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, Kind, tiny_model

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("1", "2")]


def tokenizer(divides: pre_tokenizers.PreTokenizer) -> PreTrainedTokenizerFast:
    special = (*SPECIAL_TOKENS, "<|endoftext|>")  # which transformers' tokenizers of Qwen2 always have
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special, *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=MERGES))
    made.pre_tokenizer, made.decoder = divides, decoders.ByteLevel()
    made.add_special_tokens(list(special))
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<|pad|>", bos_token="<|bos|>", eos_token="<|end|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def divided(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(WORDS % digits), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def saved_model(folder: Path, kind: Kind, divides: pre_tokenizers.PreTokenizer | None = None) -> PreTrainedModel:
    """A model of random weights with its tokenizer, in a directory."""
    written = tokenizer(divides or pre_tokenizers.ByteLevel(add_prefix_space=False))
    model = tiny_model(kind, vocab_size=len(written))
    if kind == "qwen3":  # transformers 5.23 takes every head of such a file to be 128 wide
        model = AutoModelForCausalLM.from_config(Qwen3Config(**model.config.to_dict() | {"head_dim": 128}))
    model.save_pretrained(folder)
    written.save_pretrained(folder)
    return model
