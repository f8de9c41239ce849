"""GGUF's packed numbers: blocks of 32 or 256, with scales and offsets for groups of 16, 32 or 256.

All are integers of at most 8 bits, scaled and shifted by group: `QuantizedWeight` holds them exactly. The layouts are
ggml's `block_q…` structures.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_common.models.gguf_file import SIZES, StoredSize
from fairlead_engine.model import gguf_grids
from fairlead_engine.model.gguf_packed import Decoded, half, nibble_pairs, nibbles, split
from fairlead_engine.model.quantization.float4 import E2M1_DOUBLED

FLOATS = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""Types stored as floats, by ggml's number."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """How tensors of a type are packed."""

    name: str
    stored: StoredSize
    decode: Callable[[Tensor], Decoded]
    group_size: int = 32
    num_bits: int = 8
    """4 where values are from -8 to 7."""


def _signed(values: Tensor, zero: int = 0) -> Tensor:
    return (values.to(torch.int16) - zero).to(torch.int8)


def _q4_0(blocks: Tensor) -> Decoded:
    return Decoded(_signed(nibbles(blocks[:, 2:]), 8), half(blocks, 0), None)


def _q4_1(blocks: Tensor) -> Decoded:
    scales = half(blocks, 0)
    return Decoded(_signed(nibbles(blocks[:, 4:]), 8), scales, half(blocks, 2) + 8 * scales)


def _fifth_bits(packed: Tensor) -> Tensor:
    """[blocks, 4] → [blocks, 32]: 16 where a bit is set."""
    return ((split(packed, *range(8)) & 1) << 4).flatten(1)


def _q5_0(blocks: Tensor) -> Decoded:
    return Decoded(_signed(nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), 16), half(blocks, 0), None)


def _q5_1(blocks: Tensor) -> Decoded:
    values = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return Decoded(_signed(values), half(blocks, 0), half(blocks, 2))


def _q8_0(blocks: Tensor) -> Decoded:
    return Decoded(blocks[:, 2:].contiguous().view(torch.int8), half(blocks, 0), None)


def _pairs(packed: Tensor) -> Tensor:
    """[blocks, 64] → [blocks, 2, 4, 32]: two bits of each byte, four times; 32 bytes at a time."""
    halves = packed.view(len(packed), 2, 1, 32)
    return (halves >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)) & 3


def _q2_k(blocks: Tensor) -> Decoded:
    packed = blocks[:, :16]
    scales, least = half(blocks, 80) * (packed & 15).float(), half(blocks, 82) * (packed >> 4).float()
    return Decoded(_signed(_pairs(blocks[:, 16:80].contiguous()).flatten(1)), scales, -least)


def _q3_k(blocks: Tensor) -> Decoded:
    high = (blocks[:, :32].view(-1, 1, 32) >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1)) & 1
    low = _pairs(blocks[:, 32:96].contiguous()).view(-1, 8, 32)
    packed = blocks[:, 96:108]
    twos = (packed[:, 8:].unsqueeze(1) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 4, 1)) & 3
    scales = _signed(nibbles(packed[:, :8]) | (twos.flatten(1) << 4), 32)
    return Decoded(_signed((low | (high << 2)).flatten(1), 4), half(blocks, 108) * scales.float(), None)


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and least values, each float32 [blocks, 8], of six bits each in 12 bytes."""
    first, second, third = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=1)
    least = torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=1)
    return half(blocks, 0) * scales.float(), half(blocks, 2) * least.float()


def _k_nibbles(packed: Tensor) -> Tensor:
    """[blocks, 128] → [blocks, 8, 32]: of 32 bytes at a time the lower halves, then the upper ones."""
    quarters = packed.view(len(packed), 4, 1, 32)
    return torch.cat((quarters & 15, quarters >> 4), dim=2).view(-1, 8, 32)


def _q4_k(blocks: Tensor) -> Decoded:
    scales, least = _k_scales(blocks)
    values = _k_nibbles(blocks[:, 16:].contiguous()).flatten(1)
    return Decoded(_signed(values, 8), scales, 8 * scales - least)


def _q5_k(blocks: Tensor) -> Decoded:
    scales, least = _k_scales(blocks)
    fifth = (blocks[:, 16:48].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8).view(1, 8, 1)) & 1
    return Decoded(_signed((_k_nibbles(blocks[:, 48:].contiguous()) | (fifth << 4)).flatten(1)), scales, -least)


