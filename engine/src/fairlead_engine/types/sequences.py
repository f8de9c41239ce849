"""A request inside the engine, its share of one step, and the token that the step chooses for it.

The core makes and mutates them, the runner reads them. They know no tensors, no HTTP, no I/O.
"""

import math
from dataclasses import dataclass, field

import msgspec

from fairlead_engine.types import FinishReason, Injectable, Pooling, PromptImage, Reading, SamplingParams, TokenLogprobs
from fairlead_engine.types.adapters import Adapter
from fairlead_protocol.blocks import NO_EXTRA, BlockHash

_NOWHERE = range(0)
NO_DRAFTS: list[int] = []
NO_PARENTS: list[int] = []
UNKNOWN = -1
"""In place of a draft that the runner will make: all of a share are, or none."""
_OVER_ALL = (Pooling.MEAN, Pooling.MAX)
"""What reads the hidden states of every token."""
NO_SLOT = -1
"""Of a sequence that does not run."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request inside the engine: its tokens, its block table and its counters. The scheduler alone mutates it."""

    request_id: str
    token_ids: list[int]
    """Prompt and output so far."""
    num_prompt_tokens: int
    sampling: SamplingParams
    arrival_time: float = 0.0
    priority: int = 0
    extra: bytes = NO_EXTRA
    """What else decides its blocks' hashes (`fairlead_protocol.blocks.extra_bytes`)."""
    adapter: Adapter | None = None
    """With which it is computed; it stays where it is while the sequence runs."""
    num_virtual_tokens: int = 0
    """Of its adapter's soft prompt: its first tokens, which stand for embeddings and are nobody's text."""
    pooling: Pooling | None = None
    """What is made of its hidden states (`EngineRequest.pooling`),"""
    reading: Reading = Reading.UNIT
    """and of the vector (`EngineRequest.reading`)."""
    second_start: int | None = None
    """Where its second text begins (`EngineRequest.second_start`)."""
    images: tuple[PromptImage, ...] = ()
    """What its image tokens stand for (`EngineRequest.images`)."""
    part_of: str | None = None
    """The API request that it is a part of (`EngineRequest.part_of`)."""
    max_num_tokens: int = 0
    """It ends when it has so many: its prompt and the output that is wanted, or a full context."""
    end_token_ids: frozenset[int] = frozenset()
    """It ends with any of these, once its output is long enough."""
    num_parts_before: int = 0
    """Parts of the same request that waited or ran when it came."""
    max_queue_seconds: float | None = None
    """What bounds the queue for it (`EngineRequest.max_queue_seconds`)."""
    injectable: Injectable | None = None
    """Where tokens may be put into its output (`EngineRequest.injectable`),"""
    num_injected_tokens: int = 0
    """and how many of those behind its prompt were: they are not its output."""
    turn_start: int = 0
    """Position behind the last of them; 0 = none were."""

    num_computed_tokens: int = 0
    """Tokens whose KV is in the cache; the next step starts at this position, or where the step under way ends."""
    under_way: "ScheduledSequence | None" = None
    """Its share of the last step that was planned with it and has no result yet."""
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache at its first admission, virtual ones not counted."""
    num_read_tokens: int = 0
    """Prompt tokens of which something was read off the hidden states, where all of them are; not undone by
    preemption."""
    slot: int = NO_SLOT
    """While it runs: which of the rows that the runner keeps is its own."""
    block_table: list[int] = field(default_factory=list)
    """Physical block of each logical block, in order; another list each time it begins to run."""
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of its whole blocks so far, extended as tokens come."""
    num_expected_cached_tokens: int = 0
    """While it waits: how many of its tokens the cache is expected to spare it, as of when it was last looked at."""
    awaited: BlockHash | None = None
    """While it waits: the block that another sequence is computing and that it waits for."""
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
        """How many of its first tokens need not be computed if the cache has them: not the last one, and none whose
        hidden states are still to be read, over all tokens or for log-probabilities, which are those of the *next*
        token. The cache has keys and values, not hidden states."""
        reads_all = self.sampling.prompt_logprobs is not None or self.pooling in _OVER_ALL
        num_read_tokens = self.num_virtual_tokens + self.num_read_tokens
        if not reads_all or num_read_tokens >= self.num_prompt_tokens - 1:
            return len(self.token_ids) - 1
        return num_read_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    def num_left_after(self, step: "ScheduledSequence") -> int:
        """Tokens to compute once a step that is under way has a result; 0 where it surely ends with that. The token
        that the step chooses is one of them, though nobody knows which it is."""
        num_tokens = len(self.token_ids) + step.samples
        return 0 if step.samples and num_tokens >= self.max_num_tokens else num_tokens - step.end


