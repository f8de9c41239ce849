"""Images that are small as they are sent, and made to take a decoder's time or memory."""

import io
import struct
import zlib
from typing import Any

from PIL import Image

_SCAN = b"\xff\xda"


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, format, **options)
    return target.getvalue()


def picture(width: int, height: int) -> Image.Image:
    """Of three colours that change slowly."""
    down, across = Image.linear_gradient("L"), Image.linear_gradient("L").rotate(90)
    return Image.merge("RGB", (down, across, Image.radial_gradient("L"))).resize((width, height))


def progressive_jpeg(width: int, height: int, num_scans: int, *, is_whole: bool = False) -> bytes:
    """One that says it is so large, and goes over all of it so often, in scans of some 20 bytes. `is_whole`: it looks
    at each of its coefficients each time, in some 100 bytes."""
    size = (width, height) if is_whole else (8, 8)
    whole = encoded(Image.new("L", size, 100), "JPEG", progressive=True)
    frame = whole.index(b"\xff\xc2")
    head, first, *_, last = whole[frame:].split(_SCAN)
    head = head[:5] + struct.pack(">HH", height, width) + head[9:]
    last = last.removesuffix(b"\xff\xd9")
    return whole[:frame] + head + _SCAN + first + (_SCAN + last) * (num_scans - 1) + b"\xff\xd9"


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(width: int, height: int, *, is_interlaced: bool = False, depth: int = 8, colours: int = 2) -> bytes:
    """One that says it is so large, and has next to no pixels. `colours`: as PNG numbers their kinds."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, is_interlaced)
    pixels = png_chunk(b"IDAT", zlib.compress(b"\0"))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + pixels + png_chunk(b"IEND", b"")


def png_of_empty_pieces(number: int) -> bytes:
    """A small PNG whose pixels come after so many chunks that hold none of them."""
    whole = encoded(picture(60, 40))
    place = whole.index(b"IDAT") - 4
    return whole[:place] + png_chunk(b"IDAT", b"") * number + whole[place:]


def png_with(chunks: bytes, *, is_behind: bool = False, image: Image.Image | None = None) -> bytes:
    """A small PNG with these chunks before its pixels, or behind them."""
    whole = encoded(image or picture(60, 40))
    place = len(whole) - 12 if is_behind else 33
    return whole[:place] + chunks + whole[place:]


def png_notes(kind: bytes, num_bytes: int, number: int) -> bytes:
    """Compressed chunks of a kind that each are so large unpacked."""
    packed = zlib.compress(b"a" * num_bytes)
    head = {b"iTXt": b"note\0\1\0\0\0", b"zTXt": b"note\0\0", b"iCCP": b"icc\0\0"}[kind]
    return png_chunk(kind, head + packed) * number


def gif_film(num_pictures: int) -> bytes:
    """Of one pixel each."""
    each = b"\x2c\0\0\0\0\1\0\1\0\0\2\2\x44\1\0"
    return b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + each * num_pictures + b";"


def gif_with_comments(number: int) -> bytes:
    whole = gif_film(1)
    return whole[:19] + b"!\xfe\xffx" + b"a" * 254 + (b"\xff" + b"a" * 255) * number + b"\0" + whole[19:]


def hostile_images() -> dict[str, bytes]:
    """One of each kind, by name: small to send, large or endless to unpack."""
    return {
        "progressive JPEG": progressive_jpeg(8000, 8000, 2000),
        "progressive JPEG, whole": progressive_jpeg(2000, 2000, 250, is_whole=True),
        "PNG of a gigapixel": png_of(32_000, 32_000),
        "interlaced PNG": png_of(8000, 8000, is_interlaced=True, depth=16, colours=6),
        "PNG with notes": png_with(png_notes(b"iTXt", 2**24, 40)),
        "PNG with profiles": png_with(png_notes(b"iCCP", 2**24, 40)),
        "PNG of empty pieces": png_of_empty_pieces(200_000),
        "GIF film": gif_film(10_000),
        "GIF with comments": gif_with_comments(40_000),
        "WebP": encoded(Image.new("RGB", (8000, 8000)), "WEBP"),
    }
