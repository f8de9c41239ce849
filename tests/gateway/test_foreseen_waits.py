"""What becomes of a request is foreseen once, when it comes, and the wait in the gateway's line is part of it."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from fairlead.gateway.observation import Observation
from fairlead.routing.queue import Ticket
from fairlead.routing.replica import Limits
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import STARTING, make_pool

COST = StepCost(base=0.05, prefill_token=0.00002, decode_seq=0.001)
SLOTS = 2
NUM_WAITING = 10
BODY = {"model": "fake", "messages": [{"role": "user", "content": "Say hello"}], "stream": True}


def engine() -> FakeEngine:
    limits = Limits(max_num_seqs=SLOTS, max_num_queued_tokens=0, max_model_len=4096)
    return FakeEngine("engine-0", step_cost=COST, limits=limits)


@dataclass(frozen=True)
class Seen:
    """One request, from sending to its first token."""

    seconds: float
    by_steps: float
    """The same in the engine's own time: what its steps cost meanwhile, less than that where the machine is busy."""
    foreseen: float | None


async def ask(setup) -> Seen:
    loop, core = asyncio.get_running_loop(), setup.engines[0].core
    began, spent = loop.time(), core.spent_seconds
    async with setup.http.post(f"{setup.url}/v1/chat/completions", json=BODY) as response:
        assert response.status == 200
        await response.content.readuntil(b"\n\n")
        seen = Seen(loop.time() - began, core.spent_seconds - spent, _foreseen(response.headers))
        await response.read()
        return seen


async def overload(setup) -> list[Seen]:
    """Asks three times as fast as the engine answers, after it has answered once. In the order of arrival."""
    await ask(setup)
    asking = []
    for _ in range(SLOTS + NUM_WAITING):
        asking.append(asyncio.create_task(ask(setup)))
        await asyncio.sleep(COST.base / 2)
    return await asyncio.gather(*asking)


async def test_in_overload_the_wait_is_foreseen_on_arrival(start, caplog) -> None:
    caplog.set_level(logging.INFO, logger="fairlead.gateway.requests")
    setup = await start(engines=[engine()], follow=True)
    seen = (await overload(setup))[SLOTS:]
    foreseen = [each.foreseen for each in seen if each.foreseen is not None]
    assert len(foreseen) == NUM_WAITING
    assert all(seconds < 2.0 * each.seconds for each, seconds in zip(seen, foreseen, strict=True)), seen
    assert sum(foreseen) > 0.5 * sum(each.by_steps for each in seen), seen
    assert foreseen[-1] > 3 * foreseen[0], "a later place is a longer wait"
    label = 'model="default/fake"'
    total = await setup.metric(f"fairlead_gateway_predicted_time_to_first_token_seconds_sum{{{label}}}")
    assert total >= sum(foreseen) - 0.01, "the metric covers the wait"
    record = [record for record in caplog.records if record.name == "fairlead.gateway.requests"][-1]
    assert record.predicted_ttft_seconds > 2 * record.predicted_replica_ttft_seconds
    assert sum(setup.gateway.signals.line().models["default/fake"].predicted_ttft) == SLOTS + NUM_WAITING + 1


async def test_the_operator_is_told_while_the_request_still_waits(start) -> None:
    setup = await start(engines=[engine()], follow=True)
    await ask(setup)
    setup.engines[0].gate.clear()
    asking = [asyncio.create_task(ask(setup)) for _ in range(SLOTS + 1)]
    line = setup.gateway.signals.line
    await setup.until(lambda: (now := line().models["default/fake"]).num_arrivals == SLOTS + 2 and now.waiting == 1)
    assert sum(line().models["default/fake"].predicted_ttft) == 1 + SLOTS + 1
    setup.engines[0].gate.set()
    await asyncio.gather(*asking)


async def test_without_a_replica_nothing_is_foreseen_though_one_comes(start) -> None:
    setup = await start(engines=[engine()], follow=True, pools=lambda engines: [make_pool([], outlook=STARTING)])
    asking = asyncio.create_task(ask(setup))
    pool = next(iter(setup.gateway.pools))
    await setup.until(lambda: len(pool.queue) == 1)
    setup.fleet.publish([make_pool([each.replica() for each in setup.engines])])
    assert (await asking).foreseen is None
    assert "fairlead_gateway_ttft_prediction_error_ratio_count" not in await setup.metrics()


async def test_time_that_passed_before_is_no_part_of_what_was_foreseen() -> None:
    """Read after 1 s, foreseen to take 2 s from then, and there after 4 s: half of 4, not a third of 3."""
    seen = Observation("id", "/v1/completions", stream=True)
    seen.ticket = Ticket(1, 0)
    assert (seen.predicted_ttft_seconds, seen.ttft_error_ratio) == (None, None)
    seen.ticket.foresee(2.0, seen.arrived + 1.0)
    assert seen.ttft_error_ratio is None
    seen.ttft_seconds = 5.0
    assert (seen.predicted_ttft_seconds, seen.ttft_error_ratio) == (2.0, pytest.approx(0.5))
    seen.stream = False
    assert seen.ttft_error_ratio is None, "when the first token of a whole answer came cannot be seen"


def _foreseen(headers: Mapping[str, str]) -> float | None:
    milliseconds = headers.get("x-fairlead-predicted-ttft-ms")
    return None if milliseconds is None else float(milliseconds) / 1000
