"""Whether ranks gain by summing one half of a batch's rows while the other half is multiplied: two gloo ranks on a CPU.

Layers of two products and a sum over the ranks, as tensor parallel divides them, of a model shaped as `--hidden` and
`--inner` say, one thread to a rank. By turns: whole batches, one sum after each pair of products; and two halves that
take turns, each summed while the other is multiplied. Rows are milliseconds of a pass.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from harness import Row, spread
from torch import Tensor, distributed

from fairlead_testing.real_servers import free_port

Layers = list[tuple[Tensor, Tensor]]


def run(
    tokens: tuple[int, ...] = (32, 1024), hidden: int = 1024, inner: int = 3072, layers: int = 8, pairs: int = 15,
    seed: int = 0,
) -> Iterator[Row]:  # fmt: skip
    """`pairs`: of passes that are measured, for each number of tokens."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    with ProcessPoolExecutor(2, get_context("spawn")) as ranks:
        told = [ranks.submit(rank, index, tokens, hidden, inner // 2, layers, pairs, seed) for index in range(2)]
        yield from told[0].result()
        told[1].result()


def rank(
    index: int, tokens: tuple[int, ...], hidden: int, inner: int, num_layers: int, pairs: int, seed: int
) -> list[Row]:
    """One of the two; what it measured."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    distributed.init_process_group("gloo", rank=index, world_size=2)
    layers = [(torch.randn(hidden, inner) / 32, torch.randn(inner, hidden) / 32) for _ in range(num_layers)]
    rows = []
    for num_tokens in tokens:
        x = torch.randn(num_tokens, hidden)
        with torch.inference_mode():
            torch.testing.assert_close(halves(x, layers), whole(x, layers), rtol=0.1, atol=0.1)
            measured = [[seconds(way, x, layers) for way in (whole, halves)] for _ in range(pairs)]
        for way, each in zip(("whole", "halves"), zip(*measured, strict=True), strict=True):
            rows.append({"tokens": num_tokens, "batch": way, **spread(each)})
    distributed.destroy_process_group()
    return rows


def seconds(way: Callable[[Tensor, Layers], Tensor], x: Tensor, layers: Layers) -> float:
    """Of a pass that both ranks begin together."""
    distributed.barrier()
    start = time.perf_counter()
    way(x, layers)
    return time.perf_counter() - start


def whole(x: Tensor, layers: Layers) -> Tensor:
    """x [tokens, hidden] → the same shape, as the engine computes it."""
    for up, down in layers:
        update = torch.nn.functional.silu(x @ up) @ down
        distributed.all_reduce(update)
        x = x + update
    return x


def halves(x: Tensor, layers: Layers) -> Tensor:
    """The same; a half's sum is waited for when its next layer begins."""
    parts = list(x.chunk(2))
    sums: list[tuple[distributed.Work, Tensor] | None] = [None] * len(parts)
    for up, down in layers:
        for index, part in enumerate(parts):
            parts[index] = part = _arrived(part, sums[index])
            update = torch.nn.functional.silu(part @ up) @ down
            sums[index] = distributed.all_reduce(update, async_op=True), update
    return torch.cat([_arrived(part, work) for part, work in zip(parts, sums, strict=True)])


def _arrived(part: Tensor, sum_under_way: "tuple[distributed.Work, Tensor] | None") -> Tensor:
    if sum_under_way is None:
        return part
    sum_under_way[0].wait()
    return part + sum_under_way[1]
