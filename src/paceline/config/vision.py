"""Options for models that read images; they apply where rows have images."""

from dataclasses import dataclass
from typing import Annotated

from paceline.config.rules import ABOVE_0, AT_LEAST_1, check_bounds, require


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """Images in prompts, and the part of the model that reads them."""

    image_max_pixels: Annotated[int | None, AT_LEAST_1] = None
    """Pixels of an image, at most, as the model reads it: larger ones are made smaller. None: as the model's own
    settings say."""
    image_min_pixels: Annotated[int | None, AT_LEAST_1] = None
    """Pixels of an image, at least, for models that choose an image's size by its own: smaller ones are made larger.
    None: as the model's own settings say."""
    max_images_per_prompt: Annotated[int, AT_LEAST_1] = 16
    """Images of a prompt, at most; a row with more is refused."""
    image_urls: bool = False
    """Fetch images that rows name by http:// or https://; otherwise such a row is refused."""
    train_vision: bool = False
    """Train the vision encoder too; false: it is frozen, and each image is encoded once per run."""
    train_projector: bool = False
    """Train the layers between the vision encoder and the language model too."""
    vision_learning_rate: Annotated[float | None, ABOVE_0] = None
    """Peak learning rate of the vision encoder and of the projector; None: `learning_rate`."""
    lora_vision: bool = False
    """Give an adapter to the linear layers of the vision encoder and of the projector too."""

    def __post_init__(self) -> None:
        check_bounds(self)
        least, most = self.image_min_pixels, self.image_max_pixels
        if least is not None and most is not None:
            require(least <= most, "image_min_pixels", least, f"be at most --image-max-pixels {most}")
        trained = self.train_vision or self.train_projector or self.lora_vision
        rate, rule = self.vision_learning_rate, "be left out without --train-vision, --train-projector or --lora-vision"
        require(rate is None or trained, "vision_learning_rate", rate, rule, "the vision encoder is frozen then")
