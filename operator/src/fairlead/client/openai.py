"""An OpenAI client as small as our own tools need: one chat or completion, streamed, with its times and its replica.

Used by `fairlead chat`, the demo and the load generator. It is no general client: people have the official one.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import msgspec

from fairlead.addresses import cause_of
from fairlead_protocol.messages import (
    HEADER_CACHED_TOKENS,
    HEADER_PREDICTED_CACHED_TOKENS,
    HEADER_PREDICTED_TTFT_MS,
    HEADER_QUEUE_MS,
    HEADER_REPLICA,
    HEADER_REQUEST_ID,
)

MODEL_NOT_FOUND = "model_not_found"
"""The code of such an error, everywhere."""


class ApiError(Exception):
    """The gateway refused, or the stream ended in an error. `status` is 0 where there was no HTTP answer."""

    def __init__(self, status: int, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        """`retry_after`: seconds; None = not said."""
        super().__init__(f"{message} (HTTP {status})" if status else message)
        self.status = status
        self.message = message
        self.code = code
        self.retry_after = retry_after


@dataclass(slots=True)
class Completion:
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
    """From the request's arrival at the gateway to the first token, as the gateway foresaw it on arrival, its line
    included; None where it did not say."""
    queue_seconds: float = 0.0
    """What the gateway says it waited there before its dispatch."""
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds."""

    connect: float = 5.0
    read: float = 120.0
    """Longest silence, the wait for the first byte included."""


class ListedModel(msgspec.Struct, frozen=True):
    """One name of `/v1/models`."""

    id: str
    max_model_len: int | None = None
    """Tokens of a prompt and its answer together, at most; None where the server does not say."""
    state: str | None = None
    """How far the model is, where the server says; None = it can be asked."""

    @property
    def is_ready(self) -> bool:
        return self.state in (None, "ready")


