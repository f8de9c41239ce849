"""What others notice of a batch: their time to first token beside one and without, in front of simulated engines.

    python operator/benchmarks/batches.py --output docs/benchmarks/batches.md

Each load is a seeded open loop on engines with real prefix caches and simulated steps, in pairs of short phases on the
same fleet: one alone, one beside a batch that does not end meanwhile, with equal arrivals. Their order changes from
pair to pair, so whatever else a machine does in the minutes of a run meets both alike; the interval is that of the
pairs, drawn again and again. What the batch itself changes, without any machine, is in
`tests/routing/test_simulation.py`, in virtual time.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
from fairlead.client.workload import ArrivalPhase, Conversation, WorkloadKind, arrival_times, conversations

NUM_ENGINES = 2
SETTLE_SECONDS = 3.0
"""Of the load before what is counted: gateways then know the usual prompt and the engines' steps, and a batch runs."""
NUM_DRAWN = 1000


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
class Phase:
    """Of a load, alone or beside a batch."""

    first_tokens: tuple[float, ...]
    """Seconds from when each request was due."""
    failed: int
    lines: int
    """Answered of the batch."""
    seconds: float


Pair = tuple[Phase, Phase]
"""Alone, and beside a batch."""


def percentile(phases: Sequence[Phase], percent: int) -> float:
    """Of the first tokens of these phases together, in milliseconds."""
    times = [each for phase in phases for each in phase.first_tokens]
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] * 1000


def ratio(pairs: Sequence[Pair]) -> float:
    """Of the p90 beside a batch to that without."""
    alone, beside = zip(*pairs, strict=True)
    return percentile(beside, 90) / percentile(alone, 90)


def interval(pairs: Sequence[Pair], seed: int) -> tuple[float, float]:
    """In which the ratio of 19 out of 20 sets of as many pairs lies, drawn from these."""
    draw = random.Random(seed)
    drawn = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(NUM_DRAWN))
    return drawn[NUM_DRAWN // 40], drawn[-1 - NUM_DRAWN // 40]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="of phases per load (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of arrivals per phase (default: %(default)s)")
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


async def play(load: Load, args: argparse.Namespace) -> list[Pair]:
    """One load on a fresh fleet."""
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
        talks = conversations(load.kind, replace(SHAPE, num_prefixes=12), args.seed)
        await loaded(client, talks, load, SETTLE_SECONDS, args.seed)
        pairs = []
        for number in range(args.pairs):
            phases: dict[bool, Phase] = {}
            for is_beside in (True, False) if number % 2 else (False, True):
                batch = await begin_batch(official, load) if is_beside else None
                await loaded(client, talks, load, SETTLE_SECONDS, args.seed + number)
                before = await num_answered(official, batch)
                generator = await loaded(client, talks, load, args.seconds, args.seed + number)
                lines = await num_answered(official, batch) - before
                if batch is not None:
                    await official.batches.cancel(batch.id)
                    while (await official.batches.retrieve(batch.id)).status != "cancelled":
                        await asyncio.sleep(0.1)
                first = tuple(each.ttft_seconds for each in generator.samples if each.ttft_seconds is not None)
                phases[is_beside] = Phase(first, len(generator.samples) - len(first), lines, generator.seconds)
            pairs.append((phases[False], phases[True]))
            print(f"{load.name}, pair {number + 1}: {ratio(pairs[-1:]):.2f}, so far {ratio(pairs):.2f}", flush=True)
        return pairs


async def loaded(
    client: OpenAIClient, talks: Iterator[Conversation], load: Load, seconds: float, seed: int
) -> LoadGenerator:
    """With so many seconds of arrivals, to the last answer."""
    generator = LoadGenerator(client, MODEL)
    await generator.open_loop(talks, arrival_times([ArrivalPhase(load.rate, seconds)], seed))
    return generator


async def num_answered(client: openai.AsyncOpenAI, batch: Any) -> int:
    """Lines of the batch, if there is one."""
    counts = None if batch is None else (await client.batches.retrieve(batch.id)).request_counts
    return 0 if counts is None else counts.completed


def page(results: dict[str, list[Pair]], args: argparse.Namespace) -> str:
    lines = [
        "# First tokens beside a batch",
        "",
        f"{NUM_ENGINES} simulated engines of 32 slots, steps of `{STEP_COST}` seconds, prompts of",
        f"about 4,000 tokens, 32 out; {args.pairs} pairs of phases of {args.seconds:g} s per load, alone and beside a",
        f"batch on the same fleet, in changing order, seed {args.seed}. The ratio is that of the p90 of all phases,",
        "with the interval in which 95 % of drawn sets of pairs have it.",
        f"{machine()}.",
        "",
        "    python operator/benchmarks/batches.py",
        "",
        "| Load | Batch | First token p50, ms | p90, ms | p90 to that without | Failed | Lines per second |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, pairs in results.items():
        low, high = interval(pairs, args.seed)
        alone, beside = zip(*pairs, strict=True)
        told = f"{ratio(pairs):.2f} ({low:.2f} … {high:.2f})"
        for kind, phases, relation in (("none", alone, "1.00"), ("beside one", beside, told)):
            p50, p90 = percentile(phases, 50), percentile(phases, 90)
            rate = sum(each.lines for each in phases) / sum(each.seconds for each in phases)
            failed = sum(each.failed for each in phases)
            lines.append(f"| {name} | {kind} | {p50:.0f} | {p90:.0f} | {relation} | {failed} | {rate:.1f} |")
    return "\n".join(lines) + "\n"


async def bench(args: argparse.Namespace) -> dict[str, list[Pair]]:
    """Of each load by its name, told as it is played."""
    return {load.name: await play(load, args) for load in LOADS[: args.loads]}


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
