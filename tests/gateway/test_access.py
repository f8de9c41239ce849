"""API keys as clients meet them: real HTTP to a gateway that wants a key, in front of an engine that records."""

import asyncio
import json
import logging
from pathlib import Path

import openai
import pytest

from fairlead.gateway.access import KeyedAccess, OpenAccess
from fairlead.gateway.observation import REFUSALS_LOGGED_AT_ONCE
from fairlead_common.logs import LogfmtFormatter

KEY, ROTATED, WRONG = "alice-0123456789abcdef", "alice-fedcba9876543210", "mallory-0123456789abc"
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
ENDPOINTS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("POST", "/default/fake/v1/chat/completions"),
    ("POST", "/default/fake/tokenize"),
    ("GET", "/default/fake/v1/models"),
    ("GET", "/default/none/v1/models"),
    ("GET", "/anything"),
    ("GET", "/ready/"),
    ("GET", "//health"),
    ("OPTIONS", "*"),
]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def status_of_models(setup, key: str) -> int:
    async with setup.http.get(f"{setup.url}/v1/models", headers=bearer(key)) as response:
        return response.status


def replace(folder: Path, keys: str) -> None:
    """All at once, as the kubelet does it: half a file would be other keys for a moment."""
    (folder / ".new").write_text(keys)
    (folder / ".new").rename(folder / "alice")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "alice").write_text(KEY + "\n")
    return tmp_path


@pytest.fixture
async def setup(start, folder: Path):
    return await start(access=KeyedAccess(folder, poll_seconds=0.01), model={"aliases": ("gpt",)})


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
@pytest.mark.parametrize("headers", [{}, bearer(WRONG)])
async def test_no_endpoint_answers_without_a_key(setup, method: str, path: str, headers: dict[str, str]) -> None:
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    answer = await setup.answers("\r\n".join([*lines, "", ""]).encode())
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate: Bearer\r\n" in answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    assert WRONG not in error["message"]
    assert setup.engines[0].requests == []


async def test_probes_and_the_control_port_need_no_key(setup) -> None:
    control = f"http://127.0.0.1:{setup.gateway.control_port}"
    for url in (f"{setup.url}/health", f"{setup.url}/ready", f"{control}/ready", f"{control}/metrics"):
        async with setup.http.get(url) as response:
            assert response.status == 200, url


