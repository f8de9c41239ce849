"""What the core's own Python costs per step: many sequences on a cache that is full, and a model that takes no time.

    python engine/benchmarks/core_steps.py --seqs 256 --blocks 45000 --steps 2000

Prints a table (or `--json`): percentiles in milliseconds of each part of a step. Requests of one prompt length come as
others end, so that admissions, evictions and publications are among the steps as they are in service; `decodes` are the
steps without any. `prepare` is the attention backend's real one, on the CPU, which does what a device would do of it as
well; with `--graphs`, decodes are staged as for a graph that computes them, as on CUDA. Nothing is computed, and tokens
are drawn by a seeded generator.
"""

import argparse
import gc
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import numpy as np
import torch

from fairlead_engine.batch import Batch
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.block_changes import BlockChanges
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.messages import Stepped
from fairlead_engine.kernels.attention.backend import CacheLayout
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.kernels.staging import stage
from fairlead_engine.runner.prepared_batch import prepare
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import SentSlots, plan_step
from fairlead_engine.sequences import SampledToken
from fairlead_engine.types import GENERATES, EngineRequest, SamplingParams

VOCAB = 151_936


class ModelFacts:
    """What the engine asks of a model's configuration."""

    architecture = "None"
    vocab_size = VOCAB
    max_position_embeddings = 32_768
    eos_token_ids = (VOCAB - 1,)
    task = GENERATES


