"""A GGUF file as a checkpoint: its metadata in the form of `config.json`, its tensors under Hugging Face's names.

Blocks stay integers, scales and offsets; for callers that ask for floats they are decoded.
"""

import logging
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairlead_common.models.gguf_file import GgufFile, GgufTensor
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.rope_config import RopeConfig, RopeKind
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.gguf_blocks import BLOCKS, FLOATS, OTHERS, BlockType
from fairlead_engine.model.quantization.int4_weight_only import Int4WeightOnly
from fairlead_engine.model.quantization.int8 import Int8WeightOnly
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat
from fairlead_engine.model.quantization.source import check_numbers
from fairlead_engine.model.rope import inverse_frequencies

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""By `general.architecture`."""
_FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_EMBEDDING, _HEAD, _FREQUENCIES = "token_embd.weight", "output.weight", "rope_freqs.weight"
_LLAMA3: dict[str, Any] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of Llama 3.1 and 3.2, whose files have the frequencies' factors instead."""


def config_fields(file: GgufFile) -> dict[str, Any]:
    """Raises ModelLoadError for what no layer here computes."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise _unsupported(file, "general.architecture", architecture, f"supported are {', '.join(ARCHITECTURES)}")
    if (count := file.metadata.get("split.count", 1)) != 1:
        raise _unsupported(file, "split.count", count, "merge its parts into one file")
    if _EMBEDDING not in file.tensors or len(file.tensors[_EMBEDDING].shape) != 2:
        file.refuse(f"has no tensor {_EMBEDDING} of two dimensions")
    fields = {
        name: value
        for name, key in _FIELDS.items()
        if (value := file.metadata.get(f"{architecture}.{key}")) is not None
    }
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    fields |= {name: tensor in file.tensors for name, tensor in biases.items()}
    ends = [value for key in _ENDS if (value := file.metadata.get(key)) is not None]
    return fields | {
        "architectures": [ARCHITECTURES[architecture]],
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "tie_word_embeddings": _HEAD not in file.tensors,
        "dtype": _dtype(file),
        "eos_token_id": list(dict.fromkeys(ends)),
        "rope_scaling": _scaling(file, architecture, fields),
        "quantization_config": {"quant_method": "gguf"},
    }


def _dtype(file: GgufFile) -> str:
    """What others than quantised weights are: half precision, unless all are float32."""
    kinds = {FLOATS.get(tensor.kind) for tensor in file.tensors.values()}
    if torch.bfloat16 in kinds:
        return "bfloat16"
    return "float32" if kinds == {torch.float32} else "float16"


def _scaling(file: GgufFile, architecture: str, fields: dict[str, Any]) -> dict[str, Any] | None:
    prefix = f"{architecture}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type", "none")
    if _FREQUENCIES in file.tensors:
        return _llama3_scaling(file, fields)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise _unsupported(file, f"{prefix}.type", kind, "supported are linear and yarn")
    found = {"rope_type": kind, "factor": file.metadata.get(f"{prefix}.factor")}
    original = file.metadata.get(f"{prefix}.original_context_length")
    return found | ({} if original is None else {"original_max_position_embeddings": original})


def _llama3_scaling(file: GgufFile, fields: dict[str, Any]) -> dict[str, Any]:
    tensor = file.tensors[_FREQUENCIES]
    if tensor.kind not in FLOATS or len(tensor.shape) != 1 or tensor.shape[0] > 2**16:
        file.refuse(f"has a tensor {_FREQUENCIES} that is no list of floats")
    dtype = FLOATS[tensor.kind]
    raw = bytearray(file.bytes_at(tensor.offset, tensor.shape[0] * dtype.itemsize, _FREQUENCIES))
    factors = torch.frombuffer(raw, dtype=dtype).float()
    theta, factor = float(fields.get("rope_theta") or 10000.0), float(factors.max())
    head_dim = 2 * len(factors)
    if factor > 1.0 and theta > 1.0:
        rope = RopeConfig(theta=theta, kind=RopeKind.LLAMA3, factor=factor, **_LLAMA3)
        plain = inverse_frequencies(RopeConfig(theta=theta), head_dim)
        if torch.allclose(plain / inverse_frequencies(rope, head_dim), factors, rtol=1e-3):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    raise _unsupported(file, _FREQUENCIES, f"{factors[:3].tolist()}…", "only Llama 3.1's and 3.2's scaling is known")


def _unsupported(file: GgufFile, name: str, value: object, remedy: str) -> ModelLoadError:
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
        f"{file.path.name}: {name} is {value!r}, which this engine lacks; {remedy}",
    )


logger = logging.getLogger(__name__)

_WHOLE_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IN_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")
_INTERLEAVED = re.compile(r"self_attn\.[qk]_proj\.(weight|bias)$")
"""Tensors that llama.cpp's `llama` models store with the two numbers of a rotation side by side."""


