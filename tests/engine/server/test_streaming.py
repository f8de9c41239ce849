"""Streams over real connections: what a step adds goes out at once, in one write, whoever else is slow."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from fairlead_common.http.server import HttpServer
from fairlead_common.openai.prompts import EncodedPrompt, Part
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.errors import EngineDead
from fairlead_engine.host.http_server import engine_limits, engine_protocol
from fairlead_engine.server.app import build_app
from fairlead_engine.types import EngineRequest, SequenceOutput
from fairlead_engine_testing import ScriptedEngine, answer
from fairlead_engine_testing.prompts_here import PromptsHere

TEXT = 'A "quoted" \\ line,\n\ttabs, null \0, Größe, 日本語, 👩‍👩‍👧 and </script>. ' * 3


@asynccontextmanager
async def served(app: Any, send_buffer: int | None = None) -> AsyncIterator[int]:
    """The port of a server of `app`, in this process, that may leave little with the system."""
    protocol = engine_protocol(engine_limits(100), Mock(), Mock())
    server = HttpServer(build_app(app.service), protocol, backlog=16, keep_alive_seconds=5, grace_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop()
            await serving


def posted(path: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps({"model": "tiny", "stream": True, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def streamed(port: int, path: str, fields: dict[str, Any]) -> list[bytes]:
    """The chunks that HTTP carried the answer in: one for each time the server wrote."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(posted(path, fields))
    async with asyncio.timeout(30):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        chunks = []
        while size := int(await reader.readline(), 16):
            chunks.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    return chunks


def events(chunks: Iterable[bytes]) -> list[Any]:
    """The JSON of all events but the last, each of which is written as msgspec writes it."""
    *lines, done, rest = b"".join(chunks).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    found = [json.loads(line.removeprefix(b"data: ")) for line in lines]
    assert [b"data: " + msgspec.json.encode(event) for event in found] == lines
    return found


CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ahoy"}]})
COMPLETION = ("/v1/completions", {"prompt": "ahoy"})


PLAIN: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"n": 3},
    {"stop": ["never to be seen"]},
    {"logprobs": True, "top_logprobs": 1},
]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *((CHAT[0], CHAT[1] | more) for more in PLAIN),
        *((COMPLETION[0], COMPLETION[1] | more) for more in [*PLAIN[:-1], {"logprobs": 1}, {"echo": True}]),
    ],
    ids=lambda value: value if isinstance(value, str) else list(value)[-1],
)
async def test_a_stream_is_the_same_events_however_they_are_written(
    start_app: Any, tokenizer: PromptTokenizer, path: str, fields: dict[str, Any]
) -> None:
    """On a connection chunks are put together from frames and written past ASGI; asked for token ids too, each is
    encoded whole; and without a connection all goes through ASGI."""
    app = start_app(ScriptedEngine(answer(tokenizer.encode(TEXT))))
    async with served(app) as port:
        framed = events(await streamed(port, path, fields))
        whole = events(await streamed(port, path, {**fields, "return_token_ids": True}))
    unconnected = await app.http.post(path, json={"model": "tiny", "stream": True, **fields})
    assert blurred(events([unconnected.content])) == blurred(framed)
    assert blurred(whole) == blurred(framed)
    firsts = [choice for event in framed for choice in event["choices"] if choice["index"] == 0]
    texts = [choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in firsts]
    assert "".join(texts) == ("ahoy" if "echo" in fields else "") + TEXT
    if "messages" in fields:
        begun = [
            (choice["index"], choice["delta"]) for event in framed[: fields.get("n", 1)] for choice in event["choices"]
        ]
        assert begun == [(index, {"role": "assistant", "content": ""}) for index in range(fields.get("n", 1))]


def blurred(found: list[Any]) -> list[Any]:
    """Without what differs between any two requests, the ids of tokens, and events that say nothing but ids."""
    for event in found:
        event.update(id=None, created=None)
        event.pop("prompt_token_ids", None)
        for choice in event["choices"]:
            choice.pop("token_ids", None)
            choice.pop("prompt_token_ids", None)
    return [event for event in found if not event["choices"] or any(map(says_something, event["choices"]))]


