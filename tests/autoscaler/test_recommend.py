"""The decision: what demand asks for, what keeps replicas, what bounds every step, and the sentence about it."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScaleUp, ScalingTargets
from fairlead.autoscaler.history import History, Mark, Want
from fairlead.autoscaler.recommend import recommend
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.demand.arrivals import Arrivals, Count
from fairlead.demand.buckets import Buckets
from fairlead.demand.record import DemandRecord
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.demand.trend import Sample
from fairlead_common.wire.messages import StepCost

NOW = 1000.0
LONG_AGO = History(since=0.0)
SPEC = Autoscaling(
    min_replicas=1,
    max_replicas=20,
    targets=ScalingTargets(queue_depth=4, time_to_first_token=2.0),
    scale_down=ScaleDown(stabilization_window=10.0),
)
TO_ZERO = replace(SPEC, min_replicas=0, scale_to_zero_after=60.0)
CAPACITY = Capacity(
    step_cost=StepCost(base=0.02, prefill_token=0.0005, decode_seq=0.002, kv_token=0.00001),
    token_budget=100,
    max_num_seqs=32,
    kv_blocks=1000,
)
WORK = {"uncached_tokens_per_request": 100.0, "prompt_tokens_per_request": 180.0, "output_tokens_per_request": 40.0}

LASTING = {"running": 32, "waiting": 60}


def signals(replicas: int = 1, **changes: Any) -> Signals:
    """Everything seen, nothing to do, on so many ready replicas of which nothing is known. Keywords: Signals' fields,
    or Demand's."""
    idle = Signals(
        time=NOW, desired=replicas, ready=replicas, starting=0, draining=0, demand=Demand(num_gateways=2),
    )  # fmt: skip
    own = {name: value for name, value in changes.items() if name in Signals.__slots__}
    demand = {name: value for name, value in changes.items() if name not in own}
    if "arrivals_per_second" in demand:
        demand.setdefault("arrivals_per_second_high", demand["arrivals_per_second"])
    return replace(idle, **{"demand": replace(idle.demand, **demand), **own})


def working(replicas: int = 1, arrivals: float = 4.0, **changes: Any) -> Signals:
    """The same with prompts of 180 tokens, 100 of them uncached, on engines that have told what their steps cost."""
    return signals(replicas, arrivals_per_second=arrivals, capacity=CAPACITY, **WORK, **changes)


def slow(seconds: float) -> dict[str, Buckets]:
    """First tokens measured at just above so many seconds."""
    bounds = Buckets.seconds().bounds
    counts = [20 * (bound >= seconds > before) for before, bound in zip((0.0, *bounds), bounds, strict=False)]
    return {"ttft": Buckets.seconds([*counts, 0]), "recent_ttft": Buckets.seconds([*counts, 0])}


def counted(*rates: float) -> DemandRecord:
    """What is remembered after these requests, each number within a second."""
    arrivals = Arrivals()
    for rate in rates:
        arrivals = arrivals.counting(Count(rate, 1.0))
    return DemandRecord(arrivals=arrivals)


def decided(seen: Signals, spec: Autoscaling = SPEC, history: History = LONG_AGO) -> Recommendation:
    return recommend(seen, spec, history)


def test_the_queue_asks_for_as_many_replicas_as_keep_it_within_its_depth() -> None:
    assert decided(signals(waiting=4)).replicas == 1
    assert decided(signals(waiting=5)).replicas == 2
    assert decided(signals(waiting=17, running=8)).replicas == 5


def test_the_predicted_time_to_first_token_asks_for_replicas_before_anything_waits() -> None:
    """4 requests/s keep a replica's second 84 % busy: first tokens take 239 ms; 10 requests/s need three replicas."""
    assert decided(working(1, 3.0)).replicas == 1
    assert decided(working(1, 4.9)).replicas == 2
    assert decided(working(1, 10.0)).replicas == 3
    assert decided(working(2, 4.0), replace(SPEC, targets=ScalingTargets(time_to_first_token=0.1))).replicas > 2


