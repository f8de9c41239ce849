"""Weights that are no safetensors: pickled ones are written anew and no code of theirs runs, GGUF stays as it is."""

import asyncio
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.demo import resolve_model
from fairlead_engine.sources import pickled_weights
from fairlead_engine.sources.downloader import DownloadOrders, download, free_bytes
from fairlead_engine.sources.models_folder import ModelsFolder, read_manifest
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine.sources.reporting import Reporter
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.encoder_checkpoints import write_encoder, write_sentence_modules
from fairlead_engine_testing.gguf_files import write_gguf
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub
from fairlead_engine_testing.tiny_families.dense import llama_fields

SOURCE = "hf://acme/cutter"
PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40))]


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model") / "floats", llama_fields(intermediate_size=128))


def fetch(hub: LoopbackHub, folder: Path, models: Path, source: str = SOURCE) -> Path:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    hub.models = {"acme/cutter": HubModel({"main": files})}
    return asyncio.run(download(DownloadOrders(source, ModelsFolder(models)), Reporter(source)))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".fairlead.json"}


def pickled(floats: Path, folder: Path, shards: int, suffix: str = "bin") -> Path:
    """The checkpoint as torch.save writes it, in one file or in several with an index."""
    folder.mkdir()
    (folder / "config.json").write_bytes((floats / "config.json").read_bytes())
    tensors = list(load_file(floats / "model.safetensors").items())
    if shards == 1:
        torch.save(dict(tensors), folder / f"pytorch_model.{suffix}")
        return folder
    weight_map = {}
    for index in range(shards):
        file, part = f"pytorch_model-{index + 1:05}-of-{shards:05}.{suffix}", dict(tensors[index::shards])
        torch.save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / f"pytorch_model.{suffix}.index.json").write_text(index_text)
    return folder


@pytest.mark.parametrize("shards", [1, 2])
def test_a_pickled_model_answers_as_transformers_reads_it(
    hub: LoopbackHub, floats: Path, shards: int, reference, tmp_path: Path
) -> None:
    folder = pickled(floats, tmp_path / "pickled", shards)
    model = fetch(hub, folder, tmp_path / "models")
    files = (
        {"model.safetensors"}
        if shards == 1
        else {
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        }
    )
    assert names(model) == {"config.json"} | files
    manifest = read_manifest(model)
    assert manifest is not None and {file.path for file in manifest.files} == names(model)
    for prompt, output in zip(PROMPTS, greedy_answers(small_engine(model), PROMPTS, 8), strict=True):
        reference.check_greedy(folder, prompt, output)


