"""From a fused projection to what attention takes: queries, normalised where wanted and rotated, and the cache."""

from torch import Tensor

from fairlead_engine.kernels.attention.stored_heads import StoredHeads
from fairlead_engine.kernels.norm_rope import HeadTurn, norm_rope


def norm_rope_store(
    heads: Tensor, turn: HeadTurn, keys: StoredHeads, values: StoredHeads | None, slot_mapping: Tensor
) -> Tensor:
    """The query heads [tokens, heads, head_dim] of `heads` [tokens, all heads, head_dim], as `norm_rope` has them; its
    keys and values go to the slots of `slot_mapping` int64 [tokens] in keys and values [blocks, block_size, kv_heads,
    head_dim], where None = values are a part of keys."""
    query, key, value = norm_rope(heads, *turn)
    keys.flatten(0, 1).put(0, slot_mapping, key)
    if values is not None:
        values.flatten(0, 1).put(0, slot_mapping, value)
    return query