def says_something(choice: dict[str, Any]) -> bool:
    return bool(choice.get("text") or choice.get("delta") or choice["finish_reason"])


async def test_what_a_step_adds_is_one_write_and_wakes_no_task(
    start_app: Any, tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_asgi: list[Any] = []
    send = RequestResponseCycle.send

    async def spy(self: RequestResponseCycle, message: Any) -> None:
        through_asgi.append(message["type"])
        await send(self, message)

    monkeypatch.setattr(RequestResponseCycle, "send", spy)
    num_tokens = 50
    app = start_app(ScriptedEngine(answer([*tokenizer.encode("a")] * num_tokens)))
    async with served(app) as port:
        chunks = await streamed(port, "/v1/completions", {"prompt": "ahoy", "n": 3})
    assert [chunk.count(b"data: {") for chunk in chunks] == [3] * num_tokens, "all choices of a step are written as one"
    assert through_asgi.count("http.response.body") == 2, "the first step, and the last one with the end"


async def test_who_reads_slowly_gets_everything_and_holds_up_nobody(start_app: Any, tokenizer: PromptTokenizer) -> None:
    num_tokens = 3000
    app = start_app(ScriptedEngine(answer([*tokenizer.encode("a")] * num_tokens)))
    async with served(app, send_buffer=4096) as port:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", port))
            await loop.sock_sendall(slow, posted("/v1/completions", {"prompt": "slow"}))
            assert len(events(await streamed(port, "/v1/completions", {"prompt": "quick"}))) == num_tokens
            async with asyncio.timeout(30):
                while app.engine.running:  # the engine waits for no reader
                    await asyncio.sleep(0.01)
                assert app.service.lifecycle.num_running == 1, "its text waits in the server, not in the connection"
                received = b""
                while part := await loop.sock_recv(slow, 65536):
                    received += part
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert received.count(b"data: {") == num_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_dies_behind_its_last_step_ends_what_runs(start_app: Any, stream: bool) -> None:
    def script(request: EngineRequest) -> Iterable[SequenceOutput]:
        yield SequenceOutput(request_id=request.request_id, new_token_ids=[70])
        yield SequenceOutput(request_id=request.request_id, new_token_ids=[70])
        raise EngineDead("the engine core has died")  # comes in the same round as the output

    app = start_app(ScriptedEngine(script))
    async with served(app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(posted("/v1/completions", {"prompt": "ahoy", "stream": stream}))
        async with asyncio.timeout(30):
            assert b"the engine core has died" in await reader.read()
        writer.close()


async def test_streams_go_on_while_a_prompt_of_some_length_is_tokenised(
    start_app: Any, tokenizer: PromptTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go, began = asyncio.Event(), asyncio.Event()
    ask, encoded = PromptsHere.ask, Part.encoded

    async def slow(self: PromptsHere, job: bytes) -> bytes:
        if len(job) > 9_000:
            began.set()
            await let_go.wait()
        return await ask(self, job)

    def short(self: Part, tokenizer: PromptTokenizer, add_special_tokens: bool) -> EncodedPrompt:
        return EncodedPrompt([1]) if len(self.content) > 9_000 else encoded(self, tokenizer, add_special_tokens)

    monkeypatch.setattr(PromptsHere, "ask", slow)
    monkeypatch.setattr(PromptsHere, "ask_beside", slow)
    monkeypatch.setattr(Part, "encoded", short)
    monkeypatch.setattr(Part, "check_length", lambda *_: None)
    app = start_app(ScriptedEngine(answer([70] * 500)))
    async with served(app) as port:
        long = asyncio.create_task(streamed(port, "/v1/completions", {"prompt": "x" * 10_000}))
        await began.wait()
        others = await asyncio.gather(*(streamed(port, "/v1/completions", {"prompt": "ahoy"}) for _ in range(4)))
        assert [len(events(chunks)) for chunks in others] == [500] * 4
        assert not long.done()
        let_go.set()
        assert len(events(await long)) == 500
