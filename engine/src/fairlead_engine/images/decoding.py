"""Bytes that claim to be an image → pixels as large as the model wants them. Hostile bytes end in an `ImageError`.

It takes as long as the image is large, and is called in a thread; Pillow lets other threads go on meanwhile. What the
pixels mean to a model is the core's business.
"""

import io
import warnings
from hashlib import blake2b

from PIL import Image, ImageOps

from fairlead_engine.image_settings import ImageSettings
from fairlead_engine.images.decoded_image import FORMAT_NAMES, DecodedImage, ImageError
from fairlead_protocol.blocks import DIGEST_SIZE

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Pillow knows dozens; each that is offered to strangers has to be trusted."""
MAX_PIXELS = 64 * 2**20
"""Of an image before it is made smaller: 192 MiB of memory while it is. It is told by the image's first bytes, before
anything is unpacked."""


def decode(content: bytes, mime_type: str | None, settings: ImageSettings) -> DecodedImage:
    """`mime_type`: what its sender says that it is; None = nothing. Raises ImageError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `MAX_PIXELS` is below what it warns of
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise ImageError(f"has more than the {MAX_PIXELS:,} pixels that are unpacked; send it smaller") from error
    except Exception as error:  # whatever a decoder makes of such bytes
        raise ImageError(f"cannot be read as an image; send one of {FORMAT_NAMES}") from error
    with opened as image:
        found = Image.MIME.get(image.format or "", "")
        if mime_type is not None and mime_type != found:
            raise ImageError(f"says that it is {mime_type}, and holds {found}; say what it is")
        width, height = image.size
        if width * height > MAX_PIXELS:
            problem = f"has {width} x {height} pixels, and at most {MAX_PIXELS:,} are unpacked"
            raise ImageError(f"{problem}; send it smaller")
        if getattr(image, "n_frames", 1) > 1:
            raise ImageError("is animated; send one of its pictures")
        try:
            image.load()
            upright = ImageOps.exif_transpose(image)
        except Exception as error:  # truncated or broken, of which decoders tell in many ways
            raise ImageError(f"is truncated or broken ({_short(error)}); send it whole") from error
        return fit(upright, settings)


def fit(image: Image.Image, settings: ImageSettings) -> DecodedImage:
    """As large as whole patches, by Pillow's bicubic filter. Raises ImageError for one that is far longer than wide."""
    width, height = image.size
    try:
        rows, columns = settings.grid(height, width)
    except ValueError as error:
        raise ImageError(str(error)) from error
    size = columns * settings.factor, rows * settings.factor
    pixels = image.convert("RGB").resize(size, Image.Resampling.BICUBIC).tobytes()
    digest = blake2b(b"%d %d " % (rows, columns), digest_size=DIGEST_SIZE)
    digest.update(pixels)
    return DecodedImage(rows, columns, pixels, digest.digest())


def _short(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 120 else text[:119] + "…"
