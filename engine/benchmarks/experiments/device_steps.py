"""What decodes and a first token take on this device, beside the least that its memory allows.

Models have Qwen3's shapes and random weights, drawn on the device. `share` is the least time of a step over the
measured one: all weights but the input embedding and the keys and values of all sequences, read once in their formats,
at the rate of a large copy on this device, which stands in the first row in TB/s. `host ms` is what the host computes
in a step beside the device's work, `waits ms` what it then waits. `--tiny` runs on any machine, with tiny shapes.
"""

import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from harness import Row

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.model.loading import read_config
from fairlead_engine.model.safetensors_writer import SafetensorsWriter
from fairlead_engine_testing.checkpoints import tensor_shapes
from fairlead_engine_testing.requests import make_request

sys.path.append(str(Path(__file__).parents[1]))

from workload import Q06

LARGER = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False,
}  # fmt: skip
TINY = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
BATCHES = {"0.6b": ((1, 2048), (64, 2048), (256, 2048)), "8b": ((1, 2048), (64, 2048), (256, 1024))}
"""By model: numbers of sequences, and tokens of each one's prompt."""
BUDGET, TIMED, FIRST_PROMPT = 8192, 48, 1024
"""Most tokens of a step, decodes that are timed, and tokens of the prompt whose first token is timed."""


def run(
    models: tuple[str, ...] = ("0.6b", "8b"),
    quantization: str = "none",
    kv_cache_dtype: str = "auto",
    eager: bool = False,
    sampled: bool = False,
    tiny: bool = False,
) -> Iterator[Row]:
    """`eager`: no graphs. `sampled`: temperature 0.8 and top-p 0.95 in place of the likeliest token."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rate = _copy_rate(device, 2**20 if tiny else 2**28)
    yield _row(torch.cuda.get_device_name() if device == "cuda" else device, "copy", "TB/s", rate=rate / 1e12)
    sampling = {"temperature": 0.8, "top_p": 0.95} if sampled else {}
    for name in models:
        fields = {**Q06.model, "max_position_embeddings": 8192}
        fields |= (LARGER if name == "8b" else {}) | (TINY if tiny else {})
        sizes = ((1, 20), (3, 24)) if tiny else BATCHES[name]
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            _write(Path(folder), fields, device)
            engine = Engine(
                EngineConfig(
                    model=folder,
                    device=device,
                    max_num_seqs=sizes[-1][0],
                    max_num_batched_tokens=BUDGET,
                    max_model_len=2560,
                    max_num_queued_tokens=2**40,
                    enforce_eager=eager,
                    kv_cache_dtype=kv_cache_dtype,
                    quantization=None if quantization == "none" else quantization,
                    kv_cache_memory=2**24 if tiny else None,
                )
            )
        steps = _Steps(engine, fields["vocab_size"], sampling)
        prompt = 20 if tiny else FIRST_PROMPT
        yield _row(name, 1, prompt, step=median([steps.first_token_seconds(prompt) for _ in range(6)][1:]))
        for num_seqs, prompt in sizes:
            seconds, waits, context = steps.decode_seconds(num_seqs, prompt)
            unread = 0 if fields["tie_word_embeddings"] else fields["vocab_size"] * fields["hidden_size"] * 2
            least = engine.info.weight_bytes - unread
            least += num_seqs * context * engine.runner.kv_bytes_per_block() // engine.info.block_size
            yield _row(
                name, num_seqs, prompt, step=seconds, rate=num_seqs / seconds, waits=waits, share=least / rate / seconds
            )
        del engine, steps


class _Steps:
    """An engine whose steps are timed; no request ends before the timing does."""

    def __init__(self, engine: Engine, vocab_size: int, sampling: dict[str, float]) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._sampling = sampling
        self._draw, self._numbers = random.Random(1), count()
        self._waited = 0.0
        collect = engine.runner.collect

        def timed(launched: Any) -> Any:
            began = time.perf_counter()
            launched.readback.wait()
            self._waited += time.perf_counter() - began
            return collect(launched)

        engine.runner.collect = timed  # type: ignore[method-assign]

    def first_token_seconds(self, prompt: int) -> float:
        self._add(prompt, 2)
        began = time.perf_counter()
        while not self._engine.step():
            pass
        seconds = time.perf_counter() - began
        self._drain()
        return seconds

    def decode_seconds(self, num_seqs: int, prompt: int) -> tuple[float, float, int]:
        """Mean seconds of a step of decodes, of these what the host waited, and the context halfway."""
        ahead = -(-num_seqs * prompt // BUDGET) + 4
        for _ in range(num_seqs):
            self._add(prompt, ahead + TIMED + 8)
        started: set[str] = set()
        while len(started) < num_seqs:
            started |= {each.request_id for each in self._engine.step()}
        for _ in range(3):
            self._engine.step()
        self._waited, began = 0.0, time.perf_counter()
        for _ in range(TIMED):
            self._engine.step()
        seconds, waited = time.perf_counter() - began, self._waited
        self._drain()
        return seconds / TIMED, waited / TIMED, prompt + (ahead + TIMED) // 2

    def _add(self, prompt: int, outputs: int) -> None:
        ids = [self._draw.randrange(4, self._vocab_size) for _ in range(prompt)]
        request = make_request(str(next(self._numbers)), ids, max_tokens=outputs, ignore_eos=True, **self._sampling)
        refused = self._engine.add(request)
        assert refused is None, refused.message

    def _drain(self) -> None:
        while self._engine.has_work():
            self._engine.step()


def _row(
    model: str, num_seqs: int | str, prompt: int | str, *, step: float = 0.0, rate: float = 0.0, waits: float = 0.0,
    share: float = 0.0,
) -> Row:  # fmt: skip
    return {
        "model": model, "sequences": num_seqs, "prompt": prompt, "tokens/s": rate or 1 / step, "step ms": 1e3 * step,
        "host ms": 1e3 * (step - waits), "waits ms": 1e3 * waits, "share": share,
    }  # fmt: skip


def _copy_rate(device: str, size: int) -> float:
    """Bytes read and written in a second by a copy of `size` numbers."""
    source, target, seconds = torch.randn(size, device=device), torch.empty(size, device=device), []
    for _ in range(8):
        began = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / median(seconds)


def _write(folder: Path, fields: dict[str, Any], device: str) -> None:
    """A checkpoint with random weights, which keep activations near one."""
    (folder / "config.json").write_text(json.dumps(fields))
    config, writer = read_config(folder), SafetensorsWriter(folder)
    dtype = getattr(torch, config.dtype)
    torch.manual_seed(0)
    for key, shape in tensor_shapes(config):
        values = torch.randn(shape, device=device, dtype=torch.float32 if len(shape) == 1 else dtype)
        writer.add(key, (1 + 0.1 * values if len(shape) == 1 else values / math.sqrt(shape[1])).to(dtype))
    writer.finish()
