"""A fake vLLM as a process: `python -m fairlead_testing.fake_vllm serve MODEL --…`, with vLLM's own flags.

SIGTERM ends it at once, whatever runs. SIGUSR1 cuts its event stream, SIGUSR2 opens it again. Flags that change nothing
here are taken, too, so long as vLLM has them.
"""

import argparse
import asyncio
import os
import signal
from pathlib import Path

import uvloop

from fairlead.routing.replica import Limits
from fairlead_protocol.messages import StepCost
from fairlead_protocol.tokenizing import PromptTokenizer
from fairlead_testing.fake_vllm.vllm_api import FakeVllm

STEP_COST = StepCost(base=0.004, prefill_token=2e-5, decode_seq=2e-4)
LOAD_SECONDS = "FAKE_VLLM_LOAD_SECONDS"
"""Environment variable: how long loading the model takes."""
_IGNORED = (
    "--dtype", "--quantization", "--tensor-parallel-size", "--kv-cache-dtype", "--kv-cache-memory-bytes",
    "--tool-call-parser", "--reasoning-parser", "--scheduling-policy", "--seed", "--gpu-memory-utilization",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("vllm", description=__doc__, allow_abbrev=False)
    serve = made.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("model", type=Path)
    serve.add_argument("--served-model-name", required=True)
    serve.add_argument("--host", required=True)
    serve.add_argument("--port", type=int, required=True)
    serve.add_argument("--max-model-len", type=int, default=2048)
    serve.add_argument("--max-num-seqs", type=int, default=256)
    serve.add_argument("--max-num-batched-tokens", type=int, default=8192)
    serve.add_argument("--block-size", type=int, default=16)
    serve.add_argument("--kv-events-config.enable_kv_cache_events", choices=("true",))
    serve.add_argument("--kv-events-config.publisher", choices=("zmq",))
    serve.add_argument("--kv-events-config.endpoint", dest="events")
    serve.add_argument("--kv-events-config.replay_endpoint", dest="replay")
    serve.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    serve.add_argument("--enable-prompt-tokens-details", action="store_true", required=True)
    serve.add_argument("--enable-auto-tool-choice", action="store_true")
    for flag in _IGNORED:
        serve.add_argument(flag)
    return made


async def serve(args: argparse.Namespace) -> None:
    """Until told to stop."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.sleep(float(os.environ.get(LOAD_SECONDS, "0.5")))
    limits = Limits(
        max_num_seqs=args.max_num_seqs,
        max_num_queued_tokens=10**9,
        block_size=args.block_size,
        max_model_len=args.max_model_len,
    )
    vllm = FakeVllm(
        served_name=args.served_model_name,
        tokenizer=PromptTokenizer.from_folder(args.model),
        limits=limits,
        token_budget=args.max_num_batched_tokens,
        step_cost=STEP_COST,
        events=args.events,
        replay=args.replay,
        host=args.host,
        port=args.port,
    )
    loop.add_signal_handler(signal.SIGUSR1, vllm.publisher.close)
    loop.add_signal_handler(signal.SIGUSR2, vllm.publisher.open)
    async with vllm:
        await stopped.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser().parse_args()))