class IdleRunner:
    """Prepares every batch for the device and computes nothing of it."""

    device = "cpu"
    dtype = "bfloat16"
    quantization = None
    kv_cache_dtype = "auto"
    num_parameters = weight_bytes = 1
    num_adapter_slots = 0
    model_config = ModelFacts()

    def __init__(self, backend: str, block_size: int, seed: int, graphs: bool) -> None:
        self.attention_backend = backend
        self._graphs = graphs
        self.num_chunks = 0
        """Of the last batch."""
        self._backend = BACKENDS[backend]()
        self._random = random.Random(seed)
        self._layout = CacheLayout(
            num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1, block_size=block_size,
            dtype=torch.bfloat16, device=torch.device("cpu"),
        )  # fmt: skip

    def kv_bytes_per_block(self) -> int:
        return self._layout.bytes_per_block

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        self._tables = self._backend.tables(self._layout, num_slots, blocks_per_slot)
        self._sent = SentSlots(num_slots)
        self._tokens = SlotTokens(num_slots, blocks_per_slot * self._layout.block_size, self._layout.device)

    def memory_for_cache(
        self, utilization: float, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> int | None:
        return None

    def compile_steps(self, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        """Nothing is."""

    def block_allocator(self, num_blocks: int) -> BlockAllocator:
        return self._backend.allocator(num_blocks)

    def launch(self, batch: Batch) -> Batch:
        plan = plan_step(batch, self._sent, most_scored=1)
        self.num_chunks = len(batch.chunks)
        if self._graphs and not batch.chunks:  # as `ModelPart` does where it has captured them
            self._tokens.add(plan.new_tokens)
            self._tables.update(plan.new_blocks)
            stage(np.stack((plan.slots, plan.context_lens)), torch.empty((2, len(batch)), dtype=torch.int64))
        else:
            prepare(plan, self._backend, self._tables, self._tokens, self._layout.device)
        return batch

    def is_over(self, launched: Batch) -> bool:
        return True

    def collect(self, launched: Batch) -> list[SampledToken | None]:
        draw = self._random.randrange
        tokens: list[SampledToken | None] = [SampledToken(draw(VOCAB - 1)) for _ in range(len(launched.decodes))]
        return tokens + [SampledToken(draw(VOCAB - 1)) if item.samples else None for item in launched.chunks]

    def forget(self, request_ids: Collection[str]) -> None:
        """Nothing was kept."""


class Stopwatch:
    """CPU seconds of this thread per part of a step, in the order of their first use: neighbours count for little."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            result = function(*args, **kwargs)
            self.seconds[part].append(time.thread_time() - started)
            return result

        return timed


def run(args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every part of every measured step; `python` is all but `collect`, which stands for the GPU."""
    rng = random.Random(args.seed)
    engine = Engine(
        EngineConfig(
            model="none",
            attention_backend=args.backend,
            max_num_seqs=args.seqs,
            max_num_batched_tokens=args.budget,
            block_size=args.block_size,
            kv_cache_memory=args.blocks * 4 * args.block_size,  # two bfloat16 numbers a token
            max_num_queued_tokens=10**9,
        ),
        runner=IdleRunner(args.backend, args.block_size, args.seed, args.graphs),
    )
    engine.blocks.listener = changes = BlockChanges()
    number = 0

    def come() -> None:
        nonlocal number
        number += 1
        prompt = [rng.randrange(VOCAB - 1) for _ in range(args.prompt)]
        most = rng.randint(args.output // 2, args.output * 3 // 2)
        params = SamplingParams(temperature=0.0, max_tokens=most)
        request = EngineRequest(
            request_id=str(number), prompt_token_ids=prompt, sampling=params, arrival_time=float(number)
        )
        assert engine.add(request) is None

    watch, encoder = Stopwatch(), msgspec.msgpack.Encoder()

    def step() -> int:
        started = time.thread_time()
        outputs = engine.step()
        watch.seconds["step"].append(time.thread_time() - started)
        send(outputs)
        return sum(output.finish_reason is not None for output in outputs)

    send = watch.wrap("send", lambda outputs: encoder.encode(Stepped(outputs, engine.load, 0, changes.take())))
    engine.scheduler.schedule = watch.wrap("schedule", engine.scheduler.schedule)  # type: ignore[method-assign]
    engine.runner.launch = watch.wrap("prepare", engine.runner.launch)  # type: ignore[method-assign]
    engine.runner.collect = watch.wrap("collect", engine.runner.collect)  # type: ignore[method-assign]
    engine.scheduler.commit = watch.wrap("commit", engine.scheduler.commit)  # type: ignore[method-assign]
    engine.outputs = watch.wrap("outputs", engine.outputs)  # type: ignore[method-assign]
    for _ in range(args.seqs):
        come()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)  # as the core's process does
    while len(engine.blocks.published()) < args.blocks * 0.98 or len(engine.scheduler.running) < args.seqs:
        for _ in range(step()):
            come()
    watch.seconds.clear()
    is_decode: list[bool] = []
    for _ in range(args.steps):
        for _ in range(step()):
            come()
        is_decode.append(not engine.runner.num_chunks)
    columns = watch.seconds
    total = [step + send for step, send in zip(columns["step"], columns["send"], strict=True)]
    columns["python"] = [whole - gpu for whole, gpu in zip(total, columns["collect"], strict=True)]
    columns["decodes"] = [seconds for seconds, only in zip(columns["python"], is_decode, strict=True) if only]
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="block_tables", choices=sorted(BACKENDS))
    parser.add_argument("--graphs", action="store_true", help="decodes are replayed from a graph")
    parser.add_argument("--seqs", type=int, default=256, help="sequences that run at once")
    parser.add_argument("--blocks", type=int, default=45_000, help="of the cache")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a step")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=256, help="mean tokens of an answer")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    columns = run(args)
    table = {}
    for part, seconds in columns.items():
        ordered = sorted(seconds)
        table[part] = {
            "p50_ms": 1000 * ordered[len(ordered) // 2],
            "p99_ms": 1000 * ordered[int(0.99 * len(ordered))],
            "max_ms": 1000 * ordered[-1],
        }
    if args.json:
        print(json.dumps({**vars(args), "parts": table}, indent=2))
        return
    print(f"{'part':10} {'p50':>8} {'p99':>8} {'max':>8}   milliseconds")
    for part, row in table.items():
        print(f"{part:10} " + " ".join(f"{value:8.3f}" for value in row.values()))


if __name__ == "__main__":
    main()
