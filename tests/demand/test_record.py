"""What is remembered of a demand from tick to tick."""

from dataclasses import replace

import pytest

from fairlead.demand.arrivals import Count
from fairlead.demand.record import DemandRecord
from fairlead.demand.signals import Demand, Signals

IDLE = Signals(time=0.0, desired=1, ready=1, starting=0, draining=0, demand=Demand())


def ticked(
    rate: float, seconds: int, known: DemandRecord | None = None, begin: int = 0
) -> tuple[DemandRecord, Signals]:
    """The record after a look each second at one gateway with that many requests per second, and the last signals."""
    record, seen = known or DemandRecord(), IDLE
    for second in range(begin + 1, begin + seconds + 1):
        counted = {"one": Count(round(rate * second), float(second))}
        demand = Demand(num_gateways=1, counted=counted, num_recent_arrivals=round(10.0 * rate))
        seen = replace(seen, time=float(second), demand=demand)
        record = record.remember(seen, 1.0)
    return record, seen


def test_rates_for_the_trend_begin_after_ten_counted_seconds_and_come_every_ten() -> None:
    record, _ = ticked(4.0, 9)
    assert record.rates == ()
    record, _ = ticked(4.0, 65)
    assert [each.time for each in record.rates] == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    assert {each.per_second for each in record.rates} == {4.0}


def test_a_load_that_has_grown_for_minutes_is_expected_to_grow_on() -> None:
    record, total, seen = DemandRecord(), 0.0, IDLE
    for second in range(1, 181):
        rate = 2.0 + second / 20.0
        total += rate
        demand = Demand(
            num_gateways=1, counted={"one": Count(round(total), second)}, num_recent_arrivals=round(10 * rate)
        )
        seen = Signals(
            time=float(second), desired=1, ready=1, starting=0, draining=0, demand=demand, cold_start_seconds=60.0
        )
        record = record.remember(seen, 1.0)
    ahead = record.complete(seen).demand.arrivals_per_second
    assert ahead == pytest.approx(2.0 + (180 + 60) / 20.0, rel=0.15), "as many as come when a replica is ready"


def test_an_incomplete_look_counts_nothing_and_the_next_one_all() -> None:
    record, seen = ticked(3.0, 30)
    gone = replace(seen, time=31.0, demand=replace(seen.demand, num_missing=1))
    after = record.remember(gone, 1.0)
    assert after.arrivals == record.arrivals and after.rates == record.rates
    later, _ = ticked(3.0, 1, after, begin=34)
    assert later.arrivals is not None and record.arrivals is not None
    assert later.arrivals.seconds == record.arrivals.seconds + 5.0
    assert later.complete(seen).demand.arrivals_per_second == pytest.approx(3.0, rel=0.35)
