"""A small OpenAI client for our own tools: streamed chats, with times and replica.

Used by `fairlead chat`, the demo and the load generator. People have the official client.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgspec

from fairlead_common.http.addresses import without_credentials
from fairlead_common.http.client import HttpClient, TimeLimits, lines
from fairlead_common.http.client_connection import Connection, TransportError, cause_of
from fairlead_common.http.origin import basic_credentials, parse
from fairlead_common.wire.messages import (
    HEADER_CACHED_TOKENS,
    HEADER_PREDICTED_CACHED_TOKENS,
    HEADER_PREDICTED_TTFT_MS,
    HEADER_REPLICA,
    HEADER_REQUEST_ID,
)

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 120.0
MAX_IDLE = 1000
"""Idle connections kept for a load's next requests."""
MAX_ANSWER_BYTES = 64 * 2**20
MODEL_NOT_FOUND = "model_not_found"
"""The code of such an error, everywhere."""


class RequestFailed(Exception):
    """The gateway refused, or the stream ended in an error. `status` is 0 where there was no HTTP answer."""

    def __init__(self, status: int, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        """`retry_after`: seconds; None = not said."""
        super().__init__(f"{message} (HTTP {status})" if status else message)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        """For counting: status and code, or the message without a status."""
        if not self.status:
            return f"{self.code}: {self.message}" if self.code else self.message
        return f"HTTP {self.status} {self.code}" if self.code else f"HTTP {self.status}"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _TokenUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _TokenDetails | None = None


class _ErrorBody(msgspec.Struct):
    message: str = "the stream ended in an error"
    code: str | int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _TokenUsage | None = None
    error: _ErrorBody | None = None


_decoder = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class ChatAnswer:
    """One answer, growing while it is streamed. Times are seconds from sending the request."""

    text: str = ""
    finish_reason: str | None = None
    replica: str = ""
    """The pod that answered."""
    request_id: str = ""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    predicted_cached_tokens: int | None = None
    """What the gateway expected of `num_cached_tokens`; None where it did not say."""
    predicted_ttft_seconds: float | None = None
    """Predicted time from the request's arrival at the gateway to the first token, queueing included; None = not
    said."""
    ttft_seconds: float | None = None
    """None until the first text came."""
    duration_seconds: float = 0.0
    """To the newest event."""

    @property
    def tpot_seconds(self) -> float | None:
        """Time per output token after the first; None where there are not two."""
        if self.ttft_seconds is None or self.num_completion_tokens < 2:
            return None
        return (self.duration_seconds - self.ttft_seconds) / (self.num_completion_tokens - 1)

    def begin(self, headers: Mapping[str, str]) -> None:
        """Enters the gateway's headers."""

        def number(name: str) -> float | None:
            """None = missing, or no number: another server's header may mean something else."""
            try:
                return float(headers[name])
            except (KeyError, ValueError):
                return None

        self.replica = headers.get(HEADER_REPLICA, "")
        self.request_id = headers.get(HEADER_REQUEST_ID, "")
        self.num_cached_tokens = int(number(HEADER_CACHED_TOKENS) or 0)
        cached, milliseconds = number(HEADER_PREDICTED_CACHED_TOKENS), number(HEADER_PREDICTED_TTFT_MS)
        self.predicted_cached_tokens = None if cached is None else int(cached)
        self.predicted_ttft_seconds = None if milliseconds is None else milliseconds / 1000

    def absorb(self, data: bytes) -> str:
        """Enters one event; the text it brought. Raises RequestFailed for an error event."""
        try:
            event = _decoder.decode(data)
        except msgspec.DecodeError as error:
            raise RequestFailed(0, f"an event of the stream is not what OpenAI's API says: {error}") from error
        if event.error is not None:
            raise RequestFailed(
                0, event.error.message, code=None if event.error.code is None else str(event.error.code)
            )
        if event.usage is not None:
            self.num_prompt_tokens = event.usage.prompt_tokens
            self.num_completion_tokens = event.usage.completion_tokens
            details = event.usage.prompt_tokens_details
            if details is not None and details.cached_tokens is not None:
                self.num_cached_tokens = details.cached_tokens
        for choice in event.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
        brought = "".join(choice.delta.content or "" for choice in event.choices)
        self.text += brought
        return brought


class ModelEntry(msgspec.Struct, frozen=True):
    """One name of `/v1/models`."""

    id: str
    max_model_len: int | None = None
    """Longest prompt and answer together, in tokens; None = not said."""
    state: str | None = None
    """How far the model is, where the server says; None = it can be asked."""

    @property
    def is_ready(self) -> bool:
        return self.state in (None, "ready")


class _Listing(msgspec.Struct):
    data: list[ModelEntry]


class OpenAIClient:
    """`async with OpenAIClient("http://127.0.0.1:8080/v1") as client`. Not shared between event loops."""

    def __init__(self, base_url: str, *, api_key: str | None = None, silence_seconds: float = SILENCE_SECONDS) -> None:
        """`base_url` ends in /v1. `api_key`: None = send none. `silence_seconds`: the longest, the wait for the first
        byte included."""
        self._base_url = without_credentials(base_url.rstrip("/"))  # as errors show it
        self._origin, self._path = parse(self._base_url)
        credentials = f"Bearer {api_key}" if api_key else basic_credentials(base_url)
        self._authorization = {"authorization": credentials} if credentials else {}
        self._limits = TimeLimits(connect=CONNECT_SECONDS, first_byte=silence_seconds, silence=silence_seconds)
        self._http = HttpClient(max_idle=MAX_IDLE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    async def models(self) -> dict[str, ModelEntry]:
        """What can be asked for, by name. Raises RequestFailed."""
        try:
            async with self._open("GET", "/models") as response:
                listing = msgspec.json.decode(await response.read(MAX_ANSWER_BYTES), type=_Listing)
        except msgspec.DecodeError as error:
            raise RequestFailed(0, f"{self._base_url}/models is not what OpenAI's API says: {error}") from error
        return {entry.id: entry for entry in listing.data}

    async def model(self, name: str) -> ModelEntry | None:
        """A name's entry, also of an unlisted name; None = the server does not say. Raises RequestFailed, with the code
        MODEL_NOT_FOUND for an unknown model."""
        try:
            if listed := (await self.models()).get(name):
                return listed
            async with self._open("GET", f"/models/{quote(name)}") as response:
                return msgspec.json.decode(await response.read(MAX_ANSWER_BYTES), type=ModelEntry)
        except msgspec.DecodeError:
            return None
        except RequestFailed as error:
            if error.status and error.code != MODEL_NOT_FOUND:
                return None
            raise

    async def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        completion: ChatAnswer | None = None,
        **parameters: Any,
    ) -> ChatAnswer:
        """The whole answer to a chat, read as a stream; `completion` is what to fill in. Raises RequestFailed."""
        completion = completion or ChatAnswer()
        async for _ in self.stream_chat(model, messages, completion, **parameters):
            pass
        return completion

    async def stream_chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], completion: ChatAnswer, **parameters: Any
    ) -> AsyncIterator[str]:
        """Pieces of text as they come; fills in `completion`. Raises RequestFailed."""
        clock = asyncio.get_running_loop().time
        started = clock()
        asked = {"model": model, "messages": messages, **parameters}
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._open("POST", "/chat/completions", msgspec.json.encode(asked)) as response:
            completion.begin(
                {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers.items()}
            )
            async for line in lines(response):
                if line == b"data: [DONE]":
                    return
                if not line.startswith(b"data:"):
                    continue
                text = completion.absorb(line[5:])
                completion.duration_seconds = clock() - started
                if text:
                    if completion.ttft_seconds is None:
                        completion.ttft_seconds = completion.duration_seconds
                    yield text
        raise RequestFailed(0, "the stream ended before the answer was complete")

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[Connection]:
        """An answer with a status below 300. A refusal, and no answer at all, raise RequestFailed."""
        headers = self._authorization | ({} if body is None else {"content-type": "application/json"})
        try:
            target, limits = self._path + path, self._limits
            async with self._http.request(self._origin, method, target, limits, headers=headers, body=body) as response:
                if response.status < 300:
                    yield response
                    return
                text = (await response.read(MAX_ANSWER_BYTES)).decode(errors="replace")
                retry_after = response.headers.get(b"retry-after", b"").decode("latin-1")
        except msgspec.DecodeError:
            raise  # whoever reads the answer says what it should have been
        except (TransportError, ValueError) as error:  # ValueError: what HTTP cannot say
            raise RequestFailed(0, f"{self._base_url}: {cause_of(error)}") from error
        said = _ErrorBody(message=text.strip()[:500] or "no message")
        with suppress(msgspec.DecodeError):
            said = _decoder.decode(text).error or said
        raise RequestFailed(
            response.status,
            said.message,
            code=None if said.code is None else str(said.code),
            retry_after=float(retry_after) if retry_after.isdigit() else None,
        )
