"""The fake vLLM's HTTP side."""

from collections.abc import Mapping
from typing import Any

from fairlead_testing.fake_engine.answers import error
from fairlead_testing.paged_server import DEFAULT_LIMITS, PagedServer

__all__ = ["DEFAULT_LIMITS", "FakeVllm"]
VERSION = "0.22.0"


class FakeVllm(PagedServer):
    """`async with FakeVllm() as vllm:` and send requests to `vllm.url`. Attributes may be changed at any time."""

    kind = "vllm"

    def documents(self) -> Mapping[str, Any]:
        card = {**self.card(), "owned_by": "vllm", "root": "/model"}
        return {"/version": {"version": VERSION}, "/v1/models": {"object": "list", "data": [card]}}

    def metrics(self) -> list[str]:
        core, label = self.core, f'engine="0",model_name="{self.served_name}"'
        return [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{label}}} {float(len(core.running))}",
            f"vllm:num_requests_waiting{{{label}}} {float(len(core.waiting))}",
            f"vllm:kv_cache_usage_perc{{{label}}} {self.usage}",
            *(f"vllm:{name}_total{{{label}}} {float(count)}" for name, count in self.counts.items()),
            f'vllm:cache_config_info{{block_size="{core.limits.block_size}",cache_dtype="auto",engine="0",'
            f'num_gpu_blocks="{core.cache.num_blocks}",prefix_caching_hash_algo="sha256"}} 1.0',
        ]

    def refusal(self, status: int, message: str, type: str) -> dict[str, Any]:
        return error(message, type)
