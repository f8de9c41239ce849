"""A request's prompt as routing needs it: its length and its blocks' hashes. Knows no text and no tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.routing.replica import Load, Replica
from fairlead_protocol.adapters import UnknownAdapter
from fairlead_protocol.blocks import NO_EXTRA, BlockHash, hash_blocks, num_cacheable_blocks
from fairlead_protocol.prompts import PromptError, PromptTooLong

DEFAULT_BLOCK_SIZE = 16


@dataclass(slots=True)
class Tokens:
    """One prompt as one tokenizer sees it. Hashes are computed when first asked for, per block size."""

    token_ids: Sequence[int]
    """All of them, or those before its first image."""
    extra: bytes = NO_EXTRA
    """What else decides its blocks' hashes (`fairlead_protocol.blocks.extra_bytes`)."""
    _hashes: dict[int, list[BlockHash]] = field(default_factory=dict)
    second_start: int | None = None
    """Of a pair of texts, where the second begins, where the tokenizer tells the two apart."""
    num_estimated: int = 0
    """Tokens from its first image on, of which only engines know what they are; 0 = it has none."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_estimated

    def hashes(self, block_size: int) -> list[BlockHash]:
        """Of the blocks that may be served from a cache: whole ones, never with the last token."""
        known = self._hashes.get(block_size)
        if known is None:
            end = num_cacheable_blocks(len(self.token_ids), block_size) * block_size
            known = self._hashes[block_size] = hash_blocks(self.token_ids[:end], block_size, extra=self.extra)
        return known


@dataclass(slots=True)
class Prompt:
    """What a request asks engines to read. A request with several prompts (completions) has them all."""

    num_tokens: int = 0
    """Of all its prompts; an estimate while no tokenizer has seen them."""
    by_digest: dict[str, tuple[Tokens, ...]] = field(default_factory=dict)
    """The prompts in the request's order, per tokenizer that has seen them."""
    affinity: str = ""
    """The text whose hash says where PrefixHash sends it: the adapter and the beginning of the first user message."""
    adapter: str | None = None
    """The adapter that it is to be read with: only replicas that hold it are candidates."""
    too_long: dict[str, PromptError] = field(default_factory=dict)
    """Why it fits no replica with such a tokenizer, by digest."""

    def may_go_to(self, replica: Replica) -> bool:
        """Whether the replica holds what it is to be read with."""
        return self.adapter is None or self.adapter in replica.adapters

    def tokens(self, replica: Replica) -> tuple[Tokens, ...] | None:
        """As this replica's tokenizer sees it; None where it has not been tokenised for it."""
        return self.by_digest.get(replica.digest)

    def num_tokens_on(self, replica: Replica) -> int:
        """Of the whole prompt, as this replica's tokenizer sees it, or estimated."""
        prompts = self.tokens(replica)
        return self.num_tokens if prompts is None else sum(each.num_tokens for each in prompts)

    def longest_on(self, replica: Replica) -> int:
        """Tokens of the longest of its prompts, as this replica's tokenizer sees it, without estimated ones; 0 where
        they are not known."""
        return max((len(each.token_ids) for each in self.tokens(replica) or ()), default=0)

    def misfit(self, replica: Replica, load: Load | None) -> PromptError | None:
        """Why this replica could never serve it, however long it waits: its adapters, its model's context, or its whole
        KV cache; None where it may, or where nobody can tell."""
        limits = replica.limits
        if limits is not None and not self.may_go_to(replica):
            return UnknownAdapter(self.adapter or "", replica.adapters)
        if (too_long := self.too_long.get(replica.digest)) is not None:
            return too_long
        num_tokens = self.longest_on(replica)
        if limits is not None and limits.max_model_len is not None and num_tokens >= limits.max_model_len:
            return PromptTooLong("prompt", num_tokens, limits.max_model_len)
        if load is not None and num_tokens > (capacity := load.kv_blocks_total * block_size_of(replica)):
            return PromptError(
                "prompt",
                f"The prompt has {num_tokens} tokens, but the KV cache of a replica holds only {capacity}; shorten it, "
                "or give the replicas more memory",
            )
        return None


def block_size_of(replica: Replica) -> int:
    """Tokens per block of this replica's cache."""
    return replica.limits.block_size if replica.limits is not None else DEFAULT_BLOCK_SIZE
