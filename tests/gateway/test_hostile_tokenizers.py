"""Tokenizers and chat templates that take more than they may: their own model goes on without them, and others as ever.

Told by order and by what was read, not by the clock.
"""

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import msgspec
import psutil
import pytest

from fairlead.gateway.dispatch import pool_prompts
from fairlead.gateway.prompts import prompt_program, reader
from fairlead.gateway.prompts.prompt_jobs import Engines, ReadJob, ReadOutcome
from fairlead.gateway.prompts.prompt_program import PromptReading
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.blocks import DIGEST_SIZE
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.fake_engine.engine import DEFAULT_LIMITS
from fairlead_testing.fake_engine.prompts import CHAT_TEMPLATE, make_tokenizer
from fairlead_testing.gateways import make_pool

EXPANDING = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 6,
    }
}
BACKTRACKING = {
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
}
NESTED = (
    "{% set n = namespace(x=[1, 1], y=[1, 1]) %}{% for i in range(30) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}"
)
TEMPLATES = [
    "{% for i in range(900) %}{% set x = ('ab' * 8000000) | upper %}{% endfor %}",
    NESTED + "{{ n.x == n.y }}",
    NESTED + "{{ n.x in [n.y] }}",
    NESTED + "{{ [n.x, n.y] | sort | length }}",
    NESTED + "{{ n.x }}",
    NESTED + "{{ n.x | tojson }}",
    NESTED + "{{ n.x | pprint }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] | sum(start=[]) %}{% endfor %}",
    "{% for i in range(900) %}{% set x = ('ab' * 8000000).translate({97: 'ab'}) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
]
MEGABYTE = 2**20


@pytest.fixture(autouse=True)
def little_time_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a processor: an honest tokenizer takes a twentieth, and what exceeds it is waited for twice."""
    monkeypatch.setattr(reader, "LIMITS", msgspec.structs.replace(reader.LIMITS, load_seconds=1.0))


def tokenizer(changes: dict[str, Any], template: str = CHAT_TEMPLATE) -> PromptTokenizer:
    parts = {**json.loads(make_tokenizer().tokenizer_json), **changes}
    return PromptTokenizer(json.dumps(parts), chat_template=template, renders=False)


def chat(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def taken() -> int:
    """Bytes of memory that this process, which is the gateway's, and each below it have, at most."""
    seen = [0]
    for each in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            seen.append(each.memory_info().rss)
        except psutil.NoSuchProcess:
            pass
    return max(seen)


async def beside_an_honest_one(start, hostile: PromptTokenizer, **settings: Any):
    engines = [FakeEngine("honest"), FakeEngine("hostile", served_name="hostile", tokenizer=hostile)]
    return await start(
        engines=engines,
        pools=lambda made: [make_pool([made[0].replica()]), make_pool([made[1].replica()], name="hostile")],
        follow=True,
        **settings,
    )


