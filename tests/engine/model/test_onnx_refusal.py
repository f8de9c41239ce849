"""Models of which there is nothing but an ONNX graph: refused by name, with what to do."""

from pathlib import Path

import pytest
import torch

from fairlead_engine.demo import resolve_model
from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.encoders import load_encoder, read_encoder_config
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.encoder_checkpoints import write_encoder
from fairlead_engine_testing.tiny_families.dense import llama_fields

CPU = torch.device("cpu")
SAYS = r"has weights as ONNX alone \({0}\).*name the checkpoint that it was exported from"


def exported(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\x08\x07")
    return folder


@pytest.mark.parametrize("names", [("model.onnx", "model.onnx.data"), ("onnx/model.onnx",)])
def test_a_folder_without_a_configuration(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=SAYS.format(names[0])) as raised:
        resolve_model(str(exported(tmp_path, *names)))
    assert raised.value.reason == ModelLoadReason.UNSUPPORTED_ARCHITECTURE


def test_a_file_itself(tmp_path: Path) -> None:
    exported(tmp_path, "model.onnx")
    with pytest.raises(ModelLoadError, match=SAYS.format("model.onnx")):
        resolve_model(str(tmp_path / "model.onnx"))


def test_a_folder_with_a_configuration_and_graphs(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    exported(folder, *(f"onnx/model_{each}.onnx" for each in ("a", "b", "c", "d")))
    config = read_config(folder)
    load_model(folder, config, torch.float32, CPU)  # the graphs beside are left aside
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=SAYS.format(r"onnx/model_a\.onnx, .* and others")):
        load_model(folder, config, torch.float32, CPU)


def test_an_encoder(tmp_path: Path) -> None:
    write_encoder(tmp_path, "bert")
    (tmp_path / "model.safetensors").unlink()
    exported(tmp_path, "model.onnx")
    with pytest.raises(ModelLoadError, match=SAYS.format("model.onnx")):
        load_encoder(tmp_path, read_encoder_config(tmp_path), torch.float32, CPU)


def test_a_folder_with_neither_says_what_is_missing(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields())
    (folder / "model.safetensors").rename(folder / "weights.bin")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors does not exist"):
        load_model(folder, read_config(folder), torch.float32, CPU)
