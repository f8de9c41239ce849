"""Bytes that claim to be an image → pixels as large as the model wants them. Hostile bytes end in an `ImageError`.

It takes as long as the image is large, and is called in a thread; Pillow lets other threads go on meanwhile. What the
pixels mean to a model is the core's business.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

from PIL import Image, ImageOps

from fairlead_engine.image_settings import ImageSettings
from fairlead_engine.images.decoded_image import FORMAT_NAMES, DecodedImage, ImageError
from fairlead_protocol.blocks import DIGEST_SIZE

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Pillow knows dozens; each that is offered to strangers has to be trusted."""
MAX_PIXELS = 64 * 2**20
"""Of an image before it is made smaller: Pillow takes four bytes for each, and twice that while it makes three colours
of others. It is told by the image's first bytes, before anything is unpacked."""
_EXIF = b"Exif\0\0"
_MOST_EXIF = 256
"""Pieces of Exif in a JPEG, of 64 KiB each. Pillow appends each to those before it, which takes minutes of many."""
_JPEG = b"\xff\xd8"

# It warns of each of the thousands of wrong entries that an image may have, on stderr. Not around each call: what
# Python has for that is not safe between threads. `MAX_PIXELS` is below what it warns of as a bomb.
warnings.filterwarnings("ignore", module=r"PIL\.")


def measure(content: bytes, mime_type: str | None, settings: ImageSettings) -> int:
    """Tokens that the image becomes, told by its first bytes; it may turn out to be broken all the same. Raises
    ImageError."""
    with _opened(content, mime_type) as image:
        rows, columns = _grid(image, settings)  # as many where it is turned
        return rows * columns


def decode(content: bytes, mime_type: str | None, settings: ImageSettings) -> DecodedImage:
    """`mime_type`: what its sender says that it is; None = nothing. Raises ImageError."""
    with _opened(content, mime_type) as image:
        try:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
        except Exception as error:  # truncated or broken, of which decoders tell in many ways
            why = str(error) or type(error).__name__
            why = why if len(why) <= 120 else why[:119] + "…"
            raise ImageError(f"is truncated or broken ({why}); send it whole") from error
        return fit(image, settings)


@contextmanager
def _opened(content: bytes, mime_type: str | None) -> Iterator[Image.Image]:
    """Not unpacked yet; what its first bytes say is checked. Raises ImageError."""
    if content.startswith(_JPEG) and content.count(_EXIF) > _MOST_EXIF:
        raise ImageError(f"has Exif in more than {_MOST_EXIF} pieces; send it without")
    try:
        opened = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ImageError(f"has more than the {MAX_PIXELS:,} pixels that are unpacked; send it smaller") from error
    except Exception as error:  # whatever a decoder makes of such bytes
        raise ImageError(f"cannot be read as an image; send one of {FORMAT_NAMES}") from error
    with opened as image:
        is_jpeg = image.format == "MPO"  # with more pictures behind it, such as of depth, as many cameras write it
        found = "image/jpeg" if is_jpeg else Image.MIME.get(image.format or "", "")
        if mime_type is not None and mime_type != found:
            raise ImageError(f"says that it is {mime_type}, and holds {found}; say what it is")
        width, height = image.size
        if width * height > MAX_PIXELS:
            problem = f"has {width} x {height} pixels, and at most {MAX_PIXELS:,} are unpacked"
            raise ImageError(f"{problem}; send it smaller")
        if not is_jpeg and getattr(
            image, "is_animated", False
        ):  # `n_frames` would read all of them, and a GIF may have a million
            raise ImageError("is animated; send one of its pictures")
        yield image


def fit(image: Image.Image, settings: ImageSettings) -> DecodedImage:
    """As large as whole patches, by Pillow's bicubic filter. Raises ImageError for one that is far longer than wide."""
    rows, columns = _grid(image, settings)
    size = columns * settings.factor, rows * settings.factor
    colours = image if image.mode == "RGB" else image.convert("RGB")  # which would be a copy
    pixels = colours.resize(size, Image.Resampling.BICUBIC).tobytes()
    digest = blake2b(b"%d %d " % (rows, columns), digest_size=DIGEST_SIZE)
    digest.update(pixels)
    return DecodedImage(rows, columns, pixels, digest.digest())


def _grid(image: Image.Image, settings: ImageSettings) -> tuple[int, int]:
    """Rows and columns of tokens. Raises ImageError."""
    width, height = image.size
    try:
        return settings.grid(height, width)
    except ValueError as error:
        raise ImageError(str(error)) from error
