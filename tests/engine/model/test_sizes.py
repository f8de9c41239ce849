"""What a configuration says a model takes, against what is loaded and laid out; and registries by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead.fit.fit_check import read_shape
from fairlead.fit.memory_need import EngineChoice, adapter_bytes, weight_bytes
from fairlead_common.models.choices import DeviceKind, Quantization
from fairlead_common.models.families.registry import ARCHITECTURES, ENCODERS
from fairlead_common.models.model_config import ModelConfig
from fairlead_common.models.weight_formats import ROUNDED
from fairlead_engine.model.encoders import ENCODERS as BUILT_ENCODERS
from fairlead_engine.model.families import BUILDERS
from fairlead_engine.model.linear import can_pack
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.model.quantization.int4_weight_only import can_pack_int4
from fairlead_engine.model.quantization.int8 import can_pack_int8
from fairlead_engine.model.shard import ALONE, Shard
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.quantized_checkpoints import (
    write_awq,
    write_compressed_tensors,
    write_finegrained_fp8,
    write_gptq,
    write_mxfp4,
    write_nvfp4,
)
from fairlead_engine_testing.tiny_families import FAMILIES as TINY
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.vision_checkpoints import VISION_KINDS, write_vision_model

CPU = torch.device("cpu")
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "vocab_size": 512}
"""Large enough for what this CPU packs to be as wide as it is counted."""


def shape_of(folder: Path) -> ModelConfig:
    return read_shape(json.loads((folder / "config.json").read_text()))


def loaded_bytes(folder: Path, dtype: torch.dtype, quantization: str | None = None, shard: Shard = ALONE) -> int:
    return load_model(folder, read_config(folder), dtype, CPU, quantization, shard).weight_bytes


def files_bytes(folder: Path) -> int:
    """Of all tensors, without the headers."""
    total = 0
    for path in folder.glob("*.safetensors"):
        content = path.read_bytes()
        total += len(content) - 8 - int.from_bytes(content[:8], "little")
    return total


def test_every_name_has_what_computes_it() -> None:
    assert set(BUILDERS) == {name for name, family in ARCHITECTURES.items() if family.built_as is None}
    assert {family.built_as for family in ARCHITECTURES.values() if family.built_as} <= set(BUILDERS)
    assert set(BUILT_ENCODERS) == set(ENCODERS)
    assert set(ROUNDED) == set(Quantization)


@pytest.mark.matrix
@pytest.mark.parametrize(("family", "ranks"), [*((name, ranks) for name in TINY for ranks in (1, 2)), ("bamba", 4)])
def test_weights_take_what_the_engine_counts(family: str, ranks: int, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, TINY[family]())
    shape = shape_of(folder)
    config = read_config(folder)
    model = load_model(folder, config, torch.float32, CPU)
    assert shape.num_parameters == model.num_parameters
    assert shape.num_parameters * 4 == files_bytes(folder)
    expected = weight_bytes(shape, EngineChoice(ranks=ranks), device(torch.float32), 4)
    found = loaded_bytes(folder, torch.float32, shard=Shard(0, ranks))
    assert found == pytest.approx(expected, rel=0.001)


def device(dtype: torch.dtype) -> DeviceKind:
    """What counts a tied output projection as the engine does here: twice where a CPU packs."""
    return DeviceKind.CPU if can_pack(dtype) else DeviceKind.CUDA


def test_a_tied_output_projection_is_counted_as_the_engine_keeps_it(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, llama_fields(tie_word_embeddings=True))
    shape = shape_of(folder)
    assert loaded_bytes(folder, torch.float32) == weight_bytes(shape, EngineChoice(), device(torch.float32), 4)
    assert files_bytes(folder) == shape.num_parameters * 4


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_weights_take_what_the_engine_counts(name: str, tmp_path: Path) -> None:
    packs = {"int8": can_pack_int8(), "int4-weight-only": can_pack_int4(torch.float32)}.get(name, True)
    if not packs:
        pytest.skip("this CPU has no product for it")
    folder = write_random_checkpoint(tmp_path, llama_fields(**WIDE))
    expected = weight_bytes(shape_of(folder), EngineChoice(quantization=name), DeviceKind.CPU, 4)
    assert loaded_bytes(folder, torch.float32, name) == pytest.approx(expected, rel=0.001)


Writer = Callable[[Path, Path, Path], Any]
STORED: dict[str, tuple[str, Writer]] = {
    "gptq": ("llama", lambda floats, target, meant: write_gptq(floats, target, meant)),
    "gptq of 8 bits": ("llama", lambda floats, target, meant: write_gptq(floats, target, meant, num_bits=8)),
    "gptq with zeros": ("llama", lambda floats, target, meant: write_gptq(floats, target, meant, has_zeros=True)),
    "awq": ("llama", lambda floats, target, meant: write_awq(floats, target, meant)),
    "awq without zeros": ("llama", lambda floats, target, meant: write_awq(floats, target, meant, has_zeros=False)),
    "fp8 by blocks": ("qwen3", lambda floats, target, meant: write_finegrained_fp8(floats, target, (128, 128))),
    "fp8": ("qwen3", lambda floats, target, meant: write_finegrained_fp8(floats, target, None)),
    "compressed int8": ("llama", lambda floats, target, meant: write_compressed_tensors(floats, target, "int8")),
    "compressed fp8": ("llama", lambda floats, target, meant: write_compressed_tensors(floats, target, "fp8")),
    "compressed int4": (
        "llama",
        lambda floats, target, meant: write_compressed_tensors(floats, target, "int4-weight-only"),
    ),
    "mxfp4": ("gpt_oss", lambda floats, target, meant: write_mxfp4(floats, target)),
    "nvfp4": ("llama", lambda floats, target, meant: write_nvfp4(floats, target)),
    "compressed nvfp4": ("llama", lambda floats, target, meant: write_nvfp4(floats, target, "compressed-tensors")),
}


@pytest.mark.parametrize("case", STORED)
def test_stored_integers_take_what_the_engine_counts(case: str, tmp_path: Path) -> None:
    family, write = STORED[case]
    floats = write_random_checkpoint(tmp_path / "floats", TINY[family](**WIDE))
    folder = write(floats, tmp_path / "stored", tmp_path / "meant")
    shape = shape_of(folder)
    assert shape.stored is not None
    packs = not shape.stored.name.startswith("int4") or can_pack_int4(torch.float32)
    kind = DeviceKind.CPU if packs else DeviceKind.CUDA
    expected = weight_bytes(shape, EngineChoice(), kind, 4)
    assert loaded_bytes(folder, torch.float32) == pytest.approx(expected, rel=0.02)
    # Files of these tests have float32 beside, and indices, shapes and biases of zeros that a model of size has not.
    assert files_bytes(folder) == pytest.approx(shape.stored_bytes, rel=0.05)


@pytest.mark.parametrize("kind", VISION_KINDS)
def test_a_vision_tower_is_counted(kind: str, tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, kind)
    shape = shape_of(folder)
    model = load_model(folder, read_config(folder), torch.float32, CPU)
    assert shape.num_parameters * 4 == files_bytes(folder)
    assert shape.num_parameters == model.num_parameters
    assert model.weight_bytes == weight_bytes(shape, EngineChoice(), device(torch.float32), 4)


@pytest.mark.matrix
@pytest.mark.parametrize(("family", "ranks"), [*((name, ranks) for name in TINY for ranks in (1, 2)), ("bamba", 4)])
def test_places_of_adapters_take_what_the_engine_lays_out(family: str, ranks: int, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, TINY[family]())
    config = read_config(folder)
    slots = AdapterSlots(3, 8, torch.float32, CPU, hidden_size=config.hidden_size, expert_rank=5)
    load_model(folder, config, torch.float32, CPU, None, Shard(0, ranks), slots=slots)
    choice = EngineChoice(ranks=ranks, num_adapters=3, adapter_rank=8, expert_rank=5)
    assert adapter_bytes(shape_of(folder), choice, 4) == slots.num_bytes > 0
