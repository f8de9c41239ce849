"""A request inside the engine, its share of one step, and the token chosen for it.

The core creates and changes these objects, the runner reads them. No tensors, no HTTP, no I/O.
"""

import math
from dataclasses import dataclass, field

import msgspec

from fairlead_common.wire.blocks import NO_EXTRA, BlockHash
from fairlead_engine.types import FinishReason, Injectable, Pooling, PromptImage, Reading, SamplingParams, TokenLogprobs
from fairlead_engine.types.adapters import Adapter

_NOWHERE = range(0)
NO_DRAFTS: list[int] = []
NO_PARENTS: list[int] = []
UNKNOWN = -1
"""A draft to be made by the runner; the drafts of a share are all unknown or all known."""
_OVER_ALL = (Pooling.MEAN, Pooling.MAX)
"""Poolings that read the hidden states of every token."""
NO_SLOT = -1
"""The slot of a sequence outside of the running ones."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request in the engine: `EngineRequest`'s fields, tokens, blocks, counters. Changed by the scheduler alone."""

    request_id: str
    token_ids: list[int]
    """Prompt and output so far."""
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_time: float = 0.0
    priority: int = 0
    extra: bytes = NO_EXTRA
    """Further input of its block hashes (`fairlead_common.wire.blocks.extra_bytes`)."""
    adapter: Adapter | None = None
    """The adapter of the computation, placed while the sequence runs."""
    num_virtual_tokens: int = 0
    """First tokens: placeholders for the embeddings of the adapter's soft prompt."""
    pooling: Pooling | None = None
    reading: Reading = Reading.UNIT
    second_start: int | None = None
    images: tuple[PromptImage, ...] = ()
    part_of: str | None = None
    max_num_tokens: int = 0
    """Tokens at which it ends: prompt and wanted output, or a full context."""
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that end an output of sufficient length."""
    num_parts_before: int = 0
    """Parts of the same request that came before."""
    max_queue_seconds: float | None = None
    injectable: Injectable | None = None
    keep_seconds: float | None = None
    keep_prefixes: tuple[tuple[float, int], ...] = ()
    num_injected_tokens: int = 0
    """Injected tokens behind the prompt, not counted as output."""
    turn_start: int = 0
    """Position behind the last injection; 0 = none."""

    num_computed_tokens: int = 0
    """Tokens whose KV is in the cache; the next step starts here, or at the end of the step under way."""
    under_way: "ScheduledSequence | None" = None
    """The share of the step that is planned and has no result yet."""
    num_cached_tokens: int = 0
    """Prompt tokens from the prefix cache at the first admission, without virtual tokens."""
    num_read_tokens: int = 0
    """Prompt tokens whose hidden states have been read, where all are wanted; survives a preemption."""
    slot: int = NO_SLOT
    """Row in the runner's tables while the sequence runs."""
    block_table: list[int] = field(default_factory=list)
    """Physical block of each logical block, in order; a new list with each admission."""
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of its whole blocks so far."""
    num_expected_cached_tokens: int = 0
    """Of a waiting sequence: tokens expected in the cache, as of the last look."""
    branch: int = 0
    """Of a recurrent model, of a waiting sequence: tokens whose keys and values are cached, with or without a state."""
    kept_end: int = 0
    """Of a recurrent model: tokens behind which decodes have kept the state last; 0 = not yet."""
    awaited: BlockHash | None = None
    """Of a waiting sequence: a block that another sequence is computing."""
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens - self.num_injected_tokens

    @property
    def num_sparable_tokens(self) -> int:
        """First tokens that the cache may replace: all but the last. Where hidden states of all tokens are read, for
        pooling or log-probabilities of *next* tokens, only the tokens already read: the cache has no hidden states."""
        reads_all = self.sampling.prompt_logprobs is not None or self.pooling in _OVER_ALL
        num_read_tokens = self.num_virtual_tokens + self.num_read_tokens
        if not reads_all or num_read_tokens >= self.num_prompt_tokens - 1:
            return len(self.token_ids) - 1
        return num_read_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def num_left_after(self, step: "ScheduledSequence") -> int:
        """Tokens to compute after `step`, with the token that it chooses; 0 = the sequence surely ends with `step`."""
        num_tokens = len(self.token_ids) + step.samples
        return 0 if step.samples and num_tokens >= self.max_num_tokens else num_tokens - step.end


class ScheduledSequence:
    """A sequence's share of one step: tokens `[start, end)` of the sequence are computed. Where the previous step has
    no result yet, the last of these tokens may be the token that the previous step chooses. Fields set at the planning
    stay valid when the sequence has moved on."""

    __slots__ = (
        "block_table", "chosen", "depth", "drafts", "embedding", "end", "kept", "num_tokens", "parents", "pools",
        "prompt_logprobs", "reads_prompt", "samples", "scores", "sequence", "start", "token_row", "way",
    )  # fmt: skip

    def __init__(
        self,
        sequence: Sequence,
        num_tokens: int,
        decode_end: int | None = None,
        drafts: "list[int] | None" = None,
        depth: int = 0,
    ) -> None:
        """`decode_end`: the end of a decode (`Decodes.ends`); other shares start at the sequence's present end.
        `drafts`: the share's last tokens, behind the last known token. `depth`: positions of a tree of drafts, of which
        one path is accepted; 0 = a chain, one draft per position."""
        self.sequence = sequence
        self.depth = depth
        self.parents = NO_PARENTS
        """Parent of each draft of a tree: 0 = the last known token, n = the n-th draft. Empty until drafts are made."""
        self.token_row = sequence.slot
        """Row of the device's token table with the tokens up to `end`."""
        self.way: list[int] = NO_PARENTS
        """Drafts (1-based) on the path to this share's last token, in a tree; empty for a chain."""
        self.num_tokens = num_tokens
        self.drafts = drafts or NO_DRAFTS
        """Tokens computed before they are accepted."""
        self.kept: list[tuple[int, int]] = []
        """Ends of tokens behind which the state of a recurrent model is kept, and the snapshot each is copied to."""
        self.chosen: list[SampledToken] = []
        """Accepted drafts and the token behind them; written by the runner."""
        before, num_known = sequence.under_way, decode_end
        start: int = sequence.num_computed_tokens if before is None else before.end
        if decode_end is not None:
            start = decode_end - 1
        else:
            num_known = len(sequence.token_ids) + (before is not None and before.samples) + len(self.drafts)
        self.start = start
        self.end: int = start + num_tokens
        end = self.end
        self.block_table = sequence.block_table
        """The sequence's table; a preempted sequence gets another list."""
        sampling = sequence.sampling
        self.samples: bool = end == num_known and sampling.max_tokens != 0
        """Whether the step reaches the sequence's last token, and chooses the next one and one behind each draft."""
        self.scores = _NOWHERE
        """Positions of prompt tokens whose log-probabilities the step reports."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Log-probabilities of `scores`; written by the runner."""
        self.pools = _NOWHERE
        """Positions whose hidden states enter the sequence's vector in this step."""
        self.embedding: bytes | None = None
        """The vector, written by the runner where the step `embeds`."""
        if sampling.prompt_logprobs is not None:
            first = max(start, sequence.num_virtual_tokens + sequence.num_read_tokens) + 1
            self.scores = range(first, min(end + 1, sequence.num_prompt_tokens))
        if sequence.pooling is not None:
            if sequence.pooling in _OVER_ALL:
                self.pools = range(max(start, sequence.num_read_tokens), end)
            elif self.embeds:  # of a model that may be asked for the first token, this step has the whole prompt
                first = start if sequence.pooling is Pooling.CLS else end - 1
                self.pools = range(first, first + 1)
        self.reads_prompt = bool(self.scores or self.pools)
        """Whether the step reports something about the prompt beside the next token."""

    @property
    def known_end(self) -> int:
        """Where the drafts begin; `end` without drafts."""
        return self.end - len(self.drafts)

    @property
    def num_choices(self) -> int:
        """Tokens chosen by the step, behind its last tokens."""
        return self.samples + len(self.drafts)

    @property
    def virtual_tokens(self) -> range:
        """The adapter's virtual tokens that this step computes; they come first in the sequence."""
        return range(self.start, min(self.end, self.sequence.num_virtual_tokens))

    @property
    def num_output_tokens(self) -> int:
        """Output tokens up to `end`; this step chooses the next one."""
        return self.end - self.sequence.num_prompt_tokens - self.sequence.num_injected_tokens

    @property
    def images(self) -> list[PromptImage]:
        """Images with tokens in this share."""
        images = self.sequence.images
        return [each for each in images if each.start < self.end and each.end > self.start] if images else []

    @property
    def embeds(self) -> bool:
        """Whether this step completes the sequence's vector."""
        return self.sequence.pooling is not None and self.end == self.sequence.num_prompt_tokens

    @property
    def is_spoilt(self) -> bool:
        """Whether a result about the prompt is not finite."""
        if self.embeds and self.embedding is None:
            return True
        return any(math.isnan(each.logprob) for each in self.prompt_logprobs)


class SampledToken(msgspec.Struct, frozen=True):
    """A token that the runner chose for one item of a batch."""

    token_id: int
    logprobs: TokenLogprobs | None = None

    @property
    def is_there(self) -> bool:
        return self.token_id >= 0


NO_TOKEN = SampledToken(-1)
"""In place of a token where the model's logits are not finite."""
RULED_OUT = SampledToken(-2)
"""In place of a token where the request rules out every token."""
