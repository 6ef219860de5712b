"""Images of a run's prompts before any weight is read: how they are read, and what is refused with them or without."""

import functools
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from paceline.config.layout import ParallelConfig
from paceline.config.rules import check_unused, require
from paceline.config.sections import Config
from paceline.data.pictures import Placeholders
from paceline.training.setup.checks import unexpanded_images
from paceline.training.setup.inputs import RunObjects


def with_placeholders(
    config: Config, objects: RunObjects, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> RunObjects:
    """Return objects that say how prompts hold images, once a row has one.

    `folder`: the run's images, from which other processes read them; None: memory alone has them.
    """

    @functools.cache
    def placeholders() -> Placeholders:
        # imported here: most runs have no images
        from paceline.models.vision.placeholders import placeholders_of, read_placeholders

        if objects.model is None:
            return read_placeholders(config.model, config.vision, tokenizer)
        return placeholders_of(objects.model.config, image_processor(config, objects), tokenizer)

    images = objects.images or unexpanded_images(config)
    images.pictures.folder = folder
    return replace(objects, images=replace(images, placeholders=placeholders))


def image_processor(config: Config, objects: RunObjects) -> Any:
    """Return the image processor of transformers' that makes the model's tensors."""
    from paceline.models.vision.placeholders import image_processor_of, read_image_processor

    if objects.model is None:
        return read_image_processor(config.model, config.vision)
    return image_processor_of(objects.model, objects.image_processor, config.vision)


def check_images(config: Config, objects: RunObjects, *, has_images: bool) -> None:
    """Refuse options for images where there are none, and by name what cannot be done with images.

    Raises:
        ConfigError: one of these.
    """
    vision, parallel = config.vision, config.parallel
    if not has_images:
        names = [field.name for field in fields(vision)]
        check_unused(vision, names, without="images in prompts", why="no row that was read has one")
        return
    beside, why = "with images in prompts", "each rank has a whole copy of the model there, and a share of the samples"
    for option in ("zero_stage", "tensor_parallel", "context_parallel", "pipeline_parallel"):
        whole, value = ParallelConfig.__dataclass_fields__[option].default, getattr(parallel, option)
        require(value == whole, option, value, f"be {whole} {beside}", why)
    engine = config.engine.engine
    require(engine == "local", "engine", engine, f"be local {beside}", "vLLM is given prompts of text alone")
    trained = vision.train_vision or vision.train_projector or vision.lora_vision
    ahead, rule = config.cluster.max_staleness, f"be 0 {beside} whose encoder is trained"
    require(ahead == 0 or not trained, "max_staleness", ahead, rule, "leave the vision encoder frozen to sample ahead")
    rate, rule = vision.vision_learning_rate, "be left out at --learning-rate 0"
    why = "both rates follow one schedule, as shares of --learning-rate; give it a small one instead"
    require(rate is None or config.optim.learning_rate > 0, "vision_learning_rate", rate, rule, why)
    rule = "be left out with an optimizer of a program's own"
    why = "set the rate of its group there"
    require(rate is None or objects.optimizer is None, "vision_learning_rate", rate, rule, why)
