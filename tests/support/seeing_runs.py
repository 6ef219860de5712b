"""Whole runs of a tiny model that reads images, with the options of `cluster_runs`."""

import json
import shutil
from pathlib import Path

from tests.support.cluster_runs import options_in
from tests.support.seeing import picture, write_seeing_model

SIZES = [(48, 32), (32, 48), (40, 40)]
"""Widths and heights of the images, which follow each other in this order."""


def write_seeing_rows(folder: Path, count: int = 6, *, first: int = 0, name: str = "rows.jsonl") -> Path:
    """Write rows with an image each, of which neighbours ask the same, and the images beside them; return the file.

    The last of more than three rows has no image.
    """
    (folder / "seen").mkdir(parents=True, exist_ok=True)
    rows = list[dict[str, object]]()
    for number in range(first, first + count):
        image = f"seen/{number}.png"
        picture(number, *SIZES[number % 3]).save(folder / image)
        row = {"question": f"Which of {number // 2}?", "image": image, "answer": str(number % 2)}
        rows.append({**row, "image": None} if len(rows) == count - 1 > 2 else row)
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def seeing_options_in(place: Path, kind: str = "idefics3") -> dict[str, object]:
    """Options of `options_in` for a model of this kind, with everything that they need in a directory of its own."""
    options = options_in(place)
    shutil.rmtree(place / "model")
    write_seeing_model(place / "model", kind)
    write_seeing_rows(place)
    return options
