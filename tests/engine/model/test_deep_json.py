"""JSON of a model, or of its answers, with more brackets than Python reads or writes: named, and no crash."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.api.answers.answer_formats import choose_formats
from fairlead_engine.api.answers.answer_text import AnswerSource, CallArguments, CallBegun
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.tokenizer_files import check_same_tokens
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.tiny_families.dense import llama_fields

DEEP = "[" * 100_000
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "hf_quant_config.json"])
def test_configurations(name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    (folder / name).write_text(DEEP)
    with pytest.raises(ModelLoadError, match=rf"{name} cannot be read as JSON"):
        read_config(folder)


def test_an_index(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    (folder / "model.safetensors.index.json").write_text(DEEP)
    with pytest.raises(ModelLoadError, match=r"index\.json has no usable weight_map"):
        load_model(folder, read_config(folder), torch.float32, CPU)


def test_a_value_that_cannot_be_written() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    error = JsonFields(Path("config.json"), {"vocab_size": deep}).invalid("vocab_size", "must be a positive integer")
    assert "vocab_size is lists and objects deep within one another but must be a positive integer" in error.message


def test_tokenizers_that_are_compared(tmp_path: Path) -> None:
    for name, text in (("a", DEEP), ("b", DEEP + " ")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match="is no tokenizer"):
        check_same_tokens(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral", "glm45", "pythonic"])
@pytest.mark.parametrize("end", ["", "]" * 100_000 + "}"])
def test_arguments_of_calls(name: str, end: str) -> None:
    tools = choose_formats(None, name, "none").tools
    assert tools is not None
    shape = tools.shape
    source = AnswerSource()
    source.add(shape.begin + shape.first + shape.before.replace("{name}", "f") + '{"a": ' + DEEP + end)
    source.is_over = True
    parts = list(tools.read(source, {"f": {"type": "object"}}))
    written = "".join(part.text for part in parts if isinstance(part, CallArguments))
    if any(isinstance(part, CallBegun) for part in parts) and end:
        with pytest.raises((RecursionError, ValueError)):
            json.loads(written)


FILES = ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json"]


@pytest.mark.parametrize("name", FILES)
def test_folders_in_the_place_of_files(name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(ModelLoadError, match=name.replace(".", r"\.")):
        load_model(folder, read_config(folder), torch.float32, CPU)
