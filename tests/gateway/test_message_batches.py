"""`/v1/messages/batches`, with Anthropic's client: batches whose requests come in the body."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.batches import message_requests
from fairlead.gateway.batches.request_cutter import RequestCutter

URL = "/v1/messages/batches"
PARAMS: dict[str, Any] = {"model": "fake", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def request(name: str, **params: Any) -> Any:
    return {"custom_id": name, "params": PARAMS | params}


def client_of(setup: Any, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=setup.url, api_key=key, max_retries=0)


async def ended(client: anthropic.AsyncAnthropic, batch: Any) -> Any:
    async with asyncio.timeout(60):
        while (now := await client.messages.batches.retrieve(batch.id)).processing_status != "ended":
            await asyncio.sleep(0.05)
    return now


async def results(client: anthropic.AsyncAnthropic, batch: Any) -> dict[str, Any]:
    found = [each async for each in await client.messages.batches.results(batch.id)]
    assert len({each.custom_id for each in found}) == len(found)
    return {each.custom_id: each.result for each in found}


async def test_requests_are_answered_for_the_key_that_sent_them(with_files, tmp_path: Path, url: str) -> None:
    setup = await with_files(tmp_path, keyed=True, response_store=url)
    async with client_of(setup, "a" * 20) as ada, client_of(setup, "b" * 20) as bob:
        batches = ada.messages.batches
        sent = [request("one", system="é\n{["), request("two", model="none"), request("three", max_tokens=0)]
        made = await batches.create(requests=sent)
        assert made.id.startswith("msgbatch_") and made.type == "message_batch"
        assert (made.processing_status, made.request_counts.processing, made.results_url) == ("in_progress", 3, None)
        assert (made.expires_at - made.created_at).total_seconds() == 86400
        done = await ended(ada, made)
        counts = done.request_counts
        assert (counts.succeeded, counts.errored, counts.processing, counts.canceled, counts.expired) == (1, 2, 0, 0, 0)
        assert done.created_at <= done.ended_at and done.cancel_initiated_at is done.archived_at is None
        told = await results(ada, made)
        message = told["one"].message
        assert message.content[0].text == "".join(setup.engines[0].tokens) and message.usage.output_tokens
        missing, wrong = told["two"].error, told["three"].error
        assert (missing.error.type, wrong.error.type) == ("not_found_error", "invalid_request_error")
        assert "max_tokens" in wrong.error.message and missing.request_id
        system = setup.engines[0].requests[0].json()["messages"][0]
        assert system == {"role": "system", "content": "é\n{["}

        others = [await batches.create(requests=[request("x")]) for _ in range(3)]
        ids = [each.id for each in (*others[::-1], made)]
        assert [each.id async for each in batches.list(limit=2)] == ids
        newer = await batches.list(limit=2, before_id=made.id)
        assert ([each.id for each in newer.data], newer.has_more) == (ids[1:3], True)
        assert [each.id for each in (await newer.get_next_page()).data] == ids[:1]

        as_openai = setup.openai.with_options(api_key="a" * 20)
        assert [each.id async for each in as_openai.batches.list()] == []
        with pytest.raises(openai.NotFoundError):
            await as_openai.batches.retrieve(made.id)
        for call in (bob.messages.batches.retrieve, bob.messages.batches.cancel, bob.messages.batches.delete):
            with pytest.raises(anthropic.NotFoundError, match=made.id) as caught:
                await call(made.id)
            assert caught.value.body["error"]["type"] == "not_found_error" and caught.value.body["request_id"]
        async with setup.http.get(f"{setup.url}{done.results_url}", headers={"x-api-key": "b" * 20}) as response:
            assert response.status == 404
        assert [each.id async for each in bob.messages.batches.list()] == []
        with pytest.raises(anthropic.BadRequestError, match="has ended"):
            await batches.cancel(made.id)
        for each in others:
            await ended(ada, each)
        assert (await batches.delete(made.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await batches.retrieve(made.id)
        assert len(list((tmp_path / "files").iterdir())) == 6
        [file] = [each async for each in as_openai.files.list() if each.filename == f"{others[0].id}_output.jsonl"]
        await as_openai.files.delete(file.id)
        with pytest.raises(anthropic.NotFoundError, match="deleted"):
            await batches.results(others[0].id)
    async with client_of(setup, "c" * 20) as stranger:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await stranger.messages.batches.list()
        assert caught.value.body["error"]["type"] == "authentication_error"


async def test_what_is_wrong_is_named_and_nothing_of_it_kept(with_files, tmp_path: Path, monkeypatch: Any) -> None:
    setup = await with_files(tmp_path, max_body_bytes=4096, max_file_bytes=20_000)
    monkeypatch.setattr(message_requests, "MAX_REQUESTS", 3)

    def of(*requests: Any) -> bytes:
        return json.dumps({"requests": requests}).encode()

    deep = b'{"requests": [{"custom_id": "a", "params": {"a": ' + b"[" * 4000
    for body, status, problem in (
        (b"", 400, "not valid JSON"),
        (b"[]", 400, "Expected `object`"),
        (b'{"request": []}', 400, "`requests`"),
        (of(), 400, "empty"),
        (of("x"), 400, "$.requests[0]"),
        (of(request("one"))[:-1], 400, "not valid JSON"),
        (of(request("one")) + b"]", 400, "closes a bracket"),
        (of(request("one"), {"custom_id": 3, "params": {}}), 400, "requests.1: "),
        (of(request("one"), request("one")), 400, "requests.1.custom_id: 'one'"),
        *((of(request(name)), 400, "requests.0.custom_id") for name in ("", "a" * 65, "a b", "ä")),
        (of(request("one"), {"custom_id": "two", "params": []}), 400, "requests.1.params: "),
        (of(request("one", stream=True)), 400, "requests.0.params.stream: "),
        (of(request("one")).replace(b'"hi"', b'"\xff"'), 400, "requests.0"),
        (of(request("one", system="x" * 5000)), 400, "requests.0: it has more than the 4096 bytes"),
        (of(*(request(str(number)) for number in range(4))), 400, "more than 3"),
        (of(*(request(str(number), system="x" * 4000) for number in range(9))), 413, "larger than the 20000 bytes"),
        (deep + b"]" * 4000 + b"}}]}", 400, "requests.0: "),
        (deep + b"[" * 30_000, 413, "20000 bytes"),
        (b'{"x": "' + b" " * 5 * 2**20, 413, "20000 bytes"),
    ):  # fmt: skip
        told = await setup.post(body, URL)
        assert told[0] == status and told[1]["type"] == "error" and problem in told[1]["error"]["message"], told
    assert not list((tmp_path / "files").iterdir()) and not setup.engines[0].requests
    for query in ("?limit=0", "?after_id=x", "?before_id=x&after_id=y", "/msgbatch_x"):
        async with setup.http.get(f"{setup.url}{URL}{query}") as response:
            assert response.status == (404 if query[0] == "/" else 400) and (await response.json())["type"] == "error"
    async with setup.http.put(f"{setup.url}{URL}/msgbatch_x/results") as response:
        assert (response.status, response.headers["allow"]) == (405, "GET")

    async def half() -> AsyncIterator[bytes]:
        yield of(request("one"))[:-20]
        await setup.until(lambda: bool(list((tmp_path / "files").iterdir())))
        raise ConnectionResetError

    with pytest.raises(aiohttp.ClientError):
        await setup.http.post(f"{setup.url}{URL}", data=half())
    await setup.until(lambda: not list((tmp_path / "files").iterdir()))
    async with client_of(setup) as client:
        assert [each async for each in client.messages.batches.list()] == []


async def test_canceled_and_expired_batches_have_a_result_for_every_request(
    with_files, tmp_path: Path, monkeypatch: Any
) -> None:
    setup = await with_files(tmp_path)
    [engine] = setup.engines
    never = asyncio.Event()
    engine.pace = lambda index: asyncio.sleep(0) if len(engine.requests) < 3 else never.wait()
    requests = [request(str(number)) for number in range(20)]
    async with client_of(setup) as client:
        batches = client.messages.batches
        running = await batches.create(requests=requests)
        await setup.until(lambda: len(engine.requests) >= 3)
        with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
            await batches.delete(running.id)
        async with setup.http.get(f"{setup.url}{URL}/{running.id}/results") as response:
            assert response.status == 404 and "not ended" in await response.text()
        canceled = await batches.cancel(running.id)
        assert canceled.processing_status == "canceling" and canceled.cancel_initiated_at
        counts = (await ended(client, running)).request_counts
        told = await results(client, running)
        kinds = [each.type for each in told.values()]
        assert len(told) == 20 and counts.canceled == kinds.count("canceled") > 0
        assert counts.succeeded == kinds.count("succeeded") == 20 - counts.canceled

        monkeypatch.setattr(message_requests, "WINDOW_SECONDS", 1.0)
        late = await batches.create(requests=requests)
        assert (await ended(client, late)).request_counts.expired == 20
        assert {each.type for each in (await results(client, late)).values()} == {"expired"}
        with pytest.raises(anthropic.BadRequestError):
            await batches.cancel(late.id)


async def test_whoever_leaves_while_results_come_disturbs_nobody(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path)
    setup.engines[0].tokens = ["ahoy " * 100_000]
    async with client_of(setup) as client:
        batch = await client.messages.batches.create(requests=[request(str(number)) for number in range(20)])
        await ended(client, batch)
        for _ in range(3):
            left = await setup.http.get(f"{setup.url}{URL}/{batch.id}/results")
            await left.content.read(1000)
            left.close()
        reading = await setup.http.get(f"{setup.url}{URL}/{batch.id}/results")
        await reading.content.read(1000)
        assert len(await results(client, batch)) == 20
        await client.messages.batches.delete(batch.id)
        with pytest.raises(aiohttp.ClientPayloadError):
            await reading.read()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=1, max_size=4), JSON, st.data())
def test_requests_are_cut_out_however_the_body_comes(requests: list[Any], other: Any, data: st.DataObject) -> None:
    asked = {"other": other, "requests": requests, "last": {"requests": [{"a": other}]}}
    body = json.dumps(asked, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 2])))
    stream = io.BytesIO(body.encode())
    cutter, found = RequestCutter(10_000), []
    while piece := stream.read(data.draw(st.integers(1, 60))):
        found += [json.loads(each) for each in cutter.feed(piece)]
    cutter.close()
    assert found == requests and cutter.num_requests == len(requests)
