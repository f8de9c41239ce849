"""One step's work: the sequences that go on by a token, as arrays, and what is computed of the others, one by one.

The scheduler makes a `Batch`, the runner computes it, and the scheduler takes its results.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fairlead_engine.types import Pooling, Sequence, TokenLogprobs

Numbers = npt.NDArray[np.int64]


class ScheduledSequence:
    """A sequence's share of one step: tokens `[start, end)` of it are computed.

    Where the step before it has no result yet, the last of these tokens may be the one that that step chooses. What is
    settled when the step is planned stays true after it, when the sequence has moved on.
    """

    __slots__ = (
        "block_table", "embedding", "end", "num_tokens", "pools", "prompt_logprobs", "reads_prompt", "samples",
        "scores", "sequence", "start",
    )  # fmt: skip

    def __init__(self, sequence: Sequence, num_tokens: int, decode_end: int | None = None) -> None:
        """`decode_end`: where it ends, of a decode (`Decodes.ends`); others go on from where their sequence is."""
        self.sequence = sequence
        self.num_tokens = num_tokens
        before, num_known = sequence.under_way, decode_end
        start: int = sequence.num_computed_tokens if before is None else before.end
        if decode_end is not None:
            start = decode_end - 1
        else:
            num_known = len(sequence.token_ids) + (before is not None and before.samples)
        self.start = start
        self.end: int = start + num_tokens
        end = self.end
        self.block_table = sequence.block_table
        """The sequence's, which has another list once it was preempted."""
        sampling = sequence.sampling
        self.samples: bool = end == num_known and sampling.max_tokens != 0
        """Whether this step reaches the sequence's last token, so that a new one is chosen, if one is wanted."""
        self.scores = _NOWHERE
        """Positions, in the sequence, of the prompt's tokens whose log-probabilities this step tells."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Theirs, filled in by the runner."""
        self.pools = _NOWHERE
        """Positions whose hidden states go into the sequence's vector in this step."""
        self.embedding: bytes | None = None
        """That vector, filled in by the runner where this step `embeds`."""
        if sampling.prompt_logprobs is not None:
            first = max(start, sequence.num_read_tokens) + 1
            self.scores = range(first, min(end + 1, sequence.num_prompt_tokens))
        if sequence.pooling is not None:
            if sequence.pooling is Pooling.MEAN:
                self.pools = range(max(start, sequence.num_read_tokens), end)
            elif self.embeds:
                self.pools = range(end - 1, end)
        self.reads_prompt = bool(self.scores or self.pools)
        """Whether something of the prompt is told in this step beside the next token."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output up to `end`; the one that this step chooses is the next."""
        return self.end - self.sequence.num_prompt_tokens

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


_NOWHERE = range(0)


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """Sequences past their prompts: a step computes one token of each, chooses the next, and reads nothing else.

    Hundreds go on like this for hundreds of steps, so a step costs a few operations on arrays and none for each.
    """

    sequences: list[Sequence]
    slots: Numbers
    """The slot of each: where the runner keeps what there is of it."""
    ends: Numbers
    """Tokens of each up to the one that is computed; the one that is chosen is the next."""
    most: Numbers
    """Tokens with which each sequence ends."""
    grown: list[Sequence]
    """Those whose block tables have become longer for this step."""

    def __len__(self) -> int:
        return len(self.sequences)

    def pick(self, rows: list[int]) -> "Decodes":
        """Only these."""
        return Decodes(
            [self.sequences[row] for row in rows], self.slots[rows], self.ends[rows], self.most[rows], self.grown
        )


_NONE = np.empty(0, np.int64)
NO_DECODES = Decodes([], _NONE, _NONE, _NONE, [])


@dataclass(slots=True)
class Batch:
    """One step's work, in the order of its rows. Filled by the scheduler; the runner adds `prompt_logprobs` and
    `embedding`.

    Every sequence's block table already covers its tokens up to the end of its share.
    """

    chunks: list[ScheduledSequence]
    """Parts of prompts, and of what was computed before a preemption; those of a single token first."""
    decodes: Decodes = NO_DECODES
    """Before them."""

    def __len__(self) -> int:
        return len(self.decodes) + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum([item.num_tokens for item in self.chunks])

    @property
    def items(self) -> list[ScheduledSequence]:
        """Every sequence's share; those of decodes are made for who asks, which is nobody in an ordinary step."""
        decodes = zip(self.decodes.sequences, self.decodes.ends.tolist(), strict=True)
        return [ScheduledSequence(sequence, 1, end) for sequence, end in decodes] + self.chunks
