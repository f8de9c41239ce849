"""What a short streamed chat costs a gateway: CPU time per request of its process and of its workers.

    python operator/benchmarks/request_cost.py --against ../other-checkout

A gateway process in front of one fake engine whose tokens cost nothing. Clients keep their connections; each sends its
next request when the one before has been answered. `--against` names another checkout of this repository: both run at
the same time and take turns, so that both see the same minutes.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parents[2]
PACKAGES = ("common", "operator", "engine", "local", "testing")
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=1500, help="per turn (default: %(default)s)")
    parser.add_argument("--words", type=int, default=200, help="per prompt (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default: %(default)s)")
    return parser.parse_args()


@dataclass
class Started:
    """A gateway of one checkout."""

    name: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Of its process and all descendants."""
        return process_cpu_seconds(self.pid)


def process_cpu_seconds(pid: int) -> float:
    """Of a process and all its descendants."""
    return sum(map(_cpu_seconds, _tree(pid)))


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _tree(int(child)))]


def _cpu_seconds(pid: int) -> float:
    """From the scheduler's own nanoseconds, of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def spawned(stack: AsyncExitStack, checkout: Path, module: str, *options: str) -> dict[str, int]:
    path = os.pathsep.join(str(checkout.resolve() / package / "src") for package in PACKAGES)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"fairlead_testing.{module}", *options,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    stack.callback(process.terminate)
    assert process.stdout is not None
    return {"pid": process.pid, **json.loads(await process.stdout.readline())}


async def started(stack: AsyncExitStack, checkout: Path) -> Started:
    engine = await spawned(stack, checkout, "fake_engine", "--max-num-seqs", "64", "--num-kv-blocks", "8192")
    address = engine.get("url") or f"http://127.0.0.1:{engine['port']}"
    gateway = await spawned(stack, checkout, "static_gateway", "--engine", f"engine-0={address}")
    return Started(str(checkout), gateway["port"], gateway["pid"])


def bodies(args: argparse.Namespace, *turn: int) -> list[bytes]:
    """Prompts of their own for each turn, of which no cache knows anything."""
    rng = random.Random(f"{args.seed} {turn}")
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 7))) for _ in range(2000)]
    made = []
    for _ in range(args.requests):
        content = " ".join(rng.choices(vocabulary, k=args.words))
        made.append(json.dumps({"model": "fake", "messages": [{"role": "user", "content": content}], "stream": True,
                                "max_tokens": 4}).encode())  # fmt: skip
    return made


async def client(port: int, left: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while left:
        body = left.pop()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"0\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the gateway answered {answer[:500]!r}")
    writer.close()


async def turn(gateway: Started, given: list[bytes], concurrency: int) -> float:
    """Microseconds per request."""
    before, left = gateway.cpu_seconds(), list(given)
    await asyncio.gather(*(client(gateway.port, left) for _ in range(concurrency)))
    return (gateway.cpu_seconds() - before) / len(given) * 1e6


async def main(args: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        gateways = [await started(stack, checkout) for checkout in (HERE, args.against) if checkout]
        await asyncio.sleep(3)  # until their tokenizers are loaded
        print(f"microseconds of CPU per request; {args.words} words, {args.requests} requests a turn, seed {args.seed}")
        for concurrency in (1, 16):
            for gateway in gateways:
                await turn(gateway, bodies(args, concurrency, -1)[:200], concurrency)
            figures: dict[str, list[float]] = {gateway.name: [] for gateway in gateways}
            for number in range(args.rounds):
                for gateway in gateways[:: 1 if number % 2 else -1]:
                    figures[gateway.name].append(await turn(gateway, bodies(args, concurrency, number), concurrency))
            for name, each in figures.items():
                told = " ".join(f"{value:.0f}" for value in each)
                print(f"{concurrency:3} at a time  {name}: median {statistics.median(each):.0f}  ({told})", flush=True)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
