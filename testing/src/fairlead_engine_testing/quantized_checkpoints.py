"""Checkpoints with quantised weights, in the layouts that others publish, made of ones with float weights.

The rounding is the product's own, so that a checkpoint equals what is rounded at load; the layout is written here.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, quantize_weight
from fairlead_engine.model.quantization.stored import FORMATS

WEIGHTS = "model.safetensors"
_LAYOUTS = {"int8": "int-quantized", "fp8": "float-quantized"}
_BITS = {"int4-weight-only": 4}
TRANSPOSED = ("gpt_oss", "llama4_text")
"""`model_type` of families whose experts are stacked with inputs as rows."""


def is_quantized(name: str) -> bool:
    """Whether the tensor is the weight of a linear layer, or of several experts', but for the output projection's,
    routers', indexers' and gates' of heads."""
    linear = (
        "_proj.weight", "_proj_with_mqa.weight", ".w1.weight", ".w2.weight", ".w3.weight", "in_proj_qkvz.weight",
        "in_proj_qkv.weight", "in_proj_z.weight", "put_linear.weight", "per_layer_input_gate.weight",
        "per_layer_projection.weight",
    )  # fmt: skip
    experts = (".experts.gate_up_proj", ".experts.down_proj")
    return name.endswith((*linear, *experts)) and ".indexer." not in name and ".self_attn.g" not in name


def write_dequantized(folder: Path, target: Path, name: str) -> Path:
    """The checkpoint in `folder` with every weight replaced by what is left of it in the format."""
    is_transposed = json.loads((folder / "config.json").read_text())["model_type"] in TRANSPOSED

    def meant(key: str, weight: Tensor) -> dict[str, Tensor]:
        if key.endswith(".kv_b_proj.weight"):  # makes keys and values of latents, and keeps its precision
            return {key: weight}
        if weight.ndim == 3 and not is_transposed:  # stacked
            return {key: torch.stack([FORMATS[name].quantize(each).dequantized() for each in weight])}
        if weight.ndim == 3:
            return {key: torch.stack([FORMATS[name].quantize(each.t()).dequantized().t() for each in weight])}
        return {key: FORMATS[name].quantize(weight).dequantized()}

    return _rewrite(folder, target, {}, meant)


def write_mxfp4(folder: Path, target: Path) -> Path:
    """As gpt-oss is stored: each group of 32 inputs rounded to 4-bit floats times a power of two."""
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        if weight.ndim == 2:
            return {key: weight}
        groups = weight.transpose(1, 2).reshape(len(weight), weight.shape[2], -1, 32)
        exponents = (groups.abs().amax(-1) / 6.0).log2().ceil().int()
        scaled = torch.ldexp(groups, -exponents.unsqueeze(-1))
        codes = (scaled.abs().unsqueeze(-1) - steps).abs().argmin(-1) + 8 * (scaled < 0)
        blocks = codes[..., ::2] + 16 * codes[..., 1::2]
        return {f"{key}_blocks": blocks.to(torch.uint8), f"{key}_scales": (exponents + 127).to(torch.uint8)}

    return _rewrite(folder, target, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, stored)


def float4(weight: Tensor, scales: Tensor) -> Tensor:
    """uint8 [rows, columns / 2]: the nearest 4-bit floats, scaled for each few columns, the first in the lower half."""
    steps = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    scaled = weight.reshape(*scales.shape, -1) / scales.unsqueeze(-1)
    codes = (scaled.abs().unsqueeze(-1) - steps).abs().argmin(-1) + 8 * (scaled < 0)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).flatten(1).to(torch.uint8)


