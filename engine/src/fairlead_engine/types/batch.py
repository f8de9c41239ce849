"""One step's work: decodes as arrays, and the shares of all other sequences one by one.

The scheduler makes a `Batch`, the runner computes the batch, and the scheduler takes the results.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairlead_engine.types.sequences import ScheduledSequence, Sequence

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """Sequences past their prompts: a step computes one token of each, chooses the next, and reads nothing else.
    Hundreds decode for hundreds of steps: a step costs a few array operations and none per sequence."""

    sequences: list[Sequence]
    slots: Numbers
    """Slot of each sequence: its row in the runner's tables."""
    ends: Numbers
    """Tokens of each sequence, including the one computed; the chosen token is the next."""
    most: Numbers
    """Tokens with which each sequence ends."""
    grown: list[Sequence]
    """Sequences with longer block tables than in the step before."""

    def __len__(self) -> int:
        return len(self.sequences)

    def pick(self, rows: list[int]) -> "Decodes":
        return Decodes(
            [self.sequences[row] for row in rows], self.slots[rows], self.ends[rows], self.most[rows], self.grown
        )


_NONE = np.empty(0, np.int64)
NO_SNAPSHOT = -1
"""In place of a snapshot: a state of zeros."""
NO_DECODES = Decodes([], _NONE, _NONE, _NONE, [])


class AcceptedDrafts(NamedTuple):
    """What a step has accepted of a sequence of a recurrent model."""

    slot: int
    number: int
    """Accepted drafts."""
    kept_behind: int = 0
    """Number of them behind which the state is kept, if there is a snapshot for it."""
    snapshot: int | None = None


class TokenMasks(NamedTuple):
    """Allowed tokens of the rows that are constrained."""

    rows: Numbers
    """Rows among the chosen tokens."""
    words: npt.NDArray[np.int32]
    """[rows, vocabulary / 32]: bit j of word i is set where token 32 i + j is allowed."""


@dataclass(slots=True)
class Batch:
    """One step's work, in the order of its rows. Filled by the scheduler; the engine adds `masks`, and the runner
    `prompt_logprobs` and `embedding`. Block tables already cover the ends of all shares."""

    chunks: list[ScheduledSequence]
    """Shares of prompts and of preempted tokens; first of one token, then decodes with drafts, then the rest."""
    decodes: Decodes = NO_DECODES
    """Rows before `chunks`."""
    restored: list[tuple[int, int]] = field(default_factory=list)
    """Of recurrent models: slots that begin with this step, and the snapshot each begins with (`NO_SNAPSHOT`)."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """Rows of decodes whose states are kept, and the snapshot each is copied to."""
    accepted: list[AcceptedDrafts] = field(default_factory=list)
    """Of recurrent models: drafts of the step before, behind which the states of their slots go on, before anything
    else is done to states."""
    masks: Callable[[], TokenMasks] | None = None
    """Called during the forward pass, where tokens are constrained: may wait for the tokens that the previous batch
    chose. By then the drafts of constrained sequences are known. None = all tokens are allowed."""

    def __len__(self) -> int:
        return len(self.decodes) + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum([item.num_tokens for item in self.chunks])

    @property
    def sampling(self) -> Iterable[tuple[int, Sequence]]:
        """Row and sequence of each chosen token."""
        yield from enumerate(self.decodes.sequences)
        chunks = [item.sequence for item in self.chunks for _ in range(item.num_choices)]
        yield from enumerate(chunks, start=len(self.decodes))

    @property
    def items(self) -> list[ScheduledSequence]:
        """Every sequence's share. Makes shares of the decodes, which ordinary steps avoid."""
        decodes = zip(self.decodes.sequences, self.decodes.ends.tolist(), strict=True)
        return [ScheduledSequence(sequence, 1, end) for sequence, end in decodes] + self.chunks

    @property
    def choices(self) -> list[ScheduledSequence]:
        """For each chosen token, in order, a share that ends before the token."""
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
    """Shares behind the last known token and behind each draft, each ending with its path."""
    ways: list[list[int]] = [[]]
    for node, parent in enumerate(item.parents, start=1):
        ways.append([*ways[parent], node])
    found = []
    for way in ways:
        found.append(ScheduledSequence(item.sequence, 1, item.start + 1 + len(way)))
        found[-1].way = way
    return found
