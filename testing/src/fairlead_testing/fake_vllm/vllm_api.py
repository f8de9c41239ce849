"""The fake vLLM's HTTP side."""

from collections.abc import Mapping
from typing import Any

from fairlead_testing.fake_engine.answers import Answer
from fairlead_testing.fake_vllm.vllm_answers import VllmAnswer
from fairlead_testing.paged_server import DEFAULT_LIMITS, PagedServer

__all__ = ["DEFAULT_LIMITS", "FakeVllm"]
VERSION = "0.22.0"


class FakeVllm(PagedServer):
    """`async with FakeVllm() as vllm:` and send requests to `vllm.url`. Attributes may be changed at any time."""

    kind = "vllm"
    reasons = False
    """Whether it has a reasoning parser: chats begin with reasoning, whose length may be bounded."""

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
        return {"error": {"message": message, "type": type, "param": None, "code": status}}

    def problem(self, body: Mapping[str, Any], num_prompt_tokens: int) -> str | None:
        room = (self.core.limits.max_model_len or 10**9) - num_prompt_tokens
        most = body.get("max_completion_tokens") or body.get("max_tokens") or 0
        if most > room > 0:
            return f"'max_tokens' or 'max_completion_tokens' is too large: {most}. The request has room for {room}."
        if body.get("tools") == []:
            return "`tools` must not be an empty array."
        choice = body.get("tool_choice")
        if choice not in (None, "none") and body.get("tools") is None:
            return "When using `tool_choice`, `tools` must be set."
        if isinstance(choice, dict) and "function" not in choice:
            return "Invalid value for `function`: `None` in `tool_choice`!"
        if body.get("stream_options") and not body.get("stream"):
            return "Stream options can only be defined when `stream=True`."
        if body.get("reasoning_effort") not in (None, "none", "low", "medium", "high"):
            return "[{'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': 'Input should be …'}]"
        return super().problem(body, num_prompt_tokens)

    def late_problem(self, body: Mapping[str, Any]) -> str | None:
        if body.get("thinking_token_budget") is None or self.reasons:
            return None
        return "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-config."

    def answer(self, body: Mapping[str, Any], **facts: Any) -> Answer:
        return VllmAnswer.to(body, reasons=self.reasons, **facts)
