"""Whether ranks gain by summing one half of a batch's rows while the other half is multiplied: two gloo ranks on a CPU.

    OMP_NUM_THREADS=1 python engine/benchmarks/overlapped_sums.py --tokens 32 1024 --pairs 15

Layers of two products and a sum over the ranks, as tensor parallel divides them, of a model shaped as `--hidden` and
`--inner` say, one thread to a rank. By turns: whole batches, one sum after each pair of products; and two halves that
take turns, each summed while the other is multiplied. Prints milliseconds of a pass, least and median of the pairs.
"""

import argparse
import os
import socket
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, distributed, multiprocessing

Layers = list[tuple[Tensor, Tensor]]


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
    under_way: list[tuple[distributed.Work, Tensor] | None] = [None] * len(parts)
    for up, down in layers:
        for index, part in enumerate(parts):
            parts[index] = part = _arrived(part, under_way[index])
            update = torch.nn.functional.silu(part @ up) @ down
            under_way[index] = distributed.all_reduce(update, async_op=True), update
    return torch.cat([_arrived(part, work) for part, work in zip(parts, under_way, strict=True)])


def _arrived(part: Tensor, under_way: "tuple[distributed.Work, Tensor] | None") -> Tensor:
    if under_way is None:
        return part
    under_way[0].wait()
    return part + under_way[1]


def milliseconds(run: Callable[[Tensor, Layers], Tensor], x: Tensor, layers: Layers) -> float:
    """Of a pass that both ranks begin together."""
    distributed.barrier()
    start = time.perf_counter()
    run(x, layers)
    return 1e3 * (time.perf_counter() - start)


def rank(index: int, args: argparse.Namespace) -> None:
    """One of the two; the first prints."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", rank=index, world_size=2)
    dtype = torch.float32
    size = args.inner // 2
    layers = [
        ((torch.randn(args.hidden, size) / 32).to(dtype), (torch.randn(size, args.hidden) / 32).to(dtype))
        for _ in range(args.layers)
    ]
    for tokens in args.tokens:
        x = torch.randn(tokens, args.hidden).to(dtype)
        with torch.inference_mode():
            torch.testing.assert_close(halves(x, layers), whole(x, layers), rtol=0.1, atol=0.1)
            pairs = [[milliseconds(run, x, layers) for run in (whole, halves)] for _ in range(args.pairs)]
        if not index:
            each = [f"{min(times):.1f} least, {median(times):.1f} median" for times in zip(*pairs, strict=True)]
            print(f"{tokens} tokens: whole {each[0]}; halves {each[1]} ms")
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 1024])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=3072)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    multiprocessing.spawn(rank, (args,), nprocs=2)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    main()
