"""What fits no replica is a 400 at once: it holds nobody, is no demand, and costs neither a replica nor memory."""

import asyncio
from dataclasses import replace

import pytest

from fairlead.api.llmdeployment import Routing
from fairlead.fleet.directory import Outlook, Pool
from fairlead.routing.replica import Limits
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_testing.clock import in_virtual_time
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.model_pools import FakeReader, Room, pool_of, replica

LIMITS = Limits(max_num_seqs=4, max_num_queued_tokens=1024, max_model_len=512)
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
HUGE = "one two three " * 1_000_000
"""14 MB."""
BODIES = {
    "a chat": ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": HUGE}]}),
    "a text": ("/v1/completions", {"model": "fake", "prompt": HUGE}),
    "one of several": ("/v1/completions", {"model": "fake", "prompt": ["short", HUGE]}),
    "token ids": ("/v1/completions", {"model": "fake", "prompt": [7] * 2_000_000}),
    "lists of token ids": ("/v1/completions", {"model": "fake", "prompt": [[7], [7] * 2_000_000]}),
    "an answer that leaves no room": ("/v1/completions", {"model": "fake", "prompt": [7] * 500, "max_tokens": 13}),
    "only just too long": ("/v1/completions", {"model": "fake", "prompt": [7] * 512}),
}


@pytest.fixture
def longest_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    lengths = [0]
    encode_each = PromptTokenizer.encode_each

    def spy(self: PromptTokenizer, texts, **kwargs):
        lengths[0] = max(lengths[0], *map(len, texts))
        return encode_each(self, texts, **kwargs)

    monkeypatch.setattr(PromptTokenizer, "encode_each", spy)
    return lengths


