"""Answers of vLLM, with the fields that only it has: reasoning, calls, and what its own clients read. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from fairlead_testing.fake_engine.answers import Answer

NO_TOOLS = "none"
_OWN = {"prompt_logprobs": None, "prompt_token_ids": None, "kv_transfer_params": None}


@dataclass(slots=True, kw_only=True)
class VllmAnswer(Answer):
    """A call of the first tool, or of that which is named, until there is a result; else the tokens. A call has no text
    for arguments where the tool has no parameters."""

    reasoning: str | None = None
    call: dict[str, Any] | None = None
    """`name` and `arguments` of it."""
    reason: str = "stop"

    @classmethod
    def to(cls, body: Mapping[str, Any], *, reasons: bool, **facts: Any) -> Self:
        """What it answers a request."""
        tools, choice = body.get("tools") or [], body.get("tool_choice", "auto")
        reasoning = "Hm." if reasons and facts["chat"] else None
        if not tools or choice == NO_TOOLS or body["messages"][-1]["role"] == "tool":
            return cls(**facts, reasoning=reasoning)
        is_named = isinstance(choice, dict)
        name = choice["function"]["name"] if is_named else tools[0]["function"]["name"]
        [tool] = [each["function"] for each in tools if each["function"]["name"] == name][:1] or [{}]
        given = dict.fromkeys((tool.get("parameters") or {}).get("properties", ["city"]), "Oslo")
        call = {"name": name, "arguments": json.dumps(given) if given else ""}
        return cls(**facts, reasoning=reasoning, call=call, reason="stop" if is_named else "tool_calls")

    def whole(self) -> dict[str, Any]:
        document = super(VllmAnswer, self).whole()
        choice = document["choices"][0] | {"finish_reason": self.reason, "stop_reason": None, "logprobs": None}
        if self.chat:
            said = choice["message"] | {"refusal": None, "annotations": None, "audio": None, "function_call": None}
            said |= {"reasoning": self.reasoning, "tool_calls": []}
            if self.call is not None:
                called = {"id": "chatcmpl-tool-1", "type": "function", "function": self.call}
                said |= {"content": None, "tool_calls": [called]}
            choice["message"] = said
        return document | {"choices": [choice], "service_tier": None, **_OWN}

    def events(self, *, include_usage: bool, null_usage: bool) -> Iterator[bytes]:
        if not self.chat or (self.call is None and self.reasoning is None):
            yield from super(VllmAnswer, self).events(include_usage=include_usage, null_usage=null_usage)
            return
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning": self.reasoning}] if self.reasoning else []
        if self.call is None:
            deltas += [{"content": token} for token in self.tokens]
        else:
            begun = {"id": "chatcmpl-tool-1", "type": "function", "index": 0}
            deltas.append({"tool_calls": [begun | {"function": {"name": self.call["name"], "arguments": ""}}]})
            halves = self.call["arguments"][:5], self.call["arguments"][5:]
            deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": half}}]} for half in halves if half]
        yield from (self._event([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas)
        yield self._event([{"index": 0, "delta": {}, "finish_reason": self.reason, "stop_reason": None}])
        if include_usage:
            yield self._event([], usage=self.usage)
        yield b"data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        envelope = self._envelope(".chunk")
        return (
            b"data: " + json.dumps({**envelope, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"
        )
