"""Stored responses of `/v1/responses`, on SQLite and PostgreSQL, with OpenAI's client."""

import asyncio
import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
import sqlalchemy

from fairlead.gateway.access import KeyedAccess
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.stored.database import Database, store_url
from fairlead.gateway.stored.errors import StoreError
from fairlead.gateway.stored.store import LOST_SECONDS, ResponseStore
from fairlead.gateway.stored.tables import events as logged_events
from fairlead.gateway.stored.tables import items, metadata, responses
from fairlead_testing.fake_engine import Death, FakeEngine
from fairlead_testing.fake_engine.engine import Refusal

PATH = "/v1/responses"
CREATE: dict[str, Any] = {"model": "fake", "input": "ahoy"}


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/responses.db"


async def stored(start: Any, url: str, **options: Any) -> Any:
    setup = await start(response_store=url, **options)
    store = setup.gateway.keeper.store
    async with asyncio.timeout(30):
        while True:
            with suppress(StoreError):
                await store.referenced("", {"none"})
                break
            await asyncio.sleep(0.02)
    return setup


def sent(engine: FakeEngine) -> list[tuple[str, Any]]:
    """Role and content of each message of the last request."""
    return [(each["role"], each["content"]) for each in engine.requests[-1].json()["messages"]]


async def test_a_conversation_goes_on_from_its_last_response_at_any_gateway(start, url: str) -> None:
    one = await stored(start, url)
    two = await stored(start, url)
    said = "".join(one.engines[0].tokens)
    first = await one.openai.responses.create(**CREATE, instructions="Be brief.")
    second = await two.openai.responses.create(
        model="fake", input=[{"role": "user", "content": "and?"}], previous_response_id=first.id
    )
    async with one.openai.responses.stream(model="fake", input="so", previous_response_id=second.id) as stream:
        third = await stream.get_final_response()
    turns = [("user", "ahoy"), ("assistant", said), ("user", "and?"), ("assistant", said), ("user", "so")]
    assert [
        (role, content if isinstance(content, str) else content[0]["text"]) for role, content in sent(one.engines[0])
    ] == turns
    assert third.store and third.previous_response_id == second.id and third.output_text == said
    again = await two.openai.responses.retrieve(third.id)
    assert again.to_dict() | {"output": []} == third.to_dict() | {"output": []} and again.output_text == said
    listed = await two.openai.responses.input_items.list(third.id, order="asc")
    assert [item.type for item in listed.data] == ["message"] * 5
    newest = await two.openai.responses.input_items.list(third.id, limit=2)
    assert [item.id for item in newest.data] == [item.id for item in reversed(listed.data[-2:])] and newest.has_more
    rest = await two.openai.responses.input_items.list(third.id, limit=100, after=newest.data[-1].id)
    assert [item.id for item in rest.data] == [item.id for item in reversed(listed.data[:3])] and not rest.has_more


async def test_what_is_deleted_is_gone_with_its_items(start, url: str) -> None:
    setup = await stored(start, url)
    first = await setup.openai.responses.create(**CREATE)
    second = await setup.openai.responses.create(**CREATE, previous_response_id=first.id)
    await setup.openai.responses.delete(first.id)
    for call in (
        setup.openai.responses.retrieve,
        setup.openai.responses.delete,
        setup.openai.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError, match=f"'{first.id}' not found"):
            await call(first.id)
    with pytest.raises(openai.BadRequestError, match=f"Previous response with id '{first.id}' not found") as caught:
        await setup.openai.responses.create(**CREATE, previous_response_id=second.id)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
    engine = setup.gateway.keeper.store.database.engine
    with engine.connect() as connection:
        assert set(connection.execute(sqlalchemy.select(items.c.response_id)).scalars()) == {second.id}