def test_without_a_step_cost_the_measured_time_asks_in_proportion() -> None:
    assert decided(signals(2, **slow(3.4))).replicas == 4
    assert decided(signals(2, **slow(0.5))).replicas == 1


def test_a_measured_time_that_lasts_corrects_a_prediction_that_is_too_good() -> None:
    assert decided(working(2, 3.0, **slow(3.4))).replicas == 4
    assert decided(working(2, 3.0)).replicas == 1


def test_what_was_measured_before_the_replicas_were_these_does_not_count() -> None:
    """Requests that waited for a cold start are no reason for more replicas."""
    started = replace(LONG_AGO, settled_at=NOW - 12.0)
    assert decided(working(2, 3.0, **slow(30.0)), history=started).replicas <= 2
    found = replace(LONG_AGO, settled_at=NOW - 30.0)  # what they found when they were ready took 20 s to work off
    assert decided(working(2, 3.0, **slow(30.0), cold_start_seconds=20.0), history=found).replicas <= 2
    assert decided(working(2, 3.0, **slow(30.0))).replicas > 2


def test_what_was_waited_for_these_replicas_counts_within_the_first_minute() -> None:
    """Settled for 15 s: a first token of the last 10 s that took 5 s was waited for on these."""
    since = replace(LONG_AGO, settled_at=NOW - 15.0)
    assert decided(working(2, 3.0, **slow(4.5)), history=since).replicas > 2
    assert decided(working(2, 3.0, **slow(30.0)), history=since).replicas == 5


def test_a_queue_that_is_worked_off_before_another_replica_could_be_ready_asks_for_none() -> None:
    """One replica frees 4.3 slots a second and one request comes in that time: in 20 s it works off 66 of 60."""
    queued = working(1, 1.0, running=32, waiting=60, cold_start_seconds=20.0)
    assert decided(queued).replicas == 1
    assert decided(replace(queued, cold_start_seconds=2.0)).replicas > 1
    assert decided(working(1, 4.2, **{**LASTING, "cold_start_seconds": 20.0})).replicas > 1  # hardly any is left over


def test_only_what_is_left_of_a_queue_asks_for_replicas() -> None:
    """Two replicas free 8.6 slots a second: of 200 that wait about 38 are gone in 5 s. The later another replica could
    be ready, the less is left for it."""
    spec = replace(SPEC, targets=ScalingTargets(queue_depth=8), scale_up=ScaleUp(max_step=20))
    queued = working(2, 1.0, running=64, waiting=200)
    counts = [decided(replace(queued, cold_start_seconds=start), spec).replicas for start in (0.0, 5.0, 15.0, 20.0)]
    assert counts == [5, 5, 3, 3]


def test_what_waits_for_a_slot_asks_for_the_replicas_that_clear_it_in_time() -> None:
    """Full steps of 32 slots take 0.148 s, so a slot is held for 7.5 s and one replica frees 4.3 a second: what waits
    when a replica asked for now could be ready, with what comes until then, is to be through in 2 s or soon after."""
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=2.0))
    assert decided(working(1, 3.0, running=32, waiting=14, cold_start_seconds=5.0), spec).replicas == 1
    assert decided(working(1, 3.0, running=32, waiting=60, cold_start_seconds=5.0), spec).replicas == 2
    assert decided(working(1, 4.0, running=32, waiting=14, cold_start_seconds=5.0), spec).replicas == 2


def test_a_request_that_has_waited_for_long_asks_for_a_replica() -> None:
    """Though slots seem to be free. Those behind it are late for as long: a tenth of 40 s is allowed."""
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=2.0))
    missed = working(1, 1.0, running=3, waiting=1, oldest_wait_seconds=9.0)
    assert decided(missed, spec).replicas == 2
    assert decided(working(1, 1.0, running=3, waiting=1, oldest_wait_seconds=5.0), spec).replicas == 1
    assert decided(missed, spec, replace(LONG_AGO, settled_at=NOW - 1.0)).replicas == 1  # it waited for the replica