async def test_the_official_client_is_served_with_a_key_and_told_without(setup) -> None:
    async with openai.AsyncOpenAI(base_url=f"{setup.url}/v1", api_key=KEY, max_retries=0) as client:
        answer = await client.chat.completions.create(**CHAT)
        assert answer.choices[0].message.content == "Hello, world!"
        assert [model.id async for model in client.models.list()] == ["fake", "gpt"]
    async with openai.AsyncOpenAI(base_url=f"{setup.url}/v1", api_key=WRONG, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.chat.completions.create(**CHAT)
    assert caught.value.code == "invalid_api_key"


async def test_keys_and_credentials_end_in_the_gateway(setup) -> None:
    more = {"cookie": "session=1", "proxy-authorization": f"Bearer {KEY}", "x-api-key": KEY, "api-key": KEY}
    status, _, headers = await setup.post(CHAT, headers={**bearer(KEY), **more})
    assert status == 200
    (request,) = setup.engines[0].requests
    assert not {"authorization", *more} & set(request.headers)
    assert KEY not in str(request.headers)
    assert KEY.encode() not in request.body
    assert KEY not in str(headers)


async def test_the_log_has_the_clients_name_and_no_key(setup, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    await setup.post(CHAT, headers=bearer(KEY))
    await setup.post(CHAT, headers=bearer(WRONG))
    lines = [LogfmtFormatter().format(record) for record in caplog.records]
    served, refused = (line for line in lines if "msg=request " in line)
    assert " client=alice " in served
    assert "status=401 outcome=unauthorized" in refused
    assert "client=" not in refused
    assert not any(key in line for line in lines for key in (KEY, WRONG))


async def test_strangers_cannot_fill_the_log(setup, caplog) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    num_sent = REFUSALS_LOGGED_AT_ONCE + 30
    for _ in range(num_sent):
        assert (await setup.post(CHAT, headers=bearer(WRONG)))[0] == 401
    lines = [record for record in caplog.records if record.name == "fairlead.gateway.requests"]
    assert REFUSALS_LOGGED_AT_ONCE <= len(lines) < num_sent
    assert (await setup.post(CHAT, headers=bearer(KEY)))[0] == 200
    assert caplog.records[-1].client == "alice", "those with a key are logged all the same"
    assert f'outcome="unauthorized",status="401"}} {num_sent}.0' in await setup.metrics()


async def test_metrics_count_refusals_and_clients(setup) -> None:
    await setup.post(CHAT, headers=bearer(KEY))
    for key in (WRONG, "x" * 30, "y" * 30):
        await setup.post(CHAT, headers=bearer(key))
    text = await setup.metrics()
    assert 'fairlead_gateway_requests_total{model="",outcome="unauthorized",status="401"} 3.0' in text
    assert 'fairlead_gateway_client_requests_total{client="alice",outcome="completed"} 1.0' in text
    assert 'fairlead_gateway_client_tokens_total{client="alice",kind="completion"} 4.0' in text
    assert text.count("fairlead_gateway_client_requests_total{") == 1, "labels must not grow with what strangers send"
    assert "fairlead_gateway_api_keys_current 1.0" in text
    assert not any(key in text for key in (KEY, WRONG))


async def test_keys_are_rotated_while_requests_go_on(setup, folder: Path) -> None:
    """Both are good between the two steps, so that no client need change at the very moment."""

    async def works(key: str) -> bool:
        return (await setup.post(CHAT, headers=bearer(key)))[0] == 200

    async def until(key: str, wanted: bool) -> None:
        async with asyncio.timeout(10):
            while await works(key) is not wanted:
                await asyncio.sleep(0.01)

    replace(folder, f"{KEY}\n{ROTATED}\n")
    await until(ROTATED, True)
    assert await works(KEY)
    replace(folder, f"{ROTATED}\n")
    await until(KEY, False)
    assert await works(ROTATED)


async def test_a_stream_outlives_the_key_it_began_with(setup, folder: Path) -> None:
    response, may_go = await setup.begun(headers=bearer(KEY))
    (folder / "alice").write_text("")
    async with asyncio.timeout(10):
        while await status_of_models(setup, KEY) != 401:
            await asyncio.sleep(0.01)
    may_go.set()
    assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_keys_that_cannot_be_read_any_more_show_in_the_metrics(setup, folder: Path) -> None:
    (folder / "alice").write_text("short")
    async with asyncio.timeout(10):
        while "fairlead_gateway_api_keys_current 0.0" not in await setup.metrics():
            await asyncio.sleep(0.01)
    assert (await setup.post(CHAT, headers=bearer(KEY)))[0] == 200


# The connection after a refusal: nothing of the body is wanted, and it must not be taken for a request.


async def test_a_refused_body_is_skipped_and_the_connection_serves_on(setup) -> None:
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(body)}\r\n"
    async with setup.connected() as (reader, writer):
        writer.write(f"{head}\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        await reader.readuntil(b"}}")
        writer.write(body + f"{head}authorization: Bearer {KEY}\r\n\r\n".encode() + body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert len(setup.engines[0].requests) == 1


async def test_who_waits_for_leave_to_send_a_body_is_refused_and_cut(setup) -> None:
    """With `Expect: 100-continue` it cannot be known whether the body or another request comes next."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100\r\nexpect: 100-continue\r\n"
    answer = await setup.answers(head + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close\r\n" in answer
    assert b"100 Continue" not in answer


async def test_a_known_client_gets_leave_to_send_its_body_and_keeps_its_connection(setup) -> None:
    body = json.dumps(CHAT).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nexpect: 100-continue\r\n"
    async with setup.connected() as (reader, writer):
        writer.write(f"{head}content-length: {len(body)}\r\nauthorization: Bearer {KEY}\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" not in answer


async def test_a_stranger_cannot_make_the_gateway_read_for_ever(start, folder: Path) -> None:
    setup = await start(access=KeyedAccess(folder), max_body_bytes=100_000)
    async with setup.connected() as (reader, writer):
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401 ")
        num_sent = 0
        with pytest.raises(ConnectionError):
            while num_sent < 20_000_000:
                writer.write(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                await writer.drain()
                num_sent += 10_000
    assert num_sent < 20_000_000


async def test_a_stranger_cannot_hold_a_connection_with_a_body_that_does_not_come(start, folder: Path) -> None:
    setup = await start(access=KeyedAccess(folder), body_timeout=0.2)
    stalled = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-length: 100\r\n\r\nx"
    assert (await setup.answers(stalled)).startswith(b"HTTP/1.1 401 ")


async def test_a_gateway_that_can_follow_its_keys_no_more_ends(start, caplog: pytest.LogCaptureFixture) -> None:
    """A key that was taken back would be good for ever."""
    breaks = asyncio.Event()

    class Broken(OpenAccess):
        async def run(self) -> None:
            await breaks.wait()
            raise ZeroDivisionError

    setup = await start(access=Broken())
    assert await status_of_models(setup, KEY) == 200
    breaks.set()
    await setup.until(lambda: setup.gateway._server.should_exit)
    assert "following the API keys broke down" in caplog.text
