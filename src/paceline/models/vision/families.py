"""Families of models that read images: one description each, by which all code here serves them.

An image of W x H pixels is written into a prompt as text in which the image token stands once for each feature. The
text follows from the size alone. F features of an image.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal

from paceline.models.vision.limits import idefics_tiles, smart_resize

Limits = Callable[[Mapping[str, Any], int | None, int | None], Mapping[str, Any]]
"""Settings of an image processor that hold images between a least and a largest number of pixels, given its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What decides on the text of an image."""

    config: Any
    """Configuration of the whole model."""
    processor: Any
    """Image processor of transformers', in its Pillow form."""
    tokenizer: Any

    def token(self, name: str, default: str) -> str:
        """Return the text of a token that the tokenizer may name otherwise, such as `image_token`."""
        text = getattr(self.tokenizer, name, None)
        return text if isinstance(text, str) else default


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionFamily:
    """How a family of models reads images. Module names are those inside the model's body, `model.model`."""

    model_types: tuple[str, ...]
    expansion: Callable[[Reading, int, int], str]
    """Text of an image of a width and a height; ValueError if the family reads no such image."""
    image_token: tuple[str, str]
    """Attribute of the tokenizer with the text that stands for one feature, and the text where it has none."""
    mark: tuple[str, str] | None = None
    """The same for what chat templates write for an image; None: the image token."""
    reserved: tuple[str, ...] = ()
    """Further texts that would be taken for images or videos."""
    tensors: tuple[str, ...] = ("pixel_values",)
    """Outputs of the image processor that `get_image_features` takes."""
    limits: Limits | None = None
    """How images are held within numbers of pixels; None: the family reads all images at the same size."""
    encoder: tuple[str, ...]
    """Modules that encode an image."""
    projector: tuple[str, ...]
    """Modules, maybe inside those, between the encoder and the language model."""
    axes: Literal[1, 3] = 1
    """Axes of a token's position: 3 where images have rows and columns (M-RoPE)."""
    levels: bool = False
    """True if images also enter the first layers of the language model (deepstack)."""


def _idefics_text(reading: Reading, width: int, height: int) -> str:
    vision, scale = reading.config.vision_config, reading.config.scale_factor
    count = (vision.image_size // vision.patch_size) ** 2 // scale**2
    image, fake = (
        reading.token("image_token", "<image>"),
        reading.token("fake_image_token", "<fake_token_around_image>"),
    )
    whole = f"{fake}{reading.token('global_image_token', '<global-img>')}{image * count}{fake}"
    rows, columns = idefics_tiles(reading.processor, width, height)
    tiles = "".join(
        "".join(f"{fake}<row_{row + 1}_col_{column + 1}>{image * count}" for column in range(columns)) + "\n"
        for row in range(rows)
    )
    return f"{tiles}\n{whole}" if tiles else whole


def _longest_edge(settings: Mapping[str, Any], least: int | None, most: int | None) -> Mapping[str, Any]:
    if least is not None:
        raise ValueError("be left out, as the model makes every image as large as its settings say")
    return {} if most is None else {"size": {"longest_edge": isqrt(most)}}


def _grid_text(name: str, default: str) -> Callable[[Reading, int, int], str]:
    def text(reading: Reading, width: int, height: int) -> str:
        processor = reading.processor
        factor, (least, most) = processor.patch_size * processor.merge_size, _areas(processor.size)
        rows, columns = smart_resize(height, width, factor=factor, least=least, most=most)
        return reading.token(name, default) * (rows // factor * (columns // factor))

    return text


def _areas(size: Mapping[str, int]) -> tuple[int, int]:
    return size["shortest_edge"], size["longest_edge"]  # areas, despite their names


def _area(settings: Mapping[str, Any], least: int | None, most: int | None) -> Mapping[str, Any]:
    smallest, largest = _areas(settings["size"])
    smallest, largest = least or min(smallest, most or smallest), most or max(largest, least or largest)
    return {"size": {"shortest_edge": smallest, "longest_edge": largest}}


_QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>")

FAMILIES: tuple[VisionFamily, ...] = (
    VisionFamily(
        model_types=("idefics3", "smolvlm"),
        expansion=_idefics_text,
        image_token=("image_token", "<image>"),
        reserved=("<fake_token_around_image>",),
        tensors=("pixel_values", "pixel_attention_mask"),
        limits=_longest_edge,
        encoder=("vision_model",),
        projector=("connector",),
    ),
    VisionFamily(
        model_types=("qwen2_vl", "qwen2_5_vl"),
        expansion=_grid_text("image_token", "<|image_pad|>"),
        image_token=("image_token", "<|image_pad|>"),
        reserved=_QWEN_MARKS,
        tensors=("pixel_values", "image_grid_thw"),
        limits=_area,
        encoder=("visual",),
        projector=("visual.merger",),
        axes=3,
    ),
    VisionFamily(
        model_types=("qwen3_vl",),
        expansion=_grid_text("image_token", "<|image_pad|>"),
        image_token=("image_token", "<|image_pad|>"),
        reserved=_QWEN_MARKS,
        tensors=("pixel_values", "image_grid_thw"),
        limits=_area,
        encoder=("visual",),
        projector=("visual.merger", "visual.deepstack_merger_list"),
        axes=3,
        levels=True,
    ),
)


def family_of(model_type: str) -> VisionFamily | None:
    """Return the family of a configuration's `model_type`; None: models of this type are not known to read images."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)
