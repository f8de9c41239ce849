"""A wait that ends in a refusal is a wait: it is in the log and in the histogram, with its seconds."""

import asyncio
import logging

import pytest

from fairlead.routing.replica import Limits
from fairlead_testing.fake_engine import FakeEngine

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


async def test_who_was_refused_after_waiting_has_waited(start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    engine = FakeEngine(limits=Limits(max_num_seqs=1, max_num_queued_tokens=0))
    setup = await start(engines=[engine], model={"max_queue_time": 0.3})
    engine.gate.clear()
    running = asyncio.create_task(setup.post(CHAT))
    await setup.until(lambda: len(engine.requests) == 1)
    status, document, headers = await setup.post(CHAT, headers={"x-request-id": "in-vain"})
    assert (status, document["error"]["code"], "retry-after" in headers) == (429, "queue_timeout", True)
    [record] = [each for each in caplog.records if getattr(each, "request_id", "") == "in-vain"]
    assert record.queue_seconds >= 0.3
    text = await setup.metrics()
    assert 'fairlead_gateway_queue_wait_seconds_bucket{le="0.25",model="default/fake"} 0.0' in text
    assert 'fairlead_gateway_queue_wait_seconds_count{model="default/fake"} 1.0' in text
    engine.gate.set()
    assert (await running)[0] == 200


async def test_a_refusal_without_a_wait_is_not_counted_as_one(start) -> None:
    limits = Limits(max_num_seqs=1, max_num_queued_tokens=0, max_model_len=64)
    setup = await start(engines=[FakeEngine(limits=limits)], follow=True)
    status, _, _ = await setup.post({"model": "fake", "prompt": [7] * 64}, "/v1/completions")
    assert status == 400
    assert "fairlead_gateway_queue_wait_seconds_count" not in await setup.metrics()
