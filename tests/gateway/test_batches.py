"""`/v1/batches`, with OpenAI's client: lines are run once, their answers are in files, and others go first."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.gateway.batches import batch_run, batch_table, runner
from fairlead.gateway.batches.batch_run import ServedAnswer
from fairlead.gateway.batches.lines import MAX_LINES, raw_lines
from fairlead.gateway.files.blobs import BlobError
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import SCALED_TO_ZERO, make_pool

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
}


def line(name: str, endpoint: str = CHAT, **changes: Any) -> bytes:
    body = {"model": "fake", **BODIES[endpoint], **changes.pop("body", {})}
    return json.dumps({"custom_id": name, "method": "POST", "url": endpoint, "body": body, **changes}).encode() + b"\n"


async def begun(setup: Any, content: bytes, endpoint: str = CHAT, client: Any = None, **asked: Any) -> Any:
    client = client or setup.openai
    file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
    asked = {"completion_window": "24h"} | asked
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, **asked)


async def ended(setup: Any, batch: Any) -> Any:
    async with asyncio.timeout(60):
        while (now := await setup.openai.batches.retrieve(batch.id)).status not in (
            "completed", "failed", "expired", "cancelled",
        ):  # fmt: skip
            await asyncio.sleep(0.05)
    return now


async def told(setup: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (await setup.openai.files.content(file_id)).text
    return [json.loads(each) for each in text.splitlines()]


async def test_lines_of_every_endpoint_are_answered_in_files(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path)
    batches = {
        endpoint: await begun(
            setup, line("one", endpoint) + b"\n" + line("two", endpoint, body={"model": "none"}), endpoint,
            metadata={"for": endpoint},
        )
        for endpoint in BODIES
    }  # fmt: skip
    for endpoint, batch in batches.items():
        done = await ended(setup, batch)
        assert done.status == "completed" and done.metadata == {"for": endpoint}, done
        assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (2, 1, 1)
        assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at < done.expires_at
        [output], [error] = await told(setup, done.output_file_id), await told(setup, done.error_file_id)
        assert (output["custom_id"], output["error"], output["response"]["status_code"]) == ("one", None, 200)
        assert output["id"] == output["response"]["request_id"] and output["response"]["body"]["model"] == "fake"
        assert (error["custom_id"], error["response"]["status_code"]) == ("two", 404)
        file = await setup.openai.files.retrieve(done.output_file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    listed = [each.id async for each in setup.openai.batches.list(limit=2)]
    assert listed == [batch.id for batch in reversed(batches.values())]
    assert {request.json()["priority"] for request in setup.engines[0].requests} == {2**31 - 1}
    text = await setup.metrics()
    for series in (
        'batch_lines_total{result="completed"} 5.0', 'batch_lines_total{result="failed"} 5.0',
        'batches_total{status="completed"} 5.0', "batches_running 0.0",
    ):  # fmt: skip
        assert f"fairlead_gateway_{series}" in text
    assert "time_to_first_token_seconds_count" not in text and "queue_wait_seconds_count" not in text
    signals = setup.gateway.signals.line().models["default/fake"]
    assert (signals.num_arrivals, signals.output_tokens) == (0, 0), "the fleet does not grow for batches"


async def test_a_wrong_file_fails_the_batch_and_names_its_lines(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, max_body_bytes=4096)
    content = b"".join((
        line("one"), b"{\n", b'["x"]\n', line("one"), line("two", method="GET"), line("three", "/v1/completions"),
        line("four", body={"stream": True}), line(""), b'{"custom_id": "\xff"}\n', b"x" * 5000 + b"\n", line("five"),
        line("six").replace(b'{"model"', b'[{"model"'),
    ))  # fmt: skip
    many = b"".join(line(str(number)) for number in range(MAX_LINES + 1))
    for sent, expected in (
        (content, {
            2: "invalid_json_line", 3: "invalid_request", 4: "duplicate_custom_id", 5: "invalid_request",
            6: "invalid_request", 7: "invalid_request", 8: "invalid_request", 9: "invalid_json_line",
            10: "line_too_long", 12: "invalid_json_line",
        }),
        (many, {MAX_LINES + 1: "too_many_lines"}),
        (b"\n \n", {None: "empty_file"}),
    ):  # fmt: skip
        failed = await ended(setup, await begun(setup, sent))
        assert failed.status == "failed" and failed.failed_at and failed.output_file_id is None
        assert {each.line: each.code for each in failed.errors.data} == expected
    assert not setup.engines[0].requests


async def test_what_is_asked_wrongly_is_named_and_others_files_are_not_there(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, keyed=True)
    ada, bob = (setup.openai.with_options(api_key=name[0] * 20) for name in ("ada", "bob"))
    file = await ada.files.create(file=("lines.jsonl", line("one")), purpose="batch")
    right = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    for wrong in (
        {"endpoint": "/v1/audio"}, {"completion_window": "8d"}, {"completion_window": "x"}, {"input_file_id": "file-0"},
        {"metadata": {"a": "x" * 513}}, {"input_file_id": 3},
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            await ada.batches.create(**right | wrong)
        assert caught.value.param == next(iter(wrong))
    with pytest.raises(openai.BadRequestError, match="there is no file") as caught:
        await bob.batches.create(**right)
    assert caught.value.param == "input_file_id"
    batch = await ada.batches.create(**right)
    for call in (bob.batches.retrieve, bob.batches.cancel):
        with pytest.raises(openai.NotFoundError, match=batch.id):
            await call(batch.id)
    assert [each.id async for each in bob.batches.list()] == []
    assert [each.id async for each in ada.batches.list()] == [batch.id]


async def test_cancelled_and_expired_batches_keep_the_answers_that_came(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path)
    [engine] = setup.engines
    first = await begun(setup, line("one"))
    await ended(setup, first)
    with pytest.raises(openai.ConflictError, match="completed"):
        await setup.openai.batches.cancel(first.id)
    never = asyncio.Event()
    engine.pace = lambda index: asyncio.sleep(0) if len(engine.requests) < 3 else never.wait()
    content = b"".join(line(str(number)) for number in range(20))
    cancelled = await begun(setup, content)
    await setup.until(lambda: len(engine.requests) >= 3)
    with pytest.raises(openai.ConflictError, match=cancelled.id):
        await setup.openai.files.delete(cancelled.input_file_id)
    assert (await setup.openai.batches.cancel(cancelled.id)).status == "cancelling"
    cancelled = await ended(setup, cancelled)
    assert cancelled.status == "cancelled" and cancelled.cancelled_at >= cancelled.cancelling_at
    answers = await told(setup, cancelled.output_file_id)
    assert len(answers) == cancelled.request_counts.completed < 20 and cancelled.error_file_id is None

    expired = await ended(setup, await begun(setup, content, completion_window="1s"))
    assert expired.status == "expired" and expired.expired_at and expired.request_counts.completed == 0
    errors = await told(setup, expired.error_file_id)
    assert {each["custom_id"] for each in errors} == {str(number) for number in range(20)}
    assert {each["error"]["code"] for each in errors} == {"batch_expired"}
    await setup.until(lambda: engine.num_running == 0)


async def test_others_go_first_and_find_free_slots(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, follow=True, max_queue=1)
    [engine] = setup.engines
    may_go = asyncio.Event()
    engine.pace = lambda index: may_go.wait()
    batch = await begun(setup, b"".join(line(str(number)) for number in range(40)))
    slots = engine.limits.max_num_seqs
    await setup.until(lambda: engine.num_running == slots - 1)
    pool = next(iter(setup.gateway.pools))
    await setup.until(lambda: pool.queue.num_spare == 40 - slots + 1)
    signals = setup.gateway.signals.line().models["default/fake"]
    assert (signals.waiting, signals.running, signals.oldest_wait_seconds) == (0, 0, 0.0)
    assert signals.batch_kv_tokens > 0
    chat = asyncio.create_task(setup.openai.chat.completions.create(model="fake", messages=MESSAGES))
    await setup.until(lambda: engine.num_running == slots)
    assert "priority" not in engine.requests[-1].json(), "the free slot is for whoever comes"
    assert setup.gateway.signals.line().models["default/fake"].running == 1
    may_go.set()
    await chat
    assert (await ended(setup, batch)).request_counts.completed == 40


async def test_a_fleet_grows_for_batches_where_it_is_told_to(with_files, tmp_path: Path) -> None:
    setup = await with_files(tmp_path, model={"scale_for_batches": True})
    engine = setup.engines[0]
    may_go = asyncio.Event()
    engine.pace = lambda index: may_go.wait()
    batch = await begun(setup, b"".join(line(str(number)) for number in range(40)))
    pool = next(iter(setup.gateway.pools))
    await setup.until(lambda: pool.queue.num_spare + engine.num_running == 40)
    signals = setup.gateway.signals.line().models["default/fake"]
    assert signals.waiting + signals.running == signals.num_arrivals == 40
    may_go.set()
    await ended(setup, batch)


async def test_a_busy_or_broken_fleet_is_asked_again(with_files, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.01)
    setup = await with_files(tmp_path)
    answers = Counter[str]()

    async def serve(path: str, body: bytes, owner: str, request_id: str, on_dispatched: Any, **_: Any) -> ServedAnswer:
        prompt = json.loads(body)["prompt"]
        answers[prompt] += 1
        statuses = {"busy": [429, 503, 0, 200], "broken": [500, 502, 504], "wrong": [400]}[prompt]
        return ServedAnswer(statuses[answers[prompt] - 1], b"<p>\nno" if prompt == "broken" else b'{\n"a": 1}')

    setup.gateway.storage.batches._serve = serve
    names = ("busy", "broken", "wrong")
    content = b"".join(line(name, "/v1/completions", body={"prompt": name}) for name in names)
    done = await ended(setup, await begun(setup, content, "/v1/completions"))
    assert answers == {"busy": 4, "broken": 3, "wrong": 1}
    errors = await told(setup, done.error_file_id)
    assert [each["response"]["status_code"] for each in errors] == [504, 400]
    assert [each["response"]["body"] for each in errors] == ["<p>\nno", {"a": 1}], "each on a line, whatever it is"


async def test_a_batch_whose_file_could_not_be_read_goes_on_before_its_lease_ends(
    with_files, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(batch_table, "LEASE_SECONDS", 3600.0)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.05)
    setup = await with_files(tmp_path)
    blobs, num_reads = setup.gateway.storage.files.blobs, 0
    read = blobs.read

    def fails_once(name: str) -> Any:
        nonlocal num_reads
        num_reads += 1
        if num_reads == 1:
            raise BlobError("the bucket answers 503")
        return read(name)

    monkeypatch.setattr(blobs, "read", fails_once)
    assert (await ended(setup, await begun(setup, line("one")))).request_counts.completed == 1


@pytest.mark.parametrize("keyed", [True, False])
async def test_batches_that_cannot_be_run_make_way_for_a_later_one(
    with_files, tmp_path: Path, monkeypatch: Any, keyed: bool
) -> None:
    """And are run once they can be."""
    monkeypatch.setattr(batch_run, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(runner, "MAX_OF_OWNER" if keyed else "MAX_RUNNING", 2)
    for name, seconds in (("POLL_SECONDS", 0.05), ("STUCK_SECONDS", 0.2), ("REST_SECONDS", 0.3)):
        monkeypatch.setattr(runner, name, seconds)
    gone, engines = (
        make_pool(name="gone", outlook=SCALED_TO_ZERO),
        [FakeEngine(), FakeEngine("gone", served_name="gone")],
    )
    setup = await with_files(
        tmp_path, keyed=keyed, engines=engines, pools=lambda _: [make_pool([engines[0].replica()]), gone]
    )
    client = setup.openai.with_options(api_key="a" * 20)
    setup.openai = client
    waiting = [await begun(setup, line("one", body={"model": "gone"})) for _ in range(3)]
    later = await begun(setup, line("one"))
    assert (await ended(setup, later)).request_counts.completed == 1
    assert {(await client.batches.retrieve(each.id)).status for each in waiting} <= {"validating", "in_progress"}
    setup.fleet.publish([make_pool([engines[0].replica()]), make_pool([engines[1].replica()], name="gone")])
    for each in waiting:
        assert (await ended(setup, each)).request_counts.completed == 1
    assert [len(engine.requests) for engine in engines] == [1, 3]


@given(data=st.binary(max_size=200), sizes=st.lists(st.integers(1, 30), max_size=20))
def test_a_file_is_cut_into_the_same_lines_however_it_comes(data: bytes, sizes: list[int]) -> None:
    data = data.replace(b"\x00", b"\n")

    async def pieces() -> AsyncIterator[bytes]:
        start = 0
        for size in [*sizes, len(data)]:
            yield data[start : start + size]
            start += size

    async def cut() -> list[tuple[int, bytes | None]]:
        return [(each.number, each.data) async for each in raw_lines(pieces(), 8)]

    expected = [(index + 1, each) for index, each in enumerate(data.split(b"\n")) if each.strip() or len(each) > 8]
    assert asyncio.run(cut()) == [(number, None if len(each) > 8 else each) for number, each in expected]
