"""What the core's own Python costs per step: many sequences on a cache that is full, and a model that takes no time.

Rows are parts of a step, in milliseconds of this thread's CPU time. Requests of one prompt length come as others end,
so that admissions, evictions and publications are among the steps as they are in service; `decodes` are the steps
without any, `python` is all but `collect`, which stands for the GPU, and `prepare` is the attention backend's real one,
on the CPU. With `--graphs`, decodes are staged as for a graph on CUDA.
"""

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import msgspec
from harness import Row, spread
from idle_runner import BYTES_PER_SLOT, IdleRunner

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.loop import BlockChanges
from fairlead_engine.core.messages import Stepped
from fairlead_engine_testing.requests import make_request

IDS = range(151_936)


def run(
    backend: str = "block_tables",
    graphs: bool = False,
    seqs: int = 256,
    blocks: int = 45_000,
    block_size: int = 16,
    budget: int = 8192,
    prompt: int = 2048,
    output: int = 256,
    steps: int = 2000,
    seed: int = 0,
) -> Iterator[Row]:
    """`seqs` run at once; `budget`: tokens of a step; `output`: mean tokens of an answer."""
    engine = Engine(
        EngineConfig(
            model="none",
            attention_backend=backend,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            block_size=block_size,
            kv_cache_memory=blocks * BYTES_PER_SLOT * block_size,
            max_num_queued_tokens=10**9,
        ),
        runner=IdleRunner(backend, block_size, seed, IDS, graphs=graphs),
    )
    engine.blocks.listener = changes = BlockChanges()
    draw, encoder, numbers = random.Random(seed), msgspec.msgpack.Encoder(), count()
    seconds: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.thread_time()
            result = function(*args)
            seconds[part].append(time.thread_time() - started)
            return result

        return call

    def come(num_requests: int) -> None:
        for number in islice(numbers, num_requests):
            ids = [draw.randrange(IDS.stop - 1) for _ in range(prompt)]
            most = draw.randint(output // 2, output * 3 // 2)
            assert engine.add(make_request(str(number), ids, max_tokens=most, arrival_time=float(number))) is None

    def take_turn() -> None:
        outputs = step()
        send(outputs)
        come(sum(each.finish_reason is not None for each in outputs))

    step = timed("step", engine.step)
    send = timed("send", lambda outputs: encoder.encode(Stepped(outputs, engine.load, 0, changes.take())))
    for owner, method, part in (
        (engine.scheduler, "schedule", "schedule"), (engine.runner, "launch", "prepare"),
        (engine.runner, "collect", "collect"), (engine.scheduler, "commit", "commit"), (engine, "outputs", "outputs"),
    ):  # fmt: skip
        setattr(owner, method, timed(part, getattr(owner, method)))
    come(seqs)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)  # as the core's process does
    while len(engine.blocks.published()) < blocks * 0.98 or len(engine.scheduler.running) < seqs:
        take_turn()
    seconds.clear()
    is_decode = []
    for _ in range(steps):
        take_turn()
        is_decode.append(not engine.runner.num_chunks)  # type: ignore[attr-defined]
    parts = zip(seconds["step"], seconds["send"], seconds["collect"], strict=True)
    seconds["python"] = [step + send - collect for step, send, collect in parts]
    seconds["decodes"] = [each for each, only in zip(seconds["python"], is_decode, strict=True) if only]
    for part, measured in seconds.items():
        if measured:
            yield {"part": part, **spread(measured)}