class ScheduledSequence:
    """A sequence's share of one step: tokens `[start, end)` of it are computed.

    Where the step before it has no result yet, the last of these tokens may be the one that that step chooses. What is
    settled when the step is planned stays true after it, when the sequence has moved on.
    """

    __slots__ = (
        "block_table", "chosen", "depth", "drafts", "embedding", "end", "num_tokens", "parents", "pools",
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
        """`decode_end`: where it ends, of a decode (`Decodes.ends`); others go on from where their sequence is.
        `drafts`: its last tokens, of a sequence that goes on by guesses behind its last known token. `depth`: places
        that they are guesses for, where that is a tree of them, of which one way stands; 0 = each is for a place."""
        self.sequence = sequence
        self.depth = depth
        self.parents = NO_PARENTS
        """Of a tree's guesses, once they are made, the node that each hangs on: 0 = the last known token, or a guess
        before it, from 1 on."""
        self.token_row = sequence.slot
        """Which row of the tokens on the device has its own up to `end`,"""
        self.way: list[int] = NO_PARENTS
        """and of one that ends with a tree's guess the guesses on the way to it, from 1 on, that one included."""
        self.num_tokens = num_tokens
        self.drafts = drafts or NO_DRAFTS
        """Tokens that are computed before anybody knows whether they will be chosen."""
        self.chosen: list[SampledToken] = []
        """Of a share with drafts: those that stand and the token behind them, filled in by the runner."""
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
        """The sequence's, which has another list once it was preempted."""
        sampling = sequence.sampling
        self.samples: bool = end == num_known and sampling.max_tokens != 0
        """Whether this step reaches the sequence's last token, so that a new one is chosen, if one is wanted, and one
        behind each draft."""
        self.scores = _NOWHERE
        """Positions, in the sequence, of the prompt's tokens whose log-probabilities this step tells."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Theirs, filled in by the runner."""
        self.pools = _NOWHERE
        """Positions whose hidden states go into the sequence's vector in this step."""
        self.embedding: bytes | None = None
        """That vector, filled in by the runner where this step `embeds`."""
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
        """Whether something of the prompt is told in this step beside the next token."""

    @property
    def known_end(self) -> int:
        """Where its drafts begin; `end` where it has none."""
        return self.end - len(self.drafts)

    @property
    def num_choices(self) -> int:
        """How many tokens this step chooses: behind its last ones."""
        return self.samples + len(self.drafts)

    @property
    def virtual_tokens(self) -> range:
        """Which of its adapter's virtual tokens this step computes: they are the first of the sequence."""
        return range(self.start, min(self.end, self.sequence.num_virtual_tokens))

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output up to `end`; the one that this step chooses is the next."""
        return self.end - self.sequence.num_prompt_tokens - self.sequence.num_injected_tokens

    @property
    def images(self) -> list[PromptImage]:
        """Those that it computes tokens of."""
        images = self.sequence.images
        return [each for each in images if each.start < self.end and each.end > self.start] if images else []

    @property
    def embeds(self) -> bool:
        """Whether this step completes the sequence's vector."""
        return self.sequence.pooling is not None and self.end == self.sequence.num_prompt_tokens

    @property
    def is_spoilt(self) -> bool:
        """Whether what tells of its prompt is not finite, so that nothing can be told."""
        if self.embeds and self.embedding is None:
            return True
        return any(math.isnan(each.logprob) for each in self.prompt_logprobs)


class SampledToken(msgspec.Struct, frozen=True):
    """A token the runner chose for one item of a batch."""

    token_id: int
    logprobs: TokenLogprobs | None = None

    @property
    def is_there(self) -> bool:
        """Whether it is a token."""
        return self.token_id >= 0


NO_TOKEN = SampledToken(-1)
"""In place of a token where none can be chosen since the model's logits are not finite,"""
RULED_OUT = SampledToken(-2)
"""and where the request rules out every token that there is."""
