"""Messages between a gateway and a model's tokenizer process."""

from array import array
from collections.abc import Iterable, Mapping
from enum import IntEnum

import msgspec

from fairlead.gateway.prompts.fields import PromptBound
from fairlead.routing.prompt import Tokens
from fairlead.routing.replica import Limits, Replica
from fairlead_common.wire.blocks import DIGEST_SIZE, BlockHash

Key = tuple[str, str]
"""A tokenizer's name and a piece of text."""


class Engines(msgspec.Struct, array_like=True, frozen=True):
    """Limits of the engines with one tokenizer."""

    max_model_len: int
    """Of the engine with the longest context, in tokens."""
    block_sizes: list[int]
    """Tokens per block of their caches."""
    shares_prefixes: bool
    """Whether prompts share the cache of common beginnings."""


def engines_of(replicas: Iterable[Replica]) -> dict[str, Engines]:
    """By the digest of their tokenizer, of replicas with known limits."""
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
    """Results of an EncodeJob for missing pieces."""


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
    """Pieces must be encoded first, in the process for slow jobs."""
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
