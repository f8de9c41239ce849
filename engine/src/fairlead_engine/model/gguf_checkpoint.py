"""The tensors of a GGUF file under Hugging Face's names.

Blocks stay integers, scales and offsets; for callers that ask for floats they are decoded.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_common.models.gguf_file import SIZES, GgufFile, GgufTensor
from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.gguf_blocks import BLOCKS, FLOATS, OTHERS, BlockType
from fairlead_engine.model.gguf_families import LAYER_NAMES, WHOLE_NAMES, GgufFamily, GgufMetadata, find_family
from fairlead_engine.model.gguf_fields import FACTORS, config_fields
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8 import Int8WeightOnly
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat
from fairlead_engine.model.quantization.source import check_numbers

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")
_WITH_KIND = re.compile(r"([\w.]+)\.(weight|bias)")
_HEADS = re.compile(r"(self_attn|mixer)\.[qk]_proj\.(weight|bias)$")
"""Tensors whose rows are heads with a rotation."""
_BY_VALUE = re.compile(r"\.linear_attn\.(in_proj_(qkv|z|a|b)\.|A_log$|dt_bias$|conv1d\.)")
_MODULATION = re.compile(r"\.linear_attn\.in_proj_[ab]\.")
_OUTPUT, _BOTH = ".linear_attn.out_proj.weight", ".in_proj_ba.weight"
_GATE, _UP, _GATE_UP = ".gate_proj.", ".up_proj.", ".gate_up_proj."
_MOST_EXPERTS = 2**14
_FLOAT32 = 0
"""As in `FLOATS`."""
_MOST_DECODED = 2**24
"""Elements of blocks that are decoded at a time: 64 MiB in float32."""


class _Woven(NamedTuple):
    """A tensor whose rows are those of two others by turns."""

    first: GgufTensor
    second: GgufTensor


class _LatentUp(NamedTuple):
    """Keys and values of all heads from latents, in two tensors: [heads, latent, key] and [heads, value, latent]."""

    keys: GgufTensor
    values: GgufTensor


class _ValueHeads:
    """Where value heads of recurrent layers lie in a file. In checkpoints they lie behind one another by key head."""

    def __init__(self, values: GgufMetadata, family: GgufFamily) -> None:
        self._has_turns = family.has_value_turns
        self._groups = max(1, values.count("ssm.group_count"))
        self._num = values.count("ssm.time_step_rank")
        self._size = values.count("ssm.inner_size") // max(1, self._num)

    def rows(self, name: str, num_rows: int) -> Tensor | None:
        """Rows of the file's tensor in a checkpoint's order, int64 [num_rows]; None = as stored."""
        if not self._has_turns:
            return self._modulation(name) if _MODULATION.search(name) else None
        if not _BY_VALUE.search(name):
            return None
        size = self._size if self._num * self._size <= num_rows else 1
        return self._order(size, num_rows - self._num * size)

    def columns(self, name: str) -> Tensor | None:
        """Columns of the file's tensor in a checkpoint's order, int64 [num_columns]; None = as stored."""
        return self._order(self._size, 0) if self._has_turns and name.endswith(_OUTPUT) else None

    def keeps_groups(self, name: str, size: int) -> bool:
        """Whether groups of `size` columns stay together."""
        return not (self._has_turns and name.endswith(_OUTPUT)) or self._size % size == 0

    def _order(self, size: int, first: int) -> Tensor:
        """Order of value heads of `size` elements behind `first` elements of key heads."""
        turns = torch.arange(self._num * size).view(-1, self._groups, size).transpose(0, 1).flatten()
        return torch.cat((torch.arange(first), first + turns))

    def _modulation(self, name: str) -> Tensor:
        """Order of strengths, or decays: a file has the strengths and then the decays of each key head."""
        of_groups = torch.arange(2 * self._num).view(self._groups, 2, -1)
        return of_groups[:, int(".in_proj_a." in name)].flatten()


class GgufCheckpoint(Checkpoint):
    """The tensors of one file; use as any other."""

    def __enter__(self) -> "GgufCheckpoint":
        file = GgufFile(self._folder)
        self._gguf = file
        self._family, values = find_family(file)
        fields = JsonFields(file.path, config_fields(file))
        self._woven: dict[str, _Woven] = {}
        self._latent_ups: dict[str, _LatentUp] = {}
        self._tensors = dict(_named(file, self._family, values.num_layers))
        if self._family.weaves_gate_up:
            self._weave()
        self._join_latents()
        self._numbers = dict(_numbers(self._family, values))
        self._tensors |= dict.fromkeys(self._numbers, GgufTensor((1,), _FLOAT32, 0))
        self._split_modulation()
        self._heads = _ValueHeads(values, self._family)
        self._file_of = dict.fromkeys(self._tensors, "")
        self._head_dim = 0
        if self._family.is_interleaved:
            heads = fields.positive_int("num_attention_heads")
            self._head_dim = fields.positive_int("head_dim", max(1, fields.positive_int("hidden_size") // heads))
        kinds = sorted({BLOCKS[each.kind].name for each in self._tensors.values() if each.kind in BLOCKS})
        logger.info("%s holds weights as %s", file.path.name, ", ".join(kinds) or "floats")
        return self

    def _weave(self) -> None:
        """Joins gate and up projections of experts."""
        for name in [name for name in self._tensors if _GATE in name]:
            gate, up = self._tensors.pop(name), self._tensors.pop(name.replace(_GATE, _UP), None)
            if up is None or up.shape != gate.shape or up.kind != gate.kind:
                self._gguf.refuse(f"has no tensor {name.replace(_GATE, _UP)} of the shape and type of {name}")
            joined = name.replace(_GATE, _GATE_UP)
            self._woven[joined] = _Woven(gate, up)
            self._tensors[joined] = replace(gate, shape=(2 * gate.shape[0], *gate.shape[1:]))

    def _split_modulation(self) -> None:
        """Divides tensors of strengths and decays, in files whose other projections of recurrent layers are divided."""
        for name in [name for name in self._tensors if name.endswith(_BOTH)]:
            if name.replace(_BOTH, ".in_proj_qkvz.weight") not in self._tensors:
                both = self._tensors.pop(name)
                half = replace(both, shape=(both.shape[0] // 2, *both.shape[1:]))
                self._tensors |= {name.replace(_BOTH, f".in_proj_{kind}.weight"): half for kind in "ba"}

    def _join_latents(self) -> None:
        for name in [name for name in self._tensors if name.endswith(".k_b_proj.weight")]:
            keys = self._tensors.pop(name)
            values = self._tensors.pop(name.replace(".k_b_proj.", ".v_b_proj."), None)
            whole = name.replace(".k_b_proj.", ".kv_b_proj.")
            if values is None or len(keys.shape) != 3 or len(values.shape) != 3:
                self._gguf.refuse(f"has no two tensors of three dimensions for {whole}")
            if (keys.shape[0], keys.shape[1]) != (values.shape[0], values.shape[2]) or whole in self._tensors:
                self._gguf.refuse(f"has tensors for {whole} that do not fit each other")
            self._latent_ups[whole] = _LatentUp(keys, values)
            shape = keys.shape[0] * (keys.shape[2] + values.shape[1]), keys.shape[1]
            self._tensors[whole] = GgufTensor(shape, 0, 0)

    @property
    def files(self) -> list[Path]:
        return self._gguf.paths

    def format_of(self, name: str) -> WeightFormat | None:
        """Of a tensor; None where it is read as floats, or not there."""
        tensor = self._tensors.get(name)
        if tensor is None or tensor.kind in FLOATS:
            return None
        block = self._block(name, tensor)
        if not self._heads.keeps_groups(name, block.group_size):
            return None
        return Int4WeightOnly() if block.num_bits == 4 else Int8WeightOnly()

    def quantized(self, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        """Some rows of a tensor with a format. Raises ModelLoadError, like the other methods."""
        self._check_shape(name, [shape])
        self._read.add(name)
        weight = self._quantized(name, self._tensors[name], rows)
        if (order := self._heads.columns(name)) is None:
            return weight
        size = weight.group_size
        order = order.to(weight.values.device)
        groups = order[::size] // size
        offsets = None if weight.offsets is None else weight.offsets[:, groups]
        return QuantizedWeight(weight.values[:, order], weight.scales[:, groups], size, offsets)

    def _fetch(self, name: str, part: tuple[slice, ...]) -> Tensor:
        tensor = self._tensors[name]
        rows = part[0] if part else slice(None)
        if (number := self._numbers.get(name)) is not None:
            return number
        if (latent := self._latent_ups.get(name)) is not None:
            floats = self._latent_up(name, latent)[rows]
        else:
            floats = self._floats(name, tensor, rows)
        if self._family.norm_offset and name.endswith("norm.weight") and ".linear_attn." not in name:
            floats = floats - self._family.norm_offset
        if name.endswith(".A_log"):
            floats = floats.neg().log()
        if (order := self._heads.columns(name)) is not None:
            floats = floats[:, order]
        return floats[(slice(None), *part[1:])]

    def _floats(self, name: str, tensor: GgufTensor, rows: slice) -> Tensor:
        if tensor.kind not in FLOATS:
            return self._decoded(name, tensor, rows)
        dtype = FLOATS[tensor.kind]
        raw = self._rows(name, tensor, rows, prod(tensor.shape[1:]) * dtype.itemsize)
        return raw.view(dtype).view(len(raw), *tensor.shape[1:])

    def _decoded(self, name: str, tensor: GgufTensor, rows: slice) -> Tensor:
        """Some rows of blocks in the activations' dtype, a part at a time: a table of all layers' inputs is large."""
        self._block(name, tensor)  # refuses unknown types, whose shape is not checked against the file's size
        first, end, _ = rows.indices(tensor.shape[0])
        floats = torch.empty((end - first, *tensor.shape[1:]), dtype=self.dtype, device=self.device)
        step = max(1, _MOST_DECODED // tensor.shape[-1])
        for at in range(first, max(end, first + 1), step):
            part = self._quantized(name, tensor, slice(at, min(at + step, end)))
            floats[at - first : at - first + step] = part.dequantized()
        return floats

    def _latent_up(self, name: str, parts: _LatentUp) -> Tensor:
        """float32 [heads x (key + value), latent]."""
        keys, values = (
            self._floats(name, replace(part, shape=(part.shape[0] * part.shape[1], part.shape[2])), slice(None))
            .float()
            .view(part.shape)
            for part in parts
        )
        return torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def _block(self, name: str, tensor: GgufTensor) -> BlockType:
        if tensor.kind not in BLOCKS:
            told, known = OTHERS.get(tensor.kind, f"type {tensor.kind}"), [block.name for block in BLOCKS.values()]
            raise ModelLoadError(
                ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
                f"{self._folder}: tensor {name} is stored as {told}, which this engine lacks; supported are F32, F16, "
                f"BF16, {', '.join(known)}",
            )
        return BLOCKS[tensor.kind]

    def _quantized(self, name: str, tensor: GgufTensor, rows: slice) -> QuantizedWeight:
        block, columns = self._block(name, tensor), tensor.shape[-1]
        size, num_bytes = block.stored.size, block.stored.num_bytes
        if len(tensor.shape) != 2 or columns % size:
            self._gguf.refuse(f"has a tensor {name} of shape {list(tensor.shape)} in blocks of {size}")
        num_blocks = columns // size
        raw = self._rows(name, tensor, rows, num_blocks * num_bytes)
        if not len(raw):
            none = torch.empty(0, columns // block.group_size, device=self.device)
            empty = torch.empty(0, columns, dtype=torch.int8, device=self.device)
            return QuantizedWeight(empty, none, block.group_size)
        values, scales, offsets = block.decode(raw.view(-1, num_bytes))
        check_numbers(name, scales.isfinite())
        if offsets is not None:
            check_numbers(name, offsets.isfinite())
            offsets = offsets.view(len(raw), -1).to(self.device)
        values, scales = values.view(len(raw), columns).to(self.device), scales.view(len(raw), -1).to(self.device)
        return QuantizedWeight(values, scales, block.group_size, offsets)

    def _rows(self, name: str, tensor: GgufTensor, rows: slice, width: int) -> Tensor:
        """uint8 [rows, width] of a tensor with `width` bytes per row, in the order in which they are asked for."""
        first, end, _ = rows.indices(tensor.shape[0])
        indices = torch.arange(first, end)
        if (order := self._orders.get(name)) is not None:
            indices = self._within_heads(name, tensor, indices, order.cpu())
        if self._head_dim and self._head_dim % 2 == 0 and _HEADS.search(name):
            half = torch.arange(self._head_dim)
            paired = half % (self._head_dim // 2) * 2 + half // (self._head_dim // 2)
            indices = self._within_heads(name, tensor, indices, paired)
        if (order := self._heads.rows(name, tensor.shape[0])) is not None:
            indices = order[indices]
        if not len(indices):
            return torch.empty(0, width, dtype=torch.uint8)
        least, most = int(indices.min()), int(indices.max()) + 1
        if (woven := self._woven.get(name)) is not None:
            halves = (self._bytes(name, part, least // 2, -(-most // 2), width) for part in woven)
            found = torch.stack(tuple(halves), dim=1).flatten(0, 1)[least % 2 :]
        else:
            found = self._bytes(name, tensor, least, most, width)
        return found[indices - least]

    def _within_heads(self, name: str, tensor: GgufTensor, indices: Tensor, order: Tensor) -> Tensor:
        """Row indices of heads whose rows lie in another order: int64 [elements of a head]."""
        if tensor.shape[0] % len(order):
            self._gguf.refuse(f"has a tensor {name} whose rows are no heads of {len(order)}")
        within = indices % len(order)
        return indices - within + order[within]

    def _bytes(self, name: str, tensor: GgufTensor, first: int, end: int, width: int) -> Tensor:
        raw = self._gguf.bytes_at(tensor.offset + first * width, (end - first) * width, name)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, width)


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """A file's weights as stored, with each tensor's own format."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        assert isinstance(checkpoint, GgufCheckpoint)
        return checkpoint.format_of(f"{name}.weight")

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        assert isinstance(checkpoint, GgufCheckpoint)
        return checkpoint.quantized(f"{name}.weight", shape, rows)


