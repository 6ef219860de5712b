"""Prompts that the fused decoder computes together: what they have in common, and the images in them.

P prompts, C of them with those that only round up, L prompt length, T tokens computed, N tokens that take features, W
width of the model, A axes of positions, S rows.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from paceline.engines.local.attention import Turns
from paceline.engines.local.decoder import PromptMedia
from paceline.engines.local.grid import TILE

if TYPE_CHECKING:
    from paceline.models.vision.tower import ImageFeatures, Vision


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """Prompts that are computed together. What all mixers with states ask of them is made when first used."""

    prompts: Sequence[Sequence[int]]
    rows: Sequence[Sequence[int]]
    """Rows that continue each prompt."""
    slots: Int[Tensor, " P"]
    count: int
    """Number of prompts, rounded up."""
    shared: int
    """How many first tokens all prompts have in common, computed once."""
    known: int
    """How many of these are not computed at all."""
    turns: Turns | None
    """What rotates each token of the prompts; None: its number does."""

    @functools.cached_property
    def unshared_lengths(self) -> Int[Tensor, " C"]:
        """Tokens of each prompt behind the shared ones, on the host; 1 for those that only round up."""
        lengths = [len(prompt) - self.shared for prompt in self.prompts]
        return torch.tensor(lengths + [1] * (self.count - len(lengths)))

    @functools.cached_property
    def each_row(self) -> Int[Tensor, " S"]:
        """All rows, prompt by prompt."""
        return torch.tensor([row for members in self.rows for row in members], device=self.slots.device)

    @functools.cached_property
    def prompt_of_row(self) -> Int[Tensor, " S"]:
        """The prompt of each of these rows."""
        counts = torch.tensor([len(members) for members in self.rows], device=self.slots.device)
        return torch.repeat_interleave(counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnteringFeatures:
    """Features that take the place of embeddings among the computed tokens of prompts."""

    rows: Int[Tensor, " N"]
    """Index of each among these tokens."""
    features: Float[Tensor, "N W"]
    levels: tuple[Float[Tensor, "N W"], ...]
    """What is added behind each of the first layers."""

    def among(self, tokens: Int[Tensor, " P"]) -> "EnteringFeatures":
        """Return those of some of the tokens, by the indices of these."""
        kept, rows = (self.rows[:, None] == tokens).nonzero(as_tuple=True)
        levels = tuple(level.index_select(0, kept) for level in self.levels)
        return EnteringFeatures(rows=rows, features=self.features.index_select(0, kept), levels=levels)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptImages:
    """Prompts that are admitted together, some with images."""

    prompts: Sequence[Sequence[int]]
    media: Sequence[PromptMedia]
    compared: Sequence[Sequence[int]]
    """Tokens of each prompt, as `compared` has them."""
    positions: Sequence[Int[Tensor, "A L"]]
    """Positions of each prompt's tokens."""
    shifts: Sequence[int]
    """How far the position of a token behind each prompt is from its number."""
    features: "Mapping[str, ImageFeatures]"
    image_token_id: int

    def part(self, span: slice) -> "PromptImages":
        """Return some of the prompts."""
        return PromptImages(
            prompts=self.prompts[span],
            media=self.media[span],
            compared=self.compared[span],
            positions=self.positions[span],
            shifts=self.shifts[span],
            features=self.features,
            image_token_id=self.image_token_id,
        )

    def padded_positions(self, count: int, length: int) -> Int[Tensor, "A C L"] | None:
        """Return positions of right-padded prompts, rounded up to `count`; None: they are the tokens' numbers."""
        if len(self.positions[0]) == 1:
            return None
        padded = torch.zeros(len(self.positions[0]), count, length, dtype=torch.int64)
        for number, positions in enumerate(self.positions):
            padded[:, number, : positions.shape[1]] = positions
        return padded

    def entering(self, *, unshared: int, shared: int, known: int) -> EnteringFeatures | None:
        """Return the features that enter; None: there are none among the computed tokens.

        These are the first `shared` tokens of all prompts, once and without the first `known` ones, and then `unshared`
        ones of each prompt.
        """
        rows, parts = list[Tensor](), list[tuple[Tensor, ...]]()
        for number, (prompt, images) in enumerate(zip(self.prompts, self.media, strict=True)):
            for image in images:
                run, of_image = prompt[image.start : image.start + image.length], self.features[image.sha256]
                places = (torch.tensor(run) == self.image_token_id).nonzero().squeeze(-1) + image.start
                computed = (places >= known) if number == 0 else (places >= shared)
                rows.append((places - known + number * unshared)[computed])
                index = computed.nonzero().squeeze(-1).to(of_image.rows.device)
                parts.append(tuple(part.index_select(0, index) for part in (of_image.rows, *of_image.levels)))
        if not any(map(len, rows)):
            return None
        features, *levels = (torch.cat(part) for part in zip(*parts, strict=True))
        return EnteringFeatures(rows=torch.cat(rows).to(features.device), features=features, levels=tuple(levels))


