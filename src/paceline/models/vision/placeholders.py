"""Text that stands for an image in a prompt, by a model's configuration, tokenizer and image processor alone."""

import tempfile
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, AutoImageProcessor, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from paceline.config.sections import ModelConfig
from paceline.config.vision import VisionConfig
from paceline.errors import ModelError, first_line
from paceline.models.places import GET_AGAIN
from paceline.models.pretrained import model_directory
from paceline.models.vision.families import FAMILIES, Reading, VisionFamily, family_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePlaceholders:
    """How images are written into prompts for one model."""

    mark: str
    """Text that chat templates write for one image, which `text` replaces."""
    reserved: tuple[str, ...]
    """Texts that rows may not hold, as they would be taken for images."""
    image_token_id: int
    """Token that takes a feature of an image."""
    image_token: str
    """Text of that token."""
    most_images: int | None
    """Images of a prompt, at most; None: any number."""
    family: VisionFamily
    reading: Reading
    _texts: dict[tuple[int, int], str] = field(default_factory=dict, repr=False, compare=False)

    def text(self, width: int, height: int) -> str:
        """Return the text of an image of this size; ModelError if the model reads no such image."""
        if (width, height) not in self._texts:
            try:
                self._texts[width, height] = self.family.expansion(self.reading, width, height)
            except ValueError as error:
                kind = self.reading.config.model_type
                raise ModelError(
                    f"an image of {width} x {height} pixels cannot be read by a {kind}, which takes no {error}; cut it "
                    "to another shape"
                ) from error
        return self._texts[width, height]

    def num_features(self, width: int, height: int) -> int:
        """Return the number of features of an image of this size."""
        return self.text(width, height).count(self.image_token)


def read_placeholders(
    config: ModelConfig, vision: VisionConfig, tokenizer: PreTrainedTokenizerBase
) -> ImagePlaceholders:
    """Read how images are written into prompts for a model, without its weights.

    ModelError: the model reads no images or belongs to no family that is served here, its image settings cannot be
    read, or an option of `vision` does not apply to it.
    """
    described = read_vision_config(config)
    return placeholders_of(described, read_image_processor(config, vision), tokenizer, f"--model {config.model}")


def placeholders_of(
    described: PretrainedConfig, processor: Any, tokenizer: PreTrainedTokenizerBase, label: str = "the model"
) -> ImagePlaceholders:
    """Return how images are written into prompts by a model's configuration, image processor and tokenizer."""
    family = known_family(described, label)
    reading = Reading(config=described, processor=processor, tokenizer=tokenizer)
    token = reading.image_token
    if token is None:
        raise ModelError(
            f"{label}: its tokenizer has no token {reading.image_token_id}, which its config.json has for images; get "
            "tokenizer and config.json of one model"
        )
    mark = reading.token(*family.mark) if family.mark else token
    return ImagePlaceholders(
        mark=mark,
        reserved=tuple(dict.fromkeys((mark, token, *family.reserved))),
        image_token_id=reading.image_token_id,
        image_token=token,
        most_images=family.most_images,
        family=family,
        reading=reading,
    )


def reads_images(config: ModelConfig) -> bool:
    """Return True for a model of a known family that reads images, with its image settings beside it."""
    try:
        read_image_processor(config, VisionConfig())
    except ModelError:
        return False
    return True


def read_vision_config(config: ModelConfig) -> PretrainedConfig:
    """Read the configuration of a whole model that reads images; ModelError if it reads none."""
    try:
        described: PretrainedConfig = AutoConfig.from_pretrained(model_directory(config.model))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"--model {config.model}: its config.json cannot be loaded: {first_line(error)}") from error
    known_family(described, f"--model {config.model}")
    return described


def known_family(described: PretrainedConfig, label: str) -> VisionFamily:
    """Return the family of a model; ModelError if it reads no images, or none is known."""
    family = family_of(described.model_type)
    if family is None:
        kind = ", ".join(described.architectures or ()) or described.model_type
        known = ", ".join(name for family in FAMILIES for name in family.model_types)
        raise ModelError(
            f"{label} is a {kind}, which is not known to read images, and the prompts hold some; name a model whose "
            f"config.json has one of the types {known}"
        )
    return family


def read_image_processor(config: ModelConfig, vision: VisionConfig) -> Any:
    """Read a model's image processor, in its Pillow form, with the limits of the options; ModelError if it has none."""
    family = known_family(read_vision_config(config), f"--model {config.model}")
    processor = _processor_in(model_directory(config.model), f"--model {config.model}")
    return within_limits(processor, family, vision)


def image_processor_of(model: PreTrainedModel, processor: Any, vision: VisionConfig) -> Any:
    """Return the image processor of a user's own model object, with the limits of the options.

    `processor`: the user's own, whose settings are taken; None: that of the directory that the model was read from.
    """
    family = known_family(model.config, "the model")
    if processor is None:
        processor = _processor_in(model.name_or_path or "", "the model")
    else:
        with tempfile.TemporaryDirectory() as directory:  # through its file, as it may be another kind than Pillow's
            processor.save_pretrained(directory)
            processor = _processor_in(directory, "the model")
    return within_limits(processor, family, vision)


def _processor_in(directory: str, label: str) -> Any:
    try:
        return AutoImageProcessor.from_pretrained(directory, backend="pil")
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(
            f"{label}: its image settings (preprocessor_config.json) cannot be read: {first_line(error)}; {GET_AGAIN}"
        ) from error


def within_limits(processor: Any, family: VisionFamily, vision: VisionConfig) -> Any:
    """Return an image processor that holds images within the options' numbers of pixels."""
    least, most = vision.image_min_pixels, vision.image_max_pixels
    if least is None and most is None:
        return processor
    option, value = ("image-max-pixels", most) if most is not None else ("image-min-pixels", least)
    if family.limits is None:
        raise ModelError(f"--{option} must be left out, as the model reads every image at one size, got {value}")
    settings = processor.to_dict()
    try:
        return type(processor).from_dict({**settings, **family.limits(settings, least, most)})
    except ValueError as error:
        raise ModelError(f"--{option} must {error}, got {value}") from error
