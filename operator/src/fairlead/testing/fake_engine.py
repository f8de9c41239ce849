"""FakeEngine: a server on a real socket that speaks the engine's side of the model-server protocol, with no model
behind it.

For tests of whatever stands in front of engines. It answers chats and completions with given tokens, keeps its bounds
as a real engine does, records what it was sent, notices clients that leave, and misbehaves on request: full,
draining, silent, slow, dying.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from fairlead.routing.replica import Limits, Replica
from fairlead.testing.http import RecordedRequest, Responder, serve_http
from fairlead_protocol.messages import (
    HEADER_CACHED_TOKENS,
    HEADER_REASON,
    PATH_MODEL,
    REASON_DRAINING,
    REASON_ENGINE_FULL,
)

Pace = Callable[[int], Awaitable[None]]
"""Awaited before each token, with its index."""


class Refusal(Enum):
    """Ways to turn every request down: (status, reason header, error code, sentence)."""

    FULL = (429, REASON_ENGINE_FULL, "engine_full", "The engine's queue is full.")
    DRAINING = (503, REASON_DRAINING, "draining", "The engine is draining.")
    DEAD = (500, "", "engine_dead", "The engine's core has died.")
    UNAVAILABLE = (503, "", "unavailable", "Something is not well.")


class Death(Enum):
    """When the connection is cut, as if the process had been killed."""

    BEFORE_HEADERS = -1
    AFTER_HEADERS = 0
    AFTER_ONE_TOKEN = 1


@dataclass(slots=True)
class _Answer:
    """One answer in the making."""

    chat: bool
    tokens: list[str]
    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": len(self.tokens),
            "total_tokens": self.num_prompt_tokens + len(self.tokens),
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


class FakeEngine:
    """`async with FakeEngine() as engine:` and send requests to `engine.url`. Attributes may be changed at any time."""

    def __init__(
        self,
        name: str = "engine-0",
        *,
        served_name: str = "fake",
        tokens: tuple[str, ...] = ("Hello", ",", " world", "!"),
        limits: Limits | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """`limits`: 8 running and 8 waiting by default; beyond them it refuses as full, as a real one does.

        `port`: 0 = any free one.
        """
        self._host, self._port = host, port
        self.name = name
        self.served_name = served_name
        self.tokens = tokens
        self.limits = limits or Limits(max_num_seqs=8, max_num_waiting=8, max_model_len=64)
        self.refusal: Refusal | None = None
        self.death: Death | None = None
        self.pace: Pace | None = None
        """Slows tokens down, or stops them; None = all at once."""
        self.gate = asyncio.Event()
        """While cleared, requests are taken and nothing is answered."""
        self.gate.set()
        self.write_size: int | None = None
        """Cuts streams into writes of this many bytes, to the distress of careless readers; None = whole events."""
        self.null_usage = False
        """Whether chunks without usage say so with a null, as OpenAI's do."""
        self.num_cached_tokens = 0
        self.requests: list[RecordedRequest] = []
        """Every request to an inference path, refused ones too."""
        self.num_running = 0
        self.num_finished = 0
        self.num_cancelled = 0
        """Requests whose client left before the end."""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve_http(self._respond, host=self._host, port=self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None, "use `async with`"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Base URL, without /v1."""
        return f"http://{self._host}:{self.port}"

    def replica(self, *, with_limits: bool = True) -> Replica:
        """This engine as the gateway knows it."""
        limits = self.limits if with_limits else None
        return Replica(uid=self.name, name=self.name, host=self._host, port=self.port, limits=limits)

    def stop(self) -> None:
        """Stops listening; later connections are refused."""
        if self._server is not None:
            self._server.close()

    async def _respond(self, request: RecordedRequest, responder: Responder) -> None:
        if request.path in ("/health", "/ready"):
            await responder.json(200, {"status": "ok"})
        elif request.path == PATH_MODEL:
            await responder.json(200, self._model_info())
        elif request.path in ("/v1/chat/completions", "/v1/completions"):
            self.requests.append(request)
            await self._infer(request, responder)
        else:
            await responder.json(404, _error("Not Found", "invalid_request_error"))

    async def _infer(self, request: RecordedRequest, responder: Responder) -> None:
        if (refusal := self._refusal()) is not None:
            status, reason, code, message = refusal.value
            headers = {HEADER_REASON: reason} if reason else {}
            await responder.json(status, _error(message, "server_error", code), headers)
            return
        self.num_running += 1
        try:
            await self._serve(request, responder)
            self.num_finished += 1
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1

    def _refusal(self) -> Refusal | None:
        if self.refusal is None and self.num_running >= self.limits.capacity:
            return Refusal.FULL
        return self.refusal

    async def _serve(self, request: RecordedRequest, responder: Responder) -> None:
        await self.gate.wait()
        if self.death is Death.BEFORE_HEADERS:
            responder.abort()
            return
        body, chat = request.json(), request.path.endswith("/chat/completions")
        prompt = " ".join(str(message["content"]) for message in body["messages"]) if chat else str(body["prompt"])
        if (error := self._mistake(body, prompt)) is not None:
            await responder.json(*error)
            return
        tokens = list(self.tokens[: body.get("max_tokens")])
        answer = _Answer(chat, tokens, len(prompt.split()), self.num_cached_tokens)
        if body.get("stream"):
            await self._stream(answer, bool((body.get("stream_options") or {}).get("include_usage")), responder)
        else:
            for index in range(len(tokens)):
                await self._before_token(index)
            await responder.json(200, self._whole(answer), self._headers())

    def _mistake(self, body: dict[str, Any], prompt: str) -> tuple[int, dict[str, Any]] | None:
        if body.get("model") != self.served_name:
            return 404, _error(f"The model {body.get('model')!r} does not exist.", "invalid_request_error")
        if len(prompt.split()) > (self.limits.max_model_len or 64):
            return 400, _error("The prompt is longer than the model's context.", "invalid_request_error")
        return None

    async def _stream(self, answer: _Answer, include_usage: bool, responder: Responder) -> None:
        await responder.start(200, {"content-type": "text/event-stream", **self._headers()})
        for index, event in enumerate(self._events(answer, include_usage)):
            if self.death is not None and index == self.death.value:
                responder.abort()
                return
            if index < len(answer.tokens):
                await self._before_token(index)
            for piece in _cut(event, self.write_size):
                await responder.chunk(piece)
        await responder.end()

    async def _before_token(self, index: int) -> None:
        if self.pace is not None:
            await self.pace(index)

    def _events(self, answer: _Answer, include_usage: bool) -> Iterator[bytes]:
        """One event per token, then the finish reason, the usage if it was asked for, and the end."""
        for token in answer.tokens:
            yield _event(self._chunk(answer, token, None, include_usage))
        yield _event(self._chunk(answer, "", "stop", include_usage))
        if include_usage:
            yield _event({**self._envelope(answer, ".chunk"), "choices": [], "usage": answer.usage})
        yield b"data: [DONE]\n\n"

    def _chunk(self, answer: _Answer, text: str, reason: str | None, include_usage: bool) -> dict[str, Any]:
        content = {"delta": {"role": "assistant", "content": text}} if answer.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": reason}
        nothing = {"usage": None} if self.null_usage and include_usage else {}
        return {**self._envelope(answer, ".chunk"), "choices": [choice], **nothing}

    def _whole(self, answer: _Answer) -> dict[str, Any]:
        text = "".join(answer.tokens)
        content = {"message": {"role": "assistant", "content": text}} if answer.chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": "stop"}
        return {**self._envelope(answer, ""), "choices": [choice], "usage": answer.usage}

    def _envelope(self, answer: _Answer, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if answer.chat else "text_completion"
        return {"id": f"{self.name}-1", "object": kind, "created": 1, "model": self.served_name}

    def _headers(self) -> dict[str, str]:
        return {HEADER_CACHED_TOKENS: str(self.num_cached_tokens)}

    def _model_info(self) -> dict[str, Any]:
        return {
            "protocol_version": 1,
            "engine_version": "fake",
            "served_name": self.served_name,
            "digest": "fake",
            "tokenizer_json": "{}",
            "chat_template": None,
            "special_tokens": {},
            "block_size": 16,
            "max_model_len": self.limits.max_model_len,
            "max_num_seqs": self.limits.max_num_seqs,
            "max_num_waiting": self.limits.max_num_waiting,
            "max_num_batched_tokens": 512,
            "num_kv_blocks": 64,
            "dtype": "float32",
            "device": "cpu",
            "architecture": "FakeForCausalLM",
        }


def _error(message: str, type: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _cut(data: bytes, size: int | None) -> Iterator[bytes]:
    step = size or len(data)
    return (data[start : start + step] for start in range(0, len(data), step))
