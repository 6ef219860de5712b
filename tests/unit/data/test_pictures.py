"""Images are decoded to defined pixels whatever holds them, and hostile ones are refused before they cost anything."""

import base64
import hashlib
import io
import struct
import subprocess
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from PIL import Image

from paceline.data.pictures import LARGEST_FILE, MOST_PIXELS, PictureStore
from paceline.errors import DataError

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def two_colours(mode="RGB"):
    image = Image.new("RGB", (3, 2), RED)
    image.putpixel((2, 1), BLUE)
    return image.convert(mode)


def read(value, base=None):
    store = PictureStore()
    return store.pixels(store.add(value, base).sha256)


def colours(image):
    return [image.getpixel((x, y)) for y in range(image.height) for x in range(image.width)]


@pytest.fixture
def ways(tmp_path):
    """All ways to write one image."""
    content = encoded(two_colours())
    (tmp_path / "two.png").write_bytes(content)
    text = base64.b64encode(content).decode()
    return {
        "PIL": two_colours(),
        "bytes": content,
        "bytes of a table": {"bytes": content, "path": "gone.png"},
        "path of a table": {"bytes": None, "path": "two.png"},
        "relative path": "two.png",
        "path": tmp_path / "two.png",
        "data URI": f"data:image/png;base64,{text}",
        "data URI of a request": {"url": f"data:image/png;base64,{text}", "detail": "low"},
        "Base64": text,
        "another format": encoded(two_colours(), "BMP"),
    }


def test_one_image_has_one_hash_whatever_holds_it(ways, tmp_path):
    store = PictureStore()
    pictures = {name: store.add(value, tmp_path) for name, value in ways.items()}
    # sha256 of b"3x2:" and the RGB bytes, row by row
    by_hand = hashlib.sha256(b"3x2:" + bytes([*RED * 5, *BLUE])).hexdigest()
    assert {(picture.sha256, picture.width, picture.height) for picture in pictures.values()} == {(by_hand, 3, 2)}
    assert colours(store.pixels(by_hand)) == [RED] * 5 + [BLUE]


def test_pixels_are_the_callers_own():
    store = PictureStore()
    sha256 = store.add(two_colours()).sha256
    store.pixels(sha256).paste(WHITE, (0, 0, 3, 2))
    assert colours(store.pixels(sha256)) == [RED] * 5 + [BLUE]


def test_transparent_pixels_lie_on_white():
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    assert colours(read(encoded(image))) == [RED, WHITE]
    half = Image.new("LA", (1, 1), (0, 51))  # a fifth of black on white: 255 - 51
    assert colours(read(half)) == [(204, 204, 204)]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    assert colours(read(encoded(palette))) == [RED, BLUE]
    assert colours(read(encoded(palette, transparency=1))) == [RED, WHITE]


def test_a_turned_photograph_stands_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    image = Image.new("RGB", (16, 8), RED)
    image.paste(BLUE, (0, 0, 8, 8))
    upright = read(encoded(image, "JPEG", exif=exif, quality=100, subsampling=0))
    assert upright.size == (8, 16)
    assert upright.getpixel((4, 2))[2] > 200  # what was on the left is at the top
    assert upright.getpixel((4, 14))[0] > 200


def test_of_16_bits_the_upper_8_count_and_of_32_none_does():
    deep = Image.new("I;16", (2, 1))
    deep.putpixel((0, 0), 0x12FF)
    deep.putpixel((1, 0), 0xFFFF)
    assert colours(read(encoded(deep))) == [(0x12, 0x12, 0x12), WHITE]
    for mode in ("I", "F"):
        with pytest.raises(DataError, match=r"has pixels of 32 bits \(mode .\), which have no defined colour; store 8"):
            read(Image.new(mode, (2, 1)))


def test_ink_becomes_light():
    cyan = Image.new("CMYK", (1, 1), (255, 0, 0, 0))
    assert colours(read(encoded(cyan, "TIFF"))) == [(0, 255, 255)]


def test_of_several_frames_the_first_is_read_and_the_image_is_counted():
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    store = PictureStore()
    for kind in ("GIF", "PNG", "WEBP"):
        content = encoded(
            frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
        )
        picture = store.add(content)
        assert set(colours(store.pixels(picture.sha256))) == {RED}
    assert store.first_frames == {picture.sha256}
    assert PictureStore().add(frames[0]) == picture
    still = PictureStore()
    still.add(encoded(frames[0], "GIF"))
    assert still.first_frames == set()


