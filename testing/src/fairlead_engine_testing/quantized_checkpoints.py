"""Checkpoints with quantised weights, in the layouts that others publish, made of ones with float weights.

The rounding is the product's own, so that a checkpoint equals what is rounded at load; the layout is written here.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

from fairlead_engine.model.quantization.formats import FORMATS
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, quantize_weight

WEIGHTS = "model.safetensors"
_LAYOUTS = {"int8": "int-quantized", "fp8": "float-quantized"}
_BITS = {"int4-weight-only": 4}


def is_quantized(name: str) -> bool:
    """Whether the tensor is the weight of a linear layer, but for the output projection's and routers'."""
    return name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def write_dequantized(folder: Path, target: Path, name: str) -> Path:
    """The checkpoint in `folder` with every weight replaced by what is left of it in the format."""
    return _rewrite(folder, target, {}, lambda key, weight: {key: FORMATS[name].quantize(weight).dequantized()})


def write_compressed_tensors(folder: Path, target: Path, name: str) -> Path:
    """As compressed-tensors stores the format; weight-only ones are packed."""
    is_packed = name not in _LAYOUTS
    num_bits = _BITS.get(name, 8)
    weights: dict[str, Any] = {"type": "float" if name == "fp8" else "int", "num_bits": num_bits, "symmetric": True}
    weights |= {"strategy": "group", "group_size": 32} if num_bits == 4 else {"strategy": "channel"}
    activations = {**weights, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None if is_packed else activations}
    config = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": _LAYOUTS.get(name, "pack-quantized"),
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*block_sparse_moe.gate"],
    }

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        found = FORMATS[name].quantize(weight)
        if not is_packed:
            return {key: found.values, f"{key}_scale": found.scales}
        shape = torch.tensor(weight.shape)
        return {f"{key}_packed": packed(found, num_bits), f"{key}_scale": found.scales, f"{key}_shape": shape}

    return _rewrite(folder, target, config, stored)


def write_finegrained_fp8(folder: Path, target: Path, block: tuple[int, int] | None) -> Path:
    """As Hugging Face's `quant_method: fp8`, with a scale for each block, or for a whole weight."""
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block and list(block)}

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        rows, columns = block or weight.shape
        values, scales = torch.empty_like(weight, dtype=torch.float8_e4m3fn), []
        for top in range(0, weight.shape[0], rows):
            for left in range(0, weight.shape[1], columns):
                part = weight[top : top + rows, left : left + columns]
                found = quantize_weight(part.reshape(1, -1), torch.float8_e4m3fn, largest=448, low=-448, high=448)
                values[top : top + rows, left : left + columns] = found.values.view(part.shape)
                scales.append(found.scales.view(()))
        shape = (-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)) if block else ()
        return {key: values, f"{key}_scale_inv": torch.stack(scales).view(shape)}

    return _rewrite(folder, target, config, stored)


def packed(weight: QuantizedWeight, num_bits: int) -> Tensor:
    """int32 [rows, words] of the integers, half their range added, the first in the lowest bits."""
    per_word = 32 // num_bits
    unsigned = weight.values.long() + 2 ** (num_bits - 1)
    words = pad(unsigned, (0, -unsigned.shape[1] % per_word)).view(len(unsigned), -1, per_word)
    joined: Tensor = (words << torch.arange(0, 32, num_bits)).sum(-1)
    return joined.to(torch.uint32).view(torch.int32)


def _rewrite(
    folder: Path, target: Path, quantization: dict[str, Any], stored: Callable[[str, Tensor], dict[str, Tensor]]
) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        if file.name != WEIGHTS:
            shutil.copy(file, target)
    if quantization:
        config = json.loads((folder / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for key, weight in load_file(folder / WEIGHTS).items():
            yield from (stored(key, weight) if is_quantized(key) else {key: weight}).items()

    save_file(dict(tensors()), target / WEIGHTS, metadata={"format": "pt"})
    return target