async def test_a_stored_conversation_is_compacted_and_goes_on(start, url: str) -> None:
    """From the response that ended it, or by a trigger, whose response is stored as others are."""
    setup = await stored(start, url)
    said = "".join(setup.engines[0].tokens)
    first = await setup.openai.responses.create(**CREATE)
    second = await setup.openai.responses.create(model="fake", input="and?", previous_response_id=first.id)
    compacted = await setup.openai.responses.compact(model="fake", previous_response_id=second.id)
    assert [each.type for each in compacted.output] == ["message", "message", "compaction"]
    named: list[Any] = [{"type": "item_reference", "id": first.output[0].id}]
    assert (await setup.openai.responses.compact(model="fake", input=named)).output[-1].type == "compaction"
    assert [role for role, _ in sent(setup.engines[0])] == ["assistant", "user"]
    trigger: list[Any] = [{"type": "compaction_trigger"}]
    async with setup.openai.responses.stream(model="fake", input=trigger, previous_response_id=second.id) as stream:
        events: list[Any] = [event async for event in stream]
    third = events[-1].response
    [item] = third.output
    assert item.encrypted_content == compacted.output[-1].encrypted_content  # type: ignore[union-attr]
    assert (await setup.openai.responses.retrieve(third.id)).output == [item]
    again = await events_of(setup.openai.responses.retrieve(third.id, stream=True))
    assert [event.type for event in again] == [event.type for event in events]
    await setup.openai.responses.create(model="fake", input="so", previous_response_id=third.id)
    [(role, parts)] = sent(setup.engines[0])
    summary = f"Summary of the conversation until here:\n\n{said}"
    assert role == "user" and [each["text"] for each in parts[::2]] == ["ahoy", "and?", summary, "so"]
    with pytest.raises(openai.BadRequestError, match="Previous response with id 'resp_none' not found"):
        await setup.openai.responses.compact(model="fake", previous_response_id="resp_none")
    assert (await setup.openai.responses.compact(model="fake", input="a")).output[-1].type == "compaction"


async def test_items_may_be_named_instead_of_sent(start, url: str) -> None:
    setup = await stored(start, url)
    first = await setup.openai.responses.create(**CREATE)
    named: list[Any] = [{"type": "item_reference", "id": first.output[0].id}, {"role": "user", "content": "and?"}]
    await setup.openai.responses.create(model="fake", input=named)
    assert [role for role, _ in sent(setup.engines[0])] == ["assistant", "user"]
    named[0]["id"] = "msg_none"
    with pytest.raises(openai.BadRequestError, match="Item with id 'msg_none' not found") as caught:
        await setup.openai.responses.create(model="fake", input=named)
    assert caught.value.param == "input[0].id"


async def test_a_response_in_the_background_is_asked_for_later(start, url: str) -> None:
    one, two = await stored(start, url), await stored(start, url)
    may_go = asyncio.Event()
    one.engines[0].pace = lambda index: may_go.wait()
    begun = await one.openai.responses.create(**CREATE, background=True)
    assert begun.status == "queued" and begun.background
    assert (await two.openai.responses.retrieve(begun.id)).status in ("queued", "in_progress")
    with pytest.raises(openai.BadRequestError, match="wait for its end"):
        await two.openai.responses.create(**CREATE, previous_response_id=begun.id)
    waiting = asyncio.create_task(events_of(two.openai.responses.retrieve(begun.id, stream=True)))
    may_go.set()
    events = await waiting
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    ended = await two.openai.responses.retrieve(begun.id)
    assert ended.to_dict() == events[-1].response.to_dict() and ended.output_text == "".join(one.engines[0].tokens)
    later = await events_of(two.openai.responses.retrieve(begun.id, stream=True, starting_after=3))
    assert [event.to_dict() for event in later] == [event.to_dict() for event in events[4:]]
    assert 'outcome="completed",status="200"} 1.0' in await one.metrics()


async def events_of(call: Any) -> list[Any]:
    return [event async for event in await call]


