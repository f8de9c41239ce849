"""The official OpenAI client against a gateway: what people's programs do."""

import asyncio
from collections import Counter
from dataclasses import replace

import openai
import pytest

from fairlead.fleet.directory import Outlook, Pool
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

STATES = ("starting", "asleep", "stopped")
"""Of models without a ready replica that are listed."""
MESSAGES = [{"role": "user", "content": "Say hello"}]


async def test_chat(start) -> None:
    setup = await start()
    answer = await setup.openai.chat.completions.create(model="fake", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello, world!"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len("Say hello") + 2, 4)


async def test_chat_streamed(start) -> None:
    setup = await start()
    stream = await setup.openai.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello, world!"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_completion_whole_and_streamed(start) -> None:
    setup = await start()
    answer = await setup.openai.completions.create(model="fake", prompt="Say", max_tokens=2)
    assert answer.choices[0].text == "Hello,"
    stream = await setup.openai.completions.create(model="fake", prompt="Say", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, world!"


async def test_an_engine_gets_every_parameter_as_the_client_sent_it(start) -> None:
    setup = await start()
    shared = {"priority": -3, "return_token_ids": True, "return_tokens_as_token_ids": True}
    fields = {"max_tokens": 0, "logit_bias": {"5": -100}}
    completion = {**fields, "echo": True, "logprobs": 1}
    await setup.openai.completions.create(model="fake", prompt=[1, 2, 3], **completion, extra_body=shared)
    chat = {**shared, "continue_final_message": True, "add_generation_prompt": False}
    await setup.openai.chat.completions.create(model="fake", messages=MESSAGES, **fields, extra_body=chat)
    first, second = (request.json() for request in setup.engines[0].requests)
    assert first.items() >= {**completion, **shared, "prompt": [1, 2, 3]}.items()
    assert second.items() >= {**fields, **chat, "messages": MESSAGES}.items()


async def test_models_at_zero_are_listed_with_their_state(start) -> None:
    def pools(engines: list[FakeEngine]) -> list[Pool]:
        return [
            make_pool([engines[0].replica()], name="ready"),
            make_pool(name="starting", outlook=Outlook(True, "")),
            make_pool(name="asleep", outlook=Outlook(True, "", asleep=True)),
            make_pool(name="stopped", outlook=Outlook(False, "", asleep=True)),
            make_pool(name="failed", outlook=Outlook(False, "")),
        ]

    setup = await start(pools=pools)
    listed = (await setup.openai.models.list()).data
    assert {model.id: model.state for model in listed} == {name: name for name in (*STATES, "ready")}
    for name in STATES:
        assert (await setup.openai.models.retrieve(name)).state == name
    with pytest.raises(openai.NotFoundError):
        await setup.openai.models.retrieve("failed")


async def test_models_are_listed_under_every_name(start) -> None:
    def pools(engines: list[FakeEngine]):
        ready = [engines[0].replica()]
        return [
            make_pool(ready, name="fake", namespace="prod", aliases=("gpt",), created=100.0),
            make_pool(ready, name="late", namespace="dev", served_name="fake", created=200.0),
            make_pool([], name="cold", outlook=Outlook(False, "It cannot be loaded.")),
        ]

    setup = await start(pools=pools)
    models = {model.id: model for model in (await setup.openai.models.list()).data}
    assert set(models) == {"fake", "gpt", "dev/fake"}
    assert (models["gpt"].owned_by, models["gpt"].created) == ("prod", 100)
    assert (await setup.openai.models.retrieve("gpt")).owned_by == "prod"
    assert (await setup.openai.models.retrieve("dev/fake")).owned_by == "dev"
    for absent in ("cold", "nothing"):
        with pytest.raises(openai.NotFoundError):
            await setup.openai.models.retrieve(absent)


async def test_an_alias_or_qualified_name_reaches_the_engine_as_its_served_name(start) -> None:
    setup = await start(model={"aliases": ("gpt-4",), "namespace": "prod"})
    for name in ("gpt-4", "prod/fake", "fake"):
        await setup.openai.chat.completions.create(model=name, messages=MESSAGES)
    assert [request.json()["model"] for request in setup.engines[0].requests] == ["fake"] * 3


async def test_while_a_rename_is_rolled_out_each_engine_is_asked_by_the_name_it_has(start) -> None:
    def pools(engines: list[FakeEngine]):
        replicas = [replace(engine.replica(), served_name=engine.served_name) for engine in engines]
        return [make_pool(replicas, served_name="new")]

    engines = [FakeEngine("engine-0", served_name="old"), FakeEngine("engine-1", served_name="new")]
    setup = await start(engines=engines, pools=pools)
    for _ in range(4):
        await setup.openai.chat.completions.create(model="new", messages=MESSAGES)
    assert [engine.num_finished for engine in engines] == [2, 2]


async def test_answers_name_their_request_and_replica(start) -> None:
    setup = await start()
    setup.engines[0].num_cached_tokens = 7
    raw = await setup.openai.chat.completions.with_raw_response.create(
        model="fake", messages=MESSAGES, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-fairlead-replica"] == "engine-0"
    assert raw.headers["x-fairlead-cached-tokens"] == "7"
    assert setup.engines[0].requests[0].headers["x-request-id"] == "mine-1"
    second = await setup.openai.chat.completions.with_raw_response.create(model="fake", messages=MESSAGES)
    assert len(second.headers["x-request-id"]) == 32


async def test_load_is_spread_over_replicas(start) -> None:
    setup = await start(3)
    calls = [setup.openai.chat.completions.with_raw_response.create(model="fake", messages=MESSAGES) for _ in range(12)]
    replicas = Counter(raw.headers["x-fairlead-replica"] for raw in await asyncio.gather(*calls))
    assert replicas == {"engine-0": 4, "engine-1": 4, "engine-2": 4}


async def test_a_shed_request_is_a_rate_limit_error_to_the_official_client(start) -> None:
    setup = await start(max_queue=1, model={"max_queue_time": 0.05})
    setup.engines[0].gate.clear()
    blocked = [asyncio.create_task(setup.post({"model": "fake", "messages": MESSAGES})) for _ in range(8)]
    await setup.until(lambda: setup.engines[0].num_running == 8)
    with pytest.raises(openai.RateLimitError) as caught:
        await setup.openai.chat.completions.create(model="fake", messages=MESSAGES)
    assert caught.value.code == "queue_timeout"
    setup.engines[0].gate.set()
    assert {status for status, _, _ in await asyncio.gather(*blocked)} == {200}
