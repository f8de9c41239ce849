"""Readings: lines of gateways become rates, sums and times; restarts, silence and strangers change nothing for the
worse."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.api.signals_message import ModelSignals, ReplicaSignals, SignalsLine, no_seconds, no_tokens
from fairlead.demand.arrivals import Count
from fairlead.demand.readings import ASSUMED_OUTPUT_TOKENS, STALE_SECONDS, GatewayWindow, Readings
from fairlead.demand.signals import Demand
from fairlead_common.wire.messages import StepCost

MODEL = "default/dinghy"
STEP_COST = StepCost(base=0.01, prefill_token=1e-4, decode_seq=1e-3)


def line(uptime: float, gateway: str = "one", **model: Any) -> SignalsLine:
    return SignalsLine(gateway=gateway, uptime_seconds=uptime, models={MODEL: ModelSignals(**model)})


def heard(*lines: SignalsLine, lag: float = 0.0) -> GatewayWindow:
    """Lines that came at their gateway's uptime plus `lag` on the reader's clock."""
    window = GatewayWindow()
    for each in lines:
        window = window.hear(each, each.uptime_seconds + lag)
    return window


def steady(rate: int, seconds: int, *, begin: int = 1000) -> GatewayWindow:
    """A gateway that has been up for long, with so many arrivals in each second."""
    return heard(*(line(begin + t, num_arrivals=rate * (begin + t)) for t in range(seconds + 1)))


def demand(*windows: GatewayWindow, now: float, num_missing: int = 0) -> Demand:
    return Readings(now, windows, num_missing).demand(MODEL)


def replica(age: float = 0.0, **changes: Any) -> ReplicaSignals:
    values: dict[str, Any] = {
        "name": "engine", "age_seconds": age, "running": 1, "waiting": 0, "queued_prefill_tokens": 10,
        "kv_blocks_free": 60, "kv_blocks_total": 100, "kv_tokens": 500, "token_budget": 512, "max_num_seqs": 8,
        "draining": False, "step_cost": STEP_COST,
    }  # fmt: skip
    return ReplicaSignals(**values | changes)


def test_what_waits_and_runs_is_summed_over_gateways() -> None:
    one = heard(line(9.0, waiting=3, waiting_uncached_tokens=30, oldest_wait_seconds=2.0, running=2))
    two = heard(line(10.0, waiting=1, waiting_uncached_tokens=5, oldest_wait_seconds=4.0, running=4))
    stranger = GatewayWindow().hear(SignalsLine(gateway="three", uptime_seconds=10.0), 10.0)
    seen = demand(one, two, stranger, now=10.0, num_missing=1)
    assert (seen.waiting, seen.waiting_uncached_tokens, seen.running) == (4, 35, 6)
    assert seen.oldest_wait_seconds == 4.0
    assert (seen.num_gateways, seen.num_missing, seen.num_stale, seen.age_seconds) == (3, 1, 0, 1.0)


def test_a_gateway_that_is_silent_is_stale_and_keeps_what_it_said() -> None:
    seen = demand(heard(line(1.0, waiting=3)), heard(line(9.0)), now=1.1 + STALE_SECONDS)
    assert (seen.waiting, seen.num_stale) == (3, 1)


def test_rates_are_of_the_last_minute_and_counts_of_each_gateway_since_its_start() -> None:
    seen = demand(steady(4, 90), steady(2, 90), now=1090.0)
    assert seen.arrivals_per_second == seen.arrivals_per_second_high == pytest.approx(6.0)
    assert seen.num_recent_arrivals == 60
    assert seen.counted == {"one": Count(2 * 1090, 1090.0)}, "the later of two with one name"
    few = demand(heard(line(1.0), line(2.0, num_arrivals=2)), now=2.0)
    assert few.arrivals_per_second == pytest.approx(0.2), "two requests at once are no rate"


def test_one_line_of_a_gateway_that_has_been_up_for_long_gives_no_rate() -> None:
    seen = demand(heard(line(5000.0, num_arrivals=10**6)), now=5000.0)
    assert (seen.arrivals_per_second, seen.arrivals_per_second_high, seen.num_recent_arrivals) == (0.0, 0.0, 0)


def test_a_gateway_that_restarted_counts_from_its_start() -> None:
    before = [line(1000.0 + t, num_arrivals=500 + t, ttft=[9] * len(no_seconds())) for t in range(20)]
    window = heard(*before)
    window = window.hear(line(20.0, "again", num_arrivals=40), 1040.0)
    seen = demand(window, now=1040.0)
    assert seen.arrivals_per_second == pytest.approx(2.0)
    assert seen.ttft.total == 0


def test_a_line_out_of_order_is_ignored() -> None:
    window = heard(line(10.0, num_arrivals=10), line(12.0, num_arrivals=12))
    assert window.hear(line(11.0, num_arrivals=11), 12.5) == window


def test_lines_that_wake_do_not_pile_up() -> None:
    lines = [line(1000.0 + t / 100.0, num_arrivals=t) for t in range(10_000)]
    window = heard(*lines)
    assert len(window.lines) < 200
    assert demand(window, now=1099.99).num_recent_arrivals == pytest.approx(1000, abs=60)


def test_averages_are_of_requests_that_were_dispatched_and_answered() -> None:
    tokens = no_tokens()
    tokens[5] = 10
    first = line(1000.0)
    last = line(
        1030.0, num_arrivals=12, num_answered=5, output_tokens=250, prompt_tokens=2000, uncached_prompt_tokens=300,
        uncached_per_request=tokens,
    )  # fmt: skip
    seen = demand(heard(first, last), now=1030.0)
    assert seen.uncached_tokens_per_request == 30.0
    assert seen.prompt_tokens_per_request == 200.0
    assert seen.output_tokens_per_request == 50.0
    assert seen.mean_context == 225.0
    assert seen.uncached_per_request.total == 10


def test_before_anything_has_ended_averages_are_what_is_known_or_assumed() -> None:
    seen = demand(heard(line(1000.0), line(1001.0, waiting=4, waiting_uncached_tokens=400)), now=1001.0)
    assert seen.uncached_tokens_per_request == 100.0
    assert seen.output_tokens_per_request == ASSUMED_OUTPUT_TOKENS
    earlier = heard(*(line(1000.0 + t, num_answered=10, output_tokens=200, num_ended=10) for t in range(61)))
    assert demand(earlier, now=1060.0).output_tokens_per_request == 20.0


def test_of_a_replica_that_two_gateways_know_the_newest_load_counts() -> None:
    one = heard(line(10.0, replicas={"a": replica(0.5, kv_tokens=1), "b": replica(0.1, queued_prefill_tokens=7)}))
    two = heard(line(10.0, replicas={"a": replica(0.2, kv_tokens=2), "c": replica(2.9, kv_tokens=99)}), lag=-0.5)
    seen = demand(one, two, now=10.0)
    assert sorted(seen.loads) == ["a", "b"]  # what is said of c is older than 3 s by now
    assert (seen.kv_tokens, seen.backlog_tokens, seen.kv_blocks_used) == (1 + 500, 10 + 7, 80)


def test_capacity_is_that_of_the_smallest_replica_that_does_not_drain() -> None:
    loads = {
        "a": replica(max_num_seqs=4, step_cost=replace(STEP_COST, base=0.03)),
        "b": replica(token_budget=256, step_cost=STEP_COST),
        "c": replica(step_cost=StepCost()),
        "d": replica(max_num_seqs=1, draining=True, step_cost=replace(STEP_COST, base=9.0)),
    }
    capacity = demand(heard(line(10.0, replicas=loads)), now=10.0).capacity
    assert capacity is not None and capacity.step_cost is not None
    assert (capacity.max_num_seqs, capacity.token_budget, capacity.kv_blocks) == (4, 256, 100)
    assert capacity.step_cost.base == pytest.approx(0.02)
    assert demand(heard(line(10.0)), now=10.0).capacity is None


def test_idleness_counts_from_the_last_request_at_any_gateway() -> None:
    one = heard(line(100.0, num_arrivals=5), line(101.0, num_arrivals=6), line(110.0, num_arrivals=6))
    two = heard(line(100.0, num_arrivals=5, running=1), line(104.0, num_arrivals=5), line(110.0, num_arrivals=5))
    assert demand(one, two, now=111.0).idle_seconds == pytest.approx(10.0)
    assert demand(heard(line(30.0)), now=30.0).idle_seconds == pytest.approx(30.0)  # none since its start
    assert demand(heard(line(30.0, num_arrivals=1)), now=31.0).idle_seconds == pytest.approx(1.0)  # nobody knows when


def test_without_any_gateway_nothing_is_known() -> None:
    seen = demand(now=10.0, num_missing=2)
    assert (seen.waiting, seen.running, seen.ttft.total, seen.idle_seconds) == (0, 0, 0, 0.0)
    assert (seen.num_gateways, seen.num_missing, seen.age_seconds) == (0, 2, 0.0)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["line", "restart", "silence"]), st.floats(0.01, 20.0), st.integers(0, 50)),
        max_size=30,
    )
)
def test_counters_never_run_backwards_whatever_gateways_do(events: list[tuple[str, float, int]]) -> None:
    """Lines, restarts and gaps in any order: no rate is negative or above what came, and at most a minute is kept."""
    now, uptime, arrivals, run, window, came = 1000.0, 500.0, 0, 0, GatewayWindow(), 0
    for what, seconds, more in events:
        now, uptime = now + seconds, uptime + seconds
        arrivals, came = arrivals + more, came + more
        if what == "restart":
            run, uptime, arrivals = run + 1, 0.0, 0
        if what != "silence":
            window = window.hear(line(uptime, f"run-{run}", num_arrivals=arrivals), now)
        seen = demand(*([window] if window.lines else []), now=now)
        assert 0.0 <= seen.arrivals_per_second <= seen.arrivals_per_second_high
        assert 0 <= seen.num_recent_arrivals <= came
        assert seen.arrivals_per_second <= came
        assert seen.idle_seconds >= 0.0
        uptimes = [each.line.uptime_seconds for each in window.lines]
        assert uptimes == sorted(uptimes)
        assert sum(each < uptimes[-1] - 60.0 for each in uptimes) <= 1 if uptimes else True


def test_the_cache_of_lines_of_batches_is_nobodys_demand() -> None:
    seen = demand(heard(line(10.0, batch_kv_tokens=400, replicas={"a": replica()})), now=10.0)
    assert (seen.kv_tokens, seen.kv_blocks_used) == (100, 8), "a fifth of 40 blocks is others'"
