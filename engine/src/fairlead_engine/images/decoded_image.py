"""An image as a model takes it, and the error for what never becomes one. Needs no decoder to be there."""

from dataclasses import dataclass

from fairlead_engine.types import PromptImage

FORMAT_NAMES = "PNG, JPEG, WebP and GIF"
MIME_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")


class ImageError(ValueError):
    """These bytes are no image that a model here could see; the text goes on where it is told which image that is."""


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as a model takes it."""

    rows: int
    """Its height and"""
    columns: int
    """its width, in patches that become a token each."""
    pixels: bytes
    """Rows of red, green and blue, a byte each."""
    digest: bytes
    """Of all three."""

    def placed(self, start: int) -> PromptImage:
        """With its first token at that position of a prompt."""
        return PromptImage(start, self.rows, self.columns, self.digest, self.pixels)


Unpacked = tuple[str, DecodedImage | None]
"""What is wrong with an image, or the image."""