class GgufCheckpoint(Checkpoint):
    """The tensors of one file; use as any other."""

    def __enter__(self) -> "GgufCheckpoint":
        file = GgufFile(self._folder)
        self._gguf = file
        self._tensors = {_name(name): tensor for name, tensor in file.tensors.items() if name != "rope_freqs.weight"}
        self._file_of = dict.fromkeys(self._tensors, "")
        fields = JsonFields(file.path, config_fields(file))
        self._head_dim = 0
        if file.metadata["general.architecture"] == "llama":
            heads = fields.positive_int("num_attention_heads")
            self._head_dim = fields.positive_int("head_dim", max(1, fields.positive_int("hidden_size") // heads))
        kinds = sorted({BLOCKS[each.kind].name for each in self._tensors.values() if each.kind in BLOCKS})
        logger.info("%s holds weights as %s", file.path.name, ", ".join(kinds) or "floats")
        return self

    @property
    def files(self) -> list[Path]:
        return [self._gguf.path]

    def format_of(self, name: str) -> WeightFormat | None:
        """Of a tensor; None where it is floats, or not there."""
        tensor = self._tensors.get(name)
        if tensor is None or tensor.kind in FLOATS:
            return None
        return Int4WeightOnly() if self._block(name, tensor).num_bits == 4 else Int8WeightOnly()

    def quantized(self, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        """Some rows of a tensor with a format. Raises ModelLoadError, like the other methods."""
        self._check_shape(name, [shape])
        self._read.add(name)
        return self._quantized(name, self._tensors[name], rows)

    def _fetch(self, name: str, part: tuple[slice, ...]) -> Tensor:
        tensor = self._tensors[name]
        rows = part[0] if part else slice(None)
        if tensor.kind not in FLOATS:
            floats = self._quantized(name, tensor, rows).dequantized()
        else:
            dtype = FLOATS[tensor.kind]
            raw = self._rows(name, tensor, rows, prod(tensor.shape[1:]) * dtype.itemsize)
            floats = raw.view(dtype).view(len(raw), *tensor.shape[1:])
        return floats[(slice(None), *part[1:])]

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
        """uint8 [rows, width] of a tensor with `width` bytes per row, in Hugging Face's order."""
        first, end, _ = rows.indices(tensor.shape[0])
        indices, size = torch.arange(first, end), self._head_dim
        if size and size % 2 == 0 and _INTERLEAVED.search(name):
            within = indices % size
            indices = indices - within + within % (size // 2) * 2 + within // (size // 2)
        if not len(indices):
            return torch.empty(0, width, dtype=torch.uint8)
        least, most = int(indices.min()), int(indices.max()) + 1
        if most > tensor.shape[0]:
            self._gguf.refuse(f"has a tensor {name} whose rows are no heads of {size}")
        raw = self._gguf.bytes_at(tensor.offset + least * width, (most - least) * width, name)
        found = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, width)
        return found if len(found) == len(indices) and not size else found[indices - least]


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """A file's weights as stored, with each tensor's own format."""

    def format_of(self, checkpoint: Checkpoint, name: str, is_sensitive: bool) -> WeightFormat | None:
        assert isinstance(checkpoint, GgufCheckpoint)
        return checkpoint.format_of(f"{name}.weight")

    def read(self, checkpoint: Checkpoint, name: str, shape: tuple[int, int], rows: slice) -> QuantizedWeight:
        assert isinstance(checkpoint, GgufCheckpoint)
        return checkpoint.quantized(f"{name}.weight", shape, rows)


def _name(name: str) -> str:
    """Hugging Face's name; a tensor without one keeps its own, and is later refused by it."""
    whole, _, kind = name.rpartition(".")
    if whole in _WHOLE_NAMES:
        return f"{_WHOLE_NAMES[whole]}.{kind}"
    found = _IN_LAYER.fullmatch(name)
    if found is None or found[2] not in _LAYER_NAMES:
        return name
    return f"model.layers.{found[1]}.{_LAYER_NAMES[found[2]]}.{found[3]}"
