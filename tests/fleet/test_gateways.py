"""Reading the gateways: the names that gateways write, pods by label, windows between two looks, silence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.fleet.gateway_metrics import model_readings
from fairlead.fleet.gateways import GatewayReader
from fairlead.gateway.observe import Observation
from fairlead.kube.client import KubeClient
from fairlead.kube.resources import PODS
from fairlead.routing.replica import Replica
from fairlead.testing.gateway_metrics import FakeGateway
from fairlead.testing.gateways import make_pool, running_gateway
from fairlead.testing.operators import bare_api_server

NAMESPACE, MODEL = "default", "default/dinghy"


async def test_what_a_gateway_writes_is_what_is_read() -> None:
    replicas = (Replica("1", "p1", "127.0.0.1", 1), Replica("2", "p2", "127.0.0.1", 2))
    async with running_gateway(make_pool(replicas, name="dinghy")) as (gateway, _, _):
        (pool,) = gateway.pools
        for _ in range(3):
            pool.queue.enter(pool.queue.issue(1), pool.now())
        for uid in ("1", "1", "2"):
            pool.router.in_flight.take(uid)
        for ttft in (0.07, 0.07, 20.0):
            seen = Observation("r", "/v1/completions", model=MODEL, stream=True, status=200, ttft_seconds=ttft)
            gateway.metrics.request_ended(seen)
        gateway.metrics.request_ended(Observation("r", "/v1/completions", status=404))
        readings = model_readings(gateway.metrics.exposition().decode())
    assert set(readings) == {MODEL}
    reading = readings[MODEL]
    assert (reading.waiting, reading.running, reading.num_ended) == (3, 3, 3.0)
    assert reading.ttft.total == 3
    assert reading.ttft.percentile(50) == pytest.approx(0.0875)


def test_what_is_not_prometheus_text_is_refused() -> None:
    with pytest.raises(ValueError):
        model_readings("<html>no {")


class Gateways:
    """An API with gateway pods, a reader that follows them, and its clock."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.time = 100.0
        self.reader = GatewayReader(
            client, namespace=NAMESPACE, selector="app=gateway", timeout=1.0, clock=lambda: self.time
        )

    async def pod(self, name: str, port: int, *, ready: bool = True, app: str = "gateway") -> None:
        container = {"name": "gateway", "image": "x", "ports": [{"name": "control", "containerPort": port}]}
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": app}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        if not any(item["metadata"]["name"] == name for item in (await self.client.list(PODS, NAMESPACE))["items"]):
            await self.client.create(PODS, pod)
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [condition]}
        await self.client.patch(PODS, name, {"status": status}, NAMESPACE, subresource="status")

    async def until(self, holds: Callable[[Any], bool]) -> None:
        """Reads until it is so: pods are followed by a watch."""
        async with asyncio.timeout(10):
            while not holds(await self.reader.read()):
                await asyncio.sleep(0.02)


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    async with bare_api_server(tmp_path) as kubeconfig, await KubeClient.from_environment(kubeconfig) as client:
        found = Gateways(client)
        following = asyncio.create_task(found.reader.run())
        yield found
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_every_ready_gateway_is_read_and_summed(gateways: Gateways) -> None:
    one, two = FakeGateway(MODEL), FakeGateway(MODEL)
    one.waiting.set(2)
    two.waiting.set(3)
    async with one.serving() as first, two.serving() as second:
        await gateways.pod("one", first)
        await gateways.pod("two", second)
        await gateways.pod("not-ready", 1, ready=False)
        await gateways.pod("something-else", 1, app="other")
        await gateways.until(lambda readings: readings.demand(MODEL).num_gateways == 2)
        demand = (await gateways.reader.read()).demand(MODEL)
    assert (demand.waiting, demand.num_missing) == (5, 0)


async def test_a_window_holds_what_was_counted_between_two_looks(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    gateway.ttft.observe(9.0)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda readings: readings.demand(MODEL).num_gateways == 1)
        gateway.ttft.observe(0.5)
        gateway.ended.inc()
        gateways.time += 5.0
        demand = (await gateways.reader.read()).demand(MODEL)
        assert demand.ttft.total == 1
        assert demand.arrivals_per_second == 0.2
        gateways.time += 5.0
        assert (await gateways.reader.read()).demand(MODEL).ttft.total == 0


async def test_a_gateway_that_falls_silent_ages_and_one_that_leaves_is_forgotten(gateways: Gateways) -> None:
    gateway = FakeGateway(MODEL)
    gateway.waiting.set(7)
    gateway.ttft.observe(9.0)
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda readings: readings.demand(MODEL).num_gateways == 1)
        gateway.is_broken = True
        gateways.time += 12.0
        demand = (await gateways.reader.read()).demand(MODEL)
        assert (demand.waiting, demand.age_seconds, demand.num_missing, demand.ttft.total) == (7, 12.0, 0, 0)
        await gateways.pod("one", port, ready=False)
        await gateways.until(lambda readings: readings.demand(MODEL).num_gateways == 0)


async def test_a_gateway_that_never_answered_is_missing(gateways: Gateways, caplog: pytest.LogCaptureFixture) -> None:
    gateway = FakeGateway(MODEL)
    gateway.is_broken = True
    async with gateway.serving() as port:
        await gateways.pod("one", port)
        await gateways.until(lambda readings: readings.num_missing == 1)
        await gateways.reader.read()
    assert [record.message[:24] for record in caplog.records] == ["cannot read gateway one:"], "once, not at every look"
