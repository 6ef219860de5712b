"""Dataset `shapes`: small pictures and a question about each, the same every time.

A picture has 48 x 48 pixels and 1 to 6 shapes, each in a cell of a lattice of 3 x 3, a little off its centre:

    How many red shapes are there?
    red circle 1;blue square;red square 2

The answers 0 to 4 are equally frequent for every question: whoever does not look is right in a fifth. Three of the 15
pairs of a colour and a kind are never drawn, in either split: `shapes(unseen=1)` has pictures with such a pair.

Pixels are set one by one in whole numbers, and the PNG is written here: pictures depend on no image library's version.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from random import Random

import numpy as np
from numpy.typing import NDArray

from paceline.data.rows import check_split, split_of

SIDE = 3
"""Cells of a row and of a column of the lattice."""
CELL = 16
"""Pixels of a cell's side."""
MOST_SHAPES = 6
ANSWERS = range(5)
RADII = (4, 5)
"""Half a shape's width, in pixels."""
OFFSETS = range(-2, 3)
"""Pixels from a cell's centre to a shape's, in each direction; no shape touches its neighbour."""

BACKGROUND = (240, 240, 235)
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (215, 45, 40),
    "green": (40, 160, 70),
    "blue": (45, 85, 215),
    "yellow": (240, 195, 20),
    "black": (30, 30, 35),
}
KINDS = ("circle", "square", "triangle")
ColourAndKind = tuple[str, str]
"""Colour and kind of a shape."""
UNSEEN: tuple[ColourAndKind, ...] = (("red", "triangle"), ("blue", "circle"), ("yellow", "square"))
SEEN = tuple(pair for pair in product(COLOURS, KINDS) if pair not in UNSEEN)
PARAMETERS = {"unseen": range(2)}
"""Parameters of `shapes(...)` and their values: how many shapes of each picture, at least, are of an unseen pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnShape:
    """A shape of a picture."""

    cell: int
    """0..8, row by row."""
    colour: str
    kind: str
    radius: int
    dx: int
    """Pixels to the right of the cell's centre."""
    dy: int
    """Pixels below the cell's centre."""

    def __str__(self) -> str:
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapesProblem:
    """A question about a picture, with its answer and what is to be seen."""

    question: str
    shapes: tuple[DrawnShape, ...]
    """In the order of their cells."""
    asked: str
    """Colour or kind of the shapes to count."""
    answer: str
    """Number of these, 0..4."""

    @property
    def solution(self) -> str:
        """Return every shape in the order of the cells, those to count with their number so far."""
        return self.counted(len(self.shapes))

    def counted(self, num_shapes: int) -> str:
        """Return the solution's beginning, up to a number of shapes."""
        count, texts = 0, []
        for shape in self.shapes[:num_shapes]:
            is_asked_for = self.asked in (shape.colour, shape.kind)
            count += is_asked_for
            texts.append(f"{shape} {count}" if is_asked_for else str(shape))
        return ";".join(texts)

    @property
    def completion(self) -> str:
        """Return a full answer text: what is to be seen in think tags, answer in answer tags."""
        return f"<think>{self.solution}</think><answer>{self.answer}</answer>"

    @property
    def arrangement(self) -> str:
        """Return what lies in which cell, whatever the sizes and offsets; it decides the split."""
        return ";".join(f"{shape.cell} {shape}" for shape in self.shapes)


def shape_rows(split: str, size: int, *, unseen: int = 0) -> list[dict[str, object]]:
    """Return the first `size` problems of a split as rows with the columns image, question, answer and solution.

    The same rows every time; a larger size only adds rows at the end. `image` holds the bytes of a PNG.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    return [
        {
            "image": png(drawn(problem.shapes)),
            "question": problem.question,
            "answer": problem.answer,
            "solution": problem.solution,
        }
        for problem in islice(problems(split, unseen=unseen), size)
    ]


def problems(split: str, *, seed: int = 0, unseen: int = 0) -> Iterator[ShapesProblem]:
    """Yield problems endlessly, each with another arrangement; at least `unseen` shapes of each are of an unseen pair.

    Raises:
        DataError: a split other than `train` and `test`.
    """
    check_split("shapes", split)

    def stream() -> Iterator[ShapesProblem]:
        rng, known = Random(f"{seed}/{split}"), set[bytes]()
        while True:
            asked, count = rng.choice((*COLOURS, *KINDS)), rng.choice(ANSWERS)
            # Only the picture is drawn anew, not the answer: so every answer stays as frequent.
            while True:
                problem = _problem(rng, asked, count, SEEN if not unseen else (*SEEN, *UNSEEN))
                digest = hashlib.blake2b(problem.arrangement.encode(), digest_size=8).digest()
                num_unseen = sum((shape.colour, shape.kind) in UNSEEN for shape in problem.shapes)
                if split_of(problem.arrangement) == split and digest not in known and num_unseen >= unseen:
                    break
            known.add(digest)
            yield problem

    return stream()


def _problem(rng: Random, asked: str, count: int, pairs: tuple[ColourAndKind, ...]) -> ShapesProblem:
    asked_for, others = [pair for pair in pairs if asked in pair], [pair for pair in pairs if asked not in pair]
    num_shapes = rng.randint(max(1, count), MOST_SHAPES)
    drawn_pairs = [*rng.choices(asked_for, k=count), *rng.choices(others, k=num_shapes - count)]
    shapes = [
        DrawnShape(
            cell=cell,
            colour=colour,
            kind=kind,
            radius=rng.choice(RADII),
            dx=rng.choice(OFFSETS),
            dy=rng.choice(OFFSETS),
        )
        for cell, (colour, kind) in zip(rng.sample(range(SIDE * SIDE), num_shapes), drawn_pairs, strict=True)
    ]
    name = f"{asked} shapes" if asked in COLOURS else f"{asked}s"
    return ShapesProblem(
        question=f"How many {name} are there?",
        shapes=tuple(sorted(shapes, key=lambda shape: shape.cell)),
        asked=asked,
        answer=str(count),
    )


def drawn(shapes: tuple[DrawnShape, ...]) -> NDArray[np.uint8]:
    """Return a picture's pixels as indices [row, column]: 0 is the background, from 1 on the colours in their order."""
    pixels = np.zeros((SIDE * CELL, SIDE * CELL), dtype=np.uint8)
    numbers = {colour: number for number, colour in enumerate(COLOURS, start=1)}
    for shape in shapes:
        row, column = divmod(shape.cell, SIDE)
        top = row * CELL + CELL // 2 + shape.dy - shape.radius
        left = column * CELL + CELL // 2 + shape.dx - shape.radius
        inside = _mask(shape.kind, shape.radius)
        pixels[top : top + len(inside), left : left + len(inside)][inside] = numbers[shape.colour]
    return pixels


@cache
def _mask(kind: str, radius: int) -> NDArray[np.bool_]:
    """Return the pixels of a shape in the square around it, of `2 * radius + 1` pixels a side."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    if kind == "circle":
        return np.asarray(x * x + y * y <= radius * radius + radius // 2)
    if kind == "square":
        return np.ones_like(x, dtype=bool)
    return np.asarray(2 * abs(x) <= y + radius)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG with a palette of `BACKGROUND` and `COLOURS`."""
    height, width = pixels.shape
    palette = bytes(part for colour in (BACKGROUND, *COLOURS.values()) for part in colour)
    # each row begins with its filter, 0: the pixels as they are
    lines = np.pad(pixels, ((0, 0), (1, 0))).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
