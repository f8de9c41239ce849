"""What a gateway and the process that has a model's tokenizer say to each other."""

from array import array
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from fairlead.gateway.prompts.fields import PromptBound
from fairlead.routing.prompt import Tokens
from fairlead.routing.replica import Limits, Replica
from fairlead_protocol.blocks import DIGEST_SIZE, BlockHash

Key = tuple[str, str]
"""A tokenizer's name and a piece of text."""


class Engines(msgspec.Struct, array_like=True, frozen=True):
    """What those that have one tokenizer say about prompts."""

    max_model_len: int
    """Of the engine that takes the longest, in tokens."""
    block_sizes: list[int]
    """Tokens per block of their caches."""
    shares_prefixes: bool
    """Whether they spare a prompt what another has in common with it."""


def engines_of(replicas: Iterable[Replica]) -> dict[str, Engines]:
    """By the digest of their tokenizer, as far as replicas have told."""
    told: dict[str, list[Limits]] = {}
    for replica in replicas:
        if replica.digest and replica.limits is not None:
            told.setdefault(replica.digest, []).append(replica.limits)
    return {
        digest: Engines(
            max(each.max_model_len or 0 for each in limits),
            sorted({each.block_size for each in limits}),
            any(each.shares_prefixes for each in limits),
        )
        for digest, limits in told.items()
        if all(each.max_model_len is not None for each in limits)
    }


class ReadJob(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Make tokens of a request's prompt."""

    path: str
    fields: dict[str, memoryview]
    """Their JSON (`fields.prompt_fields`)."""
    adapter: str | None
    affinity_length: int
    engines: Engines
    learnt: list[tuple[Key, bytes]] = []
    """What an EncodeJob made of the pieces that were missing."""


class EncodeJob(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Encode pieces of prompts, which takes long. The answer is `learnt`."""

    keys: list[Key]


class ReadOutcome(IntEnum):
    """Of a ReadJob."""

    READ = 0
    UNREADABLE = 1
    """Its engine says what is wrong."""
    TOO_LONG = 2
    """For any engine with this tokenizer."""
    LEFT = 3
    """Tokenising it is left to its engine."""
    MISSING = 4
    """Pieces have to be encoded first, where nobody waits for that."""
    TAKES_LONG = 5
    """All of it has to be done there."""


class PackedTokens(msgspec.Struct, array_like=True, frozen=True):
    """`Tokens` as bytes."""

    token_ids: bytes
    hashes: dict[int, bytes]
    """Of its blocks, by their size."""
    second_start: int | None
    num_estimated: int

    @classmethod
    def of(
        cls,
        ids: "array[int]",
        hashes: Mapping[int, list[BlockHash]],
        second_start: int | None = None,
        num_estimated: int = 0,
    ) -> "PackedTokens":
        packed = {size: b"".join(each) for size, each in hashes.items()}
        return cls(ids.tobytes(), packed, second_start, num_estimated)

    def tokens(self, extra: bytes) -> Tokens:
        hashes = {
            size: [raw[start : start + DIGEST_SIZE] for start in range(0, len(raw), DIGEST_SIZE)]
            for size, raw in self.hashes.items()
        }
        return Tokens(array("I", self.token_ids), extra, hashes, self.second_start, self.num_estimated)


class ReadReply(msgspec.Struct, array_like=True):
    """Of a ReadJob. The first three are known without a tokenizer."""

    num_tokens: int
    affinity: str
    least: PromptBound
    outcome: ReadOutcome
    extra: bytes
    prompts: list[PackedTokens] = []
    num_cached_tokens: int = 0
    seconds: float = 0.0
    error: tuple[str, str] = ("", "")
    """Why it is too long: the field, and a sentence."""
    missing: list[Key] = []
