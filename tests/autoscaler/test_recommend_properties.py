"""Whatever happens: bounds, monotony, holding on, and no flapping under constant load."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScalingTargets
from fairlead.autoscaler.history import History, Want
from fairlead.autoscaler.recommend import fewest_replicas, most_replicas, recommend, stabilization_window
from fairlead.autoscaler.signals import Signals

NOW = 10_000.0
TICK_SECONDS = 5.0
checked = settings(deadline=None, max_examples=200)


@st.composite
def specs(draw: st.DrawFn) -> Autoscaling:
    fewest = draw(st.integers(0, 5))
    return Autoscaling(
        min_replicas=fewest,
        max_replicas=draw(st.integers(max(1, fewest), 40)),
        targets=ScalingTargets(
            queue_depth=draw(st.none() | st.integers(1, 10)),
            time_to_first_token=draw(st.none() | st.floats(0.05, 10.0)),
        ),
        scale_down=ScaleDown(stabilization_window=draw(st.sampled_from([0.0, 10.0, 120.0]))),
    )


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    ready, starting = draw(st.integers(0, 40)), draw(st.integers(0, 3))
    return Signals(
        time=NOW,
        desired=draw(st.integers(1, 40)),
        ready=ready,
        starting=starting,
        draining=draw(st.integers(0, 2)),
        waiting=draw(st.integers(0, 300)),
        running=draw(st.integers(0, 300)),
        ttft_seconds=draw(st.none() | st.floats(0.001, 100.0)),
        arrivals_per_second=draw(st.floats(0.0, 100.0)),
        age_seconds=draw(st.floats(0.0, 30.0)),
        num_gateways=draw(st.integers(0, 3)),
        missing_gateways=draw(st.integers(0, 2)),
    )


histories = st.builds(
    lambda since, wants: History(NOW - since, tuple(Want(NOW - age, number) for age, number in sorted(wants)[::-1])),
    st.floats(0.0, 300.0),
    st.lists(st.tuples(st.floats(0.0, 150.0), st.integers(1, 40)), max_size=8),
)


@checked
@given(signals(), specs(), histories)
def test_a_recommendation_lies_within_the_bounds_and_one_step(
    seen: Signals, spec: Autoscaling, history: History
) -> None:
    result = recommend(seen, spec, history)
    assert max(1, spec.min_replicas or 1) <= result.replicas <= (spec.max_replicas or 1)
    assert result.replicas <= max(2 * seen.desired, seen.desired + 4, fewest_replicas(spec))
    assert result.reason


@checked
@given(signals(), specs(), histories, st.integers(0, 50), st.integers(0, 50), st.floats(1.0, 5.0))
def test_more_load_never_means_fewer_replicas(
    seen: Signals, spec: Autoscaling, history: History, waiting: int, running: int, slower: float
) -> None:
    ttft = None if seen.ttft_seconds is None else seen.ttft_seconds * slower
    more = replace(seen, waiting=seen.waiting + waiting, running=seen.running + running, ttft_seconds=ttft)
    assert recommend(more, spec, history).replicas >= recommend(seen, spec, history).replicas
    assert recommend(more, spec, history).wanted >= recommend(seen, spec, history).wanted


@checked
@given(signals(), specs(), histories)
def test_nothing_is_taken_away_while_signals_are_missing_or_replicas_on_their_way(
    seen: Signals, spec: Autoscaling, history: History
) -> None:
    within = replace(seen, desired=min(seen.desired, most_replicas(spec)))
    held = not within.is_complete or within.starting or within.draining
    if held or not history.covers(NOW, stabilization_window(spec)):
        assert recommend(within, spec, history).replicas >= within.desired


@checked
@given(signals(), specs(), histories, st.integers(1, 20))
def test_replicas_on_their_way_change_nothing_about_what_is_wanted(
    seen: Signals, spec: Autoscaling, history: History, starting: int
) -> None:
    """They are in the desired count already: asking again because they are not ready would count them twice."""
    complete = replace(seen, num_gateways=1, missing_gateways=0, age_seconds=0.0)
    on_the_way = replace(complete, desired=complete.desired + starting, starting=starting)
    wanted = recommend(complete, spec, history).wanted
    assert recommend(on_the_way, spec, history).wanted == wanted
    assert recommend(on_the_way, spec, history).replicas <= max(on_the_way.desired, wanted, fewest_replicas(spec))


@checked
@given(signals(), specs(), histories)
def test_nothing_goes_that_the_window_needed(seen: Signals, spec: Autoscaling, history: History) -> None:
    window = stabilization_window(spec)
    needed = min(history.most_wanted(NOW, window), seen.desired, most_replicas(spec))
    assert recommend(seen, spec, history).replicas >= needed


def simulated(spec: Autoscaling, at: Callable[[int], Signals], *, ticks: int, first: int) -> list[int]:
    """The count after each tick, where replicas come and go between two ticks."""
    replicas, history, counts = first, History(since=0.0), []
    for number in range(ticks):
        seen = replace(at(replicas), time=number * TICK_SECONDS)
        result = recommend(seen, spec, history)
        history = history.remember(result.wanted, seen.time, stabilization_window(spec))
        replicas = result.replicas
        counts.append(replicas)
    return counts


def steady(replicas: int, **changes: float | None) -> Signals:
    fixed = Signals(
        time=0.0, desired=replicas, ready=replicas, starting=0, draining=0, waiting=0, running=0, ttft_seconds=None,
        arrivals_per_second=1.0, age_seconds=0.0, num_gateways=1, missing_gateways=0,
    )  # fmt: skip
    return replace(fixed, **changes)


def turns(counts: list[int]) -> int:
    """How often the count grew again after it had shrunk."""
    steps = [after - before for before, after in pairwise(counts) if after != before]
    return sum(one < 0 < two for one, two in pairwise(steps))


@checked
@given(
    clients=st.integers(0, 200), slots=st.integers(1, 16), depth=st.integers(1, 8),
    first=st.integers(1, 20), window=st.sampled_from([0.0, 10.0, 60.0]),
)  # fmt: skip
def test_a_constant_number_of_clients_never_makes_the_count_flap(
    clients: int, slots: int, depth: int, first: int, window: float
) -> None:
    """Each replica runs up to `slots` requests; what is above that waits."""
    spec = Autoscaling(
        max_replicas=20, targets=ScalingTargets(queue_depth=depth), scale_down=ScaleDown(stabilization_window=window)
    )

    def at(replicas: int) -> Signals:
        running = min(clients, slots * replicas)
        return steady(replicas, running=running, waiting=clients - running)

    counts = simulated(spec, at, ticks=120, first=first)
    assert turns(counts) == 0
    assert len(set(counts[-30:])) == 1, counts


@checked
@given(work=st.floats(0.01, 60.0), target=st.floats(0.1, 5.0), first=st.integers(1, 20))
def test_a_constant_time_to_first_token_never_makes_the_count_flap(work: float, target: float, first: int) -> None:
    """`work` seconds of waiting, shared by the replicas."""
    spec = Autoscaling(
        max_replicas=20,
        targets=ScalingTargets(time_to_first_token=target),
        scale_down=ScaleDown(stabilization_window=10.0),
    )
    counts = simulated(spec, lambda n: steady(n, ttft_seconds=work / n), ticks=120, first=first)
    assert turns(counts) == 0
    assert len(set(counts[-30:])) == 1, counts
