"""A fake engine as a process of its own. Prints its address as one line of JSON, and serves until it is told to stop:
SIGTERM drains it, SIGINT ends it at once."""

import argparse
import asyncio
import json
import os
import signal

import uvloop

from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine.engine import DEFAULT_LIMITS, FakeEngine, Refusal


def step_cost(text: str) -> StepCost:
    """From `base=0.01,prefill_token=1e-5,…`."""
    pairs = (part.split("=", 1) for part in text.split(","))
    return StepCost(**{name.strip(): float(seconds) for name, seconds in pairs})


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m fairlead_testing.fake_engine", description=__doc__)
    made.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    made.add_argument("--port", type=int, default=0, help="port; 0 = any free one (default: %(default)s)")
    made.add_argument("--name", default="engine-0", help="what it calls itself (default: %(default)s)")
    made.add_argument("--served-name", default="fake", help="the model's name (default: %(default)s)")
    made.add_argument("--max-num-seqs", type=int, default=DEFAULT_LIMITS.max_num_seqs, help="slots")
    made.add_argument("--max-num-queued-tokens", type=int, default=DEFAULT_LIMITS.max_num_queued_tokens,
                      help="prompt tokens that may wait")  # fmt: skip
    made.add_argument("--max-model-len", type=int, default=DEFAULT_LIMITS.max_model_len, help="longest prompt")
    made.add_argument("--block-size", type=int, default=DEFAULT_LIMITS.block_size, help="tokens per block")
    made.add_argument("--num-kv-blocks", type=int, default=1024, help="blocks of the cache")
    made.add_argument("--max-num-batched-tokens", type=int, default=512, help="token budget of a step")
    made.add_argument("--step-cost", type=step_cost, metavar="base=SECONDS,…",
                      help="what its steps take; default: nothing")  # fmt: skip
    made.add_argument("--drain-grace", type=float, default=3.0, metavar="SECONDS",
                      help="how long it takes requests after SIGTERM (default: %(default)s)")  # fmt: skip
    made.add_argument("--num-tokens", type=int, default=4, help="length of its answers (default: %(default)s)")
    return made


async def serve(args: argparse.Namespace) -> None:
    """Until told to stop."""
    limits = Limits(
        max_num_seqs=args.max_num_seqs,
        max_num_queued_tokens=args.max_num_queued_tokens,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
    )
    engine = FakeEngine(
        args.name,
        served_name=args.served_name,
        tokens=tuple(f" {index}" for index in range(args.num_tokens)),
        limits=limits,
        num_kv_blocks=args.num_kv_blocks,
        token_budget=args.max_num_batched_tokens,
        step_cost=args.step_cost,
        host=args.host,
        port=args.port,
    )
    engine.drain_grace = args.drain_grace
    engine.keeps_requests = False  # nobody looks at them, and it may run for long
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, engine.drain)
    loop.add_signal_handler(signal.SIGINT, stopped.set)
    async with engine:
        print(json.dumps({"url": engine.url, "host": args.host, "port": engine.port, "pid": os.getpid()}), flush=True)
        stopping = (asyncio.create_task(stopped.wait()), asyncio.create_task(_drained(engine)))
        await asyncio.wait(stopping, return_when=asyncio.FIRST_COMPLETED)


async def _drained(engine: FakeEngine) -> None:
    """Until it refuses requests and has finished those it had."""
    while engine.refusal is not Refusal.DRAINING or engine.num_running:
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser().parse_args()))
