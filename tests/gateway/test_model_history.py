"""`/fairlead/v1/models/{namespace}/{name}`: one model now and in the last hour."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.directory import ScalingChange, scaling_changes
from fairlead.gateway.access import KeyedAccess
from fairlead.gateway.model_history import NUM_CHANGES, NUM_MOMENTS, _Look
from fairlead.gateway.model_states import replica_stages
from fairlead_testing.fake_engine import Refusal
from fairlead_testing.gateways import make_pool

KEY = "alice-0123456789abcdef"
GROWN = ScalingChange("2026-11-29T08:00:00Z", 1, 2, "2 replicas: 1 would leave 14 requests waiting (queueDepth 12)")


async def detail(setup, key: str = "default/fake") -> dict[str, Any]:
    async with setup.http.get(f"{setup.url}/fairlead/v1/models/{key}") as answer:
        assert answer.status == 200
        return await answer.json()


async def test_moments_tell_arrivals_first_tokens_and_replicas(start) -> None:
    def pools(engines):
        pool = make_pool([engines[0].replica()], target_ttft_seconds=0.5, target_percentile=95)
        return [replace(pool, num_starting=2, changes=(GROWN,))]

    setup = await start(pools=pools)
    histories = setup.gateway.app.histories
    for _ in range(3):
        await setup.stream()
    histories.look()
    found = await detail(setup)
    assert (found["target_ttft_seconds"], found["target_percentile"]) == (0.5, 95)
    assert found["model"]["key"] == "default/fake"
    latest = found["moments"][-1]
    assert latest["replicas"] == {"ready": 1, "starting": 2, "draining": 0}
    assert latest["arrivals_per_second"] > 0 and latest["ttft_seconds"] > 0
    assert found["changes"] == [
        {"time": GROWN.time, "before": 1, "after": 2, "reason": GROWN.reason},
    ]
    histories.look()
    latest = (await detail(setup))["moments"][-1]
    assert (latest["arrivals_per_second"], latest["ttft_seconds"]) == (0, None), "nobody has come since"


async def test_requests_that_wait_and_run_are_counted(start) -> None:
    setup = await start(follow=True)
    streaming, may_go = await setup.begun()
    setup.gateway.app.histories.look()
    latest = (await detail(setup))["moments"][-1]
    assert (latest["waiting"], latest["running"]) == (0, 1)
    setup.engines[0].refusal = Refusal.FULL
    waiting = asyncio.create_task(setup.stream())
    await setup.until(lambda: sum(len(pool.queue) for pool in setup.gateway.pools) == 1)
    setup.gateway.app.histories.look()
    assert (await detail(setup))["moments"][-1]["waiting"] == 1
    setup.engines[0].refusal = None
    may_go.set()
    streaming.close()
    await waiting


async def test_replicas_tell_their_place_and_load(start) -> None:
    def pools(engines):
        first, second = (each.replica() for each in engines)
        return [make_pool([replace(first, node="node-a", since="2026-11-29T07:00:00Z")], departing=[second])]

    setup = await start(2, pools=pools)
    ready, draining = (await detail(setup))["replicas"]
    nothing = {"running": None, "waiting": None, "slots": None, "kv_used_ratio": None, "num_cached_blocks": 0}
    assert ready == nothing | {"name": "engine-0", "state": "ready", "node": "node-a", "since": "2026-11-29T07:00:00Z"}
    assert (draining["name"], draining["state"]) == ("engine-1", "draining")
    setup = await start(follow=True)
    await setup.stream(messages=[{"role": "user", "content": "word " * 100}])
    pool = next(iter(setup.gateway.pools))
    await setup.until(lambda: pool.datastore.index.num_blocks("engine-0") > 0)
    [told] = (await detail(setup))["replicas"]
    assert told["slots"] == setup.engines[0].limits.max_num_seqs and told["num_cached_blocks"] > 0
    assert 0 <= told["kv_used_ratio"] <= 1 and (told["running"], told["waiting"]) == (0, 0)


async def test_looks_are_taken_at_the_beat_of_the_signals_whether_or_not_they_are_followed(start, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.gateway.model_history.PERIOD_SECONDS", 0.0)
    setup = await start()
    await setup.stream()

    async def told() -> list[dict[str, Any]]:
        return (await detail(setup))["moments"]

    async with asyncio.timeout(30):
        while len(moments := await told()) < 3:
            setup.gateway.signals.wake()
    times = [each["time"] for each in moments]
    assert times == sorted(times) and moments[-1]["arrivals_per_second"] == 0
    assert any(each["arrivals_per_second"] > 0 for each in moments), "what came before the first look is told, too"
    monkeypatch.setattr("fairlead.gateway.model_history.PERIOD_SECONDS", 3600.0)
    setup.gateway.app.histories.beat()  # the next one is due in an hour
    num_taken = len(await told())
    setup.gateway.app.histories.beat()
    assert len(await told()) == num_taken


async def test_nothing_is_worked_out_before_somebody_asks_and_nothing_twice(start, monkeypatch) -> None:
    worked_out = []
    since = _Look.since
    monkeypatch.setattr(_Look, "since", lambda *args: worked_out.append(args) or since(*args))
    setup = await start()
    histories = setup.gateway.app.histories
    for _ in range(3):
        await setup.stream()
        histories.look()
    histories.look()
    idle = histories.of(next(iter(setup.gateway.pools)))._untold
    assert idle[-1].ttft is idle[-2].ttft and idle[-1].replicas is idle[-2].replicas, "an idle hour takes no memory"
    assert not worked_out
    first = (await detail(setup))["moments"]
    assert [each["ttft_seconds"] is None for each in first[-4:]] == [False, False, False, True]
    num_worked_out = len(worked_out)
    assert (await detail(setup))["moments"] == first
    assert len(worked_out) == num_worked_out


async def test_a_failed_look_stops_neither_signals_nor_looks(start, monkeypatch) -> None:
    monkeypatch.setattr("fairlead.gateway.model_history.PERIOD_SECONDS", 0.0)
    failing = [True]
    monkeypatch.setattr(
        "fairlead.gateway.model_history.replica_stages", lambda live: 1 / 0 if failing else replica_stages(live)
    )
    setup = await start()
    url = f"http://127.0.0.1:{setup.gateway.control_port}/fairlead/v1/signals"
    async with asyncio.timeout(30), setup.http.get(url) as lines:
        for _ in range(3):
            assert await lines.content.readline()
            setup.gateway.signals.wake()
        assert (await detail(setup))["moments"] == []
        failing.clear()
        while not (await detail(setup))["moments"]:
            setup.gateway.signals.wake()


async def test_histories_are_bounded_and_end_with_their_model(start) -> None:
    setup = await start(pools=lambda _: [make_pool(name="one"), make_pool(name="two")])
    histories = setup.gateway.app.histories
    for number in range(NUM_MOMENTS + 5):
        change = ScalingChange(f"{number}", number, number + 1, "")
        setup.fleet.publish([replace(make_pool(name="one"), changes=(change,))])
        histories.look()
    found = await detail(setup, "default/one")
    assert len(found["moments"]) == NUM_MOMENTS
    assert [each["before"] for each in found["changes"]] == list(range(NUM_MOMENTS + 5))[-NUM_CHANGES:]
    assert set(histories._by_uid) == {"uid-default-one"}
    async with setup.http.get(f"{setup.url}/fairlead/v1/models/default/two") as answer:
        assert answer.status == 404 and "'default/one'" in (await answer.json())["error"]["message"]


async def test_without_a_key_nothing_is_told(start, tmp_path: Path) -> None:
    (tmp_path / "alice").write_text(KEY)
    setup = await start(access=KeyedAccess(tmp_path))
    async with setup.http.get(f"{setup.url}/fairlead/v1/models/default/fake") as answer:
        assert answer.status == 401
    async with setup.http.post(f"{setup.url}/fairlead/v1/models/default/fake", headers={"x-api-key": KEY}) as answer:
        assert answer.status == 405


def test_decisions_are_read_from_the_object_oldest_first() -> None:
    noted = [
        {"time": "2026-11-29T08:01:00Z", "from": 2, "to": 1, "reason": "idle"},
        {"time": "2026-11-29T08:00:00Z", "from": 1, "to": 2},
    ]
    assert scaling_changes({"scaling": {"history": noted}}) == (
        ScalingChange("2026-11-29T08:00:00Z", 1, 2, ""), ScalingChange("2026-11-29T08:01:00Z", 2, 1, "idle"),
    )  # fmt: skip


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["time", "from", "to", "reason"]), inner),
)


@given(history=st.none() | st.lists(ANYTHING))
def test_whatever_a_status_notes_is_read_or_left_out(history: Any) -> None:
    for change in scaling_changes({"scaling": {"history": history}}):
        assert isinstance(change.before, int) and isinstance(change.reason, str)


@pytest.mark.parametrize("status", [{}, {"scaling": None}, {"scaling": {}}])
def test_without_decisions_there_are_none(status: dict[str, Any]) -> None:
    assert scaling_changes(status) == ()
