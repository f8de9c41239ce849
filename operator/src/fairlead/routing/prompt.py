"""A request's prompt as routing needs it: its length and its blocks' hashes. Knows no text and no tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.routing.replica import Load, Replica
from fairlead.routing.sessions import NO_SESSION
from fairlead_common.openai.prompts import PromptError, PromptTooLong
from fairlead_common.wire.adapters import UnknownAdapter
from fairlead_common.wire.blocks import NO_EXTRA, BlockHash, hash_blocks, num_cacheable_blocks

DEFAULT_BLOCK_SIZE = 16


@dataclass(slots=True)
class Tokens:
    """One prompt as one tokenizer sees it. Hashes are computed when first asked for, per block size."""

    token_ids: Sequence[int]
    """All token ids, or those before the first image."""
    extra: bytes = NO_EXTRA
    """Other inputs of the block hashes (`fairlead_common.wire.blocks.extra_bytes`)."""
    _hashes: dict[int, list[BlockHash]] = field(default_factory=dict)
    second_start: int | None = None
    """Of a pair of texts, where the second begins, where the tokenizer tells the two apart."""
    num_estimated: int = 0
    """Estimated tokens from the first image on; 0 = no images."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + self.num_estimated

    def hashes(self, block_size: int) -> list[BlockHash]:
        """Of blocks that a cache may serve: whole ones, without the last token."""
        known = self._hashes.get(block_size)
        if known is None:
            end = num_cacheable_blocks(len(self.token_ids), block_size) * block_size
            known = self._hashes[block_size] = hash_blocks(self.token_ids[:end], block_size, extra=self.extra)
        return known


@dataclass(slots=True)
class Prompt:
    """All prompts of a request; completions may have several."""

    num_tokens: int = 0
    """Of all its prompts; an estimate while no tokenizer has seen them."""
    by_digest: dict[str, tuple[Tokens, ...]] = field(default_factory=dict)
    """The prompts in the request's order, per tokenizer."""
    affinity: str = ""
    """Text hashed by PrefixHash: the adapter and the beginning of the first user message."""
    adapter: str | None = None
    """Requested adapter: only replicas with the adapter are candidates."""
    too_long: dict[str, PromptError] = field(default_factory=dict)
    """By digest, why the prompt exceeds every replica with that tokenizer."""
    session: bytes = NO_SESSION
    """Hash of the session that its client names (`session_hash`); empty = none."""

    def may_go_to(self, replica: Replica) -> bool:
        """Whether the replica has the requested adapter."""
        return self.adapter is None or self.adapter in replica.adapters

    def tokens(self, replica: Replica) -> tuple[Tokens, ...] | None:
        """By this replica's tokenizer; None = not tokenised."""
        return self.by_digest.get(replica.digest)

    def num_tokens_on(self, replica: Replica) -> int:
        """Length of the whole prompt by this replica's tokenizer, or estimated."""
        prompts = self.tokens(replica)
        return self.num_tokens if prompts is None else sum(each.num_tokens for each in prompts)

    def longest_on(self, replica: Replica) -> int:
        """Tokens of the longest prompt by this replica's tokenizer, without estimated ones; 0 = unknown."""
        return max((len(each.token_ids) for each in self.tokens(replica) or ()), default=0)

    def misfit(self, replica: Replica, load: Load | None) -> PromptError | None:
        """Why this replica could never serve the prompt (adapter, context, size of the KV cache); None = it may, or
        unknown."""
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


def keeps_states(replica: Replica) -> bool:
    """Whether the replica's model is recurrent; see `Limits.keeps_states`."""
    return replica.limits is not None and replica.limits.keeps_states


def block_size_of(replica: Replica) -> int:
    """Tokens per block of this replica's cache."""
    return replica.limits.block_size if replica.limits is not None else DEFAULT_BLOCK_SIZE
