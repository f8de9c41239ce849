"""`model: NAME:ADAPTER`: only replicas that hold the adapter are asked, and under two adapters nothing is shared."""

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from fairlead.fleet.directory import ServedAdapter
from fairlead_common.wire.messages import HEADER_CACHED_TOKENS, HEADER_PREDICTED_CACHED_TOKENS, StepCost
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


async def listed(setup: Any) -> dict[str, dict[str, Any]]:
    async with setup.http.get(f"{setup.url}/v1/models") as response:
        return {entry["id"]: entry for entry in (await response.json())["data"]}


async def test_an_adapter_is_routable_as_soon_as_an_engine_serves_it_and_no_longer(start) -> None:
    one, other = engines = [FakeEngine("one", adapters=("poet",)), FakeEngine("other")]
    setup = await start(engines=engines, follow=True)
    assert (await setup.post(chat("fake:pirate")))[0] == 404
    other.load_adapter("pirate")
    await setup.until(lambda: setup.fleet.directory.pools[0].adapters == ("pirate", "poet"))
    assert (await setup.post(chat("fake:pirate")))[0] == 200
    assert len(other.requests) == 1 and not one.requests
    assert "fake:pirate" in await listed(setup)
    other.unload_adapter("pirate")
    await setup.until(lambda: setup.fleet.directory.pools[0].adapters == ("poet",))
    status, body, _ = await setup.post(chat("fake:pirate"))
    assert (status, body["error"]["message"]) == (404, "The model has no adapter 'pirate'; it has 'poet'")


async def test_who_has_it_loaded_is_asked_and_the_other_when_that_is_full(start) -> None:
    far, near = engines = [FakeEngine("far", adapters={"pirate": 30.0}), FakeEngine("near", adapters={"pirate": 0.0})]
    cost = StepCost(base=0.001)
    for engine in engines:
        engine.core.step_cost = cost
    near.core.adapters.use("pirate", ())
    setup = await start(engines=engines, follow=True)
    for _ in range(4):
        assert (await setup.post(chat("fake:pirate")))[0] == 200
    assert (len(far.requests), len(near.requests)) == (0, 4)


async def test_an_adapter_has_a_name_of_its_own(start) -> None:
    engine = FakeEngine(adapters=("pirate", "poet"))
    adapters = (ServedAdapter("pirate", "redbeard"), ServedAdapter("poet", "homer:1"))
    setup = await start(engines=[engine], follow=True, model={"adapters": adapters})
    for name, adapter in (("redbeard", "pirate"), ("default/redbeard", "pirate"), ("homer:1", "poet")):
        for path in ("/v1/chat/completions", "/default/fake/v1/chat/completions"):
            assert (await setup.post(chat(name), path))[0] == 200
            assert engine.requests[-1].json()["model"] == f"fake:{adapter}"
    for stranger in ("redbeard:poet", "pirate", "homer"):
        assert (await setup.post(chat(stranger)))[0] == 404
    entries = await listed(setup)
    assert list(entries) == ["fake", "fake:pirate", "fake:poet", "redbeard", "homer:1"]
    assert (entries["redbeard"]["root"], entries["redbeard"]["parent"]) == ("fake:pirate", "fake")


async def test_who_asks_for_a_listed_adapter_waits_until_it_is_loaded_and_holds_nobody_up(start) -> None:
    engine = FakeEngine()
    setup = await start(engines=[engine], follow=True, model={"adapters": (ServedAdapter("pirate"),)})
    assert (await listed(setup))["fake:pirate"]["state"] == "starting"
    asking = asyncio.create_task(setup.post(chat("fake:pirate")))
    queue = setup.gateway.pools.find("fake", None).queue
    await setup.until(lambda: len(queue) == 1)
    assert (await setup.post(chat("fake")))[0] == 200, "others are not in its way, and it is not in theirs"
    assert not asking.done()
    engine.load_adapter("pirate")
    assert (await asking)[0] == 200


async def test_who_waits_for_an_adapter_is_told_why_it_does_not_come(start) -> None:
    engine = FakeEngine()
    model = {"adapters": (ServedAdapter("pirate"),), "max_queue_time": 0.05}
    setup = await start(engines=[engine], follow=True, model=model)
    status, body, headers = await setup.post(chat("fake:pirate"))
    assert (status, body["error"]["code"], headers["retry-after"]) == (503, "adapter_not_loaded", "10")
    assert body["error"]["message"] == "No replica of the model 'fake' has loaded its adapter 'pirate'."
    patient = {"adapters": (ServedAdapter("pirate"),)}
    setup.fleet.publish([make_pool([engine.replica()], **patient)])
    asking = asyncio.create_task(setup.post(chat("fake:pirate")))
    queue = setup.gateway.pools.find("fake", None).queue
    await setup.until(lambda: len(queue) == 1)
    trouble = "It has rank 128, and the engine room for 16."
    setup.fleet.publish([make_pool([engine.replica()], adapters=(ServedAdapter("pirate", trouble=trouble),))])
    for status, body, _ in (await asking, await setup.post(chat("fake:pirate"))):
        message = f"No replica of the model 'fake' has loaded its adapter 'pirate'. {trouble}"
        assert (status, body["error"]["message"]) == (503, message)
    assert "fake:pirate" not in await listed(setup)


