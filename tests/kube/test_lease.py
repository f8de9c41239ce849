"""Lease: never two holders at once, taken over after silence, given back at the end. Time is virtual."""

import asyncio
from typing import Any

import pytest

from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.lease import Lease
from fairlead_testing.clock import in_virtual_time


class LeaseStore:
    """One Lease, with the API's optimistic locking, that can be made to refuse."""

    def __init__(self) -> None:
        self.lease: JsonObject | None = None
        self.version = 0
        self.error: KubeError | None = None
        self.is_silent = False

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    async def get(self, *args: Any) -> JsonObject:
        if self.is_silent:
            await asyncio.Event().wait()
        self._check()
        if self.lease is None:
            raise KubeError(404, "NotFound", "none")
        return self.lease | {"spec": dict(self.lease["spec"])}

    find = KubeClient.find

    async def create(self, resource: Any, obj: JsonObject) -> JsonObject:
        self._check()
        if self.lease is not None:
            raise KubeError(409, "AlreadyExists", "taken")
        return self._store(obj)

    async def replace(self, resource: Any, obj: JsonObject) -> JsonObject:
        self._check()
        if obj["metadata"]["resourceVersion"] != str(self.version):
            raise KubeError(409, "Conflict", "changed")
        return self._store(obj)

    def _store(self, obj: JsonObject) -> JsonObject:
        self.version += 1
        self.lease = obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.version)}}
        return self.lease

    @property
    def holder(self) -> str:
        assert self.lease is not None
        holder: str = self.lease["spec"]["holderIdentity"]
        return holder


def make(store: LeaseStore, identity: str) -> Lease:
    return Lease(store, "ns", "lease", identity, duration_seconds=15)  # type: ignore[arg-type]


@in_virtual_time
async def test_the_first_one_gets_it_and_a_second_one_waits_until_it_is_released() -> None:
    store = LeaseStore()
    first, second = make(store, "first"), make(store, "second")
    await first.acquire()
    holding, waiting = asyncio.create_task(first.hold()), asyncio.create_task(second.acquire())
    await asyncio.sleep(600)
    assert store.holder == "first"
    assert not waiting.done()
    holding.cancel()
    await first.release()
    await asyncio.sleep(5.1)
    assert waiting.done()
    assert store.holder == "second"
    assert store.lease is not None
    assert store.lease["spec"]["leaseTransitions"] == 1


@in_virtual_time
async def test_a_silent_holder_is_replaced_after_the_duration_and_not_before() -> None:
    store = LeaseStore()
    await make(store, "dead").acquire()
    heir = asyncio.create_task(make(store, "heir").acquire())
    await asyncio.sleep(14.9)
    assert store.holder == "dead"
    await asyncio.sleep(10)
    assert heir.done()
    assert store.holder == "heir"


@pytest.mark.parametrize("words", ["gone", "the API server does not answer in time"])
@in_virtual_time
async def test_a_holder_that_cannot_renew_says_why_and_stops_before_anybody_else_may_start(
    words: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = LeaseStore()
    lease = make(store, "me")
    await lease.acquire()
    started = asyncio.get_running_loop().time()
    store.error, store.is_silent = KubeError(0, "Unreachable", "gone"), words != "gone"
    await lease.hold()
    assert lease.lost.is_set()
    assert asyncio.get_running_loop().time() - started <= 15
    assert f"cannot renew the lease ns/lease: {words}" in caplog.text


@in_virtual_time
async def test_a_short_outage_does_not_cost_the_lease() -> None:
    store = LeaseStore()
    lease = make(store, "me")
    await lease.acquire()
    holding = asyncio.create_task(lease.hold())
    store.error = KubeError(503, "ServiceUnavailable", "soon")
    await asyncio.sleep(6)
    store.error = None
    await asyncio.sleep(60)
    assert not holding.done()
    assert not lease.lost.is_set()
    holding.cancel()


@in_virtual_time
async def test_a_lease_that_somebody_else_took_is_lost_at_the_next_renewal() -> None:
    store = LeaseStore()
    lease = make(store, "me")
    await lease.acquire()
    assert store.lease is not None
    store.lease["spec"]["holderIdentity"] = "thief"
    await lease.hold()
    assert lease.lost.is_set()
    await lease.release()
    assert store.holder == "thief"


@in_virtual_time
async def test_of_two_that_race_one_wins() -> None:
    store = LeaseStore()
    racers = [asyncio.create_task(make(store, name).acquire()) for name in ("a", "b", "c")]
    await asyncio.sleep(1)
    assert sum(racer.done() for racer in racers) == 1
    for racer in racers:
        racer.cancel()


@in_virtual_time
async def test_the_holder_says_on_it_what_it_does_now_and_leaves_the_rest_alone() -> None:
    store, said = LeaseStore(), {"watched": "a,b"}
    lease = Lease(
        store,  # type: ignore[arg-type]
        "ns",
        "lease",
        "one",
        duration_seconds=15,
        labels={"part-of": "fleet"},
        annotations=lambda: said,
    )
    await lease.acquire()
    assert store.lease is not None
    assert store.lease["metadata"]["annotations"] == {"watched": "a,b"}
    store._store(store.lease | {"metadata": store.lease["metadata"] | {"annotations": {"theirs": "1"}}})
    said["watched"] = "a"
    holding = asyncio.create_task(lease.hold())
    await asyncio.sleep(6)
    holding.cancel()
    assert store.lease["metadata"]["annotations"] == {"theirs": "1", "watched": "a"}
    assert store.lease["metadata"]["labels"] == {"part-of": "fleet"}
    assert store.lease["metadata"]["name"] == "lease"


@pytest.mark.parametrize(("status", "seconds"), [(0, 60), (401, 7), (403, 7)])
@in_virtual_time
async def test_an_api_is_waited_for_and_may_refuse_for_a_moment_when_it_has_just_started(
    status: int, seconds: float
) -> None:
    store = LeaseStore()
    store.error = KubeError(status, "Forbidden" if status else "Unreachable", "who are you?")
    waiting = asyncio.create_task(make(store, "me").acquire())
    await asyncio.sleep(seconds)
    assert not waiting.done()
    store.error = None
    await waiting
    assert store.holder == "me"


@in_virtual_time
async def test_a_refusal_that_lasts_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    store = LeaseStore()
    store.error = KubeError(403, "Forbidden", "you may not")
    started = asyncio.get_running_loop().time()
    with pytest.raises(KubeError, match="you may not"):
        await make(store, "me").acquire()
    assert 10 <= asyncio.get_running_loop().time() - started <= 15
    assert "you may not" in caplog.text


@in_virtual_time
async def test_a_namespace_that_is_not_there_is_told_at_once() -> None:
    store = LeaseStore()

    async def create(*_: Any) -> JsonObject:
        raise KubeError(404, "NotFound", "namespaces ns not found")

    store.create = create  # type: ignore[method-assign]
    with pytest.raises(KubeError, match="not found"):
        await make(store, "me").acquire()
    assert asyncio.get_running_loop().time() < 1
