"""What reading ahead brings while a model loads whose files are on disk alone.

Writes a random checkpoint of Llama's shape, has the page cache give it up, and loads it, in turn with readers ahead and
without. Rows are seconds of a load, with those of a load from the page cache. `--folder` is one on the disk that is
measured; by default it is where temporary files go.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from harness import Row, spread

from fairlead_engine.model import read_ahead
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.tiny_families.dense import llama_fields

SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 32000,
}  # fmt: skip


def run(layers: int = 16, rounds: int = 3, folder: Path | None = None, seed: int = 0) -> Iterator[Row]:
    """`rounds`: loads in each way."""
    worth = read_ahead._WORTH_BYTES
    took: dict[str, list[float]] = {"read ahead": [], "not": [], "in the page cache": []}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        fields = llama_fields(num_hidden_layers=layers, **SHAPE)
        model = write_random_checkpoint(Path(name), fields, seed=seed)
        size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
        for _ in range(rounds):
            for way, read_ahead._WORTH_BYTES in (("read ahead", worth), ("not", sys.maxsize)):
                drop_from_page_cache(model)
                took[way].append(seconds_to_load(model))
            took["in the page cache"].append(seconds_to_load(model))
    for way, each in took.items():
        yield {"way": way, "GB": size / 1e9, **spread(each, 1.0)}


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            for _ in range(3):  # pages that were just written are kept the first time
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                time.sleep(0.2)


def seconds_to_load(folder: Path) -> float:
    began = time.perf_counter()
    load_model(folder, read_config(folder), torch.float32, torch.device("cpu"))
    return time.perf_counter() - began
