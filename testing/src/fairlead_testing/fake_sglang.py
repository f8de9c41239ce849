"""FakeSglang: SGLang's server as others see it, with no model behind it: OpenAI's API, `/server_info`, metrics, and KV
events with a prompt's salt as a field.

`python -m fairlead_testing.fake_sglang serve --model-path FOLDER --…` takes SGLang's flags and is one as a process of
its own.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead_testing.block_publisher import Encoding
from fairlead_testing.paged_server import PagedServer, run

VERSION = "0.5.23"
_IGNORED = (
    "--dtype", "--quantization", "--tp-size", "--kv-cache-dtype", "--tool-call-parser", "--reasoning-parser",
    "--default-priority-value", "--random-seed", "--mem-fraction-static", "--max-total-tokens",
)  # fmt: skip


class FakeSglang(PagedServer):
    """`async with FakeSglang() as sglang:` and send requests to `sglang.url`. Attributes may be changed at any time."""

    kind = "sglang"

    def __init__(self, **settings: Any) -> None:
        """As for a `PagedServer`."""
        super().__init__(**{"encoding": Encoding.SALTED_MAPS, **settings})
        self.has_metrics = True
        """Whether it was told `--enable-metrics`."""

    def documents(self) -> Mapping[str, Any]:
        cache = self.core.cache
        card = {**self.card(), "owned_by": "sglang", "root": self.served_name}
        return {
            "/server_info": {
                "version": VERSION,
                "page_size": cache.block_size,
                "max_total_num_tokens": cache.num_blocks * cache.block_size,
                "internal_states": [{}],
            },
            "/v1/models": {"object": "list", "data": [card]},
        }

    def metrics(self) -> list[str]:
        if not self.has_metrics:
            return []
        core, label = self.core, f'engine_type="unified",model_name="{self.served_name}"'
        counts = {"num_running_reqs": len(core.running), "num_queue_reqs": len(core.waiting)}
        return [
            "# TYPE sglang:num_queue_reqs gauge",
            f"sglang:max_total_num_tokens{{{label}}} {float(core.cache.num_blocks * core.cache.block_size)}",
            *(f'sglang:{name}{{{label},priority="{priority}"}} {float(count)}'
              for name, count in counts.items() for priority in ("", "0")),
            f"sglang:token_usage{{{label}}} {self.usage}",
            *(f'sglang:{name}_total{{{label},is_streaming="true"}} {float(count)}'
              for name, count in self.counts.items()),
        ]  # fmt: skip

    def refusal(self, status: int, message: str, type: str) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": type, "param": None, "code": status}


def parser() -> argparse.ArgumentParser:
    """Of SGLang's flags, those that a pod gives, and some that do nothing here."""
    made = argparse.ArgumentParser("sglang", description=__doc__, allow_abbrev=False)
    serve = made.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("--model-path", dest="model", type=Path, required=True)
    serve.add_argument("--served-model-name", required=True)
    serve.add_argument("--host", required=True)
    serve.add_argument("--port", type=int, required=True)
    serve.add_argument("--context-length", dest="max_model_len", type=int, default=2048)
    serve.add_argument("--max-running-requests", dest="max_num_seqs", type=int, default=256)
    serve.add_argument("--chunked-prefill-size", dest="max_num_batched_tokens", type=int, default=8192)
    serve.add_argument("--page-size", dest="block_size", type=int, default=1)
    serve.add_argument("--kv-events-config", type=json.loads, default={})
    for flag in ("--enable-priority-scheduling", "--schedule-low-priority-values-first"):
        serve.add_argument(flag, action="store_true")
    for flag in ("--enable-metrics", "--enable-cache-report"):
        serve.add_argument(flag, action="store_true", required=True)
    serve.add_argument("--disable-radix-cache", action="store_true")
    for flag in _IGNORED:
        serve.add_argument(flag)
    return made


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line; `events` and `replay` are where it says that events go."""
    args = parser().parse_args(words)
    config = args.kv_events_config
    assert not config or config["publisher"] == "zmq"
    args.events, args.replay = config.get("endpoint"), config.get("replay_endpoint")
    return args


if __name__ == "__main__":
    run(FakeSglang, read_arguments())