def test_a_rise_counts_once_it_is_likely() -> None:
    """One replica answers 4.3 requests/s. After a minute of one a second, three in a second may be chance; nine are
    not, and 20 ask for more."""
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=2.0))

    def asked(*rates: float) -> int:
        known = replace(LONG_AGO, demand=counted(*([1.0] * 60), *rates))
        return decided(working(1, running=8, cold_start_seconds=20.0), spec, known).replicas

    assert asked() == asked(3.0) == 1
    assert 2 <= asked(9.0, 9.0) < asked(20.0, 20.0)


def test_the_longer_a_rate_has_lasted_the_less_chance_asks_for() -> None:
    """The same queue, and the same burst."""
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=2.0))
    queued = working(1, running=32, waiting=40, cold_start_seconds=5.0)
    for rates, seen in (((), queued), ((9.0,), working(1, running=32, cold_start_seconds=5.0))):
        young, old = (replace(LONG_AGO, demand=counted(*([2.0] * each), *rates)) for each in (60, 1800))
        assert decided(seen, spec, young).replicas > decided(seen, spec, old).replicas == 1


def test_a_growth_finds_its_replicas_a_start_ahead() -> None:
    """From 2 to 4 requests/s in two minutes: when a replica asked for now is ready, 4.7 come."""
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=2.0))
    rates = [2.0 + k / 6.0 for k in range(13)]
    known = replace(LONG_AGO, demand=counted(*(rate for rate in rates for _ in range(10))))
    sampled = tuple(Sample(NOW - 120.0 + 10.0 * k, rate) for k, rate in enumerate(rates))
    growing = replace(known, demand=replace(known.demand, rates=sampled))
    seen = working(1, cold_start_seconds=30.0)
    assert decided(seen, spec, growing).replicas == 2
    level = replace(LONG_AGO, demand=counted(*([3.5] * 130)))
    rates_of_it = tuple(replace(each, per_second=3.5) for each in growing.demand.rates)
    assert decided(seen, spec, replace(level, demand=replace(level.demand, rates=rates_of_it))).replicas == 1


@pytest.mark.parametrize("seconds", [1.85, 2.1])
def test_a_time_to_first_token_near_its_target_changes_nothing(seconds: float) -> None:
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=2.0, tolerance=30))
    assert decided(signals(8, **slow(seconds)), spec).replicas == 8


def test_fewer_replicas_must_have_room_for_what_may_well_come() -> None:
    calm = working(2, 3.0)
    assert decided(calm).replicas == 1
    assert decided(replace(calm, demand=replace(calm.demand, arrivals_per_second_high=4.9))).replicas == 2
    assert decided(replace(calm, demand=replace(calm.demand, running=64, waiting=30))).replicas == 2
    assert decided(replace(calm, demand=replace(calm.demand, running=33))).replicas == 1  # this moment


def test_no_replica_goes_while_a_queue_is_worked_off() -> None:
    """Two would work off sixty in time; but three are there."""
    assert decided(working(3, 3.0, running=96, waiting=60, cold_start_seconds=20.0)).replicas == 3


def test_a_fleet_without_ready_replicas_can_be_asked_for_more() -> None:
    assert decided(signals(1, ready=0, starting=1, waiting=9)).replicas == 3


def test_replicas_that_work_are_not_taken_for_idle_ones() -> None:
    busy = signals(6, running=48)
    assert decided(busy).replicas == 4
    assert decided(signals(6, running=1)).replicas == 1


def test_without_any_target_a_queue_of_four_per_replica_is_the_target() -> None:
    assert decided(signals(waiting=9), replace(SPEC, targets=None)).replicas == 3
    assert decided(signals(waiting=9), replace(SPEC, targets=ScalingTargets(time_to_first_token=1.0))).replicas == 1


