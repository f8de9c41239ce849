"""How long replicas take to start: measured once per pod, on pods that tell, and faded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.model_cache import ModelCache
from fairlead.controller.autoscale import ColdStart
from fairlead.controller.pod_starts import start_seconds, start_stages
from fairlead.fleet.pods import ReplicaPods, replicas_of


def pod(name: str, took: int | None, *, restarts: int = 0, **metadata: Any) -> dict[str, Any]:
    """`took`: seconds from creation to ready; None = it is not ready."""
    ready = {"type": "Ready", "status": "False" if took is None else "True"}
    if took is not None:
        ready["lastTransitionTime"] = f"2026-06-01T00:{took // 60:02}:{took % 60:02}Z"
    return {
        "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-06-01T00:00:00Z"} | metadata,
        "status": {"conditions": [ready], "containerStatuses": [{"name": "engine", "restartCount": restarts}]},
    }


def test_a_pod_tells_how_long_it_took_once_it_is_ready_for_the_first_time() -> None:
    assert start_seconds(ReplicaPods.of(pod("p", 95))) == 95.0
    assert start_seconds(ReplicaPods.of(pod("p", None))) is None
    assert start_seconds(ReplicaPods.of(pod("p", 95, restarts=1))) is None
    assert start_seconds(ReplicaPods.of({"metadata": {"name": "p", "uid": "p"}})) is None
    timeless = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert start_seconds(ReplicaPods.of({"metadata": pod("p", 95)["metadata"], "status": timeless})) is None


def test_each_pod_counts_once_and_the_newest_as_much_as_all_before() -> None:
    first = ColdStart().observe(replicas_of([pod("a", 80)]))
    assert first.observe(replicas_of([pod("a", 90)])) == first, "its readiness may come and go later"
    both = first.observe(replicas_of([pod("a", 80), pod("b", 20)]))
    assert both.seconds == 50.0
    assert both.observe(replicas_of([pod("b", 20)])).seconds == 50.0
    assert both.observe(replicas_of([])).measured == frozenset()


def test_a_figure_from_before_a_restart_is_kept_and_what_it_rests_on_not_counted_again() -> None:
    resumed = ColdStart.resumed(40.0, replicas_of([pod("a", 80), pod("b", None)]))
    assert resumed.observe(replicas_of([pod("a", 80), pod("b", None)])).seconds == 40.0
    assert resumed.observe(replicas_of([pod("a", 80), pod("b", 20)])).seconds == 30.0
    assert ColdStart.resumed(None, replicas_of([pod("a", 80)])).observe(replicas_of([pod("a", 80)])).seconds == 80.0


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_the_mean_is_within_what_was_seen(times: list[int]) -> None:
    cold_start = ColdStart()
    for number, took in enumerate(times):
        cold_start = cold_start.observe(replicas_of([pod(str(number), took)]))
    assert cold_start.seconds is not None
    assert min(times) <= cold_start.seconds <= max(times)
    assert cold_start.seconds == pytest.approx(cold_start.observe(replicas_of([])).seconds)


def downloaded(name: str, took: int, download: int) -> dict[str, Any]:
    """A pod that was scheduled after a second, and downloaded from the third on."""
    found = pod(name, took)

    def at(seconds: int) -> str:
        return f"2026-06-01T00:{seconds // 60:02}:{seconds % 60:02}Z"

    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(1)}
    found["status"]["conditions"].append(scheduled)
    ended = {"terminated": {"exitCode": 0, "startedAt": at(3), "finishedAt": at(3 + download)}}
    found["status"]["initContainerStatuses"] = [{"name": "download", "state": ended}]
    found["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at(4 + download)}}
    return found


def test_a_start_is_told_by_stages() -> None:
    stages = start_stages(ReplicaPods.of(downloaded("a", 80, 60)))
    assert stages == {"schedule": 1.0, "image": 3.0, "download": 60.0, "load": 16.0}
    assert start_stages(ReplicaPods.of(downloaded("a", 20, 0))) == {
        "schedule": 1.0,
        "image": 3.0,
        "download": 0.0,
        "load": 16.0,
    }
    assert "download" not in (start_stages(ReplicaPods.of(pod("p", 95))) or {})
    assert start_stages(ReplicaPods.of(pod("p", None))) is None
    both = downloaded("a", 90, 60)
    ended = {"terminated": {"startedAt": "2026-06-01T00:01:03Z", "finishedAt": "2026-06-01T00:01:13Z"}}
    both["status"]["initContainerStatuses"].append({"name": "download-speculative", "state": ended})
    assert (start_stages(ReplicaPods.of(both)) or {})["download"] == 70.0, "of both"


def test_a_server_that_is_a_sidecar_is_what_is_loaded() -> None:
    found = downloaded("a", 80, 60)
    (engine,) = found["status"]["containerStatuses"]
    found["status"]["initContainerStatuses"].append(engine)
    found["status"]["containerStatuses"] = [{"name": "front", "restartCount": 0}]
    found["spec"] = {"initContainers": [{"name": "download"}, {"name": "engine", "restartPolicy": "Always"}]}
    assert start_stages(ReplicaPods.of(found)) == {"schedule": 1.0, "image": 3.0, "download": 60.0, "load": 16.0}
    found["status"]["initContainerStatuses"][0]["restartCount"] = 2
    assert start_seconds(ReplicaPods.of(found)) == 80.0, "what downloads may try again"
    engine["restartCount"] = 1
    assert start_seconds(ReplicaPods.of(found)) is None


def test_the_next_start_is_spared_a_download_that_is_kept() -> None:
    pods = [downloaded("a", 80, 60)]
    assert ColdStart().observe(replicas_of(pods)).seconds == 80.0, "each pod downloads for itself"
    assert ColdStart().observe(replicas_of(pods), ModelCache(size=1)).seconds == 80.0
    assert ColdStart().observe(replicas_of(pods), ModelCache(claim="models")).seconds == 20.0
    cold = ColdStart().observe(replicas_of(pods), ModelCache(node=True))
    assert cold.seconds == 80.0, "the next may come to another node"
    warm = cold.observe(replicas_of([*pods, downloaded("b", 20, 0)]), ModelCache(node=True))
    assert warm.seconds == 20.0, "it found the model, and so will the next"
