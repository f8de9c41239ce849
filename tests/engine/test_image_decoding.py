"""Bytes that are made to take a decoder's time, memory or log, and are as small as an image may be."""

import io
import json
import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest
from PIL import GifImagePlugin, Image, ImageOps, PngImagePlugin

from fairlead_common.models.image_settings import ImageSettings
from fairlead_engine.images import image_decoding
from fairlead_engine.images.image import DecodedImage, ImageError, read_header
from fairlead_engine_testing.hostile_images import (
    encoded,
    gif_film,
    gif_with_comments,
    picture,
    png_chunk,
    png_notes,
    png_of,
    png_with,
    progressive_jpeg,
)

SETTINGS = ImageSettings(
    image_token_id=1, patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=56 * 56, max_pixels=1280 * 784,
    mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0),
)  # fmt: skip
MIB = 2**20


def decode(content: bytes, most_bytes: int = 512 * MIB) -> DecodedImage:
    return image_decoding.decode(content, read_header(content), SETTINGS, most_bytes)


def png_with_wrong_entries(number: int) -> bytes:
    """Exif whose entries each claim to be larger than the image."""
    entries = b"".join(struct.pack("<HHLL", tag, 3, 2**20 + tag, 8) for tag in range(number))
    return png_with(png_chunk(b"eXIf", b"II*\0" + struct.pack("<LH", 8, number) + entries + bytes(4)))


def test_of_a_film_only_the_first_picture_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GIF of one pixel may have a million of them."""
    num_read = 0
    read = GifImagePlugin.GifImageFile._seek

    def counted(image: GifImagePlugin.GifImageFile, *args: bool | int) -> None:
        nonlocal num_read
        num_read += 1
        read(image, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(GifImagePlugin.GifImageFile, "_seek", counted)
    assert decode(gif_film(10_000)) == decode(gif_film(1))
    assert num_read == 2


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_picture_is_seen(format: str) -> None:
    first, others = picture(60, 40), [Image.new("RGB", (60, 40), colour) for colour in ("red", "blue")]
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    film = encoded(first, format, save_all=True, append_images=others, duration=10, **options)
    assert decode(film) == decode(encoded(first, format, **options))


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_notes_of_a_png_are_never_unpacked(kind: bytes, is_behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 MB they are 16 GB."""
    unpacked: list[int] = []
    monkeypatch.setattr(PngImagePlugin, "_safe_zlib_decompress", lambda content: unpacked.append(len(content)))
    hostile = png_with(png_notes(kind, 8 * MIB, 100), is_behind=is_behind)
    assert decode(hostile) == decode(encoded(picture(60, 40)))
    assert not unpacked


