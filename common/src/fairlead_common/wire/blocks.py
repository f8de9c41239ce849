"""Block hashes: the names of KV-cache contents, identical in gateway and engine.

A block is `block_size` consecutive tokens of a sequence. The hash covers all earlier tokens as well, by chaining:
BLAKE2b-128 over parent hash ‖ little-endian uint32 token ids ‖ length-prefixed extra ‖ digests of the images with
tokens in the block. A cryptographic hash is used because a collision would serve one prompt's KV to another.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

BlockHash = bytes
"""16 raw bytes in memory; 32 lower-case hexadecimal digits on the wire."""

DIGEST_SIZE = 16
ROOT: BlockHash = b"\0" * DIGEST_SIZE
"""The parent of a sequence's first block."""

_ITEMSIZE = 4


class ImageSpan(NamedTuple):
    """The tokens of an image in a prompt, from `start` to before `end`."""

    start: int
    end: int
    digest: bytes
    """`DIGEST_SIZE` bytes that identify the image."""


def extra_bytes(*, adapter: str | None = None, cache_salt: str | None = None) -> bytes:
    """Input of the hash of every block besides tokens; length-prefixed, so that no two pairs collide.

    A salt comes from the client and may be long, so the digest of the salt is used, computed once.
    """
    salt = None if cache_salt is None else blake2b(cache_salt.encode(), digest_size=DIGEST_SIZE).digest()
    return _prefixed(None if adapter is None else adapter.encode()) + _prefixed(salt)


def _prefixed(raw: bytes | None) -> bytes:
    """uint32 length + 1 and the bytes; for None a lone zero, which differs from the empty text."""
    return struct.pack("<I", 0) if raw is None else struct.pack("<I", len(raw) + 1) + raw


NO_EXTRA = extra_bytes()


def state_hash(block_hash: BlockHash) -> BlockHash:
    """The name of a recurrent model's state behind a block, in lists of blocks: a child of the block."""
    return block_hash[:-1] + bytes((block_hash[-1] ^ 1,))


def hash_block(parent: BlockHash, token_ids: Sequence[int], extra: bytes = NO_EXTRA) -> BlockHash:
    """The hash of one whole block that follows `parent`."""
    return _hash(parent, _little_endian(token_ids), extra)


def hash_blocks(
    token_ids: Sequence[int],
    block_size: int,
    *,
    parent: BlockHash = ROOT,
    extra: bytes = NO_EXTRA,
    images: Sequence[ImageSpan] = (),
    offset: int = 0,
) -> list[BlockHash]:
    """Hashes of all whole blocks of `token_ids`, in order; a partial last block has no hash.

    To extend a chain, pass the tokens after the last hashed block, the hash of this block as `parent`, and the position
    of the first token in the prompt as `offset`; spans of `images` count from the beginning of the prompt.
    """
    raw = memoryview(_little_endian(token_ids))
    step = block_size * _ITEMSIZE
    hashes = []
    for start in range(0, len(raw) - step + 1, step):
        if images:
            first = offset + start // _ITEMSIZE
            parent = _hash(parent, raw[start : start + step], extra + _digests(images, first, first + block_size))
        else:
            parent = _hash(parent, raw[start : start + step], extra)
        hashes.append(parent)
    return hashes


def _digests(images: Sequence[ImageSpan], start: int, end: int) -> bytes:
    """Digests of the images with tokens from `start` to before `end`; later blocks include them by chaining."""
    return b"".join(image.digest for image in images if image.start < end and image.end > start)


def num_cacheable_blocks(num_tokens: int, block_size: int) -> int:
    """Number of leading blocks of a prompt that may come from the cache: whole blocks without the last token.

    The last token is always computed, since its logits choose the first new token.
    """
    return max(0, num_tokens - 1) // block_size


def _hash(parent: BlockHash, raw_ids: bytes | memoryview, extra: bytes) -> BlockHash:
    return blake2b(b"".join((parent, raw_ids, extra)), digest_size=DIGEST_SIZE).digest()


def _little_endian(token_ids: Sequence[int]) -> bytes:
    if isinstance(token_ids, array) and token_ids.typecode == "I" and sys.byteorder == "little":
        return token_ids.tobytes()
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error as error:
        raise OverflowError(f"a token id is no unsigned number of 32 bits: {error}") from error
