"""Whatever happens: bounds, monotony, holding on, counting once. Over random signals, and over random traces of
them."""

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScaleUp, ScalingTargets
from fairlead.api.scaling_policy import fewest_replicas, most_replicas, scale_down_of, targets_of
from fairlead.api.signals_message import SECONDS_BOUNDS
from fairlead.autoscaler.history import History, Mark, Want
from fairlead.autoscaler.recommend import DEFAULT_MAX_STEP, recommend
from fairlead.autoscaler.tpot import out_of_reach
from fairlead.demand.arrivals import Arrivals, Count
from fairlead.demand.buckets import Buckets
from fairlead.demand.record import DemandRecord
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.demand.trend import Sample
from fairlead_common.wire.messages import StepCost

NOW = 10_000.0
checked = settings(deadline=None, max_examples=50)


@st.composite
def specs(draw: st.DrawFn) -> Autoscaling:
    fewest = draw(st.integers(0, 5))
    return Autoscaling(
        min_replicas=fewest,
        max_replicas=draw(st.integers(max(1, fewest), 40)),
        targets=ScalingTargets(
            queue_depth=draw(st.none() | st.integers(1, 10)),
            time_to_first_token=draw(st.none() | st.floats(0.05, 10.0)),
            time_per_output_token=draw(st.none() | st.floats(0.002, 0.5)),
            tolerance=draw(st.integers(0, 50)),
        ),
        scale_up=draw(st.none() | st.builds(ScaleUp, stabilization_window=st.sampled_from([0.0, 5.0, 30.0]))),
        scale_down=ScaleDown(
            stabilization_window=draw(st.sampled_from([0.0, 10.0, 120.0])),
            max_step=draw(st.none() | st.integers(1, 5)),
        ),
        scale_to_zero_after=draw(st.none() | st.sampled_from([8.0, 60.0])) if fewest == 0 else None,
    )


def measured(place: int) -> Buckets:
    counts = [0] * (len(SECONDS_BOUNDS) + 1)
    counts[place] = 20
    return Buckets.seconds(counts)