async def test_events_of_a_response_in_the_background_are_told_as_they_come_at_any_gateway(
    start, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await stored(start, url), await stored(start, url)
    may_go = asyncio.Event()
    one.engines[0].pace = lambda index: asyncio.sleep(0) if index < 2 else may_go.wait()
    begun = await one.openai.responses.create(**CREATE, background=True, stream=True)
    seen = [await anext(begun)]
    response_id = seen[0].response.id
    assert seen[0].type == "response.created"
    while sum(event.type == "response.output_text.delta" for event in seen) < 2:
        seen.append(await anext(begun))
    assert (await two.openai.responses.retrieve(response_id)).status in ("queued", "in_progress")
    live = []
    for setup in (one, two):
        followed = await setup.openai.responses.retrieve(response_id, stream=True, starting_after=1)
        live.append([await anext(followed) for _ in seen[2:]])
        await followed.close()
    assert [[event.to_dict() for event in each] for each in live] == [[event.to_dict() for event in seen[2:]]] * 2
    await begun.close()  # a client that leaves ends nothing
    following = asyncio.create_task(
        events_of(two.openai.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
    )
    may_go.set()
    whole = seen + await following
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert whole[-1].type == "response.completed"
    deltas = [event.delta for event in whole if event.type == "response.output_text.delta"]
    assert deltas == [*one.engines[0].tokens]
    for setup, after in ((one, 3), (two, len(whole) - 2), (two, len(whole) - 1)):
        later = await events_of(setup.openai.responses.retrieve(response_id, stream=True, starting_after=after))
        assert [event.to_dict() for event in later] == [event.to_dict() for event in whole[after + 1 :]]
    assert (await one.openai.responses.retrieve(response_id)).to_dict() == whole[-1].response.to_dict()
    await two.openai.responses.delete(response_id)
    assert not numbers_in(one)
    assert not [each for each in caplog.records if each.levelname == "ERROR"], "who leaves is no fault"


def numbers_in(setup: Any) -> list[int]:
    with setup.gateway.keeper.store.database.engine.connect() as connection:
        return list(connection.execute(sqlalchemy.select(logged_events.c.number)).scalars())


async def test_a_stream_in_the_background_that_is_cancelled_or_lost_has_an_end(start, sqlite: str, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.gateway.stored.requests.POLL_SECONDS", 0.02)
    one, two = await stored(start, sqlite), await stored(start, sqlite)
    one.engines[0].pace = lambda index: asyncio.sleep(0) if index < 2 else asyncio.Event().wait()
    for end in ("cancelled", "failed"):
        begun = await one.openai.responses.create(**CREATE, background=True, stream=True)
        created = await anext(begun)
        following = asyncio.create_task(events_of(two.openai.responses.retrieve(created.response.id, stream=True)))
        await one.until(lambda: len(numbers_in(one)) > 1)
        if end == "cancelled":
            await two.openai.responses.cancel(created.response.id)
        else:
            with two.gateway.keeper.store.database.engine.begin() as connection:
                connection.execute(responses.update().values(touched_at=time.time() - LOST_SECONDS - 1))
        events = await following
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == {"cancelled": "response.incomplete", "failed": "response.failed"}[end]
        assert events[-1].response.status == end
        again = await events_of(two.openai.responses.retrieve(created.response.id, stream=True))
        assert [event.sequence_number for event in again] == [event.sequence_number for event in events]
        await begun.close()
    one.gateway.interrupt()
    one.gateway.interrupt()
    await one.until(lambda: not one.gateway.keeper._running)


async def test_a_stream_in_the_background_that_is_refused_says_why(start, sqlite: str) -> None:
    setup = await stored(start, sqlite)
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    [last] = await events_of(setup.openai.responses.create(**CREATE, background=True, stream=True))
    assert last.type == "response.failed" and last.response.error.code == "server_error"


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_response_in_the_background_is_cancelled_at_any_gateway(
    start, sqlite: str, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.gateway.stored.keeper.TOUCH_SECONDS", 0.05)
    one, two = await stored(start, sqlite), await stored(start, sqlite)
    one.engines[0].pace = lambda index: asyncio.Event().wait()
    begun = await one.openai.responses.create(**CREATE, background=True)
    await one.until(lambda: bool(one.engines[0].requests))
    cancelled = await (two if elsewhere else one).openai.responses.cancel(begun.id)
    await one.until(lambda: not one.gateway.keeper._running)
    assert cancelled.status == (await one.openai.responses.retrieve(begun.id)).status == "cancelled"
    first = await two.openai.responses.create(**CREATE)
    with pytest.raises(openai.BadRequestError, match="background"):
        await two.openai.responses.cancel(first.id)


async def test_why_a_response_in_the_background_failed_is_told(start, sqlite: str) -> None:
    setup = await stored(start, sqlite)
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    begun = await setup.openai.responses.create(**CREATE, background=True)
    await setup.until(lambda: not setup.gateway.keeper._running)
    failed = await setup.openai.responses.retrieve(begun.id)
    assert failed.status == "failed" and failed.error is not None and failed.error.code == "server_error"
    [*_, last] = await events_of(setup.openai.responses.retrieve(begun.id, stream=True))
    assert last.type == "response.failed" and last.response.error == failed.error


async def test_what_its_gateway_did_not_end_has_failed(start, sqlite: str) -> None:
    one, two = await stored(start, sqlite), await stored(start, sqlite)
    one.engines[0].pace = lambda index: asyncio.Event().wait()
    begun = await one.openai.responses.create(**CREATE, background=True)
    with two.gateway.keeper.store.database.engine.begin() as connection:
        connection.execute(responses.update().values(touched_at=time.time() - LOST_SECONDS - 1))
    lost = await two.openai.responses.retrieve(begun.id)
    assert lost.status == "failed" and lost.error is not None and "has ended" in lost.error.message
    one.gateway.interrupt()
    one.gateway.interrupt()
    await one.until(lambda: not one.gateway.keeper._running)


async def test_keys_see_their_own_responses(start, sqlite: str, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    for name in ("anna", "bert"):
        (tmp_path / "keys" / name).write_text(f"key-of-{name}-0123456789")
    setup = await stored(start, sqlite, access=KeyedAccess(tmp_path / "keys"))
    anna, bert = (setup.openai.with_options(api_key=f"key-of-{name}-0123456789") for name in ("anna", "bert"))
    first = await anna.responses.create(**CREATE, store=True)
    assert (await anna.responses.retrieve(first.id)).id == first.id
    for call in (
        bert.responses.retrieve,
        bert.responses.cancel,
        bert.responses.delete,
        bert.responses.input_items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            await call(first.id)
    for fields in (
        {"previous_response_id": first.id},
        {"input": [{"type": "item_reference", "id": first.output[0].id}]},
    ):
        with pytest.raises(openai.BadRequestError, match="not found"):
            await bert.responses.create(**{**CREATE, **fields})


async def test_nothing_stays_of_what_is_not_stored(start, sqlite: str) -> None:
    setup = await stored(start, sqlite)
    told = await setup.openai.responses.create(**CREATE, store=False)
    first = await setup.openai.responses.create(**CREATE)
    second = await setup.openai.responses.create(**CREATE, store=False, previous_response_id=first.id)
    assert len(sent(setup.engines[0])) == 3 and not told.store and not second.store
    for each in (told, second):
        with pytest.raises(openai.NotFoundError):
            await setup.openai.responses.retrieve(each.id)
    with pytest.raises(openai.BadRequestError, match="background: needs store"):
        await setup.openai.responses.create(**CREATE, store=False, background=True)
    setup.engines[0].refusal = Refusal.UNAVAILABLE
    with pytest.raises(openai.APIStatusError):
        await setup.openai.responses.create(**CREATE)
    await setup.until(lambda: ids_in(setup) == [first.id])


def ids_in(setup: Any) -> list[str]:
    with setup.gateway.keeper.store.database.engine.connect() as connection:
        return list(connection.execute(sqlalchemy.select(responses.c.id)).scalars())


async def test_a_stream_that_breaks_is_stored_as_failed(start, sqlite: str) -> None:
    setup = await stored(start, sqlite)
    setup.engines[0].death = Death.AFTER_ONE_TOKEN
    [created, *_, last] = await events_of(setup.openai.responses.create(**CREATE, stream=True))
    assert last.type == "response.failed"
    assert (await setup.openai.responses.retrieve(created.response.id)).status == "failed"


async def test_a_client_that_leaves_cancels_its_response(start, sqlite: str) -> None:
    setup = await stored(start, sqlite)
    setup.engines[0].pace = lambda index: asyncio.sleep(0) if index == 0 else asyncio.Event().wait()
    async with setup.http.post(f"{setup.url}{PATH}", json={**CREATE, "stream": True}) as response:
        created = json.loads((await response.content.readuntil(b"\n\n")).partition(b"data: ")[2])
    async with asyncio.timeout(20):
        while (await setup.openai.responses.retrieve(created["response"]["id"])).status != "cancelled":
            await asyncio.sleep(0.02)


async def test_a_database_that_is_away_stops_only_those_who_need_it(start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    setup = await start(response_store=f"sqlite:///{tmp_path}/file/none.db")
    assert not (await setup.openai.responses.create(**CREATE)).store
    for fields in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
        with pytest.raises(openai.InternalServerError, match="store of responses does not answer") as caught:
            await setup.openai.responses.create(**CREATE, **fields)
        assert caught.value.status_code == 503
    with pytest.raises(openai.InternalServerError):
        await setup.openai.responses.retrieve("resp_1")


async def test_what_is_old_is_deleted_and_a_conversation_is_as_old_as_its_last_turn(sqlite: str) -> None:
    def response(name: str, previous: str | None = None) -> dict[str, Any]:
        return {"id": name, "previous_response_id": previous, "status": "in_progress", "output": []}

    database = Database(sqlite)
    young, old = ResponseStore(database, 3600.0), ResponseStore(database, -1.0)
    await database.start()
    for name in ("one", "two"):
        await old.begin("", response(name), [{"id": f"msg_{name}"}])
    await young.begin("", response("three", "one"), [])
    assert await young.expire() == 1 and await young.expire() == 0
    assert await young.history("", "three", with_output=True, max_bytes=100) == [{"id": "msg_one"}]
    with pytest.raises(OverflowError):
        await young.history("", "three", with_output=True, max_bytes=5)
    assert await young.referenced("", {"msg_one", "msg_two"}) == {"msg_one": {"id": "msg_one"}}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nonsense", "Could not parse"),
        ("sqlite://", "needs a file"),
        ("oracle://host/name", "oracle"),
        ("@/none", "/none"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, words: str) -> None:
    with pytest.raises(StoreError, match=re.escape(words)):
        Database(store_url(url))


def test_gateways_without_a_store_do_not_load_a_database() -> None:
    program = "import sys, fairlead.gateway.gateway_command; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_url_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("sqlite:////tmp/responses.db\n")
    assert store_url(f"@{tmp_path}/url") == "sqlite:////tmp/responses.db"
    assert GatewaySettings(response_store="sqlite:////tmp/responses.db").response_retention == 30 * 86400


async def test_without_a_store_clients_are_told(start) -> None:
    setup = await start()
    with pytest.raises(openai.NotFoundError, match="--response-store"):
        await setup.openai.responses.retrieve("resp_1")
    assert not (await setup.openai.responses.create(**CREATE, store=True)).store


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=none", "limit=101"])
async def test_wrong_pages_are_refused_by_name(start, sqlite: str, query: str) -> None:
    setup = await stored(start, sqlite)
    first = await setup.openai.responses.create(**CREATE)
    async with setup.http.get(f"{setup.url}{PATH}/{first.id}/input_items?{query}") as response:
        assert response.status == 400 and (await response.json())["error"]["param"] == query.partition("=")[0]


def test_migrations_make_the_tables_of_this_version(sqlite: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    database = Database(sqlite)
    asyncio.run(database.start())
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