def _q6_k(blocks: Tensor) -> Decoded:
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32)
    low = torch.cat((low & 15, low >> 4), dim=2).view(-1, 2, 4, 32)
    values = low | (_pairs(blocks[:, 128:192].contiguous()) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return Decoded(_signed(values.flatten(1), 32), half(blocks, 208) * scales, None)


def _mxfp4(blocks: Tensor) -> Decoded:
    """A power of two, and 4-bit floats."""
    doubled, halves = torch.tensor(E2M1_DOUBLED, dtype=torch.int8), torch.full((len(blocks), 1), 0.5)
    return Decoded(doubled[nibbles(blocks[:, 1:]).int()], torch.ldexp(halves, blocks[:, :1].int() - 127), None)


_UNEVEN = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers of IQ4_NL and IQ4_XS, denser around 0."""


def _uneven(codes: Tensor) -> Tensor:
    return torch.tensor(_UNEVEN, dtype=torch.int8)[codes.int()]


def _iq4_nl(blocks: Tensor) -> Decoded:
    return Decoded(_uneven(nibbles(blocks[:, 2:])), half(blocks, 0), None)


def _iq4_xs(blocks: Tensor) -> Decoded:
    """Eight scales of six bits: four bits of two to a byte, and two bits of four to a byte."""
    high = split(blocks[:, 2:4], 0, 2, 4, 6).flatten(1) & 3
    scales = _signed(nibble_pairs(blocks[:, 4:8]) | (high << 4), 32)
    parts = blocks[:, 8:].reshape(len(blocks), 8, 16)
    codes = torch.cat((parts & 15, parts >> 4), dim=-1).flatten(1)
    return Decoded(_uneven(codes), half(blocks, 0) * scales.float(), None)


def _tq1_0(blocks: Tensor) -> Decoded:
    """Five digits of base 3 to a byte, the first four of 64 numbers apart: a byte is the fraction of 256 that begins
    with them."""
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8)
    parts = [
        (blocks[:, first:end].unsqueeze(1) * powers[:digits, None]).flatten(1)
        for first, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    ]
    return Decoded(_signed(torch.cat(parts, dim=1).to(torch.int16) * 3 >> 8, 1), half(blocks, 52), None)


def _tq2_0(blocks: Tensor) -> Decoded:
    return Decoded(_signed(_pairs(blocks[:, :64].contiguous()).flatten(1), 1), half(blocks, 64), None)


BLOCKS = {
    2: BlockType("Q4_0", SIZES[2], _q4_0, num_bits=4),
    3: BlockType("Q4_1", SIZES[3], _q4_1, num_bits=4),
    6: BlockType("Q5_0", SIZES[6], _q5_0),
    7: BlockType("Q5_1", SIZES[7], _q5_1),
    8: BlockType("Q8_0", SIZES[8], _q8_0),
    10: BlockType("Q2_K", SIZES[10], _q2_k, group_size=16),
    11: BlockType("Q3_K", SIZES[11], _q3_k, group_size=16),
    12: BlockType("Q4_K", SIZES[12], _q4_k, num_bits=4),
    13: BlockType("Q5_K", SIZES[13], _q5_k),
    14: BlockType("Q6_K", SIZES[14], _q6_k, group_size=16),
    16: BlockType("IQ2_XXS", SIZES[16], gguf_grids.iq2_xxs),
    17: BlockType("IQ2_XS", SIZES[17], gguf_grids.iq2_xs, group_size=16),
    18: BlockType("IQ3_XXS", SIZES[18], gguf_grids.iq3_xxs),
    19: BlockType("IQ1_S", SIZES[19], gguf_grids.iq1_s, num_bits=4),
    20: BlockType("IQ4_NL", SIZES[20], _iq4_nl),
    21: BlockType("IQ3_S", SIZES[21], gguf_grids.iq3_s),
    22: BlockType("IQ2_S", SIZES[22], gguf_grids.iq2_s, group_size=16),
    23: BlockType("IQ4_XS", SIZES[23], _iq4_xs),
    29: BlockType("IQ1_M", SIZES[29], gguf_grids.iq1_m, group_size=16),
    34: BlockType("TQ1_0", SIZES[34], _tq1_0, group_size=256, num_bits=4),
    35: BlockType("TQ2_0", SIZES[35], _tq2_0, group_size=256, num_bits=4),
    39: BlockType("MXFP4", SIZES[39], _mxfp4),
}
"""By ggml's number."""
OTHERS = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4"}
"""Types that are not read, for messages."""
