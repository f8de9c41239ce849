"""The arithmetic against what is published of well-known models: parameters, sizes of files, and cache for a token.

Each file in `configs` has the fields of a `config.json` that decide, and the figures with where they are from; `within`
is the relative error of a figure that is published in billions.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.fit.fit_check import read_shape, undivided
from fairlead.fit.memory_need import EngineChoice, kv_block_bytes, reckon, weight_bytes
from fairlead_common.models.choices import DeviceKind

CONFIGS = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "configs").glob("*"))}
WITHIN = 0.05
BLOCK = 16


def test_there_are_enough_and_each_says_where_its_figures_are_from() -> None:
    assert len(CONFIGS) >= 20
    for each in CONFIGS.values():
        assert {"parameters_from", "file_bytes_from", "kv_from"} < set(each["published"])


@pytest.mark.parametrize("model", CONFIGS.values(), ids=list(CONFIGS))
def test_parameters_and_files_are_those_that_are_published(model: dict[str, Any]) -> None:
    shape, published = read_shape(model["config"]), model["published"]
    within = published.get("within", 1e-6)
    assert shape.num_parameters == pytest.approx(published["parameters"], rel=within)
    assert shape.stored_bytes == pytest.approx(published["file_bytes"], rel=max(within, 1e-4))


@pytest.mark.parametrize("model", CONFIGS.values(), ids=list(CONFIGS))
def test_weights_and_cache_in_memory_are_within_five_percent(model: dict[str, Any]) -> None:
    shape, published = read_shape(model["config"]), model["published"]
    weights = weight_bytes(shape, EngineChoice(), DeviceKind.CUDA, 2)
    if shape.stored is None:
        assert weights == pytest.approx(published["file_bytes"], rel=WITHIN)
    else:  # kept as 8-bit numbers where a GPU has no product of fewer bits, and guessing layers stay on the disk
        assert published["parameters"] * 0.99 < weights < published["parameters"] * 1.3
    block = kv_block_bytes(shape, EngineChoice(), 2)
    assert block / BLOCK == pytest.approx(published["kv_bytes_per_token"], rel=WITHIN)


@pytest.mark.parametrize("model", CONFIGS.values(), ids=list(CONFIGS))
def test_ranks_have_their_part(model: dict[str, Any]) -> None:
    """What all ranks have is the model, and what each of them must have whole, as heads that they share."""
    shape = replace(read_shape(model["config"]), vision=None)  # each rank has the tower whole
    whole = reckon(shape, EngineChoice(), DeviceKind.CUDA)
    for ranks in (2, 4, 8):
        if undivided(shape, ranks):
            continue
        part = reckon(shape, EngineChoice(ranks=ranks), DeviceKind.CUDA)
        assert whole.weights / ranks <= part.weights <= whole.weights * (1 / ranks + 0.025)
        assert whole.kv_block / ranks <= part.kv_block <= whole.kv_block