def _named(file: GgufFile, family: GgufFamily, num_layers: int) -> Iterator[tuple[str, GgufTensor]]:
    """Tensors under Hugging Face's names, experts by themselves; without those of layers that are not served. A tensor
    without such a name keeps its own, and is later refused by it."""
    names = {**WHOLE_NAMES, **LAYER_NAMES, **family.names}
    for name, tensor in file.tensors.items():
        whole, _, kind = name.rpartition(".")
        found = _LAYER.fullmatch(name)
        if name in FACTORS or (found is not None and int(found[1]) >= num_layers):
            continue
        if whole in names:
            yield f"{names[whole]}.{kind}", tensor
        elif found is None:
            yield name, tensor
        elif found[2] in names:
            yield from _each(file, f"model.layers.{found[1]}.{names[found[2]]}", tensor)
        elif (parts := _WITH_KIND.fullmatch(found[2])) is None or parts[1] not in names:
            yield name, tensor
        else:
            yield from _each(file, f"model.layers.{found[1]}.{names[parts[1]]}.{parts[2]}", tensor)


def _numbers(family: GgufFamily, values: GgufMetadata) -> Iterator[tuple[str, Tensor]]:
    """What the metadata has of each layer, as tensors of one number."""
    for name, key in family.numbers.items():
        for layer, number in enumerate(torch.split(values.numbers(key), 1)):
            yield f"model.layers.{layer}.{name}", number