class OpenAIClient:
    """`async with OpenAIClient("http://127.0.0.1:8080/v1") as client`. Not shared between event loops."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        max_connections: int = 0,
    ) -> None:
        """`base_url` ends in /v1. `api_key`: None = send none. `max_connections`: 0 = no
        limit."""
        self._base_url = base_url.rstrip("/")
        self._authorization = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeouts = timeouts or Timeouts()
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect, sock_read=self._timeouts.read)
        connector = aiohttp.TCPConnector(limit=self._max_connections)
        self._session = aiohttp.ClientSession(timeout=limits, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> dict[str, ListedModel]:
        """What can be asked for, by name. Raises ApiError."""
        try:
            return {entry.id: entry for entry in _listing.decode(await self._get("/models")).data}
        except msgspec.DecodeError as error:
            raise ApiError(0, f"{self._base_url}/models is not what OpenAI's API says: {error}") from error

    async def model(self, name: str) -> ListedModel | None:
        """What is known of one name, also of one that is not listed; None where the server does not say. Raises
        ApiError, with the code MODEL_NOT_FOUND where the server says that there is none."""
        try:
            if listed := (await self.models()).get(name):
                return listed
            return _entry.decode(await self._get(f"/models/{quote(name)}"))
        except msgspec.DecodeError:
            return None
        except ApiError as error:
            if error.status and error.code != MODEL_NOT_FOUND:
                return None
            raise

    async def chat(
        self,
        model: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        completion: Completion | None = None,
        **parameters: Any,
    ) -> Completion:
        """The whole answer to a chat, read as a stream; `completion` is what to fill in. Raises ApiError."""
        completion = completion or Completion()
        async for _ in self.stream_chat(model, messages, completion, **parameters):
            pass
        return completion

    def stream_chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], completion: Completion, **parameters: Any
    ) -> AsyncIterator[str]:
        """Pieces of text as they come, while `completion` is filled in. Raises ApiError."""
        body = {"model": model, "messages": list(messages), **parameters}
        return self._stream("/chat/completions", body, completion)

    async def complete(self, model: str, prompt: str | Sequence[int], **parameters: Any) -> Completion:
        """The whole continuation of a prompt, as text or token ids, read as a stream. Raises ApiError."""
        completion = Completion()
        body = {"model": model, "prompt": prompt, **parameters}
        async for _ in self._stream("/completions", body, completion):
            pass
        return completion

    async def _get(self, path: str) -> bytes:
        try:
            async with self._open("GET", path) as response:
                await _raise_for_status(response)
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(self._base_url, error) from error

    async def _stream(self, path: str, body: Mapping[str, Any], completion: Completion) -> AsyncIterator[str]:
        clock = asyncio.get_running_loop().time
        started = clock()
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._open("POST", path, asked) as response:
                await _raise_for_status(response)
                _absorb_headers(response.headers, completion)
                async for event in _events(response.content):
                    text = _absorb(event, completion)
                    if text and completion.ttft_seconds is None:
                        completion.ttft_seconds = clock() - started
                    completion.duration_seconds = clock() - started
                    if text:
                        completion.text += text
                        yield text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(self._base_url, error) from error

    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> "aiohttp.client._RequestContextManager":
        assert self._session is not None, "use `async with`"
        data = None if body is None else msgspec.json.encode(body)
        headers = self._authorization | ({} if body is None else {"content-type": "application/json"})
        return self._session.request(method, self._base_url + path, data=data, headers=headers)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str = "the stream ended in an error"
    code: str | int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


class _Listing(msgspec.Struct):
    data: list[ListedModel]


_decoder = msgspec.json.Decoder(_Event)
_listing = msgspec.json.Decoder(_Listing)
_entry = msgspec.json.Decoder(ListedModel)


def _absorb_headers(headers: Mapping[str, str], completion: Completion) -> None:
    """Enters what the gateway says before the first token."""
    completion.replica = headers.get(HEADER_REPLICA, "")
    completion.request_id = headers.get(HEADER_REQUEST_ID, "")
    completion.num_cached_tokens = int(_number(headers, HEADER_CACHED_TOKENS) or 0)
    cached, milliseconds = (
        _number(headers, name) for name in (HEADER_PREDICTED_CACHED_TOKENS, HEADER_PREDICTED_TTFT_MS)
    )
    completion.queue_seconds = (_number(headers, HEADER_QUEUE_MS) or 0.0) / 1000
    completion.predicted_cached_tokens = None if cached is None else int(cached)
    completion.predicted_ttft_seconds = None if milliseconds is None else milliseconds / 1000


def _number(headers: Mapping[str, str], name: str) -> float | None:
    """None for a header that is missing or no number: another server's may mean something else."""
    try:
        return float(headers[name])
    except (KeyError, ValueError):
        return None


def _absorb(data: bytes, completion: Completion) -> str:
    """Enters one event into `completion`; the text it brought. Raises ApiError for an error event."""
    try:
        event = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ApiError(0, f"an event of the stream is not what OpenAI's API says: {error}") from error
    if event.error is not None:
        code = None if event.error.code is None else str(event.error.code)
        raise ApiError(0, event.error.message, code=code)
    if event.usage is not None:
        completion.num_prompt_tokens = event.usage.prompt_tokens
        completion.num_completion_tokens = event.usage.completion_tokens
        details = event.usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            completion.num_cached_tokens = details.cached_tokens
    text = ""
    for choice in event.choices:
        completion.finish_reason = choice.finish_reason or completion.finish_reason
        text += choice.delta.content or choice.text or ""
    return text


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event up to [DONE]. Raises ApiError where the stream ends without it."""
    pending = bytearray()
    async for chunk in content.iter_any():
        pending += chunk
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end]).strip()
            del pending[: end + 1]
            if line == b"data: [DONE]":
                return
            if line.startswith(b"data:"):
                yield line[5:].strip()
    raise ApiError(0, "the stream ended before the answer was complete")


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text(errors="replace")
    try:
        error = _decoder.decode(text).error
    except msgspec.DecodeError:
        error = None
    retry_after = response.headers.get("retry-after", "")
    raise ApiError(
        response.status,
        error.message if error else text.strip()[:500] or "no message",
        code=str(error.code) if error and error.code is not None else None,
        retry_after=float(retry_after) if retry_after.isdigit() else None,
    )


def _unreachable(base_url: str, error: BaseException) -> ApiError:
    return ApiError(0, f"{base_url}: {cause_of(error)}")
