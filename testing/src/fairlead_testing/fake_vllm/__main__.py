"""A fake vLLM as a process: `python -m fairlead_testing.fake_vllm serve MODEL --…`, with vLLM's own flags.

Flags that change nothing here are taken, too, so long as vLLM has them.
"""

import argparse
from pathlib import Path

from fairlead_testing.fake_vllm.vllm_api import FakeVllm
from fairlead_testing.paged_server import run

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


if __name__ == "__main__":
    run(FakeVllm, parser().parse_args())
