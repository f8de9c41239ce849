"""Memory for the large answers of one model that are read whole, and kept until their clients have them."""

import asyncio

LARGE_BYTES = 2**20
"""Smaller answers are not counted here."""
MAX_BYTES = 64 * 2**20
"""Of all large answers of a model together, but for the oldest."""


class ReplyRoom:
    """Answers beyond MAX_BYTES wait, and their engines with them, for the model's others that came before."""

    def __init__(self) -> None:
        self._held: dict[object, int] = {}
        """Bytes of each, the oldest first."""
        self._left = asyncio.Event()
        """Set, and replaced, when an answer has gone."""

    async def grow(self, holder: object, num_bytes: int) -> None:
        """This answer has so many bytes; returns when it may have more."""
        self._held[holder] = num_bytes
        while sum(self._held.values()) > MAX_BYTES and next(iter(self._held)) is not holder:
            await self._left.wait()

    def leave(self, holder: object) -> None:
        """Its client has it, or nobody wants it any more."""
        if self._held.pop(holder, None) is not None:
            self._left.set()
            self._left = asyncio.Event()
