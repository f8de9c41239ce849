"""Places in a chat, as errors tell them → those in the request of a dialect. Pure."""

import re
from collections.abc import Sequence

_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.\w+|\[\d+\])*")
_TOOL = re.compile(r"tools\[(\d+)\](?:\.(?:function|custom)\b)?")


class Places:
    """Where messages and tools of a chat, and fields of other names, stand in a request."""

    def __init__(
        self, messages: Sequence[str] = (), tools: Sequence[str] = (), names: Sequence[tuple[str, str]] = ()
    ) -> None:
        """`names`: patterns and replacements, applied in order, after the places of messages and tools."""
        self._messages, self._tools, self._names = messages, tools, names

    def told(self, text: str) -> str:
        """An error's text with the request's places."""
        text = _MESSAGE.sub(lambda found: _at(self._messages, found), text)
        text = _TOOL.sub(lambda found: _at(self._tools, found), text)
        for pattern, name in self._names:
            text = re.sub(pattern, name, text)
        return text


def _at(places: Sequence[str], found: re.Match[str]) -> str:
    index = int(found[1])
    return places[index] if index < len(places) else found[0]
