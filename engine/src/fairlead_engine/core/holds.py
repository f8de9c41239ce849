"""What several requests begin with, kept once: a prompt, its images and its adapter, and the names of its blocks.

A search asks for the next token of every beam in every round: only what differs of them comes with each.
"""

import msgspec

from fairlead_engine.types import EngineRequest, Held
from fairlead_engine.types.sequences import Sequence
from fairlead_protocol.blocks import BlockHash


class Holds:
    """Of one engine, by the id that its client gave each."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._held: dict[str, Held] = {}
        self._hashes: dict[tuple[str, bytes], list[BlockHash]] = {}
        """Of whole blocks, by hold and what else decides them."""

    def add(self, hold: str, held: Held) -> None:
        """It is kept until it is released."""
        self._held[hold] = held

    def release(self, hold: str) -> None:
        """Nothing happens where nothing is held."""
        if self._held.pop(hold, None) is not None:
            for key in [key for key in self._hashes if key[0] == hold]:
                del self._hashes[key]

    def whole(self, request: EngineRequest) -> EngineRequest | None:
        """The request with what is held before it; None where nothing is."""
        held = self._held.get(request.hold or "")
        if held is None:
            return None
        prompt = held.prompt_token_ids + request.prompt_token_ids
        return msgspec.structs.replace(request, prompt_token_ids=prompt, images=held.images)

    def begin(self, hold: str, sequence: Sequence) -> None:
        """Spares a new sequence the names that are known."""
        sequence.block_hashes = self._hashes.get((hold, sequence.extra), [])[:]

    def note(self, hold: str, sequence: Sequence) -> None:
        """Keeps the names that it has made of what is held."""
        key = hold, sequence.extra
        if key not in self._hashes and (held := self._held.get(hold)) is not None:
            num_blocks = (sequence.num_virtual_tokens + len(held.prompt_token_ids)) // self._block_size
            self._hashes[key] = sequence.block_hashes[:num_blocks]