def read_images(vision: "Vision", prompts: Sequence[Sequence[int]], media: Sequence[PromptMedia]) -> PromptImages:
    """Encode the images of prompts, and find out what they mean for the places of tokens."""
    # features are kept for passes with gradients too, which take no tensors of inference mode
    with torch.inference_mode(mode=False), torch.no_grad():
        features = vision.features(image.sha256 for images in media for image in images)
    each = [vision.positions(prompt, images) for prompt, images in zip(prompts, media, strict=True)]
    return PromptImages(
        prompts=prompts,
        media=media,
        compared=[compared(prompt, images) for prompt, images in zip(prompts, media, strict=True)],
        positions=[positions for positions, _ in each],
        shifts=[behind - len(prompt) for prompt, (_, behind) in zip(prompts, each, strict=True)],
        features=features,
        image_token_id=vision.image_token_id,
    )


def compared(prompt: Sequence[int], media: PromptMedia) -> Sequence[int]:
    """Return tokens that two prompts have in common only where they show the same images.

    A token of an image is replaced by a number below 0 that stands for the image and the token.

    >>> from paceline.types import Media
    >>> image, other = (Media(sha256=name, start=1, length=2) for name in ("a", "b"))
    >>> compared((7, 8, 8, 9), (image,))[:2] == compared((7, 8, 8, 9), (other,))[:2]
    False
    >>> compared((7, 8, 8, 9), ())
    (7, 8, 8, 9)
    """
    if not media:
        return prompt
    tokens = list(prompt)
    for image in media:
        number = int.from_bytes(image.sha256.encode(), "big")
        for index in range(image.start, image.start + image.length):
            tokens[index] = -1 - (number << 32) - tokens[index]
    return tokens


def shared_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens to compute once: whole tiles that all prompts begin with, and never a whole prompt.

    >>> shared_tokens([list(range(20)), [*range(17), 30]]), shared_tokens([[1], [1]]), shared_tokens([[1], []])
    (16, 0, 0)
    """
    first, final = min(map(tuple, prompts)), max(map(tuple, prompts))  # of all pairs these two part first
    most = max(0, min(len(prompt) for prompt in prompts) - 1)
    alike = next((index for index in range(most) if first[index] != final[index]), most)
    return alike // TILE * TILE


def once(each: Shaped[Tensor, "P L X"], shared: int) -> Shaped[Tensor, "T X"]:
    """Return tokens of all prompts with the `shared` first ones once, in front."""
    if not shared:
        return each.flatten(0, 1)
    return torch.cat((each[0, :shared], each[:, shared:].flatten(0, 1)))


def in_each(tokens: Shaped[Tensor, "T X"], shared: int, count: int) -> Shaped[Tensor, "P L X"]:
    """Invert `once`; a view if nothing is shared."""
    rest = tokens[shared:].view(count, -1, tokens.shape[-1])
    return torch.cat((tokens[:shared].expand(count, -1, -1), rest), dim=1) if shared else rest
