"""Images of a trainer's datasets: how they are read, and what cannot be done with them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from paceline.base_directory import local_path
from paceline.checkpoints.run_directory import IMAGES
from paceline.compat.trl.arguments import TrainerArguments
from paceline.config.sections import Config
from paceline.data.pictures import Placeholders
from paceline.data.row_images import ImageInput
from paceline.errors import ConfigError
from paceline.training.setup.images import with_placeholders
from paceline.training.setup.inputs import RunObjects

UNREAD = ("processor_class", "image_processor_type", "_processor_class", "auto_map")
"""Settings of an image processor that say nothing of pixels."""


def images_folder(arguments: TrainerArguments) -> Path:
    """Return the folder of the run's images."""
    return local_path(str(arguments.args.output_dir)).absolute() / IMAGES


def image_input(arguments: TrainerArguments, config: Config, tokenizer: PreTrainedTokenizerBase) -> ImageInput:
    """Return how images of the trainer's rows are read; what is wrong with it is said once a row has an image."""
    model = None if isinstance(arguments.model, str) else arguments.model
    objects = RunObjects(model=model, image_processor=image_processor(arguments))
    images = with_placeholders(config, objects, tokenizer, folder=images_folder(arguments)).images
    assert images is not None
    assert images.placeholders is not None
    read: Callable[[], Placeholders] = images.placeholders

    @cache
    def placeholders() -> Placeholders:
        if arguments.rollout_func is not None:
            raise ConfigError(
                "rollout_func must be None where prompts have images, which it would have to sample with; leave it out"
            )
        if model is None:
            _check_settings(arguments, config)
        return read()

    return replace(images, placeholders=placeholders)


def image_processor(arguments: TrainerArguments) -> Any:
    """Return the image processor of `processing_class`; None: it has none."""
    return getattr(arguments.processing_class, "image_processor", None)


def _check_settings(arguments: TrainerArguments, config: Config) -> None:
    """Refuse image settings of a processor that differ from those of the named model, which is read with its own."""
    given = image_processor(arguments)
    if given is None:
        return
    # imported here: most runs have no images
    from paceline.models.vision.placeholders import read_image_processor

    ours, theirs = read_image_processor(config.model, config.vision).to_dict(), given.to_dict()
    for name in sorted((ours.keys() & theirs.keys()) - {*UNREAD}):
        if theirs[name] != ours[name] and not (name == "size" and config.vision.image_max_pixels):
            raise ConfigError(
                f"processing_class must have the model's own image settings, got {name} {theirs[name]!r} for "
                f"{ours[name]!r}; set image_max_pixels and image_min_pixels in args"
            )
