"""Images in the messages of a chat: where they stand, and where their bytes are. Knows no pixels.

Gateway and engine find them in the same way; only an engine looks at what they show.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fairlead_common.openai.chat import Message, is_image

IMAGE_URL = "image_url"
"""The field of a part with its image."""
_DETAILS = (None, "auto", "low", "high", "original")


class ImagePart(NamedTuple):
    """One of the parts of a message's content."""

    place: str
    """Such as `messages[0].content[1].image_url`."""
    part: Mapping[str, Any]
    """The client's value."""

    @property
    def image(self) -> Any:
        """The value at the place."""
        return self.part.get(IMAGE_URL)

    @property
    def url(self) -> str:
        """A `data:` URL, or the URL of the image, which may stand without an object around it, as Mistral's clients and
        vLLM's send it. Raises ValueError with the problem."""
        if isinstance(self.image, str):
            return self.image
        if not isinstance(self.image, Mapping) or not isinstance(self.image.get("url"), str):
            raise ValueError('must be an object with a text as its url, such as "data:image/png;base64,…"')
        if unknown := self.image.keys() - {"url", "detail"}:
            raise ValueError(f"has the unknown field {min(map(str, unknown))!r}")
        if self.image.get("detail") not in _DETAILS:
            raise ValueError("has a detail that is none of auto, low, high and original")
        return str(self.image["url"])

    def forget(self) -> None:
        """Leaves no image there, as messages live as long as their answer."""
        assert isinstance(self.part, dict)
        self.part[IMAGE_URL] = {"url": ""}


def image_parts(messages: Sequence[Message]) -> list[ImagePart]:
    """All images, in order; templates report problems of further parts."""
    return list(_image_parts(messages))


def _image_parts(messages: Sequence[Message]) -> Iterator[ImagePart]:
    for index, message in enumerate(messages):
        content = message.get("content")
        for position, part in enumerate(content if isinstance(content, list) else ()):
            if is_image(part):
                yield ImagePart(f"messages[{index}].content[{position}].{IMAGE_URL}", part)


def url_bytes(messages: Sequence[Message]) -> int:
    """Characters of a chat that are images, and no text."""
    found = [part.image.get("url") if isinstance(part.image, Mapping) else part.image for part in image_parts(messages)]
    return sum(len(url) for url in found if isinstance(url, str))
