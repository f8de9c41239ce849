"""What others notice of a batch: their time to first token beside one and without, in front of simulated engines.

    python operator/benchmarks/batches.py --runs 3 --output docs/benchmarks/batches.md

Each load is played twice by the same seeded open loop on fresh engines (real prefix caches, simulated steps): alone,
and beside a batch that does not end meanwhile. The order of both changes from run to run.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
from request_cost import spawned
from routers import ENGINE, MODEL, ROOT, SHAPE, STEP_COST
from routing import machine

from fairlead.client.load_generator import LoadGenerator
from fairlead.client.openai import OpenAIClient
from fairlead.client.workload import ArrivalPhase, WorkloadKind, arrival_times, conversations

NUM_ENGINES = 2
SETTLE_SECONDS = 3.0
"""Of the load, before the batch, so that gateways know the usual prompt and the engines' steps."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of others, and lines of a batch."""

    name: str
    kind: WorkloadKind
    rate: float
    """Conversations per second."""
    line_tokens: int
    """Of a line's prompt, in bytes, which the engines take for tokens."""


LOADS = (
    Load("a quarter of the capacity, short lines", WorkloadKind.SHARED_PREFIX, 2.0, 200),
    Load("half of the capacity, short lines", WorkloadKind.UNSHARED, 4.0, 200),
    Load("half of the capacity, long lines", WorkloadKind.UNSHARED, 4.0, 4000),
)


@dataclass(frozen=True, slots=True)
class Result:
    load: str
    is_beside: bool
    """Whether a batch ran."""
    first_tokens: tuple[float, ...]
    """Seconds from when each request was due."""
    failed: int
    lines: int
    """Answered of the batch."""
    seconds: float

    def first_token(self, percent: int) -> float:
        """A percentile in milliseconds."""
        return statistics.quantiles(self.first_tokens, n=100)[percent - 1] * 1000


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals per load (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and questions (default: %(default)s)")
    parser.add_argument("--loads", type=int, default=len(LOADS), help="only the first so many (default: all)")
    parser.add_argument("--output", type=Path, help="file for the page")
    return parser.parse_args(argv)


async def begin_batch(client: openai.AsyncOpenAI, load: Load) -> Any:
    """More lines than can be run; returns the batch."""
    question = "Tell of a boat. ".ljust(load.line_tokens, ".")
    lines = (
        json.dumps({
            "custom_id": str(number), "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": [{"role": "user", "content": f"{number} {question}"}]},
        })
        for number in range(20_000)
    )  # fmt: skip
    sent = await client.files.create(file=("lines.jsonl", "\n".join(lines).encode()), purpose="batch")
    return await client.batches.create(input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h")


async def play(load: Load, run: int, is_beside: bool, args: argparse.Namespace) -> Result:
    """One load on fresh engines."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        starting = (
            spawned(stack, ROOT, "fake_engine", "--name", f"engine-{number}", "--step-cost", STEP_COST, *ENGINE)
            for number in range(NUM_ENGINES)
        )
        urls = [f"engine-{number}={told['url']}" for number, told in enumerate(await asyncio.gather(*starting))]
        options = [word for url in urls for word in ("--engine", url)]
        told = await spawned(stack, ROOT, "static_gateway", *options, "--store", folder)
        base = f"http://127.0.0.1:{told['port']}/v1"
        official = await stack.enter_async_context(openai.AsyncOpenAI(base_url=base, api_key="none"))
        client = await stack.enter_async_context(OpenAIClient(base))
        seed = args.seed + run
        before = LoadGenerator(client, MODEL)
        talks = conversations(load.kind, replace(SHAPE, num_prefixes=12), seed)
        await before.open_loop(talks, arrival_times([ArrivalPhase(load.rate, SETTLE_SECONDS)], seed))
        batch = await begin_batch(official, load) if is_beside else None
        generator = LoadGenerator(client, MODEL)
        await generator.open_loop(talks, arrival_times([ArrivalPhase(load.rate, args.seconds)], seed))
        counts = (await official.batches.retrieve(batch.id)).request_counts if batch is not None else None
        first = tuple(each.ttft_seconds for each in generator.samples if each.ttft_seconds is not None)
        failed = sum(each.ttft_seconds is None for each in generator.samples)
        return Result(load.name, is_beside, first, failed, counts.completed if counts else 0, generator.seconds)


def page(results: list[Result], args: argparse.Namespace) -> str:
    lines = [
        "# First tokens beside a batch",
        "",
        f"{NUM_ENGINES} simulated engines of 32 slots, steps of `{STEP_COST}` seconds, prompts of",
        f"about 4,000 tokens, 32 out, {args.seconds:.0f} s of arrivals per load; medians of {args.runs} runs, seed",
        f"{args.seed}. {machine()}.",
        "",
        "    python operator/benchmarks/batches.py",
        "",
        "| Load | Batch | First token p50, ms | p90, ms | p90 to that without | Failed | Lines per second |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for load in LOADS[: args.loads]:
        of_load = [each for each in results if each.load == load.name]
        alone, beside = ([each for each in of_load if each.is_beside == is_beside] for is_beside in (False, True))
        for name, found in (("none", alone), ("beside one", beside)):
            p50, p90 = (statistics.median(each.first_token(percent) for each in found) for percent in (50, 90))
            ratio = p90 / statistics.median(each.first_token(90) for each in alone)
            rate = statistics.median(each.lines / each.seconds for each in found)
            failed = sum(each.failed for each in found)
            lines.append(f"| {load.name} | {name} | {p50:.0f} | {p90:.0f} | {ratio:.2f} | {failed} | {rate:.1f} |")
    return "\n".join(lines) + "\n"


async def bench(args: argparse.Namespace) -> list[Result]:
    """Every load with and without a batch, told as it ends."""
    results = []
    for run in range(args.runs):
        for load in LOADS[: args.loads]:
            for is_beside in (True, False) if run % 2 else (False, True):
                found = await play(load, run, is_beside, args)
                results.append(found)
                p50, p90 = found.first_token(50), found.first_token(90)
                print(f"run {run + 1}: {load.name}: {p50:.0f} {p90:.0f} ms, {found.lines} lines", flush=True)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; 130 when it was interrupted."""
    args = arguments(argv)
    try:
        text = page(asyncio.run(bench(args)), args)
    except KeyboardInterrupt:
        return 130
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