def test_starting_replicas_count_once() -> None:
    """One ready, three on their way: what waits meanwhile waits for them; more only for what keeps coming."""
    on_the_way = working(4, 7.0, ready=1, starting=3, waiting=60)
    assert decided(on_the_way).replicas == 4
    assert decided(on_the_way).reason.endswith("but no replica goes while others start; 3 are starting")
    assert decided(working(4, 25.0, ready=1, starting=3, waiting=60)).replicas > 4


def test_where_nothing_is_known_of_replicas_the_same_arrivals_ask_once() -> None:
    asked = replace(LONG_AGO, asked=Mark(NOW, 4, 3.0))
    on_the_way = signals(4, ready=1, starting=3, waiting=60, arrivals_per_second=3.1)
    assert decided(on_the_way, history=asked).replicas == 4
    assert decided(on_the_way).replicas == 8
    assert decided(signals(4, ready=1, starting=3, waiting=60, arrivals_per_second=4.0), history=asked).replicas == 8


def test_what_replicas_were_asked_for_is_known_until_they_are_there() -> None:
    """One that fails for longer than the window, and then starts, does not ask for another."""
    history = replace(LONG_AGO, asked=Mark(NOW - 30.0, 1, 0.5), settled_at=NOW - 20.0)
    failing = signals(2, ready=0, waiting=9, arrivals_per_second=0.5)
    first = decided(failing, history=history)
    after = history.remember(first, failing, SPEC)
    assert first.wanted == decided(replace(failing, time=NOW + 1.0, starting=1), history=after).wanted == 2
    assert history.remember(first, replace(failing, ready=2), SPEC).asked is None, "all are there, and have been"


def test_replicas_that_have_just_become_ready_may_work_off_what_waits() -> None:
    """Four free 17 slots a second, for 7 that come: a hundred are gone in ten seconds."""
    assert decided(working(4, 7.0, running=128, waiting=100)).replicas == 4
    assert decided(working(4, 17.0, running=128, waiting=100)).replicas > 4


def test_replicas_asked_for_a_moment_ago_count_before_their_pods_exist() -> None:
    before = working(1, 7.0, waiting=40, running=32)
    asked = decided(before).replicas
    history = LONG_AGO.remember(decided(before), before, SPEC)
    seen = replace(working(asked, 7.0, ready=1, waiting=43, running=32), time=NOW + 1.0)
    assert decided(seen, history=history).replicas == asked


def test_a_replica_that_hangs_is_no_capacity() -> None:
    """Two answer what comes. Where all hang no more are tried than answer."""
    assert decided(working(2, 7.0)).replicas == 2
    assert decided(working(2, 7.0, ready=1, hanging=1)).replicas == 3
    assert decided(working(3, 7.0, ready=2, hanging=1)).replicas == 3
    assert decided(working(3, 7.0, ready=1, hanging=2)).replicas == 3


def test_without_a_step_cost_one_period_doubles_or_adds_four() -> None:
    assert decided(signals(1, waiting=999)).replicas == 5
    assert decided(signals(8, waiting=999)).replicas == 16
    assert decided(signals(8, waiting=999)).reason.endswith("but at most 8 are added in 15s")
    just_grown = replace(LONG_AGO, wants=(Want(NOW - 20.0, 1, 1), Want(NOW - 14.0, 9, 4)))
    assert decided(signals(6, waiting=999), history=just_grown).replicas == 8


def test_a_demand_that_the_step_cost_proves_is_met_at_once() -> None:
    """A slot is held for 7.5 s, so one replica of 32 slots frees 4.3 a second."""
    spec = replace(SPEC, max_replicas=100)
    asked = decided(working(2, 85.0, running=64, waiting=60), spec)
    assert 20 <= asked.replicas <= 26
    assert "are added in" not in asked.reason
    assert decided(working(2, 400.0, running=64, waiting=60), spec).replicas == 32


