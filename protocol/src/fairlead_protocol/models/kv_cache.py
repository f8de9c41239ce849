"""Bytes of the KV cache."""

BYTES_PER_SCALE = 4
"""Of the scale that each head of a token has in a cache of 8-bit numbers."""


def block_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, number_bytes: int, *,
    has_scales: bool, has_values: bool,
) -> int:  # fmt: skip
    """Of one block of `block_size` tokens, all layers together. `has_values`: whether values are stored beside keys;
    those of latent attention are a part of keys. Layers that see a window have whole contexts, too."""
    per_head = head_dim * number_bytes + (BYTES_PER_SCALE if has_scales else 0)
    return (2 if has_values else 1) * num_layers * num_kv_heads * block_size * per_head
