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
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from paceline.types import Media
from tests.support.families import LINEAR

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
QWEN_TEMPLATE = "<|vision_start|><|image_pad|><|vision_end|>"
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
QWEN3_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "depth": 3,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}
IDEFICS_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>")
SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 8,
}
GLM_IDS = [
    *("image_token_id", "video_token_id", "image_start_token_id", "image_end_token_id"),
    *("video_start_token_id", "video_end_token_id"),
]
PINPOINTS = [[32, 32], [32, 64], [64, 32], [64, 64], [32, 96]]
PIXTRAL = SIGLIP | {"model_type": "pixtral", "image_size": 64, "patch_size": 16, "head_dim": 16}
GEMMA4_TEXT = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "global_head_dim": 8,
    "tie_word_embeddings": True,
}
GEMMA4_VISION = SIGLIP | {"patch_size": 4, "pooling_kernel_size": 2, "head_dim": 16, "num_key_value_heads": 2}
GEMMA4_TOKENS = ("<|image|>", "<|image>", "<image|>", "<|video|>")
GEMMA4_IDS = {
    "image_token_id": 259,
    "boi_token_id": 260,
    "eoi_token_id": 261,
    "video_token_id": 262,
    "audio_token_id": 280,
    "audio_config": None,
}
SEEING: Mapping[str, SeeingModel] = {
    "idefics3": SeeingModel(
        model_type="idefics3",
        text_type="llama",
        vision=SIGLIP | {"image_size": 32},
        tokens=IDEFICS_TOKENS,
        whole={"scale_factor": 2, "image_token_id": 259},
        processor=Idefics3ImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, return_row_col_info=True
        ),
        template="<image>",
    ),
    "qwen2_5_vl": SeeingModel(
        model_type="qwen2_5_vl",
        text_type="qwen2_5_vl_text",
        text=MROPE,
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
        template=QWEN_TEMPLATE,
    ),
    "qwen2_vl": SeeingModel(
        model_type="qwen2_vl",
        text_type="qwen2_vl_text",
        text=MROPE,
        vision={"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "depth": 2, "num_heads": 2, "patch_size": 8},
        tokens=QWEN_TOKENS,
        whole=QWEN_IDS,
        processor=Qwen2VLImageProcessorPil(**GRID),
        template=QWEN_TEMPLATE,
    ),
    "qwen3_vl": SeeingModel(
        model_type="qwen3_vl",
        text_type="qwen3_vl_text",
        text={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
        vision=QWEN3_VISION,
        tokens=QWEN_TOKENS,
        whole=QWEN_IDS,
        processor=Qwen2VLImageProcessorPil(**GRID),
        template=QWEN_TEMPLATE,
    ),
    "qwen3_5": SeeingModel(
        model_type="qwen3_5",
        text_type="qwen3_5_text",
        text=dict(LINEAR)
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 1, 1],
                "partial_rotary_factor": 1.0,
            },
        },
        vision={name: value for name, value in QWEN3_VISION.items() if name != "deepstack_visual_indexes"},
        tokens=QWEN_TOKENS,
        whole=QWEN_IDS,
        processor=Qwen2VLImageProcessorPil(**GRID),
        template=QWEN_TEMPLATE,
    ),
    "glm4v": SeeingModel(
        model_type="glm4v",
        text_type="glm4v_text",
        text={"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
        vision={
            "hidden_size": 32,
            "out_hidden_size": 32,
            "intermediate_size": 32,
            "depth": 2,
            "num_heads": 2,
            "patch_size": 8,
            "image_size": 32,
            "spatial_merge_size": 2,
        },
        tokens=("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
        whole=dict(zip(GLM_IDS, range(259, 265), strict=True)),
        processor=Glm4vImageProcessorPil(
            size={"shortest_edge": 2 * 32 * 32, "longest_edge": 2 * 64 * 64}, patch_size=8, merge_size=2
        ),
        template="<|begin_of_image|><|image|><|end_of_image|>",
    ),
    "smolvlm": SeeingModel(
        model_type="smolvlm",
        text_type="llama",
        vision=SIGLIP | {"image_size": 32},
        tokens=IDEFICS_TOKENS,
        whole={"scale_factor": 2, "image_token_id": 259},
        processor=SmolVLMImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_image_splitting=False
        ),
        template="<image>",
    ),
    "llava": SeeingModel(
        model_type="llava",
        text_type="llama",
        vision=SIGLIP | {"model_type": "clip_vision_model", "image_size": 32},
        tokens=("<image>",),
        whole={"image_token_id": 259, "vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
        processor=CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        template="<image>",
    ),
    "llava_onevision": SeeingModel(
        model_type="llava_onevision",
        text_type="qwen2",
        vision=SIGLIP | {"model_type": "siglip_vision_model", "image_size": 32},
        tokens=("<image>", "<video>"),
        whole={
            "image_token_id": 259,
            "video_token_id": 260,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "image_grid_pinpoints": PINPOINTS,
            "vision_aspect_ratio": "anyres_max_2",
        },
        processor=LlavaOnevisionImageProcessorPil(
            size={"height": 32, "width": 32}, image_grid_pinpoints=PINPOINTS, image_mean=[0.4] * 3
        ),
        template="<image>",
    ),
    "pixtral": SeeingModel(
        model_type="llava",
        text_type="mistral",
        text={"sliding_window": None},
        vision=PIXTRAL,
        tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        whole={"image_token_id": 259, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        processor=PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 16, "width": 16}),
        template="[IMG]",
    ),
    "mistral3": SeeingModel(
        model_type="mistral3",
        text_type="mistral",
        text={"sliding_window": None},
        vision=PIXTRAL | {"patch_size": 8},
        tokens=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        whole={"image_token_id": 259, "spatial_merge_size": 2},
        processor=PixtralImageProcessorPil(size={"longest_edge": 64}, patch_size={"height": 8, "width": 8}),
        template="[IMG]",
    ),
    "internvl": SeeingModel(
        model_type="internvl",
        text_type="qwen2",
        vision=SIGLIP | {"image_size": [32, 32], "patch_size": [8, 8]},
        tokens=("<IMG_CONTEXT>", "<img>", "</img>"),
        whole={"image_token_id": 259, "image_seq_length": 4, "downsample_ratio": 0.5},
        named={"context_image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"},
        processor=GotOcr2ImageProcessorPil(
            size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=4
        ),
        template="<IMG_CONTEXT>",
    ),
    "gemma3": SeeingModel(
        model_type="gemma3",
        text_type="gemma3_text",
        text={"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "query_pre_attn_scalar": 8},
        vision=SIGLIP | {"image_size": 32},
        tokens=("<image_soft_token>", "<start_of_image>", "<end_of_image>"),
        whole={"image_token_id": 259, "boi_token_id": 260, "eoi_token_id": 261, "mm_tokens_per_image": 4},
        named={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        processor=Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
        template="<start_of_image>",
    ),
    "gemma4": SeeingModel(
        model_type="gemma4",
        text_type="gemma4_text",
        text=GEMMA4_TEXT | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 288},
        vision=GEMMA4_VISION,
        tokens=GEMMA4_TOKENS,
        whole=GEMMA4_IDS,
        processor=Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70),
        template="<|image|>",
    ),
    "gemma4, blocks": SeeingModel(
        model_type="gemma4",
        text_type="gemma4_text",
        text=GEMMA4_TEXT | {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
        vision=GEMMA4_VISION,
        tokens=GEMMA4_TOKENS,
        whole=GEMMA4_IDS,
        processor=Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70),
        template="<|image|>",
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
        tie_word_embeddings=model.text.get("tie_word_embeddings", False),
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
