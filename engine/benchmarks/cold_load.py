"""What reading ahead brings while a model loads whose files are on disk alone.

    python engine/benchmarks/cold_load.py --layers 16 --rounds 3

Writes a random checkpoint of Llama's shape, has the page cache give it up, and loads it, in turn with readers ahead and
without. Says what each took, and that of a load from the page cache.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from fairlead_engine.memory import format_bytes
from fairlead_engine.model import load_model, read_ahead, read_config
from fairlead_engine_testing.checkpoints import llama_fields, write_random_checkpoint

SHAPE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "vocab_size": 32000,
}  # fmt: skip


def give_up(folder: Path) -> None:
    """The pages of its files."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="a folder on the disk that is measured (default: where temporary files go)")
    args = parser.parse_args()
    worth = read_ahead._WORTH_BYTES
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = write_random_checkpoint(Path(name), llama_fields(num_hidden_layers=args.layers, **SHAPE))
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        print(f"{format_bytes(size)}, torch {torch.__version__}, {os.cpu_count()} cores")
        took: dict[str, list[float]] = {"read ahead": [], "not": [], "in the page cache": []}
        for _ in range(args.rounds):
            for way, least in (("read ahead", worth), ("not", sys.maxsize)):
                give_up(folder)
                read_ahead._WORTH_BYTES = least
                took[way].append(seconds_to_load(folder))
            took["in the page cache"].append(seconds_to_load(folder))
    for way, each in took.items():
        median, told = statistics.median(each), " ".join(f"{one:.2f}" for one in each)
        print(f"{way:18} median {median:6.2f} s, {format_bytes(int(size / median))} a second: {told}")


if __name__ == "__main__":
    main()