capacities = st.builds(
    Capacity,
    step_cost=st.none()
    | st.builds(
        StepCost,
        base=st.floats(1e-3, 0.1),
        prefill_token=st.floats(0.0, 1e-3),
        decode_seq=st.floats(0.0, 1e-2),
        kv_token=st.floats(0.0, 1e-5),
    ),
    token_budget=st.integers(64, 2048),
    max_num_seqs=st.integers(1, 64),
    kv_blocks=st.integers(1, 10_000),
)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    """After so many seconds at up to three rates."""
    known = Arrivals()
    for rate in draw(st.lists(st.integers(0, 50), min_size=1, max_size=3)):
        for _ in range(draw(st.sampled_from([1, 5, 60]))):
            known = known.counting(Count(rate, 1.0))
    return known


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    arrivals, seconds = draw(st.floats(0.0, 50.0)), draw(st.none() | st.integers(0, len(SECONDS_BOUNDS)))
    times = Buckets.seconds() if seconds is None else measured(seconds)
    return Demand(
        waiting=draw(st.integers(0, 300)),
        oldest_wait_seconds=draw(st.floats(0.0, 30.0)),
        waiting_uncached_tokens=draw(st.integers(0, 5000)),
        running=draw(st.integers(0, 300)),
        arrivals_per_second=arrivals,
        arrivals_per_second_high=arrivals * draw(st.floats(1.0, 2.0)),
        lasting_running=draw(st.floats(0.0, 300.0)),
        uncached_tokens_per_request=draw(st.floats(0.0, 1000.0)),
        prompt_tokens_per_request=draw(st.floats(0.0, 2000.0)),
        output_tokens_per_request=draw(st.floats(0.0, 300.0)),
        num_recent_arrivals=draw(st.integers(0, 3)),
        ttft=times,
        recent_ttft=times,
        idle_seconds=draw(st.floats(0.0, 1000.0)),
        capacity=draw(st.none() | capacities),
        age_seconds=draw(st.floats(0.0, 30.0)),
        num_gateways=draw(st.integers(0, 3)),
        num_missing=draw(st.sampled_from([0, 0, 1])),
        num_stale=draw(st.sampled_from([0, 0, 1])),
    )


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    return Signals(
        time=NOW,
        desired=draw(st.integers(0, 40)),
        ready=draw(st.integers(0, 40)),
        starting=draw(st.integers(0, 3)),
        draining=draw(st.sampled_from([0, 0, 1, 2])),
        demand=draw(demands()),
        cold_start_seconds=draw(st.none() | st.floats(1.0, 300.0)),
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    ages = sorted(draw(st.lists(st.floats(0.0, 150.0), max_size=8)), reverse=True)
    marks = st.builds(Mark, st.floats(NOW - 900.0, NOW), st.integers(1, 30), st.floats(0.0, 50.0))
    return History(
        since=NOW - draw(st.floats(0.0, 300.0)),
        wants=tuple(Want(NOW - age, draw(st.integers(0, 40)), draw(st.integers(0, 40))) for age in ages),
        demand=DemandRecord(
            capacity=draw(st.none() | capacities),
            arrivals=draw(st.none() | arrivals()),
            rates=tuple(Sample(NOW - age, draw(st.floats(0.0, 50.0))) for age in ages),
        ),
        last=draw(st.none() | signals()),
        settled_at=NOW - draw(st.floats(0.0, 200.0)),
        asks=tuple(Want(NOW - age, 1, draw(st.integers(1, 40))) for age in ages[:2]),
        asked=draw(st.none() | st.builds(Mark, st.just(NOW), st.integers(1, 40), st.floats(0.0, 50.0))),
        regret=draw(st.none() | marks),
    )


@checked
@given(signals(), specs(), histories())
def test_a_recommendation_lies_within_the_bounds_and_one_step(
    seen: Signals, spec: Autoscaling, history: History
) -> None:
    result = recommend(seen, spec, history)
    assert fewest_replicas(spec) <= result.replicas <= most_replicas(spec)
    assert result.replicas <= max(2 * seen.desired, seen.desired + DEFAULT_MAX_STEP, fewest_replicas(spec))
    assert result.reason.startswith(f"{result.replicas} replica")
    assert not result.reason.endswith(".")
    assert "inf" not in result.reason and "nan" not in result.reason and "None" not in result.reason


@checked
@given(signals(), specs(), histories(), st.data())
def test_more_load_never_means_fewer_replicas(
    seen: Signals, spec: Autoscaling, history: History, data: st.DataObject
) -> None:
    demand, more = seen.demand, st.integers(0, 200)
    arrivals = demand.arrivals_per_second + data.draw(st.floats(0.0, 50.0))
    high = max(arrivals, demand.arrivals_per_second_high + data.draw(st.floats(0.0, 10.0)))
    slower = next((place for place, count in enumerate(demand.ttft.counts) if count), None)
    changes: dict[str, Any] = {
        "waiting": demand.waiting + data.draw(more),
        "lasting_running": demand.lasting_running + data.draw(more),
        "oldest_wait_seconds": demand.oldest_wait_seconds + data.draw(more),
        "waiting_uncached_tokens": demand.waiting_uncached_tokens + data.draw(more),
        "running": demand.running + data.draw(more),
        "arrivals_per_second": arrivals,
        "arrivals_per_second_high": high,
        "uncached_tokens_per_request": demand.uncached_tokens_per_request + data.draw(more),
        "prompt_tokens_per_request": demand.prompt_tokens_per_request + data.draw(more),
        "output_tokens_per_request": demand.output_tokens_per_request + data.draw(more),
    }
    if slower is not None:
        times = measured(min(slower + data.draw(st.integers(0, 20)), len(SECONDS_BOUNDS)))
        changes |= {"ttft": times, "recent_ttft": times}
    before = recommend(seen, spec, history)
    more_seen = replace(seen, demand=replace(demand, **changes))
    assume(not out_of_reach(history.complete(more_seen), targets_of(spec), is_sure=True))
    after = recommend(more_seen, spec, history)
    assert after.wanted >= before.wanted, (before, after)
    assert after.replicas >= before.replicas, (before, after)


@checked
@given(signals(), specs(), histories())
def test_a_time_per_output_token_that_no_number_meets_decides_nothing(
    seen: Signals, spec: Autoscaling, history: History
) -> None:
    targets = replace(targets_of(spec), queue_depth=4, time_per_output_token=None)
    hopeless = replace(spec, targets=replace(targets, time_per_output_token=0.0005))
    without, result = (recommend(seen, each, history) for each in (replace(spec, targets=targets), hopeless))
    assert (result.replicas, result.wanted) == (without.replicas, without.wanted)


@checked
@given(signals(), specs(), histories())
def test_nothing_is_taken_away_while_signals_are_missing_or_replicas_on_their_way(
    seen: Signals, spec: Autoscaling, history: History
) -> None:
    within = replace(seen, desired=min(seen.desired, most_replicas(spec)))
    result = recommend(within, spec, history)
    if not within.is_complete or within.starting or within.draining:
        assert result.replicas >= within.desired
    if not history.covers(NOW, scale_down_of(spec).stabilization_window):
        assert result.replicas >= within.desired or result.replicas == 0
    if result.replicas == 0 and within.desired:
        assert history.covers(NOW, spec.scale_to_zero_after or 600.0)


@checked
@given(signals(), specs(), histories())
def test_missing_signals_never_keep_replicas_from_being_added(
    seen: Signals, spec: Autoscaling, history: History
) -> None:
    whole = replace(seen, demand=replace(seen.demand, num_gateways=1, num_missing=0, num_stale=0))
    holed = replace(whole, demand=replace(whole.demand, num_missing=1, num_stale=1))
    assert recommend(holed, spec, history).replicas >= recommend(whole, spec, history).replicas


@checked
@given(signals(), specs(), histories(), st.integers(1, 20))
def test_replicas_on_their_way_are_counted_once(
    seen: Signals, spec: Autoscaling, history: History, starting: int
) -> None:
    """What is wanted of a fleet is at most as much if it is on its way already; and what is on its way is kept."""
    short = replace(seen, desired=max(1, seen.desired), starting=0)
    first = recommend(short, spec, history)
    after = history.remember(first, short, spec)
    asked = replace(short, time=NOW + 1.0, desired=max(short.desired, first.replicas), starting=starting)
    second = recommend(asked, spec, after)
    assert second.replicas <= max(asked.desired, first.wanted)
    assert second.replicas >= min(asked.desired, most_replicas(spec))


@checked
@given(signals(), specs(), histories())
def test_nothing_goes_that_the_window_needed(seen: Signals, spec: Autoscaling, history: History) -> None:
    window = scale_down_of(spec).stabilization_window
    needed = min(history.most_wanted(NOW, window), seen.desired, most_replicas(spec))
    result = recommend(seen, spec, history)
    assert not window or result.replicas >= needed or result.replicas == 0


@checked
@given(st.lists(st.tuples(signals(), st.floats(0.5, 30.0)), min_size=1, max_size=25), specs())
def test_over_any_trace_the_count_stays_within_its_bounds_and_never_falls_unseen(
    trace: list[tuple[Signals, float]], spec: Autoscaling
) -> None:
    """The loop as the operator runs it: what it says is what is desired at the next tick, whatever else changes."""
    now, desired, history = NOW, 1, History(since=NOW)
    for seen, seconds in trace:
        now += seconds
        seen = replace(seen, time=now, desired=desired)
        result = recommend(seen, spec, history)
        assert fewest_replicas(spec) <= result.replicas <= most_replicas(spec)
        if result.replicas < min(desired, most_replicas(spec)):
            assert seen.is_complete and not seen.starting and not seen.draining
            watched = scale_down_of(spec).stabilization_window if result.replicas else spec.scale_to_zero_after or 600.0
            assert now - NOW - trace[0][1] + seconds >= 0 and now - history.since >= watched
        if desired == 0 and seen.demand.waiting:
            assert result.replicas >= 1
        history = history.remember(result, seen, spec)
        desired = result.replicas