@pytest.mark.parametrize("number", range(0, len(TEMPLATES), 3))
async def test_a_template_that_takes_all_there_is(start, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(reader, "LIMITS", msgspec.structs.replace(reader.LIMITS, job_seconds=0.3))
    hostile = tokenizer({}, TEMPLATES[number])
    setup = await beside_an_honest_one(start, hostile)
    before, most, order = taken(), 0, list[str]()

    async def ask(model: str, text: str) -> None:
        assert (await setup.post(chat(model, text)))[0] == 200
        order.append(model)

    await ask("fake", "ahoy")
    asked = [asyncio.create_task(ask("hostile", f"ahoy {index}")) for index in range(3)]
    for index in range(10):
        await ask("fake", f"ahoy {index}")
        most = max(most, taken())
    assert order.count("fake") == 11
    while not all(each.done() for each in asked):
        most = max(most, taken())
        await asyncio.sleep(0.02)
    await asyncio.gather(*asked)
    assert most - before < 200 * MEGABYTE
    [honest, foul] = setup.engines
    assert [b"fairlead_prompt_tokens" in each.body for each in honest.requests] == [True] * 11
    assert not any(b"fairlead_prompt_tokens" in each.body for each in foul.requests)


async def test_a_tokenizer_that_expands_texts(start, caplog: pytest.LogCaptureFixture) -> None:
    """Which the samples that are taken when a tokenizer becomes known do already."""
    before = taken()
    with caplog.at_level(logging.ERROR):
        setup = await beside_an_honest_one(start, tokenizer(EXPANDING))
        most = before
        for index in range(5):
            assert (await setup.post(chat("hostile", f"ahoy {index}")))[0] == 200
            assert (await setup.post(chat("fake", f"ahoy {index}")))[0] == 200
            most = max(most, taken())
    assert most - before < 200 * MEGABYTE
    assert "template of hostile cannot be used here, so its engines do it" in caplog.text
    [honest, foul] = setup.engines
    assert all(b"fairlead_prompt_tokens" in each.body for each in honest.requests)
    assert not any(b"fairlead_prompt_tokens" in each.body for each in foul.requests)
    told = 'fairlead_gateway_untokenized_models{model="default/hostile"} 1.0'
    assert told in setup.gateway.metrics.exposition().decode()
    models = setup.gateway.signals.line().models
    assert models["default/fake"].tokenizer_problem == ""
    assert models["default/hostile"].tokenizer_problem in caplog.text


@pytest.mark.parametrize(("num_letters", "outcome"), [(50, ReadOutcome.READ), (51, ReadOutcome.LEFT)])
def test_of_a_tokenizer_that_makes_much_of_little_no_more_is_told_than_is_read_in_a_moment(
    monkeypatch: pytest.MonkeyPatch, num_letters: int, outcome: ReadOutcome
) -> None:
    monkeypatch.setattr(prompt_program, "MAX_TOKENS", 1000)
    monkeypatch.setattr(prompt_program, "MAX_BLOCKS", 60)
    normalizer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    made = tokenizer({"normalizer": normalizer})
    engine = FakeEngine(tokenizer=made)
    program = PromptReading(engine._model_info(), may_quicken=True)
    fields = {"prompt": memoryview(json.dumps(["a" * num_letters] * 2).encode())}
    job = ReadJob("/v1/completions", fields, None, 100, Engines(2**53, [1, 16], True))
    reply = program.read(job, takes_long=True)
    assert reply.outcome is outcome
    hashes = [[len(raw) // DIGEST_SIZE for raw in each.hashes.values()] for each in reply.prompts]
    assert hashes == ([[60, 31], [0, 0]] if outcome is ReadOutcome.READ else [])


async def test_engines_of_another_model_with_the_same_tokenizer_do_not_decide_how_prompts_are_read(start) -> None:
    """Public models share their tokenizers. Hashing for blocks of one token takes sixteen times as long."""
    small = replace(DEFAULT_LIMITS, block_size=1, max_model_len=10**6)
    engines = [FakeEngine("hostile", served_name="hostile", limits=small), FakeEngine("honest")]
    setup = await start(
        engines=engines,
        pools=lambda made: [
            make_pool([made[1].replica(with_limits=False)]),
            make_pool([made[0].replica(with_limits=False)], name="hostile"),
        ],
        follow=True,
    )
    assert (await setup.post(chat("fake", "ahoy " * 20)))[0] == 200
    honest, foul = (setup.gateway.pools.find(name, None) for name in ("fake", "hostile"))
    assert honest.prompts.digests == foul.prompts.digests
    [digest] = honest.prompts.digests
    assert honest.prompts.engines[digest] == Engines(
        DEFAULT_LIMITS.max_model_len or 0, [DEFAULT_LIMITS.block_size], True
    )
    status, body, _ = await setup.post({"model": "fake", "prompt": "a" * 5000, "max_tokens": 1}, "/v1/completions")
    assert status == 400 and "4096" in body["error"]["message"], "too long for its own engines"


async def test_a_model_whose_replicas_all_have_other_tokenizers_takes_few_processes(start) -> None:
    engines = [FakeEngine(f"e{number}", tokenizer=tokenizer({}, f"{CHAT_TEMPLATE}{number}")) for number in range(12)]
    setup = await start(
        engines=engines, pools=lambda made: [make_pool([each.replica(with_limits=False) for each in made])], follow=True
    )
    await setup.until(lambda: all(each.digest for each in setup.fleet.directory.pools[0].replicas))
    assert len(setup.gateway.pools.find("fake", None).prompts.digests) == pool_prompts.MAX_DIGESTS
    assert len(setup.gateway.tokenizers._known) <= pool_prompts.MAX_DIGESTS + reader.MAX_SPARE
    assert (await setup.post(chat("fake", "ahoy")))[0] == 200


async def test_a_tokenizer_that_panics(start) -> None:
    hostile = tokenizer(BACKTRACKING)
    setup = await beside_an_honest_one(start, hostile)
    for text in ("ahoy", "a" * 25 + "!", "a" * 2000 + "!", "ahoy"):
        assert (await setup.post(chat("hostile", text)))[0] == 200
        assert (await setup.post(chat("fake", text)))[0] == 200
    foul = [b"fairlead_prompt_tokens" in each.body for each in setup.engines[1].requests]
    assert foul == [True, False, False, True]
