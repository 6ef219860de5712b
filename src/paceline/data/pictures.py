"""Images of rows: decoded once to defined pixels, named by their hash, and read again by it.

| as it is written                                            | as it is read                                      |
|-------------------------------------------------------------|----------------------------------------------------|
| an image of PIL; bytes; `{"bytes": ..., "path": ...}`       | these pixels                                       |
| the path of a file, relative to the data file's directory   | the file, looked up again whenever pixels are read |
| a data URI, or Base64 alone                                 | the bytes                                          |
| an address, `http://` or `https://`                         | refused, unless `image_urls` allows to fetch it    |

Pixels are RGB, 8 bits each: turned upright as EXIF says, laid on white where they are transparent, the first frame
where there are several, the upper 8 of 16 bits. Colour profiles are not applied.

Files of strangers are decoded here, so the formats are a list, and sizes are looked at before anything is decoded.
Pillow is loaded with the first image.
"""

import base64
import binascii
import errno
import hashlib
import io
import os
import re
import stat
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from paceline.base_directory import local_path
from paceline.errors import DataError
from paceline.runtime.whole_files import write_whole

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that Pillow is asked to read. Others of its formats run programs, or are drawings and documents."""
LARGEST_FILE = 1 << 26
"""Bytes of an image's file, at most."""
MOST_PIXELS = 1 << 26
"""Pixels of an image, at most: 8192 x 8192, 200 MB as RGB."""
FETCH_SECONDS = 30.0
"""Seconds until an image is fetched from an address."""
SHORTEST_BASE64 = 64
"""Characters from which on a text without a dot is read as Base64: shorter than any image is."""
SHOWN = 80  # Characters of a name in a sentence

