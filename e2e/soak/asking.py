"""One request of a client: it is sent, its stream is put together, and what no server may do is raised."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Json = dict[str, Any]


class Refused(Exception):
    """429: the fleet is full."""


class Failed(Exception):
    """Anything that a client of a healthy fleet must not see."""


class ClientLeft(Exception):
    """The client went away on purpose."""


@dataclass
class Asked:
    """One answer, put together."""

    texts: dict[int, str] = field(default_factory=dict)
    """By choice."""
    finish_reasons: dict[int, str] = field(default_factory=dict)
    usage: Json | None = None
    arguments: dict[int, dict[int, str]] = field(default_factory=dict)
    """Of calls of tools: by choice, then by call."""

    @property
    def text(self) -> str:
        """Of the only choice."""
        return self.texts.get(0, "")


class Requests:
    """What one gateway is asked."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str) -> None:
        self._session = session
        self._gateway = gateway

    async def answer(self, path: str, body: Json) -> Asked:
        """The whole answer. Raises Refused and Failed."""
        asked = Asked()
        async for event in self._events(path, body):
            for choice in event.get("choices", []):
                index = choice["index"]
                said = choice.get("delta", choice.get("message"))
                text = choice["text"] if said is None else said.get("content") or ""
                for place, call in enumerate((said or {}).get("tool_calls") or ()):
                    calls = asked.arguments.setdefault(index, {})
                    number = call.get("index", place)
                    calls[number] = calls.get(number, "") + (call["function"].get("arguments") or "")
                asked.texts[index] = asked.texts.get(index, "") + text
                if choice.get("finish_reason"):
                    asked.finish_reasons[index] = choice["finish_reason"]
            asked.usage = event.get("usage") or asked.usage
        if not asked.finish_reasons:
            raise Failed("the answer has no finish_reason")
        return asked

    async def whole(self, path: str, body: Json) -> Json:
        """An answer that is no text and no stream."""
        async for answer in self._events(path, body):
            return answer
        raise Failed("no answer")

    async def _events(self, path: str, body: Json) -> AsyncIterator[Json]:
        """A stream's events, or the one whole answer."""
        async with self._session.post(f"{self._gateway}{path}", json=body) as reply:
            if reply.status == 429:
                if "retry-after" not in reply.headers:
                    raise Failed(f"429 without Retry-After: {await reply.text()}")
                raise Refused
            if reply.status != 200:
                raise Failed(f"{reply.status}: {(await reply.text())[:300]}")
            if not body.get("stream"):
                yield await reply.json()
                return
            async for line in reply.content:
                payload = line.removeprefix(b"data: ").strip()
                if payload == b"[DONE]":
                    return
                if payload:
                    event = json.loads(payload)
                    if "error" in event:
                        raise Failed(payload.decode()[:300])
                    yield event
            raise Failed("the stream ended without [DONE]")
