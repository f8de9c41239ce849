"""The least time that a workload can take on this machine: what its steps must read and compute, at measured rates.

    python engine/benchmarks/roofline.py --threads 1     # the rates, as JSON

A step reads every weight but the input embedding once, and the keys and values of each sequence it continues. It
multiplies each token with all those weights. The greater of both times counts; activations, sampling and everything
else are free. Weights and cache are counted in the machine's floats, whatever an engine uses: an engine with 8-bit
weights may exceed the roofline.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from measurement import FLOAT_BYTES, floats, machine
from workload import Workload

_TRIAD_NUMBERS = 32 * 2**20
"""Per array; three of float32 are 384 MiB, more than any cache."""
_GEMM_SIZE = 1024
_REPEATS = 7


@dataclass(frozen=True)
class Rates:
    """What the machine can do."""

    bytes_per_second: float
    """a = b + s·c over long float32 arrays, 12 bytes per element, as STREAM counts."""
    flops_per_second: float
    """Products of two matrices of 1024 × 1024 in the machine's floats."""

    def better(self, other: "Rates | None") -> "Rates":
        """The greater of each."""
        if other is None:
            return self
        return Rates(
            max(self.bytes_per_second, other.bytes_per_second), max(self.flops_per_second, other.flops_per_second)
        )


@dataclass(frozen=True)
class Work:
    """What a model's steps cost."""

    weight_numbers: int
    """Numbers in the matrices that every token is multiplied with."""
    kv_numbers_per_token: int
    attention_numbers: int
    """Multiplications of a token with one token before it: queries with keys, weights with values, in all heads."""
    bytes_per_number: int

    @classmethod
    def of(cls, model: dict[str, Any], floats: str) -> "Work":
        """From the fields of a `config.json` (Llama, Qwen2, Qwen3), in that number format."""
        hidden, layers, head_dim = model["hidden_size"], model["num_hidden_layers"], model["head_dim"]
        query, kv = model["num_attention_heads"] * head_dim, model["num_key_value_heads"] * head_dim
        per_layer = hidden * (2 * query + 2 * kv) + 3 * hidden * model["intermediate_size"]
        numbers = layers * per_layer + model["vocab_size"] * hidden
        return cls(numbers, layers * 2 * kv, layers * 2 * query, FLOAT_BYTES[floats])

    def behind(self, rates: Rates) -> dict[str, tuple[str, float]]:
        """For each coefficient of the step cost that moves or computes much: what that is, and the least it takes."""
        weights, kv = self.bytes_per_number * self.weight_numbers, self.bytes_per_number * self.kv_numbers_per_token
        flops = 2 * self.weight_numbers
        return {
            "base": (f"{weights / 1e6:,.0f} MB of weights read", weights / rates.bytes_per_second),
            "decode_seq": (f"{flops / 1e9:.2f} GFLOP", flops / rates.flops_per_second),
            "kv_token": (f"{kv / 1e3:.0f} kB of keys and values read", kv / rates.bytes_per_second),
            "prefill_token": (f"{flops / 1e9:.2f} GFLOP", flops / rates.flops_per_second),
            "prefill_context": (
                f"{2 * self.attention_numbers / 1e6:.2f} MFLOP",
                2 * self.attention_numbers / rates.flops_per_second,
            ),
        }

    def decode_bytes(self, kv_tokens: int) -> int:
        """Read by a step whose sequences have so many tokens in the cache, together."""
        return self.bytes_per_number * (self.weight_numbers + kv_tokens * self.kv_numbers_per_token)

    def decode_seconds(self, rates: Rates, num_seqs: int, kv_tokens: int) -> float:
        memory = self.decode_bytes(kv_tokens) / rates.bytes_per_second
        return max(memory, 2 * self.weight_numbers * num_seqs / rates.flops_per_second)

    def prefill_seconds(self, rates: Rates, num_tokens: int) -> float:
        return max(2 * self.weight_numbers * num_tokens / rates.flops_per_second, self.decode_seconds(rates, 1, 0))


def workload_seconds(workload: Workload, rates: Rates, floats: str) -> float:
    """All prompts first, then each step continues all sequences that have not ended."""
    work, requests = Work.of(workload.model, floats), workload.requests()
    seconds = work.prefill_seconds(rates, sum(len(request.prompt) for request in requests))
    for step in range(1, max(request.num_outputs for request in requests)):
        running = [request for request in requests if request.num_outputs > step]
        kv_tokens = sum(len(request.prompt) + step for request in running)
        seconds += work.decode_seconds(rates, len(running), kv_tokens)
    return seconds


def measure_rates(threads: int, floats: str) -> Rates:
    """Best of a few short trials on the device that engines would use."""
    import torch

    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, c = (torch.ones(_TRIAD_NUMBERS, device=device) for _ in range(3))
    left, right = (torch.randn(_GEMM_SIZE, _GEMM_SIZE, device=device).to(getattr(torch, floats)) for _ in range(2))

    def best(run: Callable[[], object]) -> float:
        seconds = []
        for _ in range(_REPEATS):
            began = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    triad = best(lambda: torch.add(b, c, alpha=3.0, out=a))
    product = best(lambda: torch.mm(left, right))
    return Rates(3 * 4 * _TRIAD_NUMBERS / triad, 2 * _GEMM_SIZE**3 / product)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    print(json.dumps(asdict(measure_rates(parser.parse_args().threads, floats(machine())))))
