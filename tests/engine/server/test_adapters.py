"""An engine that has adapters says so, takes requests for them, and refuses those for others by name."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput, TokenLogprobs
from fairlead_engine_testing import ScriptedEngine
from fairlead_engine_testing.adapters import write_random_adapter, write_random_soft_prompt
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


async def test_adapters_are_loaded_and_unloaded_by_vllms_names(start_app: Any) -> None:
    app = start_app(unknown_fields="refuse")
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    reply = await app.http.post(load, json={"lora_name": "pirate", "lora_path": "pirate"})
    assert (reply.status_code, reply.json()) == (200, {"id": "tiny:pirate", "status": "loaded"})
    assert (await app.chat(model="tiny:pirate")).status_code == 200
    reply = await app.http.post(load, json={"lora_name": "x", "lora_path": "broken"})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["message"]) == (400, "lora_path", "broken is broken")
    for path, body, param in (
        (load, {"lora_name": "x"}, "lora_path"),
        (load, {"lora_name": "", "lora_path": "x"}, "lora_name"),
        (load, {"lora_name": "x", "lora_path": "x", "lora_int_id": 1}, "lora_int_id"),
        (unload, {}, "lora_name"),
    ):
        reply = await app.http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert (await app.http.post(unload, json={"lora_name": "pirate"})).json()["status"] == "unloaded"
    reply = await app.http.post(unload, json={"lora_name": "pirate"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        404,
        "The model has no adapter 'pirate'; it has none",
    )


async def test_soft_prompts_count_against_the_context(start_app: Any) -> None:
    app = start_app(ScriptedEngine(info=scripted_info(adapters=("soft",))))
    app.engine.change_load(virtual_tokens={"soft": 200})
    for most, num_tokens, param, said in (
        (10, 56, "prompt", "takes 200 of this model's context of 256 tokens, and the prompt has 56; shorten it to at "),
        (46, 11, "max_tokens", "takes 200 of this model's context of 256 tokens, the prompt 11; lower max_tokens to "),
    ):
        reply = await app.complete(model="tiny:soft", prompt=[5] * num_tokens, max_tokens=most)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
        assert said in error["message"] and error["message"].endswith(("at most 55", "at most 45"))
        assert (await app.complete(prompt=[5] * num_tokens, max_tokens=most)).status_code == 200
    assert (await app.complete(model="tiny:soft", prompt=[5] * 11, max_tokens=45)).status_code == 200
    reply = await app.http.post("/v1/embeddings", json={"model": "tiny:soft", "input": "ahoy"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")


async def test_a_search_ends_where_a_soft_prompt_leaves_no_room(start_app: Any) -> None:
    """It is one that says no max_tokens."""

    def told(request: EngineRequest) -> list[SequenceOutput]:
        logprobs = [TokenLogprobs(5, -0.5, [(5, -0.5)])]
        length = FinishReason.LENGTH
        return [
            SequenceOutput(request_id=request.request_id, new_token_ids=[5], finish_reason=length, logprobs=logprobs)
        ]

    app = start_app(ScriptedEngine(told, info=scripted_info(adapters=("soft",))))
    app.engine.change_load(virtual_tokens={"soft": 200})
    for model, room in (("tiny", 256), ("tiny:soft", 56)):
        app.engine.requests.clear()
        reply = await app.chat(model=model, use_beam_search=True, ignore_eos=True)
        usage = reply.json()["usage"]
        assert usage["total_tokens"] == room
        longest = max(len(request.prompt_token_ids) for request in app.engine.requests)
        assert longest == room - 1, "the core takes no prompt that leaves no room"


async def test_every_round_of_a_search_is_for_the_adapter_that_it_began_with(start_app: Any) -> None:
    def told(request: EngineRequest) -> list[SequenceOutput]:
        assert [each.adapter for each in app.engine.holds.values()] == ["x"]
        logprobs = [TokenLogprobs(5, -0.5, [(5, -0.5)])]
        length = FinishReason.LENGTH
        return [
            SequenceOutput(request_id=request.request_id, new_token_ids=[5], finish_reason=length, logprobs=logprobs)
        ]

    app = start_app(ScriptedEngine(told, info=scripted_info(adapters=("x",))))
    sent, add = list[EngineRequest](), app.engine.add
    app.engine.add = lambda request, stream: sent.append(request) or add(request, stream)
    assert (await app.chat(model="tiny:x", use_beam_search=True, max_tokens=3)).status_code == 200
    assert [each.prompt_token_ids for each in sent] == [[], [5], [5, 5]], "the prompt is sent once, with the hold"
    assert len(app.engine.requests) == 3 and not app.engine.holds
    assert len({request.hold for request in app.engine.requests}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_server_loads_and_unloads_under_traffic(
    num_processes: int, start_engine: Any, checkpoint: Path, tmp_path: Path
) -> None:
    root = tmp_path / "adapters"
    for seed, name in enumerate(("one", "two", "three")):
        write_random_adapter(root / name, checkpoint, seed=seed)
    write_random_adapter(root / "wide", checkpoint, rank=17)
    write_random_soft_prompt(root / "soft", checkpoint, num_virtual_tokens=9)
    (root / "link").symlink_to(tmp_path)
    engine = start_engine(
        "--model", str(checkpoint), "--served-name", "tiny", "--lora-modules", f"one={root / 'one'}",
        "--adapter-folder", str(root), "--max-loras", "1", "--api-servers", str(num_processes),
    )  # fmt: skip
    engine.wait_ready()

    def post(path: str, **body: Any) -> httpx.Response:
        return httpx.post(engine.url + path, json=body, timeout=60)

    def ask(name: str, most: int = 12) -> httpx.Response:
        sent = {"prompt": "the quick brown fox", "max_tokens": most, "temperature": 0, "ignore_eos": True}
        return post("/v1/completions", model=name, **sent)

    def answer(name: str) -> str:
        engine.wait_until(lambda: found.append(ask(name)) or found[-1].status_code == 200, f"an answer of {name}")
        return str(found[-1].json()["choices"][0]["text"])

    found: list[httpx.Response] = []
    plain, one = answer("tiny"), answer("tiny:one")
    assert plain != one
    failed: list[str] = []
    is_over = threading.Event()

    def traffic(name: str) -> None:
        expected = {"tiny": plain, "tiny:one": one}[name]
        while not is_over.is_set():
            text = ask(name).json()["choices"][0]["text"]
            if text != expected:
                failed.append(text)

    threads = [threading.Thread(target=traffic, args=(name,)) for name in ("tiny", "tiny:one")]
    for thread in threads:
        thread.start()
    try:
        texts = []
        for folder in ("two", "three", "two"):
            loaded = post("/v1/load_lora_adapter", lora_name="new", lora_path=folder)
            assert loaded.json() == {"id": "tiny:new", "status": "loaded"}
            texts.append(answer("tiny:new"))
            again = post("/v1/load_lora_adapter", lora_name="new", lora_path=folder)
            assert "'new' is there already" in again.json()["error"]["message"]
            gone = post("/v1/unload_lora_adapter", lora_name="new")
            assert gone.json()["status"] == "unloaded", gone.text
            engine.wait_until(lambda: ask("tiny:new").status_code == 404, "the end of new")
        assert texts[0] == texts[2] != texts[1]
        assert post("/v1/load_lora_adapter", lora_name="soft", lora_path="soft").status_code == 200
        assert answer("tiny:soft") not in (plain, *texts)
        usages = [ask(name).json()["usage"]["prompt_tokens"] for name in ("tiny", "tiny:soft")]
        assert usages[0] == usages[1], "a soft prompt is nobody's text"
        assert post("/v1/unload_lora_adapter", lora_name="soft").status_code == 200
        engine.wait_until(lambda: ask("tiny:soft").status_code == 404, "the end of soft")
        for path, said in (
            ("wide", "r is 17, and adapters here have at most 16"),
            ("nowhere", "adapter_config.json cannot be read"),
            ("..", "below that of --adapter-folder"),
            ("/etc", "below that of --adapter-folder"),
            ("link/adapters/../..", "below that of --adapter-folder"),
            ("a\0b", "lora_path is no folder"),
        ):
            refused = post("/v1/load_lora_adapter", lora_name="new", lora_path=path)
            assert refused.status_code == 400 and said in refused.json()["error"]["message"], refused.text
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failed
    engine.wait_until(lambda: engine.metric("fairlead_engine_adapters") == 1, "telling of one adapter")
    assert engine.metric("fairlead_engine_adapters_on_device") <= 1
    assert engine.metric("fairlead_engine_adapter_reads_total") >= 4
    assert engine.metric("fairlead_engine_adapter_placements_total") >= 5
    assert engine.metric("fairlead_engine_adapter_read_seconds_total") > 0


def test_a_server_without_a_folder_for_them_loads_none(served: Any) -> None:
    body = {"lora_name": "x", "lora_path": "/tmp"}
    refused = httpx.post(served.url + "/v1/load_lora_adapter", json=body, timeout=60)
    assert refused.status_code == 400
    assert "start it with --adapter-folder" in refused.json()["error"]["message"]
