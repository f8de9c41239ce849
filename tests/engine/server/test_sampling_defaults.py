"""What a model's makers recommend is the default, and what a request says overrides it."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.api.sampling import chat_sampling, completion_sampling, for_choice, model_defaults
from fairlead_engine.api.schemas import ChatRequest, CompletionRequest
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.types import MAX_SEED, SamplingParams


def write(folder: Path, content: Any) -> Path:
    (folder / "generation_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_recommended_values_are_read_and_everything_else_is_left(tmp_path: Path) -> None:
    content = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "do_sample": True, "min_p": None}
    assert model_defaults(write(tmp_path, content)) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    found = model_defaults(write(tmp_path, {"temperature": 1, "top_k": 20.0}))
    assert [(name, type(value)) for name, value in found.items()] == [("temperature", float), ("top_k", int)]


def test_a_model_without_recommendations_has_openais_defaults(tmp_path: Path) -> None:
    assert model_defaults(tmp_path) == {}
    assert chat_sampling(ChatRequest(model="m", messages=[]), {}, encode) == SamplingParams()


def test_a_request_overrides_the_recommendation_field_by_field() -> None:
    defaults = {"temperature": 0.6, "top_k": 20}
    sampling = chat_sampling(ChatRequest(model="m", messages=[], temperature=0.0), defaults, encode)
    assert (sampling.temperature, sampling.top_k) == (0.0, 20)
    assert completion_sampling(CompletionRequest(model="m", prompt=""), defaults, encode).temperature == 0.6


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "[" * 5000, {"temperature": -1}, {"top_p": "much"}, {"top_k": 1.5}, {"top_k": True}, {"min_p": {}}],
)
def test_a_recommendation_that_cannot_be_used_names_its_file(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"generation_config\.json") as caught:
        model_defaults(write(tmp_path, content))
    assert caught.value.reason == "ModelConfigInvalid"


def test_the_seed_of_a_later_choice_stays_in_range() -> None:
    sampling = SamplingParams(seed=MAX_SEED)
    assert for_choice(sampling, 0).seed == MAX_SEED
    assert for_choice(sampling, 1).seed == -MAX_SEED - 1
    assert for_choice(SamplingParams(), 3).seed is None