async def test_a_name_that_means_another_model_is_not_listed_as_an_adapter(start) -> None:
    """`fake:8b` is a model, and `nick:1` an adapter of the second one under a name of its own."""
    first = FakeEngine("a", adapters=("8b", "pirate"))
    second = FakeEngine("b", served_name="fake:8b", adapters=("pirate", "1"))

    def pools(_: Any) -> list[Any]:
        own = {"served_name": "fake:8b", "adapters": (ServedAdapter("1", "nick:1"),)}
        return [
            make_pool([second.replica()], name="second", **own),
            make_pool([first.replica()], aliases=("nick",), created=5.0),
        ]

    setup = await start(engines=[first, second], pools=pools)
    entries = await listed(setup)
    assert list(entries) == ["fake:8b", "fake:8b:1", "fake:8b:pirate", "nick:1", "fake", "nick", "fake:pirate"]
    assert (entries["fake:8b"].get("parent"), entries["nick:1"]["root"]) == (None, "fake:8b:1")
    for name, engine in (("fake:8b", second), ("fake:8b:pirate", second), ("nick:1", second), ("fake:pirate", first)):
        assert (await setup.post(chat(name)))[0] == 200
        assert engine.requests[-1].json()["model"] == {"nick:1": "fake:8b:1"}.get(name, name)
    path = "/default/fake/v1/chat/completions"
    assert (await setup.post(chat("fake:8b"), path))[0] == 200, "at its own address it has its adapter"
    assert first.requests[-1].json()["model"] == "fake:8b"
    async with setup.http.get(f"{setup.url}/default/fake/v1/models") as response:
        assert "fake:8b" in {entry["id"] for entry in (await response.json())["data"]}


def test_names_of_adapters_are_worked_out_once() -> None:
    """There may be many, and each request, and each line of a list, asks for them."""
    model = make_pool([], adapters=tuple(ServedAdapter(f"a{index}", f"own-{index}") for index in range(3))).model
    assert model.adapter_names is model.adapter_names and model.names is model.names
    assert model.adapter_names["default/own-2"] == "a2"
    assert replace(model, namespace="other").adapter_names["other/own-2"] == "a2"


HOSTILE_NAMES = [
    "fake:", ":", "::", "fake::", "fake:pirate:", "fake:pirate:pirate", ":fake:pirate", "fake:PIRATE", "fake:pirate ",
    "fake:\u00fc\u00f1\U0001f3f4", "fake:\x00", "fake:pirate\n", "fake:../pirate", "default/fake:cook", "/fake:pirate",
    "default//fake:pirate", "fake:" + "x" * 200, "fake" + ":" * 200, "fa\u212ae:pirate", "fake\uff1apirate",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/default/fake/v1/chat/completions"])
async def test_names_that_nobody_has_are_404_wherever_they_are_asked_for(start, path: str) -> None:
    engine = FakeEngine(adapters=("pirate",))
    setup = await start(engines=[engine], follow=True)
    for name in HOSTILE_NAMES:
        status, body, _ = await setup.post(chat(name), path)
        assert (status, body["error"]["code"]) == (404, "model_not_found"), name
        async with setup.http.get(f"{setup.url}/v1/models/{quote(name, safe='')}") as response:
            assert response.status == 404, name
    assert not engine.requests
    assert (await setup.post(chat("fake:pirate"), path))[0] == 200


async def test_two_models_with_adapters_of_the_same_name_never_serve_each_others(start) -> None:
    models = {
        name: [FakeEngine(f"{name}-{index}", served_name=name, adapters=("pirate",)) for index in "ab"]
        for name in ("one", "two")
    }
    engines = [each for both in models.values() for each in both]

    def pools(_: Any) -> list[Any]:
        return [make_pool([each.replica() for each in both], name=name) for name, both in models.items()]

    setup = await start(engines=engines, pools=pools, follow=True)
    asked = [f"{name}{adapter}" for name in ("one", "two") for adapter in ("", ":pirate") for _ in range(6)]
    for status, _, _ in await asyncio.gather(*(setup.post(chat(name)) for name in asked)):
        assert status == 200
    for engine in engines:
        assert {each.json()["model"].partition(":")[0] for each in engine.requests} == {engine.served_name}
    assert sum(len(engine.requests) for engine in engines) == len(asked)


async def test_a_holder_that_vanishes_under_requests_leaves_the_others_served_and_nothing_behind(start) -> None:
    holder, other = engines = [FakeEngine("holder", adapters=("pirate",)), FakeEngine("other")]
    holder.gate.clear()
    setup = await start(engines=engines, follow=True, model={"max_queue_time": 0.5})
    asking = [asyncio.create_task(setup.post(chat("fake:pirate", user=str(index)))) for index in range(30)]
    pool = setup.gateway.pools.find("fake", None)
    await setup.until(lambda: len(pool.queue) > 0)
    assert (await setup.post(chat("fake")))[0] == 200
    holder.kill()
    setup.fleet.publish([make_pool([other.replica()], max_queue_time=0.5)])
    statuses = {status for status, _, _ in await asyncio.gather(*asking)}
    assert statuses <= {404, 429, 502, 503}, statuses
    assert (await setup.post(chat("fake")))[0] == 200
    await setup.until(lambda: not len(pool.queue) and pool.router.in_flight.total == 0)
    pool.queue.check()
