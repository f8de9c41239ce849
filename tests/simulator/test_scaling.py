"""What `fairlead simulate autoscaling` rests on: recordings, policies, the accounting of replicas, and intervals."""

import json
import statistics
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.signals_message import ReplicaSignals
from fairlead.demand.buckets import Buckets
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.simulator.scaled_fleet import RecordedRequest
from fairlead.simulator.scaling.estimate import compare, estimate, student_t
from fairlead.simulator.scaling.loads import DEMO, GPU, SMALL, Trace, step
from fairlead.simulator.scaling.planner_policies import DynamoThroughput
from fairlead.simulator.scaling.policies import AT_ONCE, POLICIES
from fairlead.simulator.scaling.recording import Recording, RecordingError, Section, read_recording
from fairlead.simulator.scaling.saturation_policies import WVA, EppSaturation, Llumnix
from fairlead.simulator.scaling.trial import Contender, TrialResult, fleet_of, result

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
MOONCAKE = (
    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 30535, "input_length": 1472, "output_length": 26, "hash_ids": [46, 47, 2366]},
)


def written(folder: Path, content: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# -- recordings --------------------------------------------------------------------------------------------------------


def test_azures_csv_gives_times_since_the_first_request_and_a_time_of_day(tmp_path: Path) -> None:
    found = read_recording(written(tmp_path, AZURE))
    assert [each[1:] for each in found.requests] == [(374, 374, 44), (396, 396, 109), (879, 879, 55)]
    assert [round(each.time, 3) for each in found.requests] == [0.0, 4.315, 4.542]
    assert found.begins is not None and found.begins.isoformat() == "2023-11-16T18:15:46.680590+00:00"


def test_a_part_of_a_recording_begins_anew_and_may_go_faster(tmp_path: Path) -> None:
    found = read_recording(written(tmp_path, AZURE), Section(since=4.0, seconds=0.4, speed=2.0))
    assert [round(each.time, 3) for each in found.requests] == [0.157]


def test_mooncakes_lines_count_leading_blocks_seen_before_as_cached(tmp_path: Path) -> None:
    found = read_recording(written(tmp_path, lines(*MOONCAKE), "trace.jsonl"))
    assert found.requests == (
        RecordedRequest(0.0, 6955, 6955, 52),
        RecordedRequest(pytest.approx(3.053), 1472, 1472 - 2 * 512, 26),
    )
    assert found.begins is None


def test_a_report_of_bench_is_a_recording(tmp_path: Path) -> None:
    answered = {"due": 2.0, "prompt_tokens": 40, "cached_tokens": 16, "output_tokens": 8}
    report = {"report": {}, "requests": [answered, {"due": 1.0, "prompt_tokens": None, "error": "429"}]}
    found = read_recording(written(tmp_path, json.dumps(report, indent=1)))
    assert found.requests == (RecordedRequest(0.0, 40, 40, 8), RecordedRequest(1.0, 40, 24, 8))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", " has no requests"),
        ("TIMESTAMP,ContextTokens\n1,2\n", ", line 1 has no column GeneratedTokens"),
        (AZURE + "2023-11-16 18:15:40,1,1\n", ", line 5, column TIMESTAMP is earlier than the request before"),
        (AZURE.replace("396", "-396"), ", line 3, column ContextTokens: '-396' is no whole number"),
        (AZURE.replace("109", ""), ", line 3, column GeneratedTokens: '' is no whole number"),
        (AZURE + "tomorrow,1,1\n", ", line 5, column TIMESTAMP: 'tomorrow' is no time"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "-1"), ", line 3, column TIMESTAMP: '-1' is no time"),
        (AZURE.replace("2023", "9999"), ", line 2, column TIMESTAMP: '9999-11-16 18:15:46.6805900' is no time"),
        (f"TIMESTAMP,ContextTokens,GeneratedTokens,{'x' * 2**18}\n", ", line 1 is no line of a CSV file: field larger"),
        (AZURE + "1,2\n", ", line 5 has no value in column GeneratedTokens"),
        (AZURE + "2029-01-01 00:00:00,1,1\n", ", line 5, column TIMESTAMP is more than a year after"),
        (lines({"timestamp": 1, "input_length": 2}), ", line 1 has no column output_length"),
        (lines(MOONCAKE[0], {**MOONCAKE[1], "timestamp": -5}), ", line 2, column timestamp: Expected"),
        (lines(*MOONCAKE[::-1]), ", line 2, column timestamp is earlier than the request before"),
        (lines(MOONCAKE[0]) + "{", ", line 2: "),
        ('{\n "a": 1}', " is neither JSON lines nor a report of `fairlead bench`"),
        ("x" * (2**20 + 1), ", line 1 is longer than"),
    ],
    ids=lambda text: text[-30:],
)  # fmt: skip
def test_a_file_that_is_no_recording_is_refused_with_line_and_column(
    tmp_path: Path, content: str, sentence: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(RecordingError) as refused:
        read_recording(path)
    assert str(refused.value).startswith(f"{path}{sentence}")


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(1, 5))
def test_another_seed_keeps_the_requests_and_the_load_of_each_minute(times: list[int], seed: int) -> None:
    requests = tuple(RecordedRequest(float(time), 10 + at, 10 + at, 5) for at, time in enumerate(sorted(times)))
    recording = Recording("some", requests)
    shuffled = recording.shuffled(seed).requests
    assert sorted(each[1:] for each in shuffled) == sorted(each[1:] for each in requests)
    assert [each.time for each in shuffled] == sorted(each.time for each in shuffled)
    minutes = [sorted((int(each.time // 60), each[1:]) for each in some) for some in (requests, shuffled)]
    assert minutes[0] == minutes[1]
    assert recording.shuffled(0) is recording


# -- policies ----------------------------------------------------------------------------------------------------------


def test_machines_have_the_capacities_they_are_known_by() -> None:
    assert [round(each.capacity, 1) for each in (SMALL, DEMO, GPU)] == [4.6, 1.3, 6.9]


def signals(running: int, waiting: int = 0, *, ready: int = 2, time: float = 0.0, slow: float = 0.0) -> Signals:
    """Of a fleet of engines with ten slots, all equally taken."""
    load = ReplicaSignals(
        name="", age_seconds=0.0, waiting=0, running=running // ready, queued_prefill_tokens=0, kv_blocks_free=1000,
        kv_blocks_total=1000, kv_tokens=0, token_budget=512, max_num_seqs=10, step_cost=GPU.cost,
    )  # fmt: skip
    loads = {str(number): load for number in range(ready)}
    demand = Demand(
        waiting=waiting, running=running, loads=loads, capacity=Capacity.of(loads.values()), num_recent_arrivals=40,
        uncached_tokens_per_request=300.0, prompt_tokens_per_request=800.0, output_tokens_per_request=200.0,
        recent_ttft=Buckets.seconds().plus(Buckets((slow or 0.001,), (10, 0))),
    )  # fmt: skip
    return Signals(time=time, desired=ready, ready=ready, starting=0, draining=0, demand=demand)


def test_formulas_ask_for_what_their_projects_document() -> None:
    """By hand: WVA's spare capacity is 0.8 less the use, and 5 less the queue; epp-saturation's step is N + ceil(N (D /
    0.55 - 1)); a request of Llumnix has (free - waiting) blocks over all requests left."""
    assert [WVA()(signals(each)) for each in (6, 12, 16)] == [1, 2, 3]
    assert [WVA()(signals(4, waiting)) for waiting in (3, 5)] == [2, 3]
    slow = [signals(4, slow=each, time=60.0) for each in (0.2, 1.0, 1.3)]  # p90 of the bucket: 0.9 of each
    wide = [replace(each, desired=8, ready=8) for each in slow]
    assert [EppSaturation(2.0, up_window=0.0)(each) for each in wide] == [7, 8, 9]
    assert [Llumnix()(signals(each)) for each in (4, 12, 20)] == [3 - 2, 2, 3]
    planner = DynamoThroughput(slots=10)
    assert planner(signals(4)) == 2  # nothing is planned before 180 s are over
    # 4 requests/s; seven at a time take 200 steps of 13.4 ms and 7 prefills of 30 ms: 2.42 requests/s each.
    assert planner(signals(4, time=200.0)) == 2
    assert planner.capacity(signals(4).demand) == pytest.approx(7 / (200 * 0.0134 + 7 * 0.03))


def test_all_at_once_loses_the_start_after_a_rise_and_nothing_before_or_after() -> None:
    """Two replicas' load on one for a start of 20 s: what comes in 18 s of them waits for longer than the target."""
    trace = Trace(name="step", load=partial(step, 0.5, 2.0), seconds=100.0, cold_start=20.0, quiet=10.0)
    fleet = fleet_of(trace, Contender(name="", policy=AT_ONCE), 1)
    fleet.run(trace.end)
    found = result(fleet, trace, 1)
    assert [number for _, number in found.replicas] == [1, trace.most_replicas]
    late = [at - seconds - trace.quiet for at, seconds in fleet.first_tokens if seconds > trace.machine.target]
    assert late and min(late) >= 0.0 and max(late) <= 20.0
    assert found.attained == pytest.approx(1.0 - 0.18, abs=0.04)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policys_replica_seconds_are_those_of_the_replicas_there_were(policy: str) -> None:
    """Beside a count of the fleet's replicas ten times a second, which is off by at most a tenth per replica."""
    trace = Trace(name="short", load=partial(step, 0.5, 2.5), seconds=45.0, cold_start=3.0, quiet=5.0)
    fleet = fleet_of(trace, Contender(name=policy, policy=policy), 1)
    counted = 0.0
    for _ in range(round(trace.end * 10)):
        counted += 0.1 * len(fleet.replicas)
        fleet.run(0.1)
    found = result(fleet, trace, 1)
    num_moved = sum(abs(late - soon) for (_, soon), (_, late) in pairwise(found.replicas))
    assert abs(found.replica_seconds - counted) <= 0.1 * (2 * num_moved + 1)
    assert found.num_requests <= fleet.counted.num_arrivals
    assert 0.0 <= found.attained <= 1.0


# -- estimates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (19, 2.0930), (120, 1.9799)]
)
def test_students_t_is_that_of_the_tables(degrees: int, t: float) -> None:
    assert student_t(degrees) == pytest.approx(t, abs=1e-4)


def test_an_interval_is_by_hand_and_one_seed_has_none() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == (2.0, pytest.approx(4.3027 / 3**0.5, abs=1e-4))
    assert estimate([4.0]).half is None


def runs(*figures: tuple[float, float]) -> list[TrialResult]:
    return [
        TrialResult(attained=share, replica_seconds=cost, num_changes=0, ttft_p90=0.0, num_requests=1, replicas=())
        for share, cost in figures
    ]


@settings(max_examples=50)
@given(st.floats(-0.2, 0.2), st.floats(0.5, 2.0))
def test_who_wins_follows_from_the_means_and_is_sure_only_beyond_chance(gain: float, price: float) -> None:
    ours = runs((0.7, 100.0), (0.72, 110.0), (0.71, 105.0))
    theirs = runs(*((each.attained + gain, each.replica_seconds * price) for each in ours))
    found = compare(ours, theirs)
    assert not (found.is_better and found.is_dearer)
    assert found.gain.mean == pytest.approx(gain) and found.price.mean == pytest.approx(price - 1.0)
    if found.is_better and gain > 0.01 and price < 0.9:
        assert found.is_sure
    noisy = runs(*((0.7 + gain + noise, 100.0 * price) for noise in (-0.3, 0.0, 0.3)))
    assert not compare(ours, noisy).is_sure
    assert statistics.fmean(each.attained for each in noisy) == pytest.approx(0.7 + gain)