def test_steps_can_be_set() -> None:
    spec = replace(SPEC, scale_up=ScaleUp(max_step=1), scale_down=ScaleDown(stabilization_window=10.0, max_step=2))
    assert decided(signals(1, waiting=999), spec).replicas == 2
    assert decided(signals(9), spec).replicas == 7
    just_shrunk = replace(LONG_AGO, wants=(Want(NOW - 20.0, 1, 9), Want(NOW - 12.0, 1, 9), Want(NOW - 5.0, 1, 7)))
    assert decided(signals(7), spec, just_shrunk).replicas == 7


def test_more_only_when_meant_if_the_spec_says_so() -> None:
    spec = replace(SPEC, scale_up=ScaleUp(stabilization_window=30.0))
    needed = tuple(Want(NOW - age, 3) for age in (30.0, 20.0, 10.0))
    assert decided(signals(1, waiting=9), spec, replace(LONG_AGO, wants=needed)).replicas == 3
    briefly = replace(LONG_AGO, wants=(*needed, Want(NOW - 5.0, 1)))
    assert decided(signals(1, waiting=9), spec, briefly).replicas == 1
    assert decided(signals(1, waiting=9), spec, History(since=NOW - 5.0)).replicas == 1
    assert decided(signals(0, waiting=9), replace(spec, min_replicas=0), briefly).replicas == 3  # somebody waits


def test_fewer_only_when_fewer_were_enough_for_the_whole_window() -> None:
    history = replace(LONG_AGO, wants=(Want(NOW - 11.0, 9), Want(NOW - 9.0, 3), Want(NOW - 2.0, 2)))
    assert decided(signals(5), history=history).replicas == 3
    assert decided(signals(5), history=history).reason.endswith("but 3 were needed within the last 10s")
    assert decided(signals(5)).replicas == 1


def test_a_quiet_minute_is_called_so() -> None:
    assert decided(signals(1)).reason == "1 replica: no requests lately"
    assert decided(signals(1, starting=1)).reason == "1 replica: no requests lately; 1 is starting"
    assert "1 request waiting and 0 running" in decided(signals(1, waiting=1)).reason
    perhaps = decided(signals(1, arrivals_per_second_high=0.1))
    assert perhaps.reason == "1 replica: 0 requests waiting and 0 running at 0 requests/s"


def test_without_gateways_nothing_is_claimed_of_the_demand() -> None:
    unseen = "no gateway can be read, so what is asked of it is not known"
    for replicas in (1, 3, 20):
        kept = decided(signals(replicas, num_gateways=0))
        assert (kept.replicas, kept.wanted) == (replicas, replicas)
        assert kept.reason == f"{replicas} replica{'s' if replicas > 1 else ''}: {unseen}"
    assert decided(signals(0, num_gateways=0), TO_ZERO).replicas == 0
    raised = decided(signals(1, num_gateways=0), replace(SPEC, min_replicas=2))
    assert (raised.replicas, raised.reason) == (2, f"2 replicas: {unseen}, but minReplicas is 2")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_missing": 1}, "1 gateway could not be read"),
        ({"num_stale": 1, "age_seconds": 12.0}, "the oldest figures are 12s old"),
        ({"starting": 1}, "no replica goes while others start; 1 is starting"),
        ({"draining": 2}, "2 are still draining"),
    ],
)
def test_nothing_is_taken_away_while_something_is_unseen_or_on_its_way(changes: dict[str, Any], why: str) -> None:
    kept = decided(signals(3, **changes))
    assert kept.replicas == 3
    assert kept.reason.startswith("3 replicas: 1 would be enough (")
    assert kept.reason.endswith(f"but {why}")
    assert decided(signals(3, waiting=20, **changes)).replicas >= 3


def test_a_missing_gateway_does_not_keep_replicas_from_being_added() -> None:
    assert decided(signals(3, waiting=20, num_missing=1)).replicas == 5
    assert decided(signals(3, waiting=20, num_stale=1)).replicas == 5


def test_nothing_is_taken_away_before_one_full_window_was_seen() -> None:
    assert decided(signals(3), history=History(since=NOW - 9.0)).replicas == 3
    assert decided(signals(3), history=History(since=NOW - 10.0)).replicas == 1
    assert decided(signals(3, waiting=20), history=History(since=NOW)).replicas == 5