_DATA_URI = re.compile(r"data:[\w.+/-]*(;[\w.=+-]+)*,", re.IGNORECASE)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+=*\s*")
_DRAWING = re.compile(rb"\s*(<\?xml|<!--|<!DOCTYPE\s+svg|<svg)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """An image, by its pixels. In the columns of a task it stands in the place of the image itself."""

    sha256: str
    """Hash of `WIDTHxHEIGHT:` and the RGB bytes, row by row."""
    width: int
    height: int
    store: "PictureStore" = field(repr=False, compare=False)
    """Where the pixels are."""

    def pixels(self) -> "Image.Image":
        """Return the pixels as an object of the caller's own; raise as `PictureStore.pixels`."""
        return self.store.pixels(self.sha256)


class Placeholders(Protocol):
    """What stands for an image in the text of a prompt: the rule of one family of models, under its settings."""

    @property
    def mark(self) -> str:
        """Text that the chat template writes for one image."""

    @property
    def reserved(self) -> tuple[str, ...]:
        """Texts that stand for images or parts of them, so that no text of a row may hold one."""

    @property
    def image_token_id(self) -> int:
        """Id of the token that takes features of an image."""

    @property
    def most_images(self) -> int | None:
        """Images of a prompt, at most, as the model reads them; None: any number."""

    def text(self, width: int, height: int) -> str:
        """Return the text in the place of `mark` for an image of this size in pixels; ModelError if there is none."""

    def num_features(self, width: int, height: int) -> int:
        """Return how often `image_token_id` is in the tokens of `text`."""


class PictureStore:
    """The images of a run by hash: where their pixels are read again.

    What a program or a table holds stays in memory until `write` has put it into the folder. Of a file its path is
    kept, and its pixels are compared with the hash whenever they are read.
    """

    def __init__(self, folder: Path | None = None, *, image_urls: bool = False) -> None:
        """`folder`: where `write` has put images, the only place to read from in another process or a resumed run."""
        self.folder = folder
        self.image_urls = image_urls
        self.first_frames = set[str]()
        """Hashes of images of which only the first frame is read."""
        self._sources = dict[str, bytes | Path]()
        self._known = dict[object, Picture]()
        """Pictures by content or by name and state of a file, so that none is decoded twice."""

    def add(self, value: object, base: Path | None = None) -> Picture:
        """Read an image, whatever holds it, and keep where its pixels are.

        Args:
            value: see the table of this module.
            base: directory that a relative path stands in; None: the base of relative names.

        Raises:
            DataError: it is no image that can be read; the sentence begins with what is wrong.
        """
        if is_pil(value):
            pixels = _rgb(value)
            picture = self._picture(pixels)
            if picture.sha256 not in self._sources:
                self._sources[picture.sha256] = _png(pixels)
            return picture
        source = self._source(value, base)
        if isinstance(source, bytes):
            key: object = hashlib.blake2b(source).digest()
        else:
            state = source.stat()
            key = source, state.st_size, state.st_mtime_ns
        if key not in self._known:
            pixels, is_animated = _decoded(source if isinstance(source, bytes) else _content_in(source))
            picture = self._picture(pixels)
            self._known[key] = picture
            self._sources.setdefault(picture.sha256, source)
            if is_animated:
                self.first_frames.add(picture.sha256)
        return self._known[key]

    def _picture(self, pixels: "Image.Image") -> Picture:
        return Picture(sha256=pixels_hash(pixels), width=pixels.width, height=pixels.height, store=self)

    def pixels(self, sha256: str) -> "Image.Image":
        """Return the RGB pixels of an image: an object of the caller's own.

        Raises:
            DataError: the image is not there, or decodes to other pixels.
        """
        return self._pixels_in(self._kept(sha256), sha256)

    def _pixels_in(self, content: bytes, sha256: str) -> "Image.Image":
        try:
            pixels, _ = _decoded(content)
        except DataError as error:
            fault = str(error).partition("; ")[0]
            raise DataError(
                f"the image {self._where(sha256)} has changed: it {fault}; put the old file back"
            ) from error
        if (other := pixels_hash(pixels)) != sha256:
            raise DataError(
                f"the image {self._where(sha256)} has changed: it now holds {pixels.width} x {pixels.height} pixels of "
                f"the hash {other}; put the old file back"
            )
        return pixels

    def write(self, sha256: str, folder: Path) -> None:
        """Write an image into a folder, whole or not at all; the file's name is the hash. One that is there is checked.

        It then survives a crash. Written into the store's folder it is read from there, and memory keeps it no longer.

        Raises:
            DataError: the image is not there, or decodes to other pixels; so does the file in the folder.
            OSError: the disk refuses.
        """
        file = folder / sha256
        if os.path.lexists(file):
            PictureStore(folder).pixels(sha256)
        else:
            content = self._kept(sha256)
            self._pixels_in(content, sha256)  # a file that has changed since must not get this name
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(file, content)
        if folder == self.folder:
            self._sources.pop(sha256, None)

    def _kept(self, sha256: str) -> bytes:
        """Return the bytes of an image's file."""
        source = self._sources.get(sha256)
        if isinstance(source, bytes):
            return source
        file = self._where(sha256)
        try:
            return _content(file, flags=0 if isinstance(source, Path) else os.O_NOFOLLOW)
        except OSError as error:
            raise DataError(f"the image {file} cannot be read ({error.strerror}); put the file back") from error

    def __reduce__(self) -> "tuple[type[PictureStore], tuple[Path | None]]":
        """Pickle no image: another process reads the folder."""
        return PictureStore, (self.folder,)

    def _where(self, sha256: str) -> Path:
        """Return the file of an image that is not in memory."""
        source = self._sources.get(sha256)
        if isinstance(source, Path):
            return source
        if self.folder is None:
            raise DataError(f"the image {sha256} is of no row that was read; read its rows first")
        return self.folder / sha256

    def _source(self, value: object, base: Path | None) -> bytes | Path:
        """Return the bytes or the file of an image."""
        if isinstance(value, Mapping):
            held = next((value[key] for key in ("bytes", "path", "url") if value.get(key) is not None), None)
            if held is None:
                raise DataError("holds no image: an object must have bytes, path or url; mend the row")
            return _png(_rgb(held)) if is_pil(held) else self._source(held, base)
        if isinstance(value, bytes | bytearray | memoryview):
            return _checked_size(bytes(value))
        if isinstance(value, Path):
            return _file(str(value), base)
        if isinstance(value, str) and value.strip():
            return self._of_text(value, base)
        held = "an empty text" if isinstance(value, str) else type(value).__name__
        raise DataError(f"holds {held} where an image is expected; give a path, bytes, Base64 or an image of PIL")

    def _of_text(self, value: str, base: Path | None) -> bytes | Path:
        if match := _DATA_URI.match(value):
            if ";base64" not in match[0].lower():
                raise DataError("holds a data URI without Base64; write data:image/png;base64,...")
            return _from_base64(value[match.end() :])
        if match := _ADDRESS.match(value):
            return self._fetched(value, match[1].lower())
        if len(value) >= SHORTEST_BASE64 and _BASE64.fullmatch(value):
            return _from_base64(value)
        return _file(value, base)

    def _fetched(self, address: str, scheme: str) -> bytes:
        if scheme not in ("http", "https"):
            raise DataError(f"is at an address {scheme}://, which is not read; give http://, https:// or a path")
        if not self.image_urls:
            raise DataError(
                f"is at the address {address[:SHOWN]}, and nothing is fetched from the network",
                remedies=["download the images and give their paths", "allow it with --image-urls"],
            )
        # Imported here: no other image needs the network.
        from paceline.http.client import HttpCallError, HttpClient

        try:
            reply = HttpClient(address).call(address, seconds=FETCH_SECONDS, limit=LARGEST_FILE, follow_redirects=True)
        except HttpCallError as error:
            raise DataError(f"cannot be fetched from {address[:SHOWN]} ({error}); download it first") from error
        if reply.body is None or not reply.is_success:
            what = f"status {reply.status}" if reply.body is not None else f"more than {LARGEST_FILE >> 20} MiB"
            raise DataError(f"cannot be fetched from {address[:SHOWN]} ({what}); download it first")
        return reply.body


def is_pil(value: object) -> "TypeGuard[Image.Image]":
    """Return True for an image of PIL, which need not have been imported."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(value).__mro__)


def pixels_hash(pixels: "Image.Image") -> str:
    """Return the hash of RGB pixels, with their width and height."""
    digest = hashlib.sha256(f"{pixels.width}x{pixels.height}:".encode())
    digest.update(pixels.tobytes())
    return digest.hexdigest()


def _content_in(file: Path) -> bytes:
    """Return the bytes of a row's file; DataError if it cannot be read."""
    try:
        return _content(file)
    except OSError as error:
        raise DataError(f"cannot be read: {file} ({error.strerror}); check the file") from error


def _content(file: Path, *, flags: int = 0) -> bytes:
    """Return the bytes of a file, which may be a stranger's by now: a pipe is not waited for.

    Raises:
        DataError: it is too large.
        OSError: it is not there, or no regular file; with `os.O_NOFOLLOW` among `flags` a link is none.
    """
    with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return _checked_size(stream.read(LARGEST_FILE + 1))


def _checked_size(content: bytes) -> bytes:
    if len(content) > LARGEST_FILE:
        raise DataError(f"has more than {LARGEST_FILE >> 20} MiB, the most of an image's file; make it smaller")
    return content


def _file(name: str, base: Path | None) -> Path:
    """Return the path of an image's file, which is there and is a regular file."""
    if "\0" in name or len(name) > os.pathconf("/", "PC_PATH_MAX") or max(map(len, name.split("/"))) > 255:
        raise DataError(f"holds {name[:SHOWN]!r}..., which is no path of a file and no Base64; mend the row")
    path = local_path(name if base is None else base / name)
    try:
        is_there = path.is_file()
    except OSError as error:
        raise DataError(f"cannot be read: {name[:SHOWN]} ({error}); check the path") from error
    if not is_there:
        raise DataError(
            f"names no file: there is no {name[:SHOWN]!r} in {path.parent if base is None else base}; check the path, "
            "which is relative to the data file"
        )
    return path


def _from_base64(text: str) -> bytes:
    try:
        return _checked_size(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError) as error:
        raise DataError(f"holds text that is not Base64 ({error}); encode the image's file again") from error


def _decoded(content: bytes) -> "tuple[Image.Image, bool]":
    """Return the pixels of an image's file, and True if it has more frames than the one that is read."""
    from PIL import Image, UnidentifiedImageError

    # Decoders of damaged files raise these; Pillow's bomb errors are behind the limit of pixels below.
    broken = (
        OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, MemoryError, struct.error,
        zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning,
    )  # fmt: skip
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise DataError(_too_many(f"{image.width} x {image.height}"))
            is_animated = image.format != "MPO" and bool(getattr(image, "is_animated", False))
            return _rgb(image), is_animated
    except DataError:
        raise
    except UnidentifiedImageError:
        is_drawing = _DRAWING.match(content[:1024]) is not None
        kind = "a drawing such as SVG, which has no pixels" if is_drawing else f"{len(content)} bytes of another kind"
        raise DataError(f"must be one of {', '.join(FORMATS)}, got {kind}; convert it, or remove the row") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(_too_many("more")) from None
    except broken as error:
        raise DataError(
            f"is a damaged image ({type(error).__name__}: {str(error)[:SHOWN]}); replace it, or remove the row"
        ) from error


def _too_many(size: str) -> str:
    return f"has {size} pixels, and an image may have {MOST_PIXELS}; make it smaller, or remove the row"


def _rgb(image: "Image.Image") -> "Image.Image":
    """Return the defined pixels of an image that is open, as a new one without anything beside them."""
    from PIL import Image, ImageOps

    if image.width * image.height > MOST_PIXELS:
        raise DataError(_too_many(f"{image.width} x {image.height}"))
    if image.width == 0 or image.height == 0:
        raise DataError("has no pixels; replace it, or remove the row")
    upright: Any = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        upright = upright.convert("I").point([value >> 8 for value in range(1 << 16)], "L")
        upright.info.pop("transparency", None)  # a single shade of 16 bits, which 8 bits cannot tell from others
    elif upright.mode in ("I", "F"):
        raise DataError(f"has pixels of 32 bits (mode {upright.mode}), which have no defined colour; store 8 bits")
    if upright.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        white = Image.new("RGBA", upright.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, upright)
    plain = upright.convert("RGB")
    return Image.frombytes("RGB", plain.size, plain.tobytes())


def _png(pixels: "Image.Image") -> bytes:
    file = io.BytesIO()
    pixels.save(file, format="PNG", compress_level=1)
    return file.getvalue()
