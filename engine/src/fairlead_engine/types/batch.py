"""One step's work: the sequences that go on by a token, as arrays, and what is computed of the others, one by one.

The scheduler makes a `Batch`, the runner computes it, and the scheduler takes its results.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairlead_engine.types.sequences import ScheduledSequence, Sequence

Numbers = npt.NDArray[np.int64]


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


class TokenMasks(NamedTuple):
    """The tokens that some of those who get one may get."""

    rows: Numbers
    """Which, among those who get one."""
    words: npt.NDArray[np.int32]
    """[rows, vocabulary / 32]: bit j of word i is set where token 32 i + j is allowed."""


@dataclass(slots=True)
class Batch:
    """One step's work, in the order of its rows. Filled by the scheduler; the engine adds `masks`, and the runner
    `prompt_logprobs` and `embedding`.

    Every sequence's block table already covers its tokens up to the end of its share.
    """

    chunks: list[ScheduledSequence]
    """Parts of prompts, and of what was computed before a preemption; those of a single token first. Then sequences
    past their prompts that go on by drafts, then the rest."""
    decodes: Decodes = NO_DECODES
    """Before them."""
    masks: Callable[[], TokenMasks] | None = None
    """Asked for once the forward pass is under way, where not every token is allowed: it may wait for the tokens that
    the batch before this one chose. By then all drafts are known of who keeps to a grammar."""

    def __len__(self) -> int:
        return len(self.decodes) + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum([item.num_tokens for item in self.chunks])

    @property
    def sampling(self) -> Iterable[tuple[int, Sequence]]:
        """Whoever gets a token, by row among them."""
        yield from enumerate(self.decodes.sequences)
        chunks = [item.sequence for item in self.chunks for _ in range(item.num_choices)]
        yield from enumerate(chunks, start=len(self.decodes))

    @property
    def items(self) -> list[ScheduledSequence]:
        """Every sequence's share; those of decodes are made for who asks, which is nobody in an ordinary step."""
        decodes = zip(self.decodes.sequences, self.decodes.ends.tolist(), strict=True)
        return [ScheduledSequence(sequence, 1, end) for sequence, end in decodes] + self.chunks

    @property
    def choices(self) -> list[ScheduledSequence]:
        """For each token that the step chooses, in order, a share that ends before it."""
        found = []
        for item in self.items:
            if item.parents:
                found += _choices_of_tree(item)
            elif item.drafts:
                found += [ScheduledSequence(item.sequence, 1, end) for end in range(item.start + 1, item.end + 1)]
            elif item.samples:
                found.append(item)
        return found


def _choices_of_tree(item: ScheduledSequence) -> list[ScheduledSequence]:
    """Behind the last known token and behind each guess, which ends where its way does."""
    ways: list[list[int]] = [[]]
    for node, parent in enumerate(item.parents, start=1):
        ways.append([*ways[parent], node])
    found = []
    for way in ways:
        found.append(ScheduledSequence(item.sequence, 1, item.start + 1 + len(way)))
        found[-1].way = way
    return found
