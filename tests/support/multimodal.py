"""Tiny models that read text and images, by transformers' own classes, with random weights."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tests.support.families import LINEAR, Family, family, make_config

VISION: Mapping[str, int | float] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14,
    "depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16, "position_embedding_size": 16,
    "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16,
}  # fmt: skip
"""What a configuration of a vision tower is given of this: what it has by these names."""
MINISTRAL = Family(model_type="ministral3", settings={"head_dim": 8})
TEXT_PARTS = {
    "gemma3": family("gemma3_text"),
    "gemma4": family("gemma4_text"),
    "qwen3_5": Family(model_type="qwen3_5_text", settings=LINEAR),
    "qwen3_5_moe": family("qwen3_5_moe_text"),
    "mistral3": family("mistral, no window"),
    "mistral3, ministral3": MINISTRAL,
    "llama4": family("llama4_text"),
}
"""Checkpoints that are published as `...ForConditionalGeneration`: model type, and the family of the language model."""


def published_name(name: str) -> str:
    """Return the class that config.json of one of `TEXT_PARTS` names, with the language model where there are two."""
    kind, _, language_model = name.partition(", ")
    return ", ".join(filter(None, [MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind], language_model]))


def multimodal_config(name: str, **settings: Any) -> PretrainedConfig:
    """Return the configuration of one of `TEXT_PARTS`; `settings` change the language model's."""
    kind = name.split(",")[0]
    text, default = make_config(TEXT_PARTS[name]), AutoConfig.for_model(kind)
    vision = default.vision_config or AutoConfig.for_model(f"{kind}_vision")
    small = {key: value for key, value in VISION.items() if key in vision.to_dict()}
    tokens = {key: 1 for key in ("image_token_id", "image_token_index") if hasattr(default, key)}
    return AutoConfig.for_model(
        kind,
        text_config=text.to_dict() | settings,
        vision_config={"model_type": vision.model_type, **small},
        tie_word_embeddings=settings.get("tie_word_embeddings", text.tie_word_embeddings),
        **tokens,
    )


def multimodal_model(name: str, **settings: Any) -> PreTrainedModel:
    """Return one of `TEXT_PARTS` with weights that are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForImageTextToText.from_config(multimodal_config(name, **settings))
    return model.eval()