@pytest.mark.parametrize("kind", BODIES)
async def test_it_is_refused_by_the_gateway_and_is_no_demand(start, longest_encoded: list[int], kind: str) -> None:
    setup = await start(engines=[FakeEngine(limits=LIMITS)], follow=True)
    path, body = BODIES[kind]
    longest_encoded[0] = 0
    status, document, headers = await setup.post(body, path)
    assert (status, document["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 512 tokens" in document["error"]["message"]
    assert document["error"]["param"] in ("messages", "prompt", "prompt[1]", "max_tokens")
    assert "retry-after" not in headers
    assert setup.engines[0].requests == []
    assert longest_encoded[0] < 1000
    counters = setup.gateway.pools.find("fake", None).counters
    assert (counters.num_arrivals, counters.num_ended, counters.prompt_tokens) == (0, 0, 0)
    assert 'outcome="client_error",status="400"' in await setup.metrics()
    assert (await setup.post(CHAT))[0] == 200
    assert counters.num_arrivals == 1


@in_virtual_time
async def test_who_stands_in_line_when_the_limits_become_known_holds_nobody() -> None:
    """Waiting began before any replica was there; the first that comes is too small for the head of the line."""
    reader = FakeReader("x")
    reader.num_tokens = {"huge": 600}
    room = Room(pool_of(), reader)
    room.ask("huge")
    room.ask("small")
    await asyncio.sleep(1.0)
    room.model_pool.update(pool_of(replica(limits=LIMITS, digest="x")))
    log = await room.end()
    assert log == [("huge", "context_length_exceeded", 1.0), ("small", "a", 1.0)]


@pytest.mark.parametrize(
    ("digests", "limits", "num_tokens", "sent"),
    [
        pytest.param(("x",), replace(LIMITS, max_model_len=4096), 65, "None", id="more than the KV cache, refused"),
        pytest.param((), LIMITS, 4_000_000, "a", id="a length that is only estimated"),
    ],
)
@in_virtual_time
async def test_what_exceeds_or_seems_to_exceed_every_kv_cache_holds_nobody(
    digests: tuple[str, ...], limits: Limits, num_tokens: int, sent: str
) -> None:
    reader = FakeReader(*digests)
    reader.num_tokens = {"huge": num_tokens}
    room = Room(pool_of(replica(limits=limits, digest="x" if digests else "?")), reader)
    room.tell("a", max_num_seqs=4)
    room.ask("running", seconds=5.0)
    await asyncio.sleep(0.5)
    room.tell("a", running=1, kv_blocks_free=3, max_num_seqs=4, seen={"gateway": 1})
    room.ask("huge")
    await asyncio.sleep(0)
    room.ask("small")
    assert await room.end() == [("running", "a", 0.0), ("huge", sent, 0.5), ("small", "a", 0.5)]


async def test_several_prompts_that_fit_one_after_another_hold_nobody(start) -> None:
    """Together they exceed the KV cache; the engine takes them one by one."""
    engine = FakeEngine(limits=LIMITS, num_kv_blocks=40)
    setup = await start(engines=[engine], follow=True)
    engine.gate.clear()
    running = asyncio.create_task(setup.post(CHAT))
    pool = setup.gateway.pools.find("fake", None)
    await setup.until(lambda: pool.router.in_flight.total == 1)
    load, now = setup.gateway.datastore.load, asyncio.get_running_loop().time
    await setup.until(lambda: (told := load(engine.name, now())) is not None and told.running == 1)
    batch = asyncio.create_task(setup.post({"model": "fake", "prompt": [[7] * 300] * 3}, "/v1/completions"))
    await setup.until(lambda: pool.router.in_flight.total == 2)
    engine.gate.set()
    assert (await running)[0] == (await batch)[0] == 200


async def test_a_model_at_zero_is_not_woken_for_what_its_engines_could_never_take(start) -> None:
    """What they were is known as long as the spec says the same; else only an engine can tell."""
    engine = FakeEngine(limits=LIMITS)
    setup = await start(engines=[engine], follow=True)
    assert (await setup.post(CHAT))[0] == 200
    pool = setup.gateway.pools.find("fake", None)
    await setup.until(lambda: bool(pool.prompts.digests))
    woken: list[int] = []
    pool._on_urgent = lambda: woken.append(1)
    asleep = Pool(pool.model, (), Outlook(True, "It is scaled to zero.", asleep=True))
    pool.update(asleep)
    huge = {"model": "fake", "prompt": HUGE}
    status, document, _ = await setup.post(huge, "/v1/completions")
    assert (status, document["error"]["code"], woken) == (400, "context_length_exceeded", [])
    larger = replace(pool.model, engine="with a longer context", routing=Routing(cold_start_timeout=0.2))
    pool.update(replace(asleep, model=larger))
    assert (await setup.post(huge, "/v1/completions"))[0] == 503
    assert woken


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"prompt": [7] * 512}, "prompt", "but the prompt has 512"),
        ({"prompt": [[7], [7] * 600]}, "prompt[1]", "but the prompt has 600"),
        ({"prompt": [7] * 500, "max_tokens": 13}, "max_tokens", "but the prompt has 500 and max_tokens asks for 13"),
        ({"prompt": [7] * 2_000_000}, "prompt", "but the prompt has at least"),
        ({"prompt": "hi", "max_tokens": 512}, "max_tokens", "but the prompt has at least 1 and"),
        ({"prompt": ["hi", "ho"], "max_tokens": 512}, "max_tokens", "but the prompt has at least 1 and"),
    ],
)
async def test_a_model_whose_engines_nobody_has_seen_is_not_woken_for_what_its_spec_rules_out(
    start, body, field: str, words: str
) -> None:
    asleep = pool_of(outlook=Outlook(True, "It is scaled to zero.", asleep=True), max_model_len=512)
    setup = await start(engines=[FakeEngine()], pools=lambda engines: [asleep])
    pool = setup.gateway.pools.find("fake", None)
    woken: list[int] = []
    pool._on_urgent = lambda: woken.append(1)
    status, document, _ = await setup.post({"model": "fake", **body}, "/v1/completions")
    assert (status, document["error"]["code"], document["error"]["param"]) == (400, "context_length_exceeded", field)
    assert words in document["error"]["message"]
    assert (woken, pool.counters.num_arrivals) == ([], 0)


@pytest.mark.parametrize(
    "body", [{"prompt": "word " * 5000}, {"prompt": [7] * 511, "max_tokens": 1}, {"prompt": []}, {"prompt": [[], "x"]}]
)
async def test_what_may_fit_for_all_its_spec_says_waits_for_an_engine(start, body) -> None:
    """How many tokens a text has only a tokenizer knows."""
    asleep = pool_of(outlook=Outlook(True, "", asleep=True), max_model_len=512, cold_start_timeout=0.1)
    setup = await start(engines=[FakeEngine()], pools=lambda engines: [asleep])
    status, document, _ = await setup.post({"model": "fake", **body}, "/v1/completions")
    assert (status, document["error"]["code"]) == (503, "cold_start_timeout")
