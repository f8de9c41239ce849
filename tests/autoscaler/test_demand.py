"""Demand: sums over gateways, and what happened between two looks."""

import math

from fairlead.autoscaler.demand import GatewayReading, GatewayWindow, ModelReading, Readings
from fairlead.autoscaler.histogram import Histogram

MODEL = "default/dinghy"


def histogram(*counts: float) -> Histogram:
    return Histogram(tuple(zip((1.0, math.inf), counts, strict=True)))


def reading(time: float, **fields: object) -> GatewayReading:
    return GatewayReading(time, {MODEL: ModelReading(**fields)})


def test_what_waits_and_runs_is_summed_over_gateways() -> None:
    windows = (
        GatewayWindow(reading(9.0, waiting=3, running=2)),
        GatewayWindow(reading(10.0, waiting=1, running=4)),
        GatewayWindow(GatewayReading(10.0, {})),
    )
    demand = Readings(10.0, windows, num_missing=1).demand(MODEL)
    assert (demand.waiting, demand.running) == (4, 6)
    assert (demand.num_gateways, demand.num_missing, demand.age_seconds) == (3, 1, 1.0)


def test_only_first_tokens_since_the_last_look_count() -> None:
    windows = (
        GatewayWindow(reading(10.0, ttft=histogram(8, 9)), reading(5.0, ttft=histogram(5, 5))),
        GatewayWindow(reading(10.0, ttft=histogram(100, 100))),  # read for the first time
    )
    assert Readings(10.0, windows, 0).demand(MODEL).ttft == histogram(3, 4)


def test_a_model_that_is_new_to_a_known_gateway_counts_from_zero() -> None:
    window = GatewayWindow(reading(10.0, ttft=histogram(2, 2)), GatewayReading(5.0, {}))
    assert Readings(10.0, (window,), 0).demand(MODEL).ttft == histogram(2, 2)


def test_arrivals_are_what_ended_and_what_there_is_more_of() -> None:
    window = GatewayWindow(
        reading(10.0, waiting=4, running=2, num_ended=30.0), reading(5.0, waiting=1, running=3, num_ended=22.0)
    )
    assert Readings(10.0, (window,), 0).demand(MODEL).arrivals_per_second == 10 / 5


def test_a_gateway_that_restarted_counts_from_its_start() -> None:
    window = GatewayWindow(reading(10.0, num_ended=5.0, ttft=histogram(5, 5)), reading(5.0, num_ended=99.0))
    assert Readings(10.0, (window,), 0).demand(MODEL).arrivals_per_second == 1.0


def test_without_any_gateway_nothing_is_known() -> None:
    demand = Readings(10.0, (), num_missing=2).demand(MODEL)
    assert (demand.waiting, demand.running, demand.ttft.total) == (0, 0, 0.0)
    assert (demand.num_gateways, demand.num_missing) == (0, 2)
