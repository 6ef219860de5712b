"""Memory of what reads images: its weights, what it keeps of an image while it is trained, and kept features."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.config.vision import VisionConfig
from paceline.models.vision.families import family_of
from paceline.types import Task

CACHE_BYTES = 1 << 30
"""Bytes of features that a process keeps, as in `models.vision.tower`; read here without loading torch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionShape:
    """Sizes of the encoder and the projector of a model, and of the images that a run has for them."""

    encoder: int
    """Parameters of the encoder, without the projector's."""
    projector: int
    layers: int
    """Layers of the encoder."""
    width: int
    inner: int
    """Width inside the encoder's feed-forward layers."""
    patches: int
    """Patches of an image that become one token."""
    tokens: int
    """Tokens of the images of a prompt, at most."""
    images: int
    """Number of different images."""
    most: int
    """Tokens of one image, at most."""

    @property
    def parameters(self) -> int:
        """Parameters of encoder and projector."""
        return self.encoder + self.projector

    def trained(self, options: VisionConfig) -> int:
        """Return the parameters that take a gradient under the options, without an adapter's."""
        return self.encoder * options.train_vision + self.projector * options.train_projector

    def kept(self, options: VisionConfig, number_bytes: int) -> int:
        """Return the bytes kept for a token of an image where something is trained, as `memory.activations` counts."""
        of_layer = 4 * 2 * self.width + number_bytes * (6 * self.width + 2 * self.inner)
        layers = self.layers * (options.train_vision or options.lora_vision)
        return self.patches * (layers * of_layer + number_bytes * self.width)

    def features(self, width: int, number_bytes: int) -> int:
        """Return the bytes of kept features, in rows of this width."""
        return min(CACHE_BYTES, self.images * self.most * width * number_bytes)


def vision_shape(
    described: Mapping[str, object], shapes: Mapping[str, Sequence[int]], tasks: Iterable[Task]
) -> VisionShape | None:
    """Return the sizes of what reads images, by config.json and the weights' headers; None: nothing, or no image."""
    family, sizes = family_of(str(described.get("model_type"))), described.get("vision_config")
    media = [task.media for task in tasks if task.media]
    if family is None or not isinstance(sizes, Mapping) or not media:
        return None

    def numbers(modules: Sequence[str]) -> int:
        inside = re.compile(rf"(.*\.)?({'|'.join(map(re.escape, modules))})\..*")
        return sum(math.prod(shape) for name, shape in shapes.items() if inside.fullmatch(name))

    whole, projector = numbers((*family.encoder, *family.projector)), numbers(family.projector)
    width = _first(sizes, "embed_dim", "hidden_size")
    merge = _first({**described, **sizes}, "spatial_merge_size", "scale_factor")
    return VisionShape(
        encoder=whole - projector,
        projector=projector,
        layers=_first(sizes, "depth", "num_hidden_layers"),
        width=width,
        inner=_first(sizes, "intermediate_size") or width * (_first(sizes, "mlp_ratio") or 4),
        patches=max(1, merge) ** 2,
        tokens=max(sum(image.length for image in images) for images in media),
        images=len({image.sha256 for images in media for image in images}),
        most=max(image.length for images in media for image in images),
    )


def _first(numbers: Mapping[str, object], *names: str) -> int:
    """Return the first of these numbers that is there; 0 without any."""
    return next((value for name in names if isinstance(value := numbers.get(name), int)), 0)
