"""One step as numbers: all that a rank has to know of a batch, and small enough to be sent to every rank."""

import msgspec

from fairlead_engine.runner.slot_tokens import NewTokens, SlotTokens
from fairlead_engine.types import Batch, ScheduledSequence


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """A batch's items in order, and the rows of all their tokens one after the other."""

    slots: list[int]
    num_queries: list[int]
    """Tokens that are computed of each item: so many rows."""
    context_lens: list[int]
    """Where each ends in its sequence."""
    samples: list[bool]
    """Whether a token is chosen at its end."""
    score_rows: list[int]
    """Rows whose logits score prompts, item by item."""
    score_sizes: list[int]
    """How many of them are computed at a time."""
    pool_rows: list[int]
    """Rows that go into vectors, item by item."""
    new_tokens: NewTokens


def plan_step(batch: Batch, tokens: SlotTokens, most_scored: int) -> StepPlan:
    """The plan of a batch that is not empty. At most `most_scored` rows are scored at a time, each part of one item."""
    items = batch.items
    score_rows: list[int] = []
    score_sizes: list[int] = []
    pool_rows: list[int] = []
    row = 0
    for item in items:
        if item.reads_prompt:
            offset = row - item.start
            score_rows += [offset + position - 1 for position in item.scores]  # logits tell of the next token
            score_sizes += [min(most_scored, item.scores.stop - position) for position in item.scores[::most_scored]]
            pool_rows += [offset + position for position in item.pools]
        row += item.num_tokens
    return StepPlan(
        slots=[item.sequence.slot for item in items],
        num_queries=[item.num_tokens for item in items],
        context_lens=[item.end for item in items],
        samples=[item.samples for item in items],
        score_rows=score_rows,
        score_sizes=score_sizes,
        pool_rows=pool_rows,
        new_tokens=tokens.lacking(items),
    )


class NewBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that came to a slot's table."""

    slot: int
    is_another: bool
    """Whether the table is another sequence's, or begins anew, instead of growing."""
    blocks: list[int]


class SentTables:
    """What the other ranks know of each slot's block table."""

    def __init__(self, num_slots: int) -> None:
        self._tables: list[list[int] | None] = [None] * num_slots
        self._num_known = [0] * num_slots

    def lacking(self, items: list[ScheduledSequence]) -> list[NewBlocks]:
        """What came to the items' tables since the last call."""
        found = []
        for item in items:
            slot, table = item.sequence.slot, item.block_table
            is_another = self._tables[slot] is not table
            num_known = 0 if is_another else self._num_known[slot]
            if num_known < len(table):
                found.append(NewBlocks(slot, is_another, table[num_known:]))
                self._tables[slot], self._num_known[slot] = table, len(table)
        return found
