"""Bytes of an alleged image → pixels in the model's size. Hostile bytes end in an `ImageError`, or with the time limit
of their process.

Pillow does not bound its decoders' memory: the need is computed from the image's header, and bounded before unpacking.
"""

import io
import pickle
import warnings
from hashlib import blake2b

import msgspec
from PIL import GifImagePlugin, Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin  # noqa: F401 (none waits for them)

from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.wire.blocks import DIGEST_SIZE
from fairlead_common.workers.process import Handler
from fairlead_engine.images.image import DecodedImage, ImageError, ImageHeader, Unpacked

_FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
"""Pillow's names. It knows dozens of formats; each one offered to strangers must be trusted."""
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2}
"""Of a pixel in memory, by Pillow's mode; of all others four."""
_COEFFICIENT_BYTES = 2
"""Per colour and pixel of a JPEG with several scans."""
_WEBP_BYTES, _LOSSLESS_BYTES = 12, 16
"""Of a pixel while it is unpacked: two canvases and a copy. Measured: libwebp 1.6 takes 12.3 and 15.6."""
_ORIENTATION, _UPRIGHT = 0x0112, 1
_PNG_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"eXIf"}
"""Chunks with visible content. Others may be profiles and texts a thousand times as large unpacked, or further pictures
of an animation."""

# It warns of each of the thousands of wrong entries that an image may have, on stderr.

warnings.filterwarnings("ignore", module=r"PIL\.")


def decode(content: bytes, header: ImageHeader, settings: ImageSettings, most_bytes: int) -> DecodedImage:
    """The first picture, where there are more. `most_bytes`: of memory for unpacking. Raises ImageError."""
    try:
        with Image.open(io.BytesIO(_seen(content, header)), formats=(_FORMATS[header.mime_type],)) as image:
            if image.size != (header.width, header.height):
                raise ImageError(f"is broken: {image.width} x {image.height} of its pixels lie outside of it")
            pixel_bytes = _PIXEL_BYTES.get(image.mode, 4)
            _check(
                image, pixel_bytes + max(_unpacking_bytes(image, header), 0 if image.mode == "RGB" else 4), most_bytes
            )
            image.load()
            if image.getexif().get(_ORIENTATION, _UPRIGHT) != _UPRIGHT:
                _check(image, 2 * pixel_bytes, most_bytes)
                ImageOps.exif_transpose(image, in_place=True)
            return fit(image, settings)
    except ImageError:
        raise
    except MemoryError:
        raise _too_large(most_bytes) from None
    except Exception as error:  # truncated or broken, of which decoders tell in many ways
        why = str(error) or type(error).__name__
        why = why if len(why) <= 120 else why[:119] + "…"
        raise ImageError(f"is truncated or broken ({why}); send it whole") from error


def _unpacking_bytes(image: Image.Image, header: ImageHeader) -> int:
    """A decoder's bytes per pixel, besides the result."""
    if header.mime_type == "image/webp":
        return _WEBP_BYTES if header.is_exact else _LOSSLESS_BYTES
    if header.mime_type == "image/jpeg" and header.passes > 1:
        return _COEFFICIENT_BYTES * len(image.getbands())
    return 0


def _check(image: Image.Image, pixel_bytes: int, most_bytes: int) -> None:
    if image.width * image.height * pixel_bytes > most_bytes:
        raise _too_large(most_bytes, f"{image.width} x {image.height} pixels of a {image.format} of this kind")


def _too_large(most_bytes: int, what: str = "it") -> ImageError:
    allowed = f"the {most_bytes // 2**20} MiB of this server's image-memory"
    return ImageError(f"cannot be unpacked: {what} would take more than {allowed}; send it smaller, or as a plain JPEG")


def _seen(content: bytes, header: ImageHeader) -> bytes:
    """The image without invisible parts that cost time or memory. Raises IndexError for a truncated image."""
    match header.mime_type:
        case "image/png":
            return _png(content)
        case "image/gif":
            return _gif(content)
        case _:
            return content


def _png(content: bytes) -> bytes:
    pieces, kept, position, kind = [content[:8]], 8, 8, b""
    while kind != b"IEND" and position + 8 <= len(content):
        kind = content[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(content[position : position + 4], "big")
        if kind not in _PNG_CHUNKS:
            pieces.append(content[kept:position])
            kept = end
        position = end
    return b"".join([*pieces, content[kept:]])


def _gif(content: bytes) -> bytes:
    """A GIF without comments and extensions: Pillow appends comments one by one, which takes minutes for many."""
    begin = 13 + (3 << (content[10] & 7) + 1 if content[10] & 0x80 else 0)
    position, control = begin, b""
    while content[position] == ord("!"):
        start, position = position, position + 2
        while num_bytes := content[position]:
            position += num_bytes + 1
        position += 1
        if content[start + 1] == 0xF9:
            control = content[start:position]
    return content[:begin] + control + content[position:]


def fit(image: Image.Image, settings: ImageSettings) -> DecodedImage:
    """Resized to whole patches by Pillow's filter of the model. Raises ImageError for extreme proportions."""
    try:
        rows, columns = settings.grid(image.height, image.width)
    except ValueError as error:
        raise ImageError(str(error)) from error
    size = columns * settings.factor, rows * settings.factor
    colours = image if image.mode == "RGB" else image.convert("RGB")  # which would be a copy
    pixels = colours.resize(size, settings.resample).tobytes()
    digest = blake2b(b"%d %d " % (rows, columns), digest_size=DIGEST_SIZE)
    digest.update(pixels)
    return DecodedImage(rows, columns, pixels, digest.digest())


def make(payload: bytes) -> tuple[bytes, Handler]:
    """`payload`: bytes of memory for unpacking an image, in decimal. A job is the pickled arguments of `decode`; its
    answer is `Unpacked` as MessagePack, which is safe to read from an untrusted decoder."""
    most_bytes, encode = int(payload), msgspec.msgpack.Encoder().encode

    def unpack(job: bytes, takes_long: bool) -> bytes:
        content, header, settings = pickle.loads(job)
        try:
            found: Unpacked = ("", decode(content, header, settings, most_bytes))
        except ImageError as error:
            found = (str(error), None)
        return encode(found)

    return b"", unpack
