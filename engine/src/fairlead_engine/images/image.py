"""A client's image: format, size and number of passes, read off its first bytes without a decoder; and the image in a
model's form. Images too large to unpack are refused here."""

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from fairlead_engine.types import PromptImage

FORMAT_NAMES = "PNG, JPEG, WebP and GIF"


class ImageError(ValueError):
    """A client's bytes are no usable image; the text continues a sentence about the image."""


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as a model takes it."""

    rows: int
    """Height in patches of one token each."""
    columns: int
    """Width in patches of one token each."""
    pixels: bytes
    """Rows of red, green and blue, a byte each."""
    digest: bytes
    """Of rows, columns and pixels."""

    def placed(self, start: int) -> PromptImage:
        """The image with its first token at position `start` of a prompt."""
        return PromptImage(start, self.rows, self.columns, self.digest, self.pixels)


Unpacked = tuple[str, DecodedImage | None]
"""The problem with an image, or the image."""


MAX_PIXELS = 64 * 2**20
"""Of an image before it is made smaller."""
_MAX_PASSED = 16 * MAX_PIXELS
"""Bound on pixels times passes: each scan of a progressive JPEG covers all pixels, even with few bytes."""
_MAX_SCANS = 256
"""Encoders write a dozen."""
_MAX_EXIF = 256
"""Bound on Exif pieces of 64 KiB in a JPEG. Pillow appends each to the previous ones: minutes for many."""
_MAX_SEGMENTS = 2000
"""Of a JPEG before its pixels."""
_EXIF, _SCAN = b"Exif\0\0", b"\xff\xda"
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ALONE = {0x01, *range(0xD0, 0xD9)}
"""Markers that nothing belongs to."""
_INTERLACED_PASSES, _WEBP_PASSES = 7, 4
"""WebP's number stands for its time per pixel."""
_OTHERS = (
    (b"BM", "BMP"), (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"II+\0", "TIFF"), (b"MM\0+", "TIFF"), (b"8BPS", "PSD"),
    (b"\0\0\1\0", "ICO"), (b"%!PS", "EPS"), (b"\xc5\xd0\xd3\xc6", "EPS"), (b"%PDF", "PDF"), (b"<svg", "SVG"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"), (b"\xff\x0a", "JPEG XL"), (b"\0\0\0\x0cJXL ", "JPEG XL"),
)  # fmt: skip
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}


class ImageHeader(NamedTuple):
    """Of an image that may be unpacked."""

    mime_type: str
    width: int
    """Before rotation by Exif."""
    height: int
    passes: int
    """Times that a decoder goes over all pixels."""
    is_exact: bool = True
    """Whether a WebP is simple, without parts with their own headers."""

    @property
    def work(self) -> int:
        """Work of unpacking, in passes over a pixel; shrinking counts as two passes."""
        return self.width * self.height * (2 + self.passes)


def read_header(content: bytes) -> ImageHeader:
    """The image may still be broken. Raises ImageError."""
    try:
        header = _header(content)
    except (struct.error, IndexError) as error:
        raise ImageError(
            f"cannot be read as an image: it ends before its pixels; send one of {FORMAT_NAMES}"
        ) from error
    width, height, passes = header.width, header.height, header.passes
    if not width * height:
        raise ImageError("cannot be read as an image: it has no pixels")
    if width * height > MAX_PIXELS:
        problem = f"has {width} x {height} pixels, and at most {MAX_PIXELS:,} are unpacked"
        raise ImageError(f"{problem}; send it smaller")
    if passes > _MAX_SCANS or width * height * passes > _MAX_PASSED:
        problem = f"has {width} x {height} pixels in {passes:,} scans"
        limits = f"at most {_MAX_SCANS} scans, and {_MAX_PASSED:,} pixels in all of them, are unpacked"
        raise ImageError(f"{problem}, and {limits}; send it as a JPEG that is not progressive")
    return header


def _header(content: bytes) -> ImageHeader:
    """Raises ImageError, or the error of reading past the end."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(content)
    if content.startswith(b"\xff\xd8\xff"):
        return _jpeg(content)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return _webp(content)
    if content[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack_from("<HH", content, 6)
        return ImageHeader("image/gif", width, height, passes=1)
    found = next((name for start, name in _OTHERS if content.startswith(start)), None)
    if content[4:8] == b"ftyp":
        found = _BRANDS.get(content[8:12])
    told = "cannot be read as an image" if found is None else f"cannot be read: it is written as {found}"
    raise ImageError(f"{told}; send one of {FORMAT_NAMES}")


def _png(content: bytes) -> ImageHeader:
    if content[12:16] != b"IHDR":
        raise ImageError("cannot be read as an image: a PNG begins with its IHDR")
    width, height, is_interlaced = struct.unpack_from(">II4xB", content, 16)
    return ImageHeader("image/png", width, height, _INTERLACED_PASSES if is_interlaced else 1)


def _webp(content: bytes) -> ImageHeader:
    kind = content[12:16]
    if kind == b"VP8 ":
        width, height = (each & 0x3FFF for each in struct.unpack_from("<HH", content, 26))
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8X":
        low, high, low2, high2 = struct.unpack_from("<HBHB", content, 24)
        width, height = (high << 16) + low + 1, (high2 << 16) + low2 + 1
    else:
        raise ImageError("cannot be read as an image: a WebP begins with VP8, VP8L or VP8X")
    return ImageHeader("image/webp", width, height, _WEBP_PASSES, is_exact=kind == b"VP8 ")


def _jpeg(content: bytes) -> ImageHeader:
    if content.count(_EXIF) > _MAX_EXIF:
        raise ImageError(f"has Exif in more than {_MAX_EXIF} pieces; send it without")
    position = 2
    for _ in range(_MAX_SEGMENTS):
        if (found := _MARKER.search(content, position)) is None:
            break
        position, marker = found.end(), content[found.end() - 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", content, position + 3)
            # Scans, or what looks like one in a table: pixels have none of these bytes in a row.
            return ImageHeader("image/jpeg", width, height, max(1, content.count(_SCAN, position)))
        if marker not in _ALONE:
            position += struct.unpack_from(">H", content, position)[0]
    raise ImageError("cannot be read as an image: it does not say how large it is")