def write_nvfp4(folder: Path, target: Path, by: str = "modelopt", *, beside: bool = False) -> Path:
    """As ModelOpt or compressed-tensors stores NVFP4. `beside`: the quantisation stands in ModelOpt's own file."""
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    activations = {**weights, "dynamic": "local"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    config: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
    }
    algorithm = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}
    if by == "modelopt":
        config = {"quant_method": "modelopt", **algorithm, "exclude_modules": ["lm_head", "model.layers.9*"]}

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        name = key.removesuffix(".weight")
        largest = weight.float().view(len(weight), -1, 16).abs().amax(-1) / 6
        whole = largest.amax() / 448
        scales = (largest / whole).to(torch.float8_e4m3fn)
        codes = float4(weight.float(), scales.float().clamp(min=2**-9) * whole)
        if by == "modelopt":
            found = {key: codes, f"{name}.weight_scale_2": whole}
        else:
            found = {f"{key}_packed": codes, f"{name}.weight_global_scale": (1 / whole).view(1)}
        measured = "input_scale" if by == "modelopt" else "input_global_scale"
        return found | {f"{name}.weight_scale": scales, f"{name}.{measured}": torch.tensor([3.0])}

    _rewrite(folder, target, {} if beside else config, stored)
    if beside:
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": config})
        (target / "hf_quant_config.json").write_text(text)
    return target


def write_compressed_tensors(folder: Path, target: Path, name: str) -> Path:
    """As compressed-tensors stores the format; weight-only ones are packed."""
    is_packed = name not in _LAYOUTS
    num_bits = _BITS.get(name, 8)
    weights: dict[str, Any] = {"type": "float" if name == "fp8" else "int", "num_bits": num_bits, "symmetric": True}
    weights |= {"strategy": "group", "group_size": 32} if num_bits == 4 else {"strategy": "channel"}
    activations = {**weights, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None if is_packed else activations}
    config: dict[str, Any] = {
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
    """As Hugging Face's `quant_method: fp8`, with a scale for each block, or for a whole weight; of indexers, too.
    Experts in one tensor have their scales in one, and the largest of what they read, measured once for all."""
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block and list(block)}

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        if weight.ndim == 3:
            each = [stored("", one) for one in weight]
            scales_of_all = torch.stack([one["_scale_inv"] for one in each])
            return {
                key: torch.stack([one[""] for one in each]),
                f"{key}_scale_inv": scales_of_all.view(-1, 1, 1) if block is None else scales_of_all,
                f"{key}_activation_scale": torch.ones(len(weight)),
            }
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

    indexers = (".indexer.wq_b.weight", ".indexer.wk.weight")
    return _rewrite(
        folder, target, config, stored, [key for key in load_file(folder / WEIGHTS) if key.endswith(indexers)]
    )


def write_gptq(
    folder: Path,
    target: Path,
    meant: Path,
    *,
    num_bits: int = 4,
    group_size: int = 32,
    act_order: bool = False,
    has_zeros: bool = False,
    version: int = 1,
    with_head: bool = False,
) -> Path:
    """As GPTQModel stores it, rounded to nearest; `meant` gets the floats that the integers mean. `act_order`: columns
    are grouped by chance, in each layer otherwise. `group_size` -1 = one group."""
    layout, floats = {1: "gptq", 2: "gptq_v2"}[version], load_file(folder / WEIGHTS)
    config = {"quant_method": "gptq", "bits": num_bits, "group_size": group_size, "desc_act": act_order}
    config |= {"sym": not has_zeros, "checkpoint_format": layout, "lm_head": with_head}

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        columns, name = weight.shape[1], key.removesuffix(".weight")
        groups = torch.arange(columns) // (columns if group_size == -1 else group_size)
        if act_order:
            groups = groups[torch.randperm(columns, generator=torch.Generator().manual_seed(len(name)))]
        values, zeros, scales = _rounded_by_group(weight, groups, num_bits, has_zeros)
        last = 2**num_bits - 1
        found = {
            f"{name}.qweight": _words(values.t(), num_bits, dim=0),
            f"{name}.qzeros": _words(zeros.t() - 1 & last if version == 1 else zeros.t(), num_bits, dim=1),
            f"{name}.scales": scales.t().contiguous(),
            f"{name}.g_idx": groups.to(torch.int32),
        }
        if f"{name}.bias" not in floats:  # some have one of zeros where the model has none
            found[f"{name}.bias"] = torch.zeros(len(weight), dtype=torch.float16)
        return found

    def left(key: str, weight: Tensor) -> dict[str, Tensor]:
        parts = stored(key, weight)
        return {key: _left_of(weight, parts[f"{key.removesuffix('.weight')}.g_idx"].long(), num_bits, has_zeros)}

    head = ("lm_head.weight",) if with_head else ()
    _rewrite(folder, meant, {}, left, head)
    return _rewrite(folder, target, config, stored, head)


