"""Attention sequence by sequence, each over its own stretch of the cache: what is fastest on CPUs.

Measured on CPUs, one product per sequence over its own stretch of the slab beats padding, masks and gathers across the
batch by 1.2 to 5 times. A context in one stretch is read in place; any other is first gathered, which makes a decode
step of 32 sequences with 400 tokens each a fifth slower. So this backend asks for consecutive blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch, LayerCache
from fairlead_engine.kernels.attention.consecutive_blocks import ConsecutiveBlocks


@dataclass(frozen=True, slots=True)
class QuerySpan:
    """One sequence's tokens in a step, and the slots of everything they may attend to."""

    start: int
    """Its first row in the flattened tokens."""
    num_queries: int
    """Its tokens in this step: the last ones of the context."""
    context: int
    """Tokens it may attend to, its own ones included."""
    first_slot: int
    """Where the context begins in the slab."""
    slots: Tensor | None = None
    """int64 [context]: the context's slots in order; None when they follow one another from `first_slot` on."""
    mask: Tensor | None = None
    """Added to the scores, [num_queries, context]; None for a single query and for a chunk that is its own context."""


@dataclass(frozen=True, slots=True)
class SpanMetadata:
    """Who attends to what in one step; the same for all layers."""

    slots: Tensor
    """int64 [tokens]: where in the cache each row's key and value go; no two rows share one."""
    spans: list[QuerySpan]
    """One after the other, covering all rows."""


class CPUSpans:
    """Each layer's keys and values are slabs [kv_heads, slots, head_dim]; slot = block x block size + offset in it."""

    def allocate(self, layout: CacheLayout, num_blocks: int) -> list[LayerCache]:
        """The memory is left as it is: so the operating system hands it out block by block, as it is first used."""
        shape = (layout.num_kv_heads, num_blocks * layout.block_size, layout.head_dim)

        def slab() -> Tensor:
            return torch.empty(shape, dtype=layout.dtype, device=layout.device)

        return [LayerCache(keys=slab(), values=slab()) for _ in range(layout.num_layers)]

    def allocator(self, num_blocks: int) -> ConsecutiveBlocks:
        return ConsecutiveBlocks(num_blocks)

    def prepare(self, batch: DeviceBatch) -> SpanMetadata:
        """Slots are listed only for a table with gaps; a mask is needed only where a chunk also looks back."""
        layout, size = batch.layout, batch.layout.block_size
        slots: list[int] = []
        spans = []
        for num_queries, end, table in zip(batch.num_queries, batch.context_lens, batch.block_tables, strict=True):
            start = len(slots)
            slots += [table[i // size] * size + i % size for i in range(end - num_queries, end)]
            table = table[: -(-end // size)]
            context_slots = None
            if table != list(range(table[0], table[0] + len(table))):
                first = torch.tensor(table, dtype=torch.int64).mul_(size).unsqueeze(1)
                context_slots = (first + torch.arange(size)).flatten()[:end].to(layout.device)
            looks_back = 1 < num_queries < end
            spans.append(
                QuerySpan(
                    start=start,
                    num_queries=num_queries,
                    context=end,
                    first_slot=table[0] * size,
                    slots=context_slots,
                    mask=causal_mask(num_queries, end, layout) if looks_back else None,
                )
            )
        return SpanMetadata(torch.tensor(slots, dtype=torch.int64).to(layout.device), spans)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, cache: LayerCache, metadata: SpanMetadata) -> Tensor:
        cache.keys.index_copy_(1, metadata.slots, key.transpose(0, 1))
        cache.values.index_copy_(1, metadata.slots, value.transpose(0, 1))
        num_tokens, num_heads, head_dim = query.shape
        num_kv_heads = key.shape[1]
        grouped = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
        outputs = []
        for span in metadata.spans:
            queries = grouped.narrow(0, span.start, span.num_queries)
            keys, values = _context(cache.keys, span), _context(cache.values, span)
            if span.num_queries == 1:
                # The query heads of a group act as queries of their key head, which is read only once.
                output = scaled_dot_product_attention(queries, keys.unsqueeze(0), values.unsqueeze(0))
            else:
                # Keys are repeated over their group by stride, not by copy: [kv_heads, group, num_queries, head_dim].
                output = scaled_dot_product_attention(
                    queries.permute(1, 2, 0, 3),
                    keys.unsqueeze(1).expand(-1, queries.shape[2], -1, -1),
                    values.unsqueeze(1).expand(-1, queries.shape[2], -1, -1),
                    attn_mask=span.mask,
                    is_causal=span.mask is None,
                ).permute(2, 0, 1, 3)
            outputs.append(output)
        return torch.cat(outputs).view(num_tokens, num_heads, head_dim)


def causal_mask(num_queries: int, context: int, layout: CacheLayout) -> Tensor:
    """For the last `num_queries` tokens of a context: 0 where a token may look, minus infinity at those after it."""
    forbidden = torch.full((num_queries, context), float("-inf"), dtype=layout.dtype, device=layout.device)
    return forbidden.triu_(context - num_queries + 1)


def _context(slab: Tensor, span: QuerySpan) -> Tensor:
    """The span's part of a slab [kv_heads, context, head_dim]: a view where it is one stretch, else a copy."""
    if span.slots is None:
        return slab.narrow(1, span.first_slot, span.context)
    return slab.index_select(1, span.slots)
