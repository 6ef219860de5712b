"""Tiny models that read images, in directories as their publishers ship them: weights, tokenizer, image settings.

Every model is random, a byte is a token, and an image of up to 48 x 48 pixels is a few tokens.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from paceline.types import Media

TEXT: Mapping[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "tie_word_embeddings": False,
}
"""Settings of every language model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeeingModel:
    """A kind of model that reads images."""

    model_type: str
    text_type: str
    text: Mapping[str, Any] = field(default_factory=dict)
    vision: Mapping[str, Any]
    tokens: tuple[str, ...]
    """Special tokens behind pad, bos and end, from id 259 on; the first stands for one feature."""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the whole model."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Tokens that the tokenizer has names for."""
    processor: Any
    template: str
    """What a chat template writes for an image."""


GRID = {"size": {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}, "patch_size": 8, "merge_size": 2}
QWEN_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
QWEN_IDS = {"image_token_id": 259, "video_token_id": 260, "vision_start_token_id": 261, "vision_end_token_id": 262}
SEEING: Mapping[str, SeeingModel] = {
    "idefics3": SeeingModel(
        model_type="idefics3",
        text_type="llama",
        vision={
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        tokens=("<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>"),
        whole={"scale_factor": 2, "image_token_id": 259},
        processor=Idefics3ImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, return_row_col_info=True
        ),
        template="<image>",
    ),
    "qwen2_5_vl": SeeingModel(
        model_type="qwen2_5_vl",
        text_type="qwen2_5_vl_text",
        text={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
        vision={
            "hidden_size": 32,
            "intermediate_size": 32,
            "depth": 2,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        tokens=QWEN_TOKENS,
        whole=QWEN_IDS,
        processor=Qwen2VLImageProcessorPil(**GRID),
        template="<|vision_start|><|image_pad|><|vision_end|>",
    ),
}


def seeing_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return one token per UTF-8 byte (0-255), pad 256, bos 257, end 258, then the model's own from 259 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    model = SEEING[kind]
    tokenizer.add_special_tokens(["<|pad|>", "<|bos|>", "<|end|>", *model.tokens])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|end|>",
        extra_special_tokens=dict(model.named),
    )
    fast.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}"
        "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        + model.template
        + "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return fast


def seeing_model(kind: str, dtype: torch.dtype = torch.float32, *, seed: int = 0, **text: Any) -> PreTrainedModel:
    """Return a model with the same weights each time; `text` are further settings of the language model."""
    model = SEEING[kind]
    accepted = AutoConfig.for_model(model.text_type).to_dict()
    settings = {name: value for name, value in TEXT.items() if name in accepted or name == "head_dim"}
    config = AutoConfig.for_model(
        model.model_type,
        text_config={"model_type": model.text_type} | settings | dict(model.text) | text,
        vision_config=dict(model.vision),
        tie_word_embeddings=False,
        **model.whole,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made: PreTrainedModel = AutoModelForImageTextToText.from_config(config)
        with torch.no_grad():
            for parameter in made.parameters():  # so that every part shows in the outputs
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 0.2)
    return made.to(dtype).eval()


def write_seeing_model(directory: Path, kind: str, *, seed: int = 0) -> Path:
    """Write a model with its tokenizer and image settings; return the directory."""
    seeing_model(kind, seed=seed).save_pretrained(directory)
    seeing_tokenizer(kind).save_pretrained(directory)
    SEEING[kind].processor.save_pretrained(directory)
    return directory


def picture(seed: int, width: int = 48, height: int = 32) -> Image.Image:
    """Return an image of noise, in RGB, without black: a black tile is padding to some models."""
    pixels = np.random.default_rng(seed).integers(1, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


class HeldPictures:
    """Images in memory by their hashes."""

    def __init__(self, *images: Image.Image) -> None:
        self._images = {self.sha256(image): image for image in images}

    @staticmethod
    def sha256(image: Image.Image) -> str:
        """Return the hash of an image's size and pixels."""
        return hashlib.sha256(f"{image.width}x{image.height}:".encode() + image.convert("RGB").tobytes()).hexdigest()

    def pixels(self, sha256: str) -> Image.Image:
        """Return a copy of an image."""
        return self._images[sha256].copy()


def prompt_with(tokenizer: Any, placeholders: Any, text: str, *images: Image.Image) -> tuple[list[int], list[Media]]:
    """Return tokens and images of a text in which each `{}` is an image."""
    ids, media = list[int](), list[Media]()
    pieces = text.split("{}")
    for piece, image in zip(pieces, [*images, None], strict=True):
        ids += tokenizer.encode(piece, add_special_tokens=False)
        if image is not None:
            expanded = tokenizer.encode(placeholders.text(image.width, image.height), add_special_tokens=False)
            features = [place for place, token in enumerate(expanded) if token == placeholders.image_token_id]
            start, length = len(ids) + features[0], features[-1] - features[0] + 1
            media.append(Media(sha256=HeldPictures.sha256(image), start=start, length=length))
            ids += expanded
    return ids, media
