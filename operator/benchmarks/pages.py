"""What an open page costs a gateway: CPU time of the two answers that it asks for, of a whole hour of moments.

    python operator/benchmarks/pages.py --models 100 --replicas 4

The gateway is a process of its own, with an hour of moments of each model and no other requests. With no page open all
that pages cost is a look at each model while a line of signals is made for the operator, which is measured beside it.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack

import httpx
import msgspec
from request_cost import process_cpu_seconds
from routing import machine

from fairlead.api.signals_message import INTERVAL_SECONDS
from fairlead.gateway.model_history import NUM_MOMENTS, PERIOD_SECONDS
from fairlead.gateway.server import PreciseLoop
from fairlead.routing.replica import Replica
from fairlead_testing.gateways import make_pool, running_gateway

ASKED = {"/fairlead/v1/models": 2.0, "/fairlead/v1/models/default/model-0": 5.0}
"""Path → seconds between two questions, as `web/models.js` and `web/history.js` have it."""


NUM_LINES = 100


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=4, help="of each model (default: %(default)s)")
    parser.add_argument("--polls", type=int, default=100, help="that are measured (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds without a page (default: %(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


async def serve(args: argparse.Namespace) -> None:
    """The gateway; tells its address on standard output."""
    pools = [
        make_pool(
            [Replica(uid=f"{n}-{k}", name=f"{n}-{k}", host="127.0.0.1", port=1) for k in range(args.replicas)],
            name=f"model-{n}",
        )
        for n in range(args.models)
    ]
    async with running_gateway(*pools) as (gateway, _, url):
        before = time.process_time()
        for _ in range(NUM_MOMENTS):
            gateway.app.histories.look()
        look = (time.process_time() - before) / NUM_MOMENTS
        before = time.process_time()
        for _ in range(NUM_LINES):
            msgspec.json.encode(gateway.signals.line())
        line = (time.process_time() - before) / NUM_LINES
        told = {"url": url, "pid": os.getpid(), "look": look / PERIOD_SECONDS, "lines": line / INTERVAL_SECONDS}
        print(json.dumps(told), flush=True)
        await asyncio.Event().wait()


async def measure(args: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        command = [sys.executable, __file__, "--serve", "--models", str(args.models), "--replicas", str(args.replicas)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        stack.callback(process.terminate)
        assert process.stdout is not None
        told = json.loads(await process.stdout.readline())
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=told["url"]))
        before = process_cpu_seconds(told["pid"])
        await asyncio.sleep(args.idle)
        idle = (process_cpu_seconds(told["pid"]) - before) / args.idle
        print(f"{args.models} models of {args.replicas} replicas, an hour of moments. {machine()}.")
        print(f"no page open: {idle * 100:.2f} % of a core, all that a gateway without requests does")
        print(f"of that, the looks for the last hour: {told['look'] * 100:.4f} % of a core")
        print(f"lines of signals for an operator, beside which they are taken: {told['lines'] * 100:.4f} % of a core")
        total = 0.0
        for path, period in ASKED.items():
            before = process_cpu_seconds(told["pid"])
            for _ in range(args.polls):
                answer = (await client.get(path)).raise_for_status()
            seconds = (process_cpu_seconds(told["pid"]) - before) / args.polls
            total += seconds / period
            print(f"{path}: {seconds * 1000:.2f} ms, {len(answer.content):,} bytes")
        print(f"a page open: {total * 100:.2f} % of a core")


if __name__ == "__main__":
    found = arguments()
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        runner.run(serve(found) if found.serve else measure(found))
