"""What images say of themselves, told without a decoder, and what is refused by that."""

import struct

import pytest
from PIL import Image

from fairlead_engine.images.image import ImageError, ImageHeader, read_header
from fairlead_engine_testing.hostile_images import (
    encoded,
    gif_film,
    picture,
    png_notes,
    png_of,
    png_with,
    progressive_jpeg,
)

WHOLE = picture(60, 40)


@pytest.mark.parametrize(
    ("content", "mime_type", "passes"),
    [
        (encoded(WHOLE), "image/png", 1),
        (png_of(60, 40, is_interlaced=True), "image/png", 7),
        (png_with(png_notes(b"zTXt", 5000, 3)), "image/png", 1),
        (encoded(WHOLE, "JPEG"), "image/jpeg", 1),
        (encoded(WHOLE, "JPEG", progressive=True), "image/jpeg", 10),
        (encoded(WHOLE, "JPEG", icc_profile=b"p" * 200_000, comment=b"\xff\xda" * 40), "image/jpeg", 1),
        (encoded(WHOLE.convert("CMYK"), "JPEG"), "image/jpeg", 1),
        (encoded(WHOLE, "MPO", save_all=True, append_images=[Image.new("RGB", (40, 30))]), "image/jpeg", 2),
        (encoded(WHOLE, "WEBP"), "image/webp", 4),
        (encoded(WHOLE, "WEBP", lossless=True), "image/webp", 4),
        (encoded(WHOLE.convert("RGBA"), "WEBP", exif=b"Exif\0\0MM\0*"), "image/webp", 4),
        (encoded(WHOLE, "GIF"), "image/gif", 1),
    ],
)
def test_what_an_image_says_of_itself(content: bytes, mime_type: str, passes: int) -> None:
    assert read_header(content)[:4] == (mime_type, 60, 40, passes)


def jpeg_of(width: int, height: int) -> bytes:
    """The first bytes of one."""
    whole = encoded(WHOLE, "JPEG")
    frame = whole.index(b"\xff\xc0") + 5
    return whole[:frame] + struct.pack(">HH", height, width) + whole[frame + 4 :]


def webp_of(width: int, height: int) -> bytes:
    """One that has parts."""
    sides = b"".join(struct.pack("<I", side - 1)[:3] for side in (width, height))
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + sides


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (progressive_jpeg(8000, 8000, 200), "8000 x 8000 pixels in 200 scans"),
        (progressive_jpeg(64, 64, 5000), "in 5,000 scans, and at most 256 scans"),
        (progressive_jpeg(16000, 16000, 2), "at most 67,108,864 are unpacked"),
        (jpeg_of(60000, 60000), "at most 67,108,864 are unpacked"),
        (png_of(2**31 - 1, 2**31 - 1), "at most 67,108,864 are unpacked"),
        (png_of(9000, 9000, is_interlaced=True), "at most 67,108,864 are unpacked"),
        (webp_of(2**24, 2**24), "at most 67,108,864 are unpacked"),
        (b"GIF89a\xff\xff\xff\xff\0\0\0", "at most 67,108,864 are unpacked"),
        (png_of(0, 10), "no pixels"),
        (jpeg_of(10, 0), "no pixels"),
        (b"\xff\xd8" + b"\xff\xe1\x00\x0aExif\0\0ab" * 300, "Exif in more than 256 pieces"),
        (b"\xff\xd8" + b"\xff\xe2\x00\x02" * 5000 + encoded(WHOLE, "JPEG")[2:], "does not say how large it is"),
        (b"\xff\xd8" + b"\xff" * 2**20, "does not say how large it is"),
        (b"\x89PNG\r\n\x1a\n" + png_notes(b"zTXt", 10, 1), "begins with its IHDR"),
        (b"RIFF\0\0\0\0WEBPANIM" + bytes(40), "begins with VP8"),
    ],
)
def test_what_nobody_should_begin_to_unpack(content: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        read_header(content)


def test_what_encoders_write_of_large_photographs_is_taken() -> None:
    assert read_header(progressive_jpeg(8000, 6000, 12)).passes == 12
    assert read_header(progressive_jpeg(8000, 8000, 16)).work > 10**9
    assert read_header(gif_film(10_000)) == ImageHeader("image/gif", 1, 1, 1)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (encoded(WHOLE, "BMP"), "BMP"), (encoded(WHOLE, "TIFF"), "TIFF"), (encoded(WHOLE, "ICO"), "ICO"),
        (b"8BPS\0\1" + bytes(20), "PSD"), (encoded(WHOLE, "EPS"), "EPS"), (encoded(WHOLE, "AVIF"), "AVIF"),
        (b"<svg/>", "SVG"), (encoded(WHOLE, "JPEG2000"), "JPEG 2000"), (encoded(WHOLE, "PDF"), "PDF"),
        (b"\0\0\0\x18ftypheic" + bytes(20), "HEIC"),
    ],
)  # fmt: skip
def test_other_formats_are_refused_by_their_names(content: bytes, name: str) -> None:
    with pytest.raises(
        ImageError, match=f"cannot be read: it is written as {name}; send one of PNG, JPEG, WebP and GIF"
    ):
        read_header(content)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"progressive": True}])
def test_no_beginning_of_an_image_is_more_than_refused(format: str, options: dict[str, bool]) -> None:
    whole = encoded(WHOLE, format, **options)
    refused = 0
    for end in range(700):
        try:
            assert read_header(whole[:end])[1:3] == (60, 40)
        except ImageError:
            refused += 1
    assert refused > 9