def test_a_tick_that_did_not_see_everything_does_not_pass_for_a_quiet_one() -> None:
    assert decided(signals(3)).wanted == 1
    assert decided(signals(3, num_missing=1)).wanted == 3


def test_a_number_that_proved_too_few_is_not_tried_again_whatever_comes() -> None:
    """A load that went away within two minutes may be back as soon."""
    history = replace(LONG_AGO, regret=Mark(NOW - 180.0, 2, 3.0, 180.0))
    for load in (3.0, 0.1):
        kept = decided(working(3, load), history=history)
        assert kept.replicas == 3
        assert kept.reason == "3 replicas: 2 proved too few 180s ago at 3 requests/s"
    over = replace(LONG_AGO, regret=Mark(NOW - 181.0, 2, 3.0, 180.0))
    assert decided(working(3, 3.0), history=over).replicas == 1


@pytest.mark.parametrize("shrunk_at", [1.0, 40.0])
def test_a_mistake_is_remembered_four_times_as_long_as_the_last_and_no_longer_than_an_hour(shrunk_at: float) -> None:
    """By the window of `scaleDown`: 10 s here, and 300 s unless it is set. Also where the load has grown since the
    scale-down."""
    for window, expected in ((10.0, [120.0, 480.0, 1920.0, 3600.0]), (300.0, [600.0, 2400.0, 3600.0, 3600.0])):
        spec = replace(SPEC, scale_down=ScaleDown(stabilization_window=window))
        regret: Mark | None = None
        now = NOW
        for seconds in expected:
            now += 3600.0 if regret is None else regret.seconds + 60.0
            regret = regretted(regret, working(2, 60.0, time=now), spec, shrunk_at)
            assert regret is not None and regret.seconds == seconds
        late = working(2, 1.0, time=now + expected[-1] + 3601.0)
        assert regretted(regret, late, spec, shrunk_at) is None, "it begins anew"


def regretted(last: Mark | None, seen: Signals, spec: Autoscaling, shrunk_at: float) -> Mark | None:
    """What is regretted a second after a scale-down, which came at such a rate."""
    shrunk = Mark(seen.time - 1.0, seen.desired, shrunk_at)
    history = replace(LONG_AGO, regret=last, shrunk=shrunk)
    return history.remember(decided(seen, spec, history), seen, spec).regret


def test_the_bounds_hold_whatever_is_missing() -> None:
    assert decided(signals(25, starting=1)).replicas == 20
    assert decided(signals(25, num_gateways=0)).reason.endswith("but maxReplicas is 20")
    assert decided(signals(1), replace(SPEC, min_replicas=7)).replicas == 7
    assert decided(signals(1), replace(SPEC, min_replicas=7)).reason.endswith("but minReplicas is 7")
    assert decided(signals(0)).replicas == 1


def test_without_a_request_for_long_enough_all_replicas_go() -> None:
    assert decided(signals(1, idle_seconds=60.0), TO_ZERO).replicas == 0
    assert decided(signals(3, idle_seconds=60.0), TO_ZERO).replicas == 0
    assert decided(signals(1, idle_seconds=59.0), TO_ZERO).replicas == 1
    assert decided(signals(1, idle_seconds=60.0), SPEC).replicas == 1
    assert decided(signals(1, idle_seconds=599.0), replace(TO_ZERO, scale_to_zero_after=None)).replicas == 1
    assert decided(signals(1, idle_seconds=600.0), replace(TO_ZERO, scale_to_zero_after=None)).replicas == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting": 1}, {"running": 1}, {"num_missing": 1}, {"num_stale": 1}, {"num_gateways": 0}, {"starting": 1},
        {"draining": 1},
    ],
)  # fmt: skip
def test_the_last_replica_stays_while_anything_is_unseen_or_unfinished(changes: dict[str, Any]) -> None:
    assert decided(signals(1, **{"idle_seconds": 1e6, **changes}), TO_ZERO).replicas >= 1