def png_of(width, height):
    """A PNG file that claims a size and has no pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>'
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (png_of(30_000, 30_000), f"has more pixels, and an image may have {MOST_PIXELS}; make it smaller"),
        (png_of(8_193, 8_192), f"has 8193 x 8192 pixels, and an image may have {MOST_PIXELS}; make it smaller"),
        (SVG, "must be one of PNG, JPEG, WEBP, GIF, BMP, TIFF, PPM, got a drawing such as SVG, which has no pixels"),
        (EPS, f"got {len(EPS)} bytes of another kind; convert it"),  # Pillow would start a program for it
        (encoded(two_colours().resize((64, 64)), "JPEG")[:-200], "is a damaged image (OSError: "),
        (png_of(0, 5), "got 65 bytes of another kind"),
        (b"", "got 0 bytes of another kind"),
        ("http://127.0.0.1:9/a.png", "and nothing is fetched from the network; download the images and give their"),
        ("file:///etc/passwd", "is at an address file://, which is not read; give http://, https:// or a path"),
        ("missing.png", "names no file: there is no 'missing.png' in"),
        ("/dev/zero", "names no file: there is no '/dev/zero' in"),
        ("a" * 300 + ".png", "which is no path of a file and no Base64"),
        ("data:image/png,abc", "holds a data URI without Base64"),
        ("data:image/png;base64,@@", "holds text that is not Base64"),
        ({"bytes": None, "path": None}, "holds no image: an object must have bytes, path or url"),
        (3, "holds int where an image is expected; give a path, bytes, Base64 or an image of PIL"),
        (" ", "holds an empty text where an image is expected"),
    ],
    ids=range(17),
)
def test_what_is_no_image_is_refused_in_one_sentence(value, sentence, tmp_path):
    with pytest.raises(DataError) as refused:
        PictureStore().add(value, tmp_path)
    assert sentence in str(refused.value)


class Images(BaseHTTPRequestHandler):
    """A server of one image, with a redirect to it and a page that is none."""

    def do_GET(self):
        found = self.path == "/two.png"
        self.send_response(200 if found else 302 if self.path == "/moved" else 404)
        if self.path == "/moved":
            self.send_header("Location", "/two.png")
        self.end_headers()
        self.wfile.write(encoded(two_colours()) if found else b"")

    def log_message(self, *_):
        pass


def test_an_image_is_fetched_only_where_it_is_allowed():
    with ThreadingHTTPServer(("127.0.0.1", 0), Images) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        store = PictureStore(image_urls=True)
        expected = PictureStore().add(two_colours())
        assert store.add(f"{address}/two.png") == store.add({"url": f"{address}/moved"}) == expected
        with pytest.raises(DataError, match=r"cannot be fetched from http://127.0.0.1:\d+/gone \(status 404\)"):
            store.add(f"{address}/gone")
        with pytest.raises(DataError, match="nothing is fetched from the network"):
            PictureStore().add(f"{address}/two.png")
        server.shutdown()
    with pytest.raises(DataError, match=r"cannot be fetched from http://127.0.0.1:\d+/gone \(.*; download it first"):
        store.add(f"{address}/gone")


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)  # sparse
    with pytest.raises(DataError, match="has more than 64 MiB, the most of an image's file; make it smaller"):
        PictureStore().add("large.png", tmp_path)


def test_an_image_that_has_changed_since_is_no_longer_given(tmp_path):
    file = tmp_path / "two.png"
    file.write_bytes(encoded(two_colours()))
    store = PictureStore()
    sha256 = store.add("two.png", tmp_path).sha256
    file.write_bytes(encoded(Image.new("RGB", (3, 2), RED)))
    with pytest.raises(DataError, match="has changed: it now holds 3 x 2 pixels of the hash"):
        store.pixels(sha256)
    assert store.add("two.png", tmp_path).sha256 != sha256  # what is cached is of the file's old state


def test_the_original_file_is_written_once_and_read_from_there(tmp_path):
    content = encoded(two_colours(), "GIF")
    folder = tmp_path / "images"
    store = PictureStore(folder)
    sha256 = store.add(content).sha256
    store.write(sha256, folder)
    assert (folder / sha256).read_bytes() == content
    assert [file.name for file in folder.iterdir()] == [sha256]
    assert colours(store.pixels(sha256)) == colours(PictureStore(folder).pixels(sha256)) == [RED] * 5 + [BLUE]


def test_no_run_on_text_loads_pillow():
    program = "import sys, paceline.data.tasks; print('PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
