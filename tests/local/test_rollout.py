"""The arithmetic of rollouts: never too many pods, never too few available, always an end."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_local.controllers.rollout import RolloutLimits, next_counts, scaled_counts, wanted


def replica_set(name: str, replicas: int, available: int | None = None) -> dict[str, Any]:
    count = replicas if available is None else available
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "availableReplicas": count},
    }


def deployment(replicas: int, surge: int | str, unavailable: int | str, kind: str = "RollingUpdate") -> dict[str, Any]:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"spec": {"replicas": replicas, "strategy": {"type": kind, "rollingUpdate": rolling}}}


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (4, "25%", "25%", (1, 1)),
        (3, "25%", "25%", (1, 0)),
        (1, "25%", "25%", (1, 0)),
        (10, 3, 0, (3, 0)),
        (2, "0%", "10%", (0, 1)),
        (0, 1, 1, (1, 0)),
    ],
)
def test_percentages_round_up_above_and_down_below(
    replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    limits = RolloutLimits.of(deployment(replicas, surge, unavailable))
    assert (limits.max_surge, limits.max_unavailable) == expected


@given(
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=3),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
)
@settings(deadline=None, max_examples=80)
def test_one_step_keeps_the_limits(
    replicas: int, surge: int, unavailable: int, old_counts: list[tuple[int, int]], new_count: tuple[int, int]
) -> None:
    limits = RolloutLimits.of(deployment(replicas, surge, unavailable))
    old = [replica_set(f"old{i}", count, min(count, ready)) for i, (count, ready) in enumerate(old_counts)]
    new = replica_set("new", new_count[0], min(new_count))
    before = {found["metadata"]["name"]: found for found in [new, *old]}
    counts = next_counts(limits, new, old, recreate=False)
    after = {name: counts.get(name, wanted(found)) for name, found in before.items()}
    if sum(after.values()) > sum(map(wanted, before.values())):
        assert sum(after.values()) <= limits.most
    available = {name: min(after[name], found["status"]["availableReplicas"]) for name, found in before.items()}
    dropped = sum(found["status"]["availableReplicas"] for found in before.values()) - sum(available.values())
    if dropped and after["new"] >= wanted(new):
        assert sum(available.values()) >= limits.fewest_available
    assert all(count >= 0 for count in after.values())


@given(st.integers(0, 8), st.integers(0, 3), st.integers(0, 3), st.lists(st.integers(0, 5), max_size=3))
@settings(deadline=None, max_examples=50)
def test_a_rollout_of_healthy_pods_ends_with_the_new_set_alone(
    replicas: int, surge: int, unavailable: int, old_counts: list[int]
) -> None:
    limits = RolloutLimits.of(deployment(replicas, surge, unavailable))
    sets = {f"old{i}": replica_set(f"old{i}", count) for i, count in enumerate(old_counts)}
    sets["new"] = replica_set("new", 0)
    for _ in range(60):
        new, old = sets["new"], [found for name, found in sets.items() if name != "new"]
        counts = next_counts(limits, new, old, recreate=False)
        for name, count in counts.items():
            sets[name] = replica_set(name, count)
    assert {name: wanted(found) for name, found in sets.items() if wanted(found)} == (
        {"new": replicas} if replicas else {}
    )


def test_recreate_starts_the_new_pods_when_the_old_are_gone() -> None:
    limits = RolloutLimits.of(deployment(2, 1, 1, "Recreate"))
    old, new = replica_set("old", 2), replica_set("new", 0)
    assert next_counts(limits, new, [old], recreate=True) == {"old": 0}
    assert next_counts(limits, new, [replica_set("old", 0)], recreate=True) == {"old": 0, "new": 2}


@given(st.integers(0, 12), st.integers(0, 3), st.integers(1, 6), st.integers(1, 6))
@settings(deadline=None, max_examples=50)
def test_scaling_in_the_middle_of_a_rollout_changes_the_newest_set(replicas: int, surge: int, a: int, b: int) -> None:
    limits = RolloutLimits.of(deployment(replicas, surge, 1))
    counts = scaled_counts(limits, replica_set("new", a), [replica_set("old", b)])
    assert {"old": b, **counts} == ({"old": b, "new": max(0, limits.most - b)} if replicas else {"old": 0, "new": 0})