def test_pickled_dense_modules_of_an_embedder_are_fetched_and_written_anew(hub: LoopbackHub, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "source", "bert")
    [dense] = write_sentence_modules(folder, dense=(20,))
    weights = folder / "2_Dense" / "model.safetensors"
    torch.save(load_file(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    model = fetch(hub, folder, tmp_path / "models")
    assert names(model / "2_Dense") == {"config.json", "model.safetensors"}
    assert load_file(model / "2_Dense" / "model.safetensors")["linear.weight"].equal(dense.weight)
    weights.with_name("pytorch_model.bin").write_bytes(pickle.dumps(print))
    with pytest.raises(DownloadError, match=r"pytorch_model\.bin .*nothing of it was run"):
        fetch(hub, folder, tmp_path / "others")


def test_a_gguf_stays_as_it_is_and_answers_as_what_its_blocks_mean(
    hub: LoopbackHub, floats: Path, reference, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_gguf(floats, source / "cutter-q4_0.gguf", tmp_path / "meant", {"_proj.weight": Kind.Q4_0})
    (source / "config.json").write_text('{"model_type": "llama"}')  # as people put one beside it for other programs
    model = fetch(hub, source, tmp_path / "models")
    assert names(model) == {"model.gguf"}
    for prompt, output in zip(
        PROMPTS, greedy_answers(small_engine(resolve_model(str(model))), PROMPTS, 8), strict=True
    ):
        reference.check_greedy(tmp_path / "meant", prompt, output)


def test_one_of_several_quantisations_is_fetched_in_its_parts(
    hub: LoopbackHub, floats: Path, reference, tmp_path: Path
) -> None:
    source, parts = tmp_path / "source", tmp_path / "source" / "Q4_0"
    parts.mkdir(parents=True)
    kinds = {"_proj.weight": Kind.Q4_0}
    write_gguf(floats, parts / "cutter-Q4_0.gguf", tmp_path / "meant", kinds, tensors_per_part=8)
    for name in ("cutter-Q8_0.gguf", "mmproj-F16.gguf", "imatrix.gguf"):
        (source / name).write_bytes(b"GGUF")
    model = fetch(hub, source, tmp_path / "models", f"{SOURCE}:q4_0")
    assert names(model) == {f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)}
    answers = greedy_answers(small_engine(resolve_model(str(model))), PROMPTS, 8)
    for prompt, output in zip(PROMPTS, answers, strict=True):
        reference.check_greedy(tmp_path / "meant", prompt, output)
    with pytest.raises(DownloadError, match=r"write one as hf://acme/cutter:NAME, of Q4_0, Q8_0"):
        fetch(hub, source, tmp_path / "others")


def convert(folder: Path) -> dict[str, torch.Tensor]:
    assert pickled_weights.pickled_files(folder)
    pickled_weights.convert(folder)
    assert not pickled_weights.pickled_files(folder)
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def shapes_of_memory() -> dict[str, torch.Tensor]:
    table = torch.arange(24, dtype=torch.bfloat16).view(4, 6)
    return {
        "tied": table,
        "head": table,
        "transposed": table.t(),
        "rows": table[1:3],
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "mask": torch.ones(2, 2, dtype=torch.bool).tril(),
        "count": torch.tensor(7),
    }


@pytest.mark.parametrize("is_zip", [True, False], ids=["archive", "older form"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_tensors_are_those_that_were_saved(tmp_path: Path, is_zip: bool, wrapper: str | None) -> None:
    tensors = shapes_of_memory()
    saved: Any = {wrapper: tensors, "epoch": 3} if wrapper else tensors
    torch.save(saved, tmp_path / "model.pt", _use_new_zipfile_serialization=is_zip)
    found = convert(tmp_path)
    assert found.keys() == tensors.keys() and names(tmp_path) == {"model.safetensors"}
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


class Runs:
    """What a pickle may have called when it is read without care."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("form", ["archive", "older form", "plain pickle"])
def test_a_pickle_that_would_run_code_runs_none(hub: LoopbackHub, form: str, tmp_path: Path) -> None:
    folder, harm = tmp_path / "source", tmp_path / "harm"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    hostile = {"a.weight": torch.ones(2, 2), "b.weight": Runs(harm)}
    path = folder / "pytorch_model.bin"
    if form == "plain pickle":
        path.write_bytes(pickle.dumps(hostile["b.weight"]))
    else:
        torch.save(hostile, path, _use_new_zipfile_serialization=form == "archive")
    with pytest.raises(DownloadError) as caught:
        fetch(hub, folder, tmp_path / "models")
    assert caught.value.reason == DownloadFailure.CONVERSION_FAILED
    assert caught.value.message.startswith("pytorch_model.bin is ") and "nothing of it was run" in caught.value.message
    assert form == "plain pickle" or "a pickle that calls posix.mkdir" in caught.value.message
    assert not harm.exists() and not ModelsFolder(tmp_path / "models").model(SOURCE).exists()


def compressed(tensors: dict[str, torch.Tensor]) -> bytes:
    stored, packed = io.BytesIO(), io.BytesIO()
    torch.save(tensors, stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    return packed.getvalue()


def saved(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


ONE = torch.ones(1)
UNFIT = {
    "one number said to be billions": (saved({"a": ONE.expand(1 << 20, 1 << 20)}), "says that its tensors have"),
    "compressed": (compressed({"a": torch.zeros(1 << 20)}), "is compressed"),
    "no tensor": (saved({"a": torch.ones(2), "epoch": 3}), "holds a int under 'epoch'"),
    "no names": (saved([torch.ones(2)]), "holds a list, not tensors by name"),
    "nothing": (saved({}), "holds no tensors"),
    "sparse": (saved({"a": torch.eye(3).to_sparse()}), "in a form that safetensors has not"),
    "complex": (saved({"a": torch.ones(2, dtype=torch.complex64)}), "in a form that safetensors has not"),
    "cut off": (saved({"a": torch.ones(1000)})[:-500], "is no file of torch's weights"),
    "anything": (b"<html>not found</html>", "is no file of torch's weights"),
    "empty": (b"", "is no file of torch's weights"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_files_that_are_no_weights_are_refused_by_name_and_kept(tmp_path: Path, what: str) -> None:
    content, words = UNFIT[what]
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(DownloadError) as caught:
        convert(tmp_path)
    assert caught.value.reason == DownloadFailure.CONVERSION_FAILED
    assert caught.value.message.startswith("pytorch_model.bin ") and words in caught.value.message
    assert names(tmp_path) == {"pytorch_model.bin"}


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ('{"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-1.bin"}}', "does not hold 'b'"),
        ('{"weight_map": {"a": "pytorch_model-9.bin"}}', "names 'pytorch_model-9.bin'"),
        ('{"weight_map": {"a": "../pytorch_model-1.bin"}}', "has no weight_map"),
        ('{"weight_map": 1}', "has no weight_map"),
        (None, "holds 'a', and so does pytorch_model-1.bin"),
    ],
)
def test_shards_that_are_not_what_their_index_says(tmp_path: Path, index: str | None, words: str) -> None:
    for name in ("pytorch_model-1.bin", "pytorch_model-2.bin"):
        torch.save({"a": ONE}, tmp_path / name)
    if index is not None:
        (tmp_path / "pytorch_model.bin.index.json").write_text(index)
    before = names(tmp_path)
    with pytest.raises(DownloadError) as caught:
        convert(tmp_path)
    assert words in caught.value.message and names(tmp_path) == before


def test_room_for_both_forms_is_asked_for_first(
    hub: LoopbackHub, floats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pickled(floats, tmp_path / "pickled", 1)
    size = (folder / "pytorch_model.bin").stat().st_size
    monkeypatch.setattr("fairlead_engine.sources.downloader.free_bytes", lambda path: size * 3 // 2)
    hub.asked.clear()
    with pytest.raises(DownloadError) as caught:
        fetch(hub, folder, tmp_path / "models")
    assert caught.value.reason == DownloadFailure.NO_SPACE and not hub.asked
    monkeypatch.setattr("fairlead_engine.sources.downloader.free_bytes", free_bytes)
    assert "model.safetensors" in names(fetch(hub, folder, tmp_path / "models"))


def test_no_download_imports_torch_unless_it_converts() -> None:
    program = (
        "import sys, fairlead_engine.commands.models_command, fairlead_engine.sources.downloader\n"
        "sys.exit(' '.join(sorted({'torch', 'numpy', 'obstore'} & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
