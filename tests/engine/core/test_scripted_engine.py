"""The scripted engine keeps the promises of `EngineClient`, so that server tests mean something."""

import asyncio

import pytest

from fairlead_engine.core.client import EngineClient
from fairlead_engine.errors import EngineDead, KVCacheTooSmall, QueueFull
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput
from fairlead_engine_testing import ScriptedEngine, answer, make_request
from fairlead_engine_testing.outputs import outputs_of


async def collect(engine: EngineClient, request: EngineRequest) -> list[SequenceOutput]:
    return [output async for output in outputs_of(engine, request)]


async def test_it_repeats_the_prompt_by_default() -> None:
    engine = ScriptedEngine()
    await engine.start()
    outputs = await collect(engine, make_request("a", [4, 5, 6]))
    assert [output.new_token_ids for output in outputs] == [[4], [5], [6]]
    assert outputs[-1].finish_reason is FinishReason.STOP
    outputs = await collect(engine, make_request("b", [4, 5, 6], max_tokens=2))
    assert (len(outputs), outputs[-1].finish_reason) == (2, FinishReason.LENGTH)
    assert [request.request_id for request in engine.requests] == ["a", "b"]
    assert not engine.aborted


async def test_it_plays_a_given_answer() -> None:
    engine = ScriptedEngine(answer([7, 8], finish_reason=FinishReason.LENGTH, num_cached_tokens=3))
    await engine.start()
    outputs = await collect(engine, make_request())
    assert [output.num_cached_tokens for output in outputs] == [3, 3]
    assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_closing_an_iterator_early_is_remembered_as_an_abort() -> None:
    engine = ScriptedEngine()
    await engine.start()
    stream = outputs_of(engine, make_request("a"))
    await anext(stream)
    assert engine.running == {"a"}
    await stream.aclose()
    assert engine.aborted == ["a"]
    assert not engine.running


async def test_it_can_be_full_hang_and_die() -> None:
    engine = ScriptedEngine()
    await engine.start()
    engine.full = True
    with pytest.raises(QueueFull):
        await collect(engine, make_request("a"))
    engine.full = False
    engine.hang(step_age_seconds=9.0)
    task = asyncio.create_task(collect(engine, make_request("b")))
    done, _ = await asyncio.wait([task], timeout=0.02)
    assert not done
    assert engine.step_age_seconds == 9.0
    engine.die("gone")
    with pytest.raises(EngineDead, match="gone"):
        await task
    assert not engine.alive


async def test_it_can_refuse_to_start() -> None:
    engine = ScriptedEngine(start_error=KVCacheTooSmall("too small"))
    with pytest.raises(KVCacheTooSmall):
        await engine.start()


async def test_closing_it_ends_what_runs() -> None:
    engine = ScriptedEngine()
    await engine.start()
    stream = outputs_of(engine, make_request())
    await anext(stream)
    await engine.close()
    with pytest.raises(EngineDead, match="closed"):
        await anext(stream)