def test_comments_of_a_gif_are_not_put_together() -> None:
    hostile = gif_with_comments(4000)
    tracemalloc.start()
    try:
        assert decode(hostile) == decode(gif_film(1))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(hostile)
    finally:
        tracemalloc.stop()
    with Image.open(io.BytesIO(image_decoding._gif(hostile))) as image:
        assert "comment" not in image.info


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (png_of(8000, 8000), "truncated or broken"),
        (png_of(8000, 8000, is_interlaced=True), "truncated or broken"),
        (png_with(png_chunk(b"IHDR", struct.pack(">IIBBBBB", 8000, 8000, 8, 2, 0, 0, 0))), "is broken: 8000 x 8000"),
        (b"GIF89a\1\0\1\0\0\0\0\x2c\0\0\0\0\0\x20\0\x20\0\2\2\x44\1\0;", "8192 x 8192 of its pixels lie outside"),
        *(
            (encoded(picture(300, 200), format, **options)[:-200], "truncated or broken")
            for format, options in (
                ("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("WEBP", {"lossless": True}),
                ("GIF", {}),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_not_what_it_says_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode(content)


HONEST = {
    "jpeg": lambda image: encoded(image, "JPEG"),
    "jpeg, turned": lambda image: encoded(image, "JPEG", exif=exif_of(6)),
    "jpeg, progressive": lambda image: encoded(image, "JPEG", progressive=True, subsampling=0),
    "jpeg, one colour": lambda image: encoded(image.convert("L"), "JPEG", progressive=True),
    "jpeg, printed": lambda image: encoded(image.convert("CMYK"), "JPEG", progressive=True),
    "png": lambda image: encoded(image),
    "png, transparent": lambda image: encoded(image.convert("RGBA")),
    "png, palette": lambda image: encoded(image.convert("P")),
    "png, two bytes": lambda image: encoded(image.convert("L").convert("I").point(lambda v: v * 257).convert("I;16")),
    "png, turned": lambda image: encoded(image.convert("RGBA"), exif=exif_of(6)),
    "webp": lambda image: encoded(image, "WEBP", quality=60, method=0),
    "webp, lossless": lambda image: encoded(image, "WEBP", lossless=True, method=0, quality=0),
    "webp, transparent": lambda image: encoded(image.convert("RGBA"), "WEBP", method=0, quality=60, exif=exif_of(3)),
    "gif": lambda image: encoded(image.convert("P"), "GIF"),
}


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("name", HONEST)
def test_honest_images_are_seen_as_pillow_opens_them(name: str) -> None:
    content = HONEST[name](picture(301, 200))
    with Image.open(io.BytesIO(content)) as image:
        expected = image_decoding.fit(ImageOps.exif_transpose(image), SETTINGS)
    assert decode(content) == expected
    with pytest.raises(ImageError, match="would take more than the 0 MiB of this server's image-memory"):
        decode(content, 301 * 200)


def test_a_decoder_that_gets_no_more_memory_is_told_by_the_limits_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(image: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    with pytest.raises(ImageError, match="it would take more than the 512 MiB of this server's image-memory"):
        decode(encoded(picture(60, 40)))


MEASURED = """
import json, sys
from pathlib import Path
from PIL import Image, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from fairlead_common.models.image_settings import ImageSettings
from fairlead_engine.images import image_decoding
from fairlead_engine.images.image import read_header
def peak():
    return 1024 * next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM"))
settings = ImageSettings(**json.loads(sys.argv[1]))
content = sys.stdin.buffer.read()
asked = []
image_decoding._check = lambda image, bytes_each, most: asked.append(image.width * image.height * bytes_each)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
image_decoding.decode(content, read_header(content), settings, 0)
print(json.dumps([max(asked), peak() - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process took")
@pytest.mark.parametrize("name", HONEST)
def test_no_decoder_takes_more_memory_than_is_counted(name: str) -> None:
    content = HONEST[name](picture(3000, 2000))
    settings = json.dumps({each: getattr(SETTINGS, each) for each in SETTINGS.__struct_fields__})
    run = subprocess.run([sys.executable, "-c", MEASURED, settings], input=content, capture_output=True, check=True)
    counted, taken = json.loads(run.stdout)
    besides = 3 * len(content) + 24 * MIB  # its bytes, what is made of them, and rows between two sizes
    assert counted / 2 < taken < counted + besides, (counted / MIB, taken / MIB)


def test_no_entry_of_an_image_gets_a_line_on_stderr() -> None:
    code = (
        "import sys\n"
        "from fairlead_common.models.image_settings import ImageSettings\n"
        "from fairlead_engine.images.image_decoding import decode\n"
        "from fairlead_engine.images.image import read_header\n"
        "content = sys.stdin.buffer.read()\n"
        f"print(decode(content, read_header(content), {SETTINGS!r}, 2**29).rows)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], input=png_with_wrong_entries(50), capture_output=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"2\n", b"")


def test_of_a_jpeg_with_pictures_behind_it_the_first_is_seen() -> None:
    """As cameras write one of depth."""
    alone = encoded(picture(80, 60), "JPEG")
    several = encoded(picture(80, 60), "MPO", save_all=True, append_images=[Image.new("RGB", (40, 30))])
    assert b"MPF\0" in several
    assert decode(several) == decode(alone)


def test_exif_in_some_pieces_is_read() -> None:
    whole, piece = encoded(picture(16, 16), "JPEG"), b"\xff\xe1\x00\x0aExif\0\0ab"
    assert decode(whole[:2] + piece * 3 + whole[2:]).rows > 0


def test_scans_cost_what_the_header_says() -> None:
    assert decode(progressive_jpeg(400, 300, 200)).rows > 0
