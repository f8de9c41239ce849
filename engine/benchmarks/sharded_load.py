"""What one rank of a large model takes while it loads: it reads its part of a checkpoint of 70 billion parameters.

    python engine/benchmarks/sharded_load.py --size 16

The checkpoint has the shape of Llama 3.1 70B and holds zeros: its files are sparse, and take no room on a disk. The
rank loads as it does in an engine, alone in its process. Memory is told twice: what the process allocated, and what the
kernel counts with the pages of the files that it mapped, which it takes back when it needs them.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 8192, 28672, 80, 64, 8, 128, 128256
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
PAUSE_SECONDS = 0.02
"""Between two looks at the memory."""


def tensors() -> Iterator[dict[str, tuple[int, ...]]]:
    """Names and shapes, file by file."""
    yield {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for index in range(LAYERS):
        layer = f"model.layers.{index}"
        yield {
            f"{layer}.input_layernorm.weight": (HIDDEN,),
            f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
            f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
        }


def write_checkpoint(folder: Path) -> int:
    """Sparse files; returns how many bytes their tensors have."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file_of: dict[str, str] = {}
    total = 0
    for number, shapes in enumerate(tensors()):
        name, header, end = f"model-{number:05}.safetensors", {}, 0
        for tensor, shape in shapes.items():
            begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, end)}
            file_of[tensor] = name
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        total += end
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))
    return total


class Watch(threading.Thread):
    """The largest memory of this process while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before, self.peak = memory(), memory()

    def run(self) -> None:
        while True:
            self.peak = {name: max(most, memory()[name]) for name, most in self.peak.items()}
            time.sleep(PAUSE_SECONDS)

    def taken(self) -> dict[str, int]:
        return {name: most - self.before[name] for name, most in self.peak.items()}


def memory() -> dict[str, int]:
    """Bytes: what was allocated, and that with mapped files."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: 1024 * int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS")}


def load(folder: Path, rank: int, size: int, quantization: str | None) -> None:
    """In a process of its own; prints a line of JSON."""
    import torch

    from fairlead_engine.model import load_model, read_config
    from fairlead_engine.model.shard import Shard

    torch.set_num_threads(1)
    watch = Watch()
    watch.start()
    started = time.monotonic()
    model = load_model(
        folder, read_config(folder), torch.bfloat16, torch.device("cpu"), quantization, Shard(rank, size)
    )
    seconds = time.monotonic() - started
    print(json.dumps({"bytes": model.weight_bytes, "seconds": seconds, **watch.taken()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16, help="ranks (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[0], help="which to load, one after another")
    parser.add_argument("--quantization", help="round the weights to this format")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder:
        load(args.folder, args.ranks[0], args.size, args.quantization)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(f"checkpoint: {write_checkpoint(Path(folder)) / 1e9:.1f} GB in sparse files")
        for rank in args.ranks:
            command = [sys.executable, __file__, "--folder", folder, "--size", str(args.size), "--ranks", str(rank)]
            command += ["--quantization", args.quantization] if args.quantization else []
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            share, peak = found["bytes"], found["RssAnon"]
            print(
                f"rank {rank} of {args.size}: {share / 1e9:.2f} GB of weights in {found['seconds']:.0f} s; at most "
                f"{peak / 1e9:.2f} GB allocated, {peak / share:.2f} of a shard; "
                f"{found['VmRSS'] / 1e9:.2f} with mapped files"
            )


if __name__ == "__main__":
    main()