def test_idleness_counts_from_the_last_replica_that_became_ready_and_from_the_operators_start() -> None:
    idle = signals(1, idle_seconds=1e6)
    assert decided(idle, TO_ZERO, replace(LONG_AGO, grown_at=NOW - 59.0)).replicas == 1
    assert decided(idle, TO_ZERO, History(since=NOW - 59.0)).replicas == 1
    assert decided(idle, TO_ZERO, replace(LONG_AGO, active_at=NOW - 59.0)).replicas == 1


def test_from_zero_the_first_request_asks_at_once_even_where_gateways_are_missing() -> None:
    asleep = signals(0, idle_seconds=1e6)
    assert decided(asleep, TO_ZERO).replicas == 0
    assert decided(asleep, TO_ZERO).reason == "0 replicas: no request waits, and the next one starts a replica"
    assert decided(signals(0, waiting=1, num_missing=1, num_gateways=1), TO_ZERO, History(since=NOW)).replicas == 1
    assert decided(signals(0, num_recent_arrivals=1, idle_seconds=0.5), TO_ZERO).replicas == 1  # gone again already
    assert (
        decided(signals(0, num_recent_arrivals=1, idle_seconds=9.0), replace(TO_ZERO, scale_to_zero_after=8.0)).replicas
        == 0
    )
    assert decided(signals(0, waiting=10), TO_ZERO).replicas == 3


def test_what_a_replica_takes_is_remembered_while_there_is_none() -> None:
    seen = working(1, 3.0)
    history = LONG_AGO.remember(decided(seen), seen, TO_ZERO)
    nobody = signals(0, waiting=2, arrivals_per_second=10.0, **WORK)
    assert decided(nobody, TO_ZERO).replicas == 1
    assert decided(nobody, TO_ZERO, history).replicas == 3


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            working(2, 9.8, ready=1, starting=1),
            "3 replicas: 2 could not keep up with 9.8 requests/s; 1 is starting",
        ),
        (
            signals(1, waiting=6, running=2),
            "2 replicas: 1 would leave 6 requests waiting (queueDepth 4)",
        ),
        (
            working(1, 3.0, running=2),
            "1 replica: 0 requests waiting and 2 running at 3 requests/s, first tokens at p90 in 170ms (target 2s)",
        ),
        (
            signals(20, waiting=100),
            "20 replicas: even 20 would leave 100 requests waiting (queueDepth 4), and maxReplicas is 20",
        ),
    ],
)
def test_the_reason_is_a_sentence_with_its_numbers(seen: Signals, sentence: str) -> None:
    assert decided(seen).reason == sentence


def test_the_sentence_names_the_predicted_time_the_target_and_the_rate() -> None:
    spec = replace(SPEC, targets=ScalingTargets(time_to_first_token=0.15))
    reason = decided(working(1, 4.0), spec).reason
    assert reason.startswith("2 replicas: 1 would have first tokens at p90 in ")
    assert reason.endswith("(target 150ms) at 4 requests/s: prompts take so long to compute")
    late = "2 replicas: 1 would leave 22 % of the requests of 40s waiting too long (target 2s, 8 % allowed) at 3.9 "
    assert decided(working(1, 3.9)).reason == f"{late}requests/s: 92 % of its slots would be taken on average"


def test_a_queue_that_stays_though_it_should_have_gone_asks_for_a_replica() -> None:
    """As of clients that ask again once they are answered, on engines that are slower than they say."""
    queued = working(1, 1.0, running=32, waiting=9, cold_start_seconds=5.0)
    history, replicas = replace(LONG_AGO, demand=counted(*([1.0] * 600))), []
    for second in range(90):
        seen = replace(queued, time=NOW + second)
        result = decided(seen, SPEC, history)
        history = history.remember(result, seen, SPEC)
        replicas.append(result.replicas)
    assert replicas[0] == 1 and replicas[-1] == 2
    assert " had " in decided(seen, SPEC, history).reason
