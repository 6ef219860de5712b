"""The generated pictures of shapes and the questions about them."""

import hashlib
import io
import textwrap
from collections import Counter
from itertools import accumulate, islice

import numpy as np
import pytest
from PIL import Image

from paceline.data.shapes import BACKGROUND, COLOURS, UNSEEN, DrawnShape, drawn, png, problems, shape_rows
from paceline.data.sources import load_rows
from paceline.errors import DataError


def pixels_of(row) -> np.ndarray:
    """RGB [48, 48, 3] as an image library reads the row's bytes."""
    return np.asarray(Image.open(io.BytesIO(row["image"])).convert("RGB"))


def pairs_seen(pixels: np.ndarray) -> list[tuple[str, str]]:
    """Colours and kinds in the order of the cells, told by the share of its own box that a shape fills."""
    names, pairs = {value: name for name, value in COLOURS.items()}, []
    for cell in pixels.reshape(3, 16, 3, 16, 3).swapaxes(1, 2).reshape(9, 16, 16, 3):
        inside = (cell != BACKGROUND).any(-1)
        if inside.any():
            rows, columns = (np.flatnonzero(inside.any(axis)) for axis in (1, 0))
            share = inside.sum() / (np.ptp(rows) + 1) / (np.ptp(columns) + 1)
            kind = "square" if share == 1 else "circle" if share > 0.65 else "triangle"
            (colour,) = np.unique(cell[inside], axis=0).tolist()
            pairs.append((names[tuple(colour)], kind))
    return pairs


@pytest.mark.parametrize(("split", "unseen"), [("train", 0), ("test", 0), ("test", 1)])
def test_what_a_picture_shows_is_what_its_row_says(split, unseen):
    for row in shape_rows(split, 300, unseen=unseen):
        pairs = pairs_seen(pixels_of(row))
        asked = row["question"].removeprefix("How many ").removesuffix(" are there?").removesuffix(" shapes")
        matches = [int(asked.removesuffix("s") in pair) for pair in pairs]
        assert str(sum(matches)) == row["answer"]
        counts = (f" {count}" if is_match else "" for count, is_match in zip(accumulate(matches), matches, strict=True))
        assert ";".join(" ".join(pair) + count for pair, count in zip(pairs, counts, strict=True)) == row["solution"]


def test_the_smallest_shapes_are_drawn_pixel_by_pixel():
    kinds = enumerate(("circle", "triangle"))
    shapes = tuple(DrawnShape(cell=cell, colour="black", kind=kind, radius=4, dx=0, dy=0) for cell, kind in kinds)
    circle, triangle = drawn(shapes)[4:13, 4:13], drawn(shapes)[4:13, 20:29]
    assert "\n".join("".join(".#"[bool(pixel)] for pixel in line) for line in circle) == textwrap.dedent("""\
        ...###...
        .#######.
        .#######.
        #########
        #########
        #########
        .#######.
        .#######.
        ...###...""")
    assert triangle.astype(bool).sum(1).tolist() == [1, 1, 3, 3, 5, 5, 7, 7, 9]


def test_unseen_pairs_are_never_drawn_but_where_they_are_asked_for():
    for split in ("train", "test"):
        for problem in islice(problems(split), 2000):
            assert not {(shape.colour, shape.kind) for shape in problem.shapes} & set(UNSEEN)
        for problem in islice(problems(split, unseen=1), 500):
            assert {(shape.colour, shape.kind) for shape in problem.shapes} & set(UNSEEN)


def test_who_does_not_look_is_right_in_a_quarter_at_most():
    rows = shape_rows("train", 4000)
    answers = Counter((row["question"], row["answer"]) for row in rows)
    questions = Counter(row["question"] for row in rows)
    best = sum(max(answers[question, str(number)] for number in range(5)) for question in questions)
    assert set(questions) == {
        *(f"How many {colour} shapes are there?" for colour in COLOURS),
        *(f"How many {kind} are there?" for kind in ("circles", "squares", "triangles")),
    }
    assert 0.2 <= best / len(rows) < 0.25


def test_no_arrangement_is_in_both_splits_and_none_comes_twice():
    train, test = ([p.arrangement for p in islice(problems(split), 3000)] for split in ("train", "test"))
    assert not set(train) & set(test)
    assert len(set(train)) == len(set(test)) == 3000


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_larger_dataset_begins_with_the_smaller_one(split):
    assert shape_rows(split, 100)[:40] == shape_rows(split, 40)


def test_the_pictures_are_the_same_on_every_machine():
    digest = hashlib.sha256()
    for split, unseen in (("train", 0), ("test", 0), ("test", 1)):
        for row in shape_rows(split, 100, unseen=unseen):
            digest.update(f"{row['question']} {row['answer']} {row['solution']}".encode() + pixels_of(row).tobytes())
    assert digest.hexdigest()[:16] == "f98d6883a3c10bbf"


def test_the_bytes_are_a_png_of_a_palette():
    image = Image.open(io.BytesIO(png(np.arange(6, dtype=np.uint8).reshape(2, 3))))
    assert (image.format, image.mode, image.size) == ("PNG", "P", (3, 2))
    assert [tuple(value) for value in np.asarray(image.convert("RGB")).reshape(-1, 3).tolist()] == [
        BACKGROUND,
        *COLOURS.values(),
    ]


def test_the_dataset_is_addressed_by_its_name_and_its_parameter():
    for address, unseen in (("shapes", 0), ("shapes(unseen=1)", 1)):
        (first,) = load_rows(address, split="test", size=1)
        assert (first.row_id, first.columns) == (f"{address}/test:1", shape_rows("test", 1, unseen=unseen)[0])
    with pytest.raises(DataError, match=r"unseen must be a whole number from 0 to 1, got 2"):
        load_rows("shapes(unseen=2)", split="test", size=1)


def test_an_unknown_split_names_the_ones_there_are():
    with pytest.raises(DataError, match=r"splits 'train' and 'test', got 'validation'"):
        shape_rows("validation", 1)