def write_awq(
    folder: Path, target: Path, meant: Path, *, group_size: int = 32, has_zeros: bool = True, with_head: bool = False
) -> Path:
    """As AutoAWQ's gemm version stores it, rounded to nearest; `meant` gets the floats that the integers mean."""
    config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "zero_point": has_zeros, "version": "gemm"}
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def interleaved(values: Tensor) -> Tensor:
        return values.reshape(len(values), -1, 8)[:, :, order].flatten(1)

    def groups_of(weight: Tensor) -> Tensor:
        return torch.arange(weight.shape[1]) // group_size

    def stored(key: str, weight: Tensor) -> dict[str, Tensor]:
        name = key.removesuffix(".weight")
        values, zeros, scales = _rounded_by_group(weight, groups_of(weight), 4, has_zeros)
        found = {
            f"{name}.qweight": _words(interleaved(values.t()), 4, dim=1),
            f"{name}.scales": scales.t().contiguous(),
        }
        return found | ({f"{name}.qzeros": _words(interleaved(zeros.t()), 4, dim=1)} if has_zeros else {})

    head = ("lm_head.weight",) if with_head else ()
    _rewrite(folder, meant, {}, lambda key, weight: {key: _left_of(weight, groups_of(weight), 4, has_zeros)}, head)
    return _rewrite(folder, target, config, stored, head)


def _rounded_by_group(weight: Tensor, groups: Tensor, num_bits: int, has_zeros: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Unsigned integers int64 [rows, columns], zero points int64 and scales float16 [rows, groups]."""
    last = 2**num_bits - 1
    values, zeros, scales = torch.empty_like(weight, dtype=torch.int64), [], []
    for group in range(int(groups.max()) + 1):
        part = weight[:, groups == group].float()
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if not has_zeros:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / last).half()
        zero = (-low / scale.float()).round().long() if has_zeros else torch.full_like(low, (last + 1) // 2).long()
        values[:, groups == group] = ((part / scale.float()[:, None]).round().long() + zero[:, None]).clamp(0, last)
        zeros.append(zero)
        scales.append(scale)
    return values, torch.stack(zeros, 1), torch.stack(scales, 1)


def _left_of(weight: Tensor, groups: Tensor, num_bits: int, has_zeros: bool) -> Tensor:
    values, zeros, scales = _rounded_by_group(weight, groups, num_bits, has_zeros)
    return ((values - zeros[:, groups]) * scales.float()[:, groups]).to(weight.dtype)


def _words(values: Tensor, num_bits: int, dim: int) -> Tensor:
    """int32, of unsigned integers packed along a dimension, the first in the lowest bits."""
    lines = values if dim == 1 else values.t()
    shifts = torch.arange(0, 32, num_bits)
    joined = (lines.reshape(len(lines), -1, 32 // num_bits) << shifts).sum(-1)
    words: Tensor = joined.to(torch.uint32).view(torch.int32)
    return words if dim == 1 else words.t().contiguous()


def packed(weight: QuantizedWeight, num_bits: int) -> Tensor:
    """int32 [rows, words] of the integers, half their range added, the first in the lowest bits."""
    per_word = 32 // num_bits
    unsigned = weight.values.long() + 2 ** (num_bits - 1)
    words = pad(unsigned, (0, -unsigned.shape[1] % per_word)).view(len(unsigned), -1, per_word)
    joined: Tensor = (words << torch.arange(0, 32, num_bits)).sum(-1)
    return joined.to(torch.uint32).view(torch.int32)


def _rewrite(
    folder: Path,
    target: Path,
    quantization: dict[str, Any],
    stored: Callable[[str, Tensor], dict[str, Tensor]],
    others: Sequence[str] = (),
) -> Path:
    """`others`: what is quantised, too, beside the weights of linear layers."""
    target.mkdir()
    for file in folder.iterdir():
        if file.name != WEIGHTS:
            shutil.copy(file, target)
    if quantization:
        config = json.loads((folder / "config.json").read_text())
        (target / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for key, weight in load_file(folder / WEIGHTS).items():
            yield from (stored(key, weight) if is_quantized(key) or key in others else {key: weight}).items()

    save_file(dict(tensors()), target / WEIGHTS, metadata={"format": "pt"})
    return target