def _each(file: GgufFile, name: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """A tensor, or the experts in one: rows of `shape[0]` experts behind one another."""
    if name.endswith("shared_expert_gate.weight") and len(tensor.shape) == 1:
        yield name, replace(tensor, shape=(1, *tensor.shape))
    elif name.endswith((".conv1d.weight", ".conv.conv.weight")) and len(tensor.shape) == 2:
        yield name, replace(tensor, shape=(tensor.shape[0], 1, tensor.shape[1]))
    elif name.endswith((".A_log", ".D", ".norm.weight")):  # in groups, or with a dimension of 1
        yield name, replace(tensor, shape=(prod(tensor.shape),))
    elif "{}" not in name:
        yield name, tensor
    elif len(tensor.shape) < 2 or tensor.shape[0] > _MOST_EXPERTS:
        file.refuse(f"has a tensor {name.format('*')} of shape {list(tensor.shape)}, which must begin with experts")
    else:
        stored, (num_experts, *shape) = SIZES.get(tensor.kind), tensor.shape
        size = 0 if stored is None else prod(shape[:-1]) * -(-shape[-1] // stored.size) * stored.num_bytes
        for index in range(num_experts):
            one = GgufTensor(tuple(shape), tensor.kind, tensor.offset + index * size)
            if _GATE_UP in name:
                half = replace(one, shape=(shape[0] // 2, *shape[1:]))
                yield name.format(index).replace(_GATE_UP, _GATE), half
                yield name.format(index).replace(_GATE_UP, _UP), replace(half, offset=one.offset + size // 2)
            else:
                yield name.format(index), one
