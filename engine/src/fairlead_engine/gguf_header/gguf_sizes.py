"""How much room GGUF's types take. Without torch, so that who reads a file's header alone needs none."""

from typing import NamedTuple


class StoredSize(NamedTuple):
    """Of a type of tensors."""

    size: int
    """Numbers in a block; 1 where there are none."""
    num_bytes: int
    """Of a block."""


SIZES = {
    number: StoredSize(*stored)
    for number, stored in {
        0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
        10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    }.items()
}  # fmt: skip
"""Of the types that are read, by ggml's number."""
