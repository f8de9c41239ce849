"""What one rank of a large model takes while it loads: it reads its part of a checkpoint of 70 billion parameters.

The checkpoint has the shape of Llama 3.1 70B and holds zeros: its files are sparse, and take no room on a disk. Each
of `--ranks` loads as it does in an engine, alone in its process. Memory is told twice: what the process allocated, and
what the kernel counts with the pages of the files that it mapped, which it takes back when it needs them.
"""

import json
import math
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from harness import Row

from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.shard import Shard
from fairlead_engine_testing.checkpoints import tensor_shapes
from fairlead_engine_testing.tiny_families.dense import llama_fields

SHAPE = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip
TENSORS_PER_FILE = 9
"""As many as a layer has."""
PAUSE_SECONDS = 0.02
"""Between two looks at the memory."""


def run(
    size: int = 16, ranks: tuple[int, ...] = (0,), layers: int = 80, quantization: str | None = None
) -> Iterator[Row]:
    """`size`: number of ranks; `ranks`: which of them load, one after another; `quantization`: of the weights."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total = write_sparse_checkpoint(folder, layers)
        for rank in ranks:
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                found = process.submit(load, folder, Shard(rank, size), quantization).result()
            yield {"checkpoint GB": total / 1e9, "rank": f"{rank} of {size}", **found}


def write_sparse_checkpoint(folder: Path, num_layers: int) -> int:
    """Returns how many bytes its tensors have."""
    (folder / "config.json").write_text(json.dumps(llama_fields(num_hidden_layers=num_layers, **SHAPE)))
    shapes = list(tensor_shapes(read_config(folder)))
    weight_map, total = {}, 0
    for number, first in enumerate(range(0, len(shapes), TENSORS_PER_FILE)):
        header, end = {}, 0
        for tensor, shape in shapes[first : first + TENSORS_PER_FILE]:
            begin, end = end, end + 2 * math.prod(shape)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, end)}
            weight_map[tensor] = f"model-{number:05}.safetensors"
        text = json.dumps(header).encode()
        with (folder / f"model-{number:05}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


def load(folder: Path, shard: Shard, quantization: str | None) -> Row:
    """In a process of its own."""
    torch.set_num_threads(1)
    before, is_over, peak = memory(), threading.Event(), memory()

    def watch() -> None:
        while not is_over.wait(PAUSE_SECONDS):
            peak.update({name: max(peak[name], now) for name, now in memory().items()})

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    model = load_model(folder, read_config(folder), torch.bfloat16, torch.device("cpu"), quantization, shard)
    seconds = time.monotonic() - started
    is_over.set()
    watcher.join()
    allocated, with_files = (peak[name] - before[name] for name in ("RssAnon", "VmRSS"))
    return {
        "weights GB": model.weight_bytes / 1e9, "seconds": seconds, "allocated GB": allocated / 1e9,
        "of a shard": allocated / model.weight_bytes, "with mapped files GB": with_files / 1e9,
    }  # fmt: skip


def memory() -> dict[str, int]:
    """Bytes of this process: what was allocated, and that with mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: 1024 * int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS")}
