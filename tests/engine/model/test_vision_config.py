"""Vision towers as `config.json` describes them: what would not fit, or has no layer here, is refused by its field."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.fit.fit_check import read_shape
from fairlead_common.models.image_settings import read_image_settings
from fairlead_common.models.rope_config import RopeConfig
from fairlead_engine.errors import ModelLoadError
from fairlead_engine_testing.vision_checkpoints import write_vision_model

WRONG: dict[str, tuple[str, str, Any, str]] = {
    "no square": ("vision_config", "num_position_embeddings", 48, "num_position_embeddings .*must be the square of"),
    "no layer": ("vision_config", "deepstack_visual_indexes", [0, 3], "must be layers below depth"),
    "unordered": ("vision_config", "deepstack_visual_indexes", [2, 0], "must be layers below depth"),
    "too deep": ("vision_config", "deepstack_visual_indexes", [0, 1, 2], "must be fewer than num_hidden_layers"),
    "another activation": ("vision_config", "hidden_act", "silu", "hidden_act.*gelu_pytorch_tanh is supported"),
    "odd heads": ("vision_config", "num_heads", 3, "num_heads .*must divide hidden_size"),
    "narrow": ("vision_config", "out_hidden_size", 16, "out_hidden_size .*must be the decoder's hidden_size"),
    "grey": ("vision_config", "in_channels", 1, "in_channels.*images have three channels"),
    "sections": (
        "rope_parameters",
        "mrope_section",
        [4, 4, 4],
        "mrope_section.* that add up to 8",
    ),
    "no token": ("", "image_token_id", 10**6, "image_token_id .*must be below vocab_size"),
    "no tower": ("", "vision_config", {}, "vision_config .*must say what the vision tower is made of"),
}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return (write_vision_model(tmp_path_factory.mktemp("vision"), "qwen3_vl") / "config.json").read_text()


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(case: str, content: str) -> None:
    section, name, value, problem = WRONG[case]
    fields = json.loads(content)
    place = {"": fields, "vision_config": fields["vision_config"]}.get(section, fields["text_config"].get(section))
    place[name] = value
    with pytest.raises(ModelLoadError, match=problem):
        read_shape(fields)


def test_places_take_turns_as_long_as_rows_and_columns_have_pairs() -> None:
    mixed = RopeConfig(theta=1e6, sections=(24, 20, 20), are_sections_mixed=True)
    assert mixed.axes == [0, 1, 2] * 20 + [0] * 4
    assert RopeConfig(theta=1e6, sections=(2, 3, 3)).axes == [0, 0, 1, 1, 1, 2, 2, 2]
    assert RopeConfig(theta=1e6).axes == []


def test_a_processor_of_newer_files_bounds_pixels_by_edges(tmp_path: Path) -> None:
    published = {
        "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536}, "patch_size": 16, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast",
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(published))
    settings = read_image_settings(tmp_path, 151_655)
    assert (settings.factor, settings.min_pixels, settings.max_pixels) == (32, 65_536, 16_777_216)
    assert settings.grid(700, 1000) == (22, 31)
    assert settings.most_tokens == 16_384
