"""An engine that has adapters says so, takes requests for them, and refuses those for others by name."""

from typing import Any

from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.scripted_engine import scripted_info

CHAT = {"messages": [{"role": "user", "content": "ahoy"}]}


async def test_a_request_reaches_the_core_with_its_adapter(start_app: Any) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(adapters=("pirate",))))
    reply = await app.chat(model="tiny:pirate")
    assert (reply.status_code, reply.json()["model"]) == (200, "tiny:pirate")
    await app.complete(model="tiny:pirate", prompt=["a", "b"])
    await app.chat()
    assert [request.adapter for request in app.engine.requests] == ["pirate", "pirate", "pirate", None]
    assert (await app.http.post("/tokenize", json={"model": "tiny:pirate", "prompt": "a"})).status_code == 200


async def test_an_unknown_adapter_is_a_404_that_names_what_there_is(start_app: Any) -> None:
    for adapters, there in ((("poet", "pirate"), "it has 'pirate', 'poet'"), ((), "it has none")):
        app = start_app(ScriptedEngine(info=scripted_info(adapters=adapters)))
        for path, body in (("/v1/chat/completions", CHAT), ("/tokenize", {"prompt": "a"})):
            reply = await app.http.post(path, json={"model": "tiny:cook", **body})
            error = reply.json()["error"]
            assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert error["message"] == f"The model has no adapter 'cook'; {there}"
        assert app.engine.requests == []
        assert (await app.http.get("/v1/models/tiny:cook")).status_code == 404


async def test_gateways_and_clients_are_told_of_adapters(start_app: Any) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(adapters=("pirate", "a:b", "x/y"))))
    for card in (await app.http.get("/v1/models")).json()["data"]:
        assert (await app.chat(model=card["id"])).status_code == 200, "what is listed can be asked for"
        assert (await app.http.get(f"/v1/models/{card['id']}")).json() == card
    app = start_app(ScriptedEngine(info=scripted_info(adapters=("pirate",))))
    assert (await app.http.get("/fairlead/v1/model")).json()["adapters"] == ["pirate"]
    cards = (await app.http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("tiny", None), ("tiny:pirate", "tiny")]
    assert (await app.http.get("/v1/models/tiny:pirate")).json()["parent"] == "tiny"


async def test_adapters_come_and_go_with_the_load(start_app: Any) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(adapters=("pirate",))))
    app.engine.change_load(adapters={"poet": 0.25})
    assert [(await app.chat(model=f"tiny:{name}")).status_code for name in ("poet", "pirate")] == [200, 404]
    assert (await app.http.get("/fairlead/v1/model")).json()["adapters"] == ["poet"]
    assert [card["id"] for card in (await app.http.get("/v1/models")).json()["data"]] == ["tiny", "tiny:poet"]
    app.engine.change_load(adapters={})
    assert (await app.http.get("/fairlead/v1/model")).json()["adapters"] == []
    assert (await app.chat(model="tiny:poet")).json()["error"]["message"].endswith("it has none")
