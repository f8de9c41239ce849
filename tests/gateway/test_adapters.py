"""`model: NAME:ADAPTER`: only replicas that hold the adapter are asked, and under two adapters nothing is shared."""

import asyncio
from typing import Any

import pytest

from fairlead_protocol.messages import HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

LONG = [{"role": "user", "content": "The same long beginning of every question. " * 4}]


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": LONG, **fields}


async def test_only_replicas_that_hold_the_adapter_are_asked(start) -> None:
    none, one, both = engines = [
        FakeEngine("none"), FakeEngine("one", adapters=("pirate",)), FakeEngine("both", adapters=("pirate", "poet")),
    ]  # fmt: skip
    setup = await start(engines=engines, follow=True, model={"aliases": ("nick",), "policy": "RoundRobin"})
    for name in ("fake:pirate", "nick:pirate", "default/fake:pirate"):
        for _ in range(4):
            assert (await setup.post(chat(name)))[0] == 200
    assert not none.requests
    assert len(one.requests) == len(both.requests) == 6
    assert {request.json()["model"] for request in one.requests} == {"fake:pirate"}, "as engines call it"
    for _ in range(6):
        assert (await setup.post(chat("fake:poet")))[0] == 200
    assert (len(one.requests), len(both.requests)) == (6, 12)
    for _ in range(3):
        assert (await setup.post(chat("fake")))[0] == 200
    assert len(none.requests) == 1, "without an adapter everybody is asked"
    path = "/default/fake/v1/chat/completions"
    assert (await setup.post(chat("fake:poet"), path))[0] == 200
    assert len(both.requests) == 14


async def test_one_prompt_under_two_adapters_shares_no_block_and_that_is_foreseen(start) -> None:
    engine = FakeEngine(adapters=("pirate", "poet"))
    setup = await start(engines=[engine], follow=True)
    num_cached = {}
    for model in ("fake:pirate", "fake:poet", "fake"):
        for time in ("first", "again"):
            before = len(engine.hashes)
            status, _, headers = await setup.post(chat(model))
            assert status == 200
            assert headers[HEADER_PREDICTED_CACHED_TOKENS] == headers[HEADER_CACHED_TOKENS]
            num_cached[model, time] = int(headers[HEADER_CACHED_TOKENS])
            await setup.until(lambda: len(setup.gateway.datastore.index) == len(engine.hashes))
            assert (len(engine.hashes) > before) == (time == "first")
    assert {num_cached[model, "first"] for model in ("fake:pirate", "fake:poet", "fake")} == {0}
    assert len({num_cached[model, "again"] for model in ("fake:pirate", "fake:poet", "fake")}) == 1
    assert num_cached["fake", "again"] > 100


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/default/fake/v1/chat/completions"])
async def test_an_unknown_adapter_is_a_404_that_names_what_there_is(start, path: str) -> None:
    engines = [FakeEngine("a", adapters=("poet",)), FakeEngine("b", adapters=("pirate",))]
    setup = await start(engines=engines, follow=True)
    status, body, _ = await setup.post(chat("fake:cook"), path)
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
    assert body["error"]["message"] == "The model has no adapter 'cook'; it has 'pirate', 'poet'"
    assert not engines[0].requests and not engines[1].requests
    assert (await setup.post(chat("other:pirate"), path))[1]["error"]["message"].startswith("The model 'other:pirate'")
    for stranger in (":", "fake:", "fake::pirate"):
        assert (await setup.post(chat(stranger), path))[0] == 404


async def test_where_there_are_none_it_says_so(start) -> None:
    setup = await start()
    assert (await setup.post(chat("fake:cook")))[1]["error"][
        "message"
    ] == "The model has no adapter 'cook'; it has none"


async def test_a_name_with_a_colon_of_its_own_is_a_name(start) -> None:
    engine = FakeEngine(served_name="fake:8b", adapters=("pirate",))
    setup = await start(
        engines=[engine], pools=lambda _: [make_pool([engine.replica()], name="fake", served_name="fake:8b")]
    )
    for name in ("fake:8b", "fake:8b:pirate"):
        assert (await setup.post(chat(name)))[0] == 200
        assert engine.requests[-1].json()["model"] == name


async def test_an_adapter_with_a_colon_is_listed_and_served_by_the_same_name(start) -> None:
    engine = FakeEngine(adapters=("a:b", "x/y"))
    setup = await start(engines=[engine], follow=True)
    for name in ("fake:a:b", "fake:x/y"):
        assert (await setup.post(chat(name)))[0] == 200
    assert [request.json()["model"] for request in engine.requests] == ["fake:a:b", "fake:x/y"]


async def test_who_waits_for_a_first_replica_is_served_or_told_when_it_comes(start) -> None:
    engine = FakeEngine(adapters=("pirate",))
    setup = await start(engines=[engine], pools=lambda _: [make_pool([])], follow=True)
    queue = setup.gateway.pools.find("fake", None).queue
    asking = []
    for name in ("fake:cook", "fake:pirate", "fake"):
        asking.append(asyncio.create_task(setup.post(chat(name))))
        await setup.until(lambda: len(queue) == len(asking))
    setup.fleet.publish([make_pool([engine.replica(with_limits=False)])])
    assert [status for status, _, _ in await asyncio.gather(*asking)] == [404, 200, 200]


async def test_a_full_holder_is_waited_for_though_others_have_room(start) -> None:
    holder, other = engines = [FakeEngine("holder", adapters=("pirate",)), FakeEngine("other")]
    holder.gate.clear()
    setup = await start(engines=engines, follow=True)
    asking = [asyncio.create_task(setup.post(chat("fake:pirate", user=str(index)))) for index in range(20)]
    queue = setup.gateway.pools.find("fake", None).queue
    await setup.until(lambda: len(queue) > 0)
    holder.gate.set()
    assert {status for status, _, _ in await asyncio.gather(*asking)} == {200}
    assert not other.requests


async def test_models_are_listed_with_their_adapters(start) -> None:
    engines = [FakeEngine("a", adapters=("poet",)), FakeEngine("b", adapters=("pirate",))]
    setup = await start(engines=engines, follow=True, model={"aliases": ("nick",)})
    async with setup.http.get(f"{setup.url}/v1/models") as response:
        entries = {entry["id"]: entry for entry in (await response.json())["data"]}
    assert list(entries) == ["fake", "nick", "fake:pirate", "fake:poet"]
    assert entries["fake:poet"]["parent"] == "fake"
    for name, status in (("fake:poet", 200), ("nick:poet", 200), ("fake:cook", 404)):
        async with setup.http.get(f"{setup.url}/v1/models/{name}") as response:
            assert response.status == status
