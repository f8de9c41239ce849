"""A fake server with a cache of blocks as a process.

SIGTERM ends it at once, whatever runs. SIGUSR1 cuts its event stream, SIGUSR2 opens it again.
"""

import argparse
import asyncio
import signal

import uvloop

from fairlead.routing.replica import Limits
from fairlead_protocol.messages import StepCost
from fairlead_protocol.tokenizing import PromptTokenizer
from fairlead_testing.paged_server import PagedServer

STEP_COST = StepCost(base=0.004, prefill_token=2e-5, decode_seq=2e-4)
LOAD_SECONDS = 0.5
"""How long loading the model takes."""


def run(kind: type[PagedServer], args: argparse.Namespace) -> None:
    """Until told to stop. `args`: `model`, a folder, and limits and addresses under vLLM's names."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(kind, args))


async def _serve(kind: type[PagedServer], args: argparse.Namespace) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.sleep(LOAD_SECONDS)
    server = kind(
        served_name=args.served_model_name,
        tokenizer=PromptTokenizer.from_folder(args.model),
        limits=Limits(
            max_num_seqs=args.max_num_seqs,
            max_num_queued_tokens=10**9,
            block_size=args.block_size,
            max_model_len=args.max_model_len,
        ),
        token_budget=args.max_num_batched_tokens,
        step_cost=STEP_COST,
        events=args.events,
        replay=args.replay,
        host=args.host,
        port=args.port,
    )
    loop.add_signal_handler(signal.SIGUSR1, server.publisher.close)
    loop.add_signal_handler(signal.SIGUSR2, server.publisher.open)
    async with server:
        await stopped.wait()
