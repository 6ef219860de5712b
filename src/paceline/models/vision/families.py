"""Families of models that read images: one description each, by which all code here serves them.

An image of W x H pixels is written into a prompt as text in which the image token stands once for each feature. The
text follows from the size alone. F features of an image.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal

from paceline.config.vision import VisionConfig
from paceline.models.vision.limits import (
    GEMMA_4_BUDGETS,
    anyres_grid,
    gemma4_grid,
    idefics_tiles,
    pixtral_grid,
    smart_resize,
)

PixelLimits = Callable[[Mapping[str, Any], int | None, int | None], Mapping[str, Any]]
"""Settings of an image processor that hold images between a least and a largest number of pixels, given its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What decides on the text of an image."""

    config: Any
    """Configuration of the whole model."""
    processor: Any
    """Image processor of transformers', in its Pillow form."""
    tokenizer: Any

    @property
    def image_token_id(self) -> int:
        """Token that takes a feature of an image."""
        named = "image_token_id" if hasattr(self.config, "image_token_id") else "image_token_index"  # older ones
        token: int = getattr(self.config, named)
        return token

    @property
    def image_token(self) -> str:
        """Text of that token."""
        text: str = self.tokenizer.convert_ids_to_tokens(self.image_token_id)
        return text

    def token(self, name: str, default: str) -> str:
        """Return the text of a token that the tokenizer may have a name for, such as `boi_token`."""
        text = getattr(self.tokenizer, name, None)
        return text if isinstance(text, str) else default


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionFamily:
    """How a family of models reads images. Module names are those inside the model's body, `model.model`."""

    model_types: tuple[str, ...]
    expansion: Callable[[Reading, int, int], str]
    """Text of an image of a width and a height; ValueError if the family reads no such image."""
    mark: tuple[str, str] | None = None
    """Attribute of the tokenizer with what chat templates write for an image, and that text where it has none; None:
    the image token."""
    reserved: tuple[str, ...] = ()
    """Further texts that would be taken for images or videos."""
    tensors: tuple[str, ...] = ("pixel_values",)
    """Outputs of the image processor that `get_image_features` takes."""
    limits: PixelLimits | None = None
    """How images are held within numbers of pixels; None: the family reads all images at the same size."""
    encoder: tuple[str, ...]
    """Modules that encode an image."""
    projector: tuple[str, ...]
    """Modules, maybe inside those, between the encoder and the language model."""
    axes: Literal[1, 3] = 1
    """Axes of a token's position: 3 where images have rows and columns (M-RoPE)."""
    blocks: Callable[[Any], bool] = lambda config: False
    """Tell by the whole configuration whether tokens of an image see each other both ways."""
    arguments: Callable[[Any], Mapping[str, Any]] = lambda config: {}
    """What the image processor is called with, by the whole configuration."""
    most_images: int | None = None
    """Images of a prompt, at most; None: any number."""


def _idefics_text(reading: Reading, width: int, height: int) -> str:
    vision, scale = reading.config.vision_config, reading.config.scale_factor
    count = (vision.image_size // vision.patch_size) ** 2 // scale**2
    image, fake = reading.image_token, reading.token("fake_image_token", "<fake_token_around_image>")
    whole = f"{fake}{reading.token('global_image_token', '<global-img>')}{image * count}{fake}"
    rows, columns = idefics_tiles(reading.processor, width, height)
    tiles = "".join(
        "".join(f"{fake}<row_{row + 1}_col_{column + 1}>{image * count}" for column in range(columns)) + "\n"
        for row in range(rows)
    )
    return f"{tiles}\n{whole}" if tiles else whole


def _qwen_text(reading: Reading, width: int, height: int) -> str:
    processor = reading.processor
    factor, (least, most) = processor.patch_size * processor.merge_size, _areas(processor.size)
    rows, columns = smart_resize(height, width, factor=factor, least=least, most=most)
    count: int = rows // factor * (columns // factor)
    return reading.image_token * count


def _glm_text(reading: Reading, width: int, height: int) -> str:
    processor = reading.processor
    factor, frames = processor.patch_size * processor.merge_size, processor.temporal_patch_size
    least, most = _areas(processor.size)  # of all frames together
    if min(width, height) < factor:
        scale = max(factor / height, factor / width)
        width, height = int(width * scale), int(height * scale)
    rows, columns = smart_resize(height, width, factor=factor, least=least, most=most, frames=frames)
    count: int = rows // factor * (columns // factor)
    return reading.image_token * count


def _llava_text(reading: Reading, width: int, height: int) -> str:
    config, processor = reading.config, reading.processor
    if config.vision_config.model_type == "pixtral":
        return _pixtral_text(reading, width, height)
    size = processor.crop_size if processor.do_center_crop else processor.size
    if not (size and "height" in size and "width" in size):
        raise ValueError("images of more than one size by its image settings")
    patch, has_class = config.vision_config.patch_size, config.vision_config.model_type == "clip_vision_model"
    classes = has_class - (config.vision_feature_select_strategy == "default")
    count: int = size["height"] // patch * (size["width"] // patch) + classes
    return reading.image_token * count


def _pixtral_text(reading: Reading, width: int, height: int) -> str:
    edge = _pixtral_patch(reading.config)["patch_size"]["height"]
    rows, columns = pixtral_grid(height, width, longest=reading.processor.size["longest_edge"], edge=edge)
    if rows == columns == 1 and reading.config.model_type == "mistral3":  # its own projector fails there
        raise ValueError(f"images within {edge} x {edge} pixels")
    row = reading.image_token * columns
    between, end = reading.token("image_break_token", "[IMG_BREAK]"), reading.token("image_end_token", "[IMG_END]")
    return between.join([row] * rows) + end


def _pixtral_patch(config: Any) -> Mapping[str, Any]:
    """Return the edge of a feature in pixels, to which the image processor rounds sizes."""
    if config.vision_config.model_type != "pixtral":
        return {}
    edge = config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1)
    return {"patch_size": {"height": edge, "width": edge}}


