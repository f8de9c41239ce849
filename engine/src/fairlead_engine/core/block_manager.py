"""The one logical block manager: which physical block holds which tokens of which sequence.

The scheduler calls `match`, `share` and `extend` before a step, `publish` after the step, and `free` when a sequence
leaves. Block ids and hashes only, never tensors; the runner reads the block tables.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from itertools import chain, takewhile
from typing import Protocol

from fairlead_common.wire.blocks import ROOT, BlockHash, hash_block, hash_blocks, state_hash
from fairlead_engine.core.host_blocks import HostTier
from fairlead_engine.core.kept_blocks import KeptBlocks
from fairlead_engine.core.state_snapshots import StateSnapshots
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator, LRUBlocks
from fairlead_engine.types.sequences import Sequence


class BlockListener(Protocol):
    """Is told which prefixes the cache holds, and which states (`state_hash`). Called within a step: return at once."""

    def stored(self, parent: BlockHash, hashes: list[BlockHash]) -> None:
        """The hashes, each the parent of the next, became reusable."""

    def removed(self, block_hash: BlockHash) -> None:
        """The last block with this hash loses its contents."""


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens, each in exactly one state.

    - *in use*: in the block tables of sequences, as many as its reference count;
    - *evictable*: in no table, but holding a published prefix; evicted in order of least recent use, blocks that a
      retention hint keeps (`kept`) after all others;
    - *empty*: in no table, and without a published prefix.

    A whole computed block is published under its hash, which covers all tokens before the block too. Several blocks may
    have the same hash: equal prompts that run side by side keep their own, because block tables only grow at the end. A
    sequence gives its blocks back last one first: the tail of a chain is evicted before its head, which more prompts
    share. The allocator chooses a table's next free block.

    With a `host` tier an evicted prefix stays reusable: the host's memory keeps a copy, and `fetched` loads the copy
    for a waiting sequence. Source: PagedAttention and automatic prefix caching of vLLM (Kwon et al., 2023).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        listener: BlockListener | None = None,
        make_allocator: Callable[[int], BlockAllocator] = LRUBlocks,
        host: HostTier | None = None,
        states: StateSnapshots | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host`: the tier that keeps what is evicted; None = there is no such tier. `states`: of a recurrent model.
        `now`: seconds, for retention hints."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.listener = listener
        self.host = host or HostTier(0)
        self.states = states
        self.kept = KeptBlocks(num_blocks // 2, now)
        """Half of the blocks: a client with hints on everything takes no more from other clients."""
        self._make_allocator = make_allocator
        self.block_of: dict[BlockHash, int] = {}
        """Hash of each published block → the block, or the first of several."""
        self._adapter_of: dict[BlockHash, str] = {}
        """Hash of each block computed with an adapter → the adapter's name."""
        self._copies: dict[BlockHash, list[int]] = {}
        """Of few hashes: further blocks with the same contents."""
        self.reset()

    def reset(self) -> None:
        """Empties all blocks. Only while no sequence has any."""
        if self.listener is not None:
            for each in self.published():
                self.listener.removed(each)
        self.host.clear()
        if self.states is not None:
            self.states.clear()
        self._ref_count = [0] * self.num_blocks
        self._hash_of: list[BlockHash | None] = [None] * self.num_blocks
        self.block_of, self._copies, self._adapter_of = {}, {}, {}
        self._free = self._make_allocator(self.num_blocks)
        """Empty and evictable blocks, without the kept ones."""
        self.kept.clear()

    @property
    def num_free(self) -> int:
        """Empty and evictable blocks."""
        return len(self._free) + len(self.kept.free)

    def published(self) -> Set[BlockHash]:
        """Hashes of all reusable blocks of both tiers and of kept states, as a new set in a steady order."""
        return dict.fromkeys(chain(self.block_of, self.host, map(state_hash, self.states or ()))).keys()

    def holds(self, block_hash: BlockHash) -> bool:
        """Whether a block with this hash is reusable."""
        return block_hash in self.block_of or block_hash in self.host

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    # -- prefix cache ----------------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> list[int]:
        """The longest prefix of a sequence on the device, as blocks; fills in the sequence's hashes. Leaves out tokens
        that must be computed (`Sequence.num_sparable_tokens`). Valid until the next `share`, `extend` or `publish`."""
        if not self.enable_prefix_caching:
            return []
        self._extend_hashes(sequence, sequence.num_tokens)
        matched: list[int] = []
        for block_hash in sequence.block_hashes[: sequence.num_sparable_tokens // self.block_size]:
            block = self.block_of.get(block_hash)
            if block is None:
                break
            if block_hash in self._copies and matched and matched[-1] + 1 in self._copies[block_hash]:
                block = matched[-1] + 1
            matched.append(block)
        if self.states is not None:
            sequence.branch = len(matched) * self.block_size
            del matched[self.states.deepest(sequence.block_hashes, len(matched)) :]
        return matched

    def tell_state(self, block_hash: BlockHash, *, is_kept: bool) -> None:
        """Tells the listener whether the state behind a block is kept."""
        if self.listener is None:
            return
        if is_kept:
            self.listener.stored(block_hash, [state_hash(block_hash)])
        else:
            self.listener.removed(state_hash(block_hash))

    def hosted(self, sequence: Sequence, first: int) -> list[BlockHash]:
        """Hashes of the sequence's blocks from `first` on that are in the host's memory alone."""
        if not self.host.num_places:
            return []
        hashes = sequence.block_hashes[first : sequence.num_sparable_tokens // self.block_size]
        return list(takewhile(lambda each: each in self.host and each not in self.block_of, hashes))

    def fetched(self, sequence: Sequence, matched: list[int]) -> list[int] | None:
        """A waiting sequence's `matched` blocks and the host's behind, once loaded; None = loading. Needs `num_needed`
        free blocks."""
        hashes = self.hosted(sequence, len(matched))
        if not hashes:
            return matched
        if self.host.is_loading(hashes[0]):
            return None
        load = self.host.begin(list(takewhile(lambda each: not self.host.is_loading(each), hashes)), matched)
        for block in matched:
            self._hold(block)
        last = matched[-1] if matched else None
        for index in range(len(load.hashes)):
            last = self._take(last, len(load.hashes) - index)
            load.blocks.append(last)
        self.host.load(load)
        self.settle()
        return None if load in self.host.loads else self.match(sequence)

    def settle(self) -> None:
        """Publishes blocks whose load is over, and ends hints whose time is over."""
        if self.kept.hints:
            for block in self.kept.lapsed():
                self._free.release(block, evictable=True)
        for load in self.host.over():
            for block, block_hash in zip(load.blocks, load.hashes, strict=True):
                if block_hash is not None:
                    self._note(block, block_hash)
            self._release(load.held)

    def num_needed(self, sequence: Sequence, matched: list[int]) -> int:
        """Free blocks that a waiting sequence's tokens need, with `matched` as its cached prefix; unused matched blocks
        count too, because `share` takes them out of the free ones."""
        num_unused = sum(1 for block in matched if not self._ref_count[block])
        return self.num_blocks_for(sequence.num_tokens) - len(matched) + num_unused

    def share(self, sequence: Sequence, matched: list[int]) -> None:
        """Starts the sequence's block table with the cached prefix."""
        assert not sequence.block_table
        for block in matched:
            self._hold(block)
        sequence.block_table.extend(matched)

    def publish(self, sequence: Sequence, start: int) -> None:
        """Publishes the blocks that became complete since token `start`."""
        if not self.enable_prefix_caching:
            return
        first, end = start // self.block_size, sequence.num_computed_tokens // self.block_size
        if first == end:
            return
        self._extend_hashes(sequence, end * self.block_size)
        blocks, hashes = sequence.block_table[first:end], sequence.block_hashes[first:end]
        if sequence.adapter is not None:
            self._adapter_of.update(dict.fromkeys(hashes, sequence.adapter.name))
        if len(hashes) == 1 or self.host.num_places or not self.block_of.keys().isdisjoint(hashes):
            self._publish_each(sequence, first, end)
            return
        for block, block_hash in zip(blocks, hashes, strict=True):
            self._hash_of[block] = block_hash
        self.block_of.update(zip(hashes, blocks, strict=True))
        self._announce(sequence, end, hashes)

    def retract(self, sequence: Sequence) -> None:
        """Unpublishes a sequence's blocks and copies; tables keep the blocks. Call before the step's `publish`."""
        self._retract(sequence.block_hashes)

    def retract_adapter(self, name: str) -> None:
        """Unpublishes all blocks computed with the adapter `name`."""
        self._retract([block_hash for block_hash, adapter in self._adapter_of.items() if adapter == name])

    def _retract(self, hashes: list[BlockHash]) -> None:
        for block_hash in hashes:
            was_hosted = self.host.drop(block_hash)
            first = self.block_of.pop(block_hash, None)
            for block in () if first is None else (first, *self._copies.pop(block_hash, ())):
                self._hash_of[block] = None
                if self.kept.hints and self.kept.forget(block):
                    self._free.release(block, evictable=False)
                elif not self._ref_count[block]:
                    self._free.empty(block)
            if was_hosted or first is not None:
                self._forget(block_hash)

    # -- allocation ------------------------------------------------------------------------------------------------

    def can_extend(self, sequence: Sequence, num_tokens: int) -> bool:
        return self.num_blocks_for(num_tokens) - len(sequence.block_table) <= self.num_free

    def extend(self, sequence: Sequence, num_tokens: int, expected_tokens: int) -> None:
        """Extends the block table to `num_tokens` tokens; call `can_extend` first. `expected_tokens`: likely final
        length of the sequence; the allocator leaves room for growth."""
        table, block_size = sequence.block_table, self.block_size
        number, most = -(-num_tokens // block_size), -(-expected_tokens // block_size)
        last, most = table[-1] if table else None, max(number, most)
        for index in range(len(table), number):
            last = self._take(last, most - index)
            table.append(last)

    def free(self, sequence: Sequence) -> None:
        """Takes a sequence's blocks back; `Sequence.keep_seconds` and `keep_prefixes` hint those that are published."""
        hints = [(seconds, num_tokens // self.block_size) for seconds, num_tokens in sequence.keep_prefixes]
        if sequence.keep_seconds is not None:
            hints.append((sequence.keep_seconds, len(sequence.block_table)))
        for seconds, number in hints:
            table = reversed(sequence.block_table[:number])
            self.kept.hint((block for block in table if self._hash_of[block] is not None), seconds)
        self._release(sequence.block_table)
        sequence.block_table = []

    # -- invariants ------------------------------------------------------------------------------------------------

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises AssertionError for a block in no or several states or a wrong count. `sequences`: all holders."""
        uses = Counter(block for sequence in sequences for block in sequence.block_table)
        uses.update(block for load in self.host.loads for block in load.held)
        self.host.check()
        if self.states is not None:
            self.states.check()
        expected = [0] * self.num_blocks
        for block, count in uses.items():
            expected[block] = count
        assert self._ref_count == expected, "reference counts differ from block tables"
        published = {block: block_hash for block_hash, block in self.block_of.items()}
        copies = {block: block_hash for block_hash, blocks in self._copies.items() for block in blocks}
        assert published.keys().isdisjoint(copies), "a block is another's copy and its own"
        assert all(block_hash in self.block_of for block_hash in self._copies), "a block is no block's copy"
        published.update(copies)
        assert self._adapter_of.keys() <= self.published(), "an adapter's block is not there"
        hashes = enumerate(self._hash_of)
        assert {block: each for block, each in hashes if each is not None} == published, "the hash index is wrong"
        evictable = published.keys() - uses.keys()
        kept = self.kept.free.keys()
        assert kept <= evictable, "a block is kept that is in use or empty"
        self.kept.check()
        self._free.check(in_use=uses.keys() | kept, evictable=evictable - kept)

    # -- the rest is private ---------------------------------------------------------------------------------------

    def _hold(self, block: int) -> None:
        """Adds a user of a block, which protects the block from eviction."""
        if not self._ref_count[block]:
            if block in self.kept.free:
                del self.kept.free[block]
            else:
                self._free.reuse(block)
        self._ref_count[block] += 1

    def _take(self, last: int | None, most: int) -> int:
        """A free block for one user, behind block `last`; the table is expected to need `most`."""
        if self.kept.free and not len(self._free):
            self._free.release(self.kept.give_up(), evictable=True)
        block = self._free.take(last, most)
        if self._hash_of[block] is not None:
            self._evict(block)
        self._ref_count[block] = 1
        return block

    def _release(self, blocks: list[int]) -> None:
        """Removes a user of each block, last block first."""
        ref_count, hash_of, release = self._ref_count, self._hash_of, self._free.release
        has_hints = bool(self.kept.hints)
        if blocks:
            self._free.end_run(blocks[-1])
        for block in reversed(blocks):
            ref_count[block] -= 1
            if not ref_count[block]:
                is_published = hash_of[block] is not None
                if not (has_hints and is_published and self.kept.keep(block)):
                    release(block, evictable=is_published)
        if has_hints:
            for block in self.kept.surplus():
                release(block, evictable=True)

    def _extend_hashes(self, sequence: Sequence, num_tokens: int) -> None:
        """Computes missing hashes of the whole blocks among the first `num_tokens` tokens."""
        hashes = sequence.block_hashes
        start = len(hashes) * self.block_size
        if num_tokens - start < self.block_size:
            return
        parent = hashes[-1] if hashes else ROOT
        tokens, extra = sequence.token_ids[start:num_tokens], sequence.extra
        if images := sequence.images:
            spans = [image.span for image in images]
            hashes += hash_blocks(tokens, self.block_size, parent=parent, extra=extra, images=spans, offset=start)
        elif len(tokens) == self.block_size:
            hashes.append(hash_block(parent, tokens, extra))
        else:
            hashes += hash_blocks(tokens, self.block_size, parent=parent, extra=extra)

    def _publish_each(self, sequence: Sequence, first: int, end: int) -> None:
        """`publish`, block by block, for hashes of which some may be published already."""
        new: list[BlockHash] = []
        for index in range(first, end):
            block, block_hash = sequence.block_table[index], sequence.block_hashes[index]
            was_held = self.holds(block_hash)
            self._note(block, block_hash)
            if was_held:
                self._announce(sequence, index, new)
                new = []
            else:
                new.append(block_hash)
        self._announce(sequence, end, new)

    def _note(self, block: int, block_hash: BlockHash) -> None:
        self._hash_of[block] = block_hash
        if self.block_of.setdefault(block_hash, block) != block:
            self._copies.setdefault(block_hash, []).append(block)

    def _announce(self, sequence: Sequence, end: int, hashes: list[BlockHash]) -> None:
        """Tells the listener the sequence's new hashes, up to block `end`."""
        if self.listener is not None and hashes:
            first = end - len(hashes)
            self.listener.stored(sequence.block_hashes[first - 1] if first else ROOT, hashes)

    def _evict(self, block: int) -> None:
        """Gives a block's prefix to the host, or forgets the prefix."""
        block_hash = self._hash_of[block]
        assert block_hash is not None
        self._hash_of[block] = None
        if block_hash in self._copies:
            blocks = [self.block_of[block_hash], *self._copies.pop(block_hash)]
            blocks.remove(block)
            self.block_of[block_hash], *copies = blocks
            if copies:
                self._copies[block_hash] = copies
            return
        del self.block_of[block_hash]
        left = self.host.keep(block_hash, block)
        if left is not None and left not in self.block_of:
            self._forget(left)

    def _forget(self, block_hash: BlockHash) -> None:
        """Tells the listener that no tier has the hash any more."""
        if self._adapter_of:
            self._adapter_of.pop(block_hash, None)
        if self.listener is not None:
            self.listener.removed(block_hash)
        if self.states is not None and self.states.drop(block_hash):
            self.tell_state(block_hash, is_kept=False)
