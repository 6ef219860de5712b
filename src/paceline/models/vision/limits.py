"""Sizes at which families of models read an image, as their image processors in transformers compute them."""

import math
from collections.abc import Sequence
from typing import Any

LARGEST_EDGE = 4096
"""Pixels of an image's longer edge, at most, in Idefics 3 and SmolVLM."""
LARGEST_ASPECT = 200
"""Ratio of an image's edges, at most, in Qwen's families."""
GEMMA_4_BUDGETS = (70, 140, 280, 560, 1120)
"""Features of an image, at most, that Gemma 4 can be set to."""


def smart_resize(height: int, width: int, *, factor: int, least: int, most: int, frames: int = 1) -> tuple[int, int]:
    """Return height and width in multiples of `factor`, with an area from `least` to `most` if that can be.

    `frames`: how often the area counts. Source: Qwen2-VL's image processor. ValueError: the edges differ by more than
    a factor of 200.

    >>> smart_resize(480, 640, factor=28, least=3136, most=1003520)
    (476, 644)
    """
    if max(height, width) / min(height, width) > LARGEST_ASPECT:
        raise ValueError(f"edges that differ by more than a factor of {LARGEST_ASPECT}")
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if frames * rows * columns > most:
        shrink = math.sqrt(frames * height * width / most)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if frames * rows * columns < least:
        grow = math.sqrt(least / (frames * height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns


def idefics_tiles(processor: Any, width: int, height: int) -> tuple[int, int]:
    """Return rows and columns of tiles that an image is cut into; 0, 0: it is one tile.

    transformers' own function for it takes other roundings than the image processor itself.
    """
    if not processor.do_image_splitting:
        return 0, 0
    tile = processor.max_image_size["longest_edge"]
    if processor.do_resize:
        height, width = _to_longest_edge(height, width, processor.size["longest_edge"])
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return (height // tile, width // tile) if height > tile or width > tile else (0, 0)


def _to_longest_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
        width, height = edge, int(edge / ratio)
        height += height % 2
    else:
        height, width = edge, int(edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > LARGEST_EDGE:
        width, height = LARGEST_EDGE, int(LARGEST_EDGE / ratio)
    elif height > width and height > LARGEST_EDGE:
        height, width = LARGEST_EDGE, int(LARGEST_EDGE * ratio)
    return max(height, 1), max(width, 1)


def pixtral_grid(height: int, width: int, *, longest: int, edge: int) -> tuple[int, int]:
    """Return rows and columns of features of `edge` pixels, where no edge of the image is above `longest`."""
    ratio = max(height, width) / longest
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    return (height - 1) // edge + 1, (width - 1) // edge + 1


def gemma4_grid(height: int, width: int, *, edge: int, most: int) -> tuple[int, int]:
    """Return rows and columns of features of `edge` pixels, as many as keep the image's shape within `most` features.

    Source: Gemma 4's image processor. ValueError: an image so long that no feature of it is left.
    """
    scale = math.sqrt(most * edge**2 / (height * width))
    rows, columns = math.floor(scale * height / edge), math.floor(scale * width / edge)
    if rows == columns == 0:
        raise ValueError("image of this shape")
    if rows == 0:
        return 1, min(width // height, most)
    if columns == 0:
        return min(height // width, most), 1
    return rows, columns


def anyres_grid(
    height: int, width: int, *, pinpoints: Sequence[Sequence[int]], tile: int, side: int, most: int
) -> tuple[int, int]:
    """Return rows and columns of features of an image in tiles of `side` x `side` features, without its padding.

    The size is the one of `pinpoints` that keeps most of the image and wastes least; features beyond those of `most`
    tiles are interpolated to fewer. Source: LLaVA-OneVision's processor.
    """

    def fit(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - size[0] * size[1]

    best = max(pinpoints, key=fit)
    rows, columns = best[0] // tile * side, best[1] // tile * side
    if width / height > columns / rows:
        rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
    ratio = math.sqrt(rows * columns / (most * side**2))
    return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)
