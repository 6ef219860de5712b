"""Images of a run as pages show them: small copies, encoded anew, so that no byte of a file reaches a browser."""

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from paceline.errors import DataError
from paceline.metrics.definitions import Record

SIDE = 256
"""Pixels of a copy along its longer side, at most."""
_HASH = re.compile(r"[0-9a-f]{64}")


def thumbnail(folder: Path, sha256: str) -> dict[str, object]:
    """Return a copy of an image of a run as a `data:` address with the size of the image itself, or why there is none.

    `folder` may be a stranger's: what stands there is read as `PictureStore` reads it.
    """
    from paceline.data.pictures import PictureStore

    try:
        pixels = PictureStore(folder).pixels(sha256)
    except DataError:  # its sentence names directories, and a page may be sent to others
        return {"missing": f"the image {sha256[:12]} is missing in the run's directory, or is not what was recorded"}
    width, height = pixels.size
    pixels.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    pixels.save(file, format="PNG", optimize=False)
    encoded = base64.b64encode(file.getvalue()).decode()
    return {"source": f"data:image/png;base64,{encoded}", "width": width, "height": height}


def images_of(record: Record) -> Iterator[tuple[str, int]]:
    """Yield hash and number of tokens of each image that a record of a completion names; what is no such entry is left
    out."""
    images = record.get("images")
    for image in images if isinstance(images, list) else ():
        if not isinstance(image, dict):
            continue
        sha256, length = image.get("sha256"), image.get("length")
        if is_image_name(sha256) and type(length) is int:
            yield sha256, length


def is_image_name(name: object) -> TypeGuard[str]:
    """Return True for the hash that names an image's file; what a stranger's record holds may lead elsewhere."""
    return isinstance(name, str) and _HASH.fullmatch(name) is not None
