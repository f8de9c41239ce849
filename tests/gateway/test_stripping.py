"""What passes the gateway in either direction and what ends in it, by an engine that records and says all sorts."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.openai.errors import OpenAIError
from fairlead.gateway.openai.parse import FORWARDED_HEADERS, parse, request_id_from
from fairlead.routing.replica import Replica
from fairlead_common.wire.messages import PRIVATE_FIELD_PREFIX
from fairlead_testing.gateways import make_pool, running_gateway
from fairlead_testing.http import RecordedRequest, Responder, serve_http

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
HOP_BY_HOP = {"connection": "x-hop", "x-hop": "1", "keep-alive": "timeout=5", "te": "trailers", "trailer": "x-late"}
INTERNAL = {
    "x-fairlead-dispatch": "0123456789abcdef:7",
    "x-fairlead-replica": "other",
    "x-fairlead-cached-tokens": "999",
    "x-fairlead-predicted-cached-tokens": "999",
    "x-fairlead-predicted-ttft-ms": "0",
    "x-fairlead-queue-ms": "0",
    "x-fairlead-reason": "draining",
    "X-FAIRLEAD-ANYTHING": "1",
}
CREDENTIALS = {"authorization": "Bearer secret", "cookie": "session=secret", "proxy-authorization": "Basic secret"}
ORIGIN = {"forwarded": "for=10.0.0.9", "x-forwarded-for": "10.0.0.9", "x-real-ip": "10.0.0.9", "origin": "http://evil"}
MISCHIEF = {"x-http-method-override": "DELETE", "range": "bytes=0-1", "if-match": "*", "accept-encoding": "gzip"}
FORWARDED = {"traceparent": "00-1", "tracestate": "a=b", "baggage": "c=d", "user-agent": "test", "accept": "*/*"}
FORWARDED |= {"x-session-id": "s"}


@dataclass
class Engine:
    """Answers every request alike, with more headers than it should."""

    requests: list[RecordedRequest] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    status: int = 200

    async def __call__(self, request: RecordedRequest, responder: Responder) -> None:
        self.requests.append(request)
        answer = {"id": "1", "object": "chat.completion", "choices": [], "usage": None}
        await responder.whole(self.status, json.dumps(answer).encode(), self.answer_headers)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def post(engine: Engine) -> AsyncIterator:
    """`await post(body, headers)`: (status, headers in lower case) of the answer."""
    import aiohttp

    server = await serve_http(engine)
    port = server.sockets[0].getsockname()[1]
    pool = make_pool([Replica(uid="a", name="engine-0", host="127.0.0.1", port=port)])
    async with running_gateway(pool) as (_, _, url), aiohttp.ClientSession(auto_decompress=False) as http:

        async def send(body: dict[str, object], headers: dict[str, str] | None = None):
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
                await response.read()
                return response.status, {name.lower(): value for name, value in response.headers.items()}

        yield send
    server.close()


async def test_engines_get_their_own_headers_and_what_is_meant_for_them(engine: Engine, post) -> None:
    sent = {**HOP_BY_HOP, **INTERNAL, **CREDENTIALS, **ORIGIN, **MISCHIEF, **FORWARDED, "x-request-id": "mine"}
    assert (await post(CHAT, sent))[0] == 200
    (request,) = engine.requests
    own = {"host", "x-request-id", "content-type", "content-length", "x-fairlead-dispatch"}
    assert set(request.headers) == own | set(FORWARDED)
    assert {name: request.headers[name] for name in FORWARDED} == FORWARDED
    assert request.headers["x-request-id"] == "mine"
    assert request.headers["x-fairlead-dispatch"] != INTERNAL["x-fairlead-dispatch"]
    assert "secret" not in str(request.headers)


@pytest.mark.parametrize("path", ["/v1/chat/completions?key=secret&x=1", "/default/fake/v1/chat/completions?a=b"])
async def test_no_query_reaches_an_engine(engine: Engine, start, path: str) -> None:
    setup = await start()
    assert (await setup.post(CHAT, path))[0] == 200
    assert setup.engines[0].requests[0].path == "/v1/chat/completions"


async def test_engines_get_no_private_field_of_a_client(engine: Engine, post) -> None:
    private = {"fairlead_prompt_tokens": {"digest": "x", "prompts": [[1]]}, "fairlead_": 1, "fairlead_dispatch": "x"}
    assert (await post({**CHAT, **private, "temperature": 0}))[0] == 200
    (request,) = engine.requests
    assert request.json() == {**CHAT, "temperature": 0}


async def test_clients_get_no_header_of_an_engine_that_is_not_for_them(engine: Engine, post) -> None:
    engine.answer_headers = {
        "server": "uvicorn",
        "set-cookie": "a=b",
        "x-internal-address": "10.1.2.3",
        "x-fairlead-cached-tokens": "16",
        "x-fairlead-debug": "1",
        "x-fairlead-replica": "somebody-else",
        "access-control-allow-origin": "*",
        "location": "http://10.1.2.3:8000/",
        "x-request-id": "theirs",
    }
    for engine.status in (200, 400):
        status, headers = await post(CHAT, {"x-request-id": "mine"})
        assert status == engine.status
        ours = {"x-request-id", "x-fairlead-replica", "x-fairlead-queue-ms", "x-fairlead-predicted-cached-tokens"}
        ours |= {"x-fairlead-predicted-ttft-ms", "content-type", "content-length", "date", "connection"}
        assert set(headers) - ours == {"x-fairlead-cached-tokens"}
        assert headers["x-fairlead-replica"] == "engine-0"
        assert headers["x-request-id"] == "mine"
        assert "10.1.2.3" not in str(headers)


async def test_no_prompt_is_ever_logged(start, caplog) -> None:
    caplog.set_level("DEBUG")
    setup = await start()
    word = "rhinoceros"
    chat = {"model": "fake", "messages": [{"role": "user", "content": word}]}
    bodies = [
        chat,
        {**chat, "stream": True},
        {**chat, "model": "unknown"},
        {**chat, "messages": [{"role": "user", "content": f"{word} " * 2000}]},
        json.dumps(chat).encode()[:-1],
        json.dumps([word]).encode(),
    ]
    for body in bodies:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with setup.http.post(f"{setup.url}/v1/chat/completions", data=data) as response:
            await response.read()
    assert sum(record.name == "fairlead.gateway.requests" for record in caplog.records) == len(bodies)
    ours = [record.getMessage() + str(vars(record)) for record in caplog.records if record.name.startswith("fairlead")]
    assert not any(word in line for line in ours)


# The rules alone.

header_names = st.sampled_from(
    sorted(FORWARDED_HEADERS) + [name.lower().encode() for name in [*INTERNAL, *CREDENTIALS, *HOP_BY_HOP]]
)
field_names = st.one_of(st.text(max_size=12), st.text(max_size=12).map(lambda text: PRIVATE_FIELD_PREFIX + text))


@given(
    st.dictionaries(field_names, st.one_of(st.integers(), st.text(max_size=5)), max_size=8),
    st.lists(st.tuples(header_names, st.binary(max_size=8)), max_size=8),
)
def test_whatever_is_sent_only_public_fields_and_listed_headers_are_left(fields, headers) -> None:
    body = json.dumps({**fields, "model": "fake"}).encode()
    try:
        request = parse("/v1/completions", body, headers, request_id="id")
    except OpenAIError:  # lone surrogates, which no engine would take
        return
    sent = json.loads(request.upstream_body("fake"))
    assert not any(name.startswith(PRIVATE_FIELD_PREFIX) for name in sent)
    assert sent == {name: value for name, value in {**fields, "model": "fake"}.items() if name in sent}
    assert set(sent) == {name for name in {**fields, "model": 1} if not name.startswith(PRIVATE_FIELD_PREFIX)}
    assert all(name in FORWARDED_HEADERS for name, _ in request.headers)


@given(st.binary(max_size=200))
def test_a_request_id_is_kept_only_if_it_can_stand_anywhere(given_id: bytes) -> None:
    kept = request_id_from(given_id)
    if kept is not None:
        assert kept.encode() == given_id
        assert 0 < len(kept) <= 128
        assert kept.isprintable() and kept.isascii()
        assert not set(kept) & set(" \"',;\\<>{}()%")