def _gemma3_text(reading: Reading, width: int, height: int) -> str:
    if getattr(reading.processor, "do_pan_and_scan", None):
        raise ValueError("images in crops (do_pan_and_scan in its image settings)")
    begin, end = reading.token("boi_token", "<start_of_image>"), reading.token("eoi_token", "<end_of_image>")
    return f"\n\n{begin}{reading.image_token * reading.config.mm_tokens_per_image}{end}\n\n"


def _gemma4_text(reading: Reading, width: int, height: int) -> str:
    processor = reading.processor
    edge = processor.patch_size * processor.pooling_kernel_size
    rows, columns = gemma4_grid(height, width, edge=edge, most=processor.max_soft_tokens)
    begin, end = reading.token("boi_token", "<|image>"), reading.token("eoi_token", "<image|>")
    return f"{begin}{reading.image_token * (rows * columns)}{end}"


def _internvl_text(reading: Reading, width: int, height: int) -> str:
    config, processor = reading.config, reading.processor
    tiles = 1
    if processor.crop_to_patches and processor.max_patches > 1:
        tiles = processor.get_number_of_image_patches(height, width)
    size, patch = config.vision_config.image_size, config.vision_config.patch_size
    count = round(size[0] // patch[0] * (size[1] // patch[1]) * config.downsample_ratio**2)
    begin, end = reading.token("start_image_token", "<img>"), reading.token("end_image_token", "</img>")
    return f"{begin}{reading.image_token * (count * tiles)}{end}"


def _onevision_text(reading: Reading, width: int, height: int) -> str:
    vision, aspect = reading.config.vision_config, reading.config.vision_aspect_ratio
    side = vision.image_size // vision.patch_size
    rows, columns = anyres_grid(
        height,
        width,
        pinpoints=reading.config.image_grid_pinpoints,
        tile=vision.image_size,
        side=side,
        most=int(aspect.removeprefix("anyres_max_")),
    )
    count: int = side**2 + rows * (columns + 1)  # the whole image, then rows that end in a newline
    return reading.image_token * count


def _areas(size: Mapping[str, int]) -> tuple[int, int]:
    return size["shortest_edge"], size["longest_edge"]  # areas, despite their names


def _area(settings: Mapping[str, Any], least: int | None, most: int | None) -> Mapping[str, Any]:
    smallest, largest = _areas(settings["size"])
    smallest, largest = least or min(smallest, most or smallest), most or max(largest, least or largest)
    return {"size": {"shortest_edge": smallest, "longest_edge": largest}}


def _longest_edge(settings: Mapping[str, Any], least: int | None, most: int | None) -> Mapping[str, Any]:
    _check_no_least(least)
    return {} if most is None else {"size": {"longest_edge": isqrt(most)}}


def _tiles(settings: Mapping[str, Any], least: int | None, most: int | None) -> Mapping[str, Any]:
    _check_no_least(least)
    tile = settings["size"]["height"] * settings["size"]["width"]
    return {} if most is None else {"max_patches": max(1, most // tile)}


def _soft_tokens(settings: Mapping[str, Any], least: int | None, most: int | None) -> Mapping[str, Any]:
    _check_no_least(least)
    area = (settings["patch_size"] * settings["pooling_kernel_size"]) ** 2
    if most is None:
        return {}
    budgets = [budget for budget in GEMMA_4_BUDGETS if budget * area <= most]
    if not budgets:
        raise ValueError(f"be at least {GEMMA_4_BUDGETS[0] * area}, the smallest size at which the model reads images")
    return {"max_soft_tokens": budgets[-1]}


def _check_no_least(least: int | None) -> None:
    if least is not None:
        raise ValueError("be left out, as the model makes every image as large as its settings say")


_QWEN_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|video_pad|>")

FAMILIES: tuple[VisionFamily, ...] = (
    VisionFamily(
        model_types=("idefics3", "smolvlm"),
        expansion=_idefics_text,
        reserved=("<fake_token_around_image>",),
        tensors=("pixel_values", "pixel_attention_mask"),
        limits=_longest_edge,
        encoder=("vision_model",),
        projector=("connector",),
    ),
    VisionFamily(
        model_types=("qwen2_vl", "qwen2_5_vl"),
        expansion=_qwen_text,
        reserved=_QWEN_MARKS,
        tensors=("pixel_values", "image_grid_thw"),
        limits=_area,
        encoder=("visual",),
        projector=("visual.merger",),
        axes=3,
    ),
    VisionFamily(
        model_types=("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
        expansion=_qwen_text,
        reserved=_QWEN_MARKS,
        tensors=("pixel_values", "image_grid_thw"),
        limits=_area,
        encoder=("visual",),
        projector=("visual.merger", "visual.deepstack_merger_list"),
        axes=3,
    ),
    VisionFamily(
        model_types=("glm4v",),
        expansion=_glm_text,
        reserved=("<|begin_of_image|>", "<|end_of_image|>", "<|video|>"),
        tensors=("pixel_values", "image_grid_thw"),
        limits=_area,
        encoder=("visual",),
        projector=("visual.downsample", "visual.merger"),
        axes=3,
    ),
    VisionFamily(
        model_types=("llava",),
        expansion=_llava_text,
        tensors=("pixel_values", "image_sizes"),
        encoder=("vision_tower",),
        projector=("multi_modal_projector",),
        arguments=_pixtral_patch,
    ),
    VisionFamily(
        model_types=("llava_onevision",),
        expansion=_onevision_text,
        reserved=("<video>",),
        tensors=("pixel_values", "image_sizes"),
        encoder=("vision_tower",),
        projector=("multi_modal_projector", "image_newline"),
        most_images=1,  # of several, transformers reads each one smaller
    ),
    VisionFamily(
        model_types=("mistral3",),
        expansion=_pixtral_text,
        reserved=("[IMG_BREAK]", "[IMG_END]"),
        tensors=("pixel_values", "image_sizes"),
        limits=_longest_edge,
        encoder=("vision_tower",),
        projector=("multi_modal_projector",),
        arguments=_pixtral_patch,
    ),
    VisionFamily(
        model_types=("internvl",),
        expansion=_internvl_text,
        reserved=("<img>", "</img>"),
        limits=_tiles,
        encoder=("vision_tower",),
        projector=("multi_modal_projector",),
    ),
    VisionFamily(
        model_types=("gemma3",),
        expansion=_gemma3_text,
        mark=("boi_token", "<start_of_image>"),
        reserved=("<end_of_image>",),
        encoder=("vision_tower",),
        projector=("multi_modal_projector",),
        blocks=lambda config: True,
    ),
    VisionFamily(
        model_types=("gemma4",),
        expansion=_gemma4_text,
        reserved=("<|image>", "<image|>", "<|video|>"),
        tensors=("pixel_values", "image_position_ids"),
        limits=_soft_tokens,
        encoder=("vision_tower", "audio_tower"),
        projector=("embed_vision", "embed_audio"),
        blocks=lambda config: config.get_text_config().use_bidirectional_attention == "vision",
    ),
)


def family_of(model_type: str) -> VisionFamily | None:
    """Return the family of a configuration's `model_type`; None: models of this type are not known to read images."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def freeze(model: Any, options: VisionConfig) -> None:
    """Let what reads images take gradients only as far as the options train it; nothing to do in other models."""
    if (family := family_of(model.config.model_type)) is not None:
        for names, trained in ((family.encoder, options.train_vision), (family.projector, options.train_projector)):
            for _, parameter in parts_of(model, names):
                parameter.requires_grad_(trained)


def parts_of(model: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the parameters of a model with the names or in the modules of its body that a family names."""
    named = model.base_model.named_parameters()
    return [(name, value) for name, value in named if any(f"{name}.".startswith(f"{start}.") for start in names)]
