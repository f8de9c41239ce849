"""Gateways for tests: a real one on real sockets, in front of a fleet that the test makes."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from fairlead.api.llmdeployment import Routing
from fairlead.fleet.directory import FleetModel, Outlook, Pool
from fairlead.fleet.engine_stream import EngineListener
from fairlead.gateway.access import Access, OpenAccess
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.prompts.reader import Tokenizers
from fairlead.gateway.server import Gateway
from fairlead.routing.replica import Replica
from fairlead_testing.static_fleet import StaticFleet

STARTING = Outlook(starting=True, message="Its replicas are starting.")
SCALED_TO_ZERO = Outlook(starting=False, message="It is scaled to zero replicas.")


def make_pool(
    replicas: Iterable[Replica] = (),
    *,
    name: str = "fake",
    namespace: str = "default",
    outlook: Outlook = STARTING,
    departing: Iterable[Replica] = (),
    **model: Any,
) -> Pool:
    """A pool of one model; further keywords are fields of FleetModel, or of its Routing."""
    names = {item.name for item in fields(Routing)} & model.keys()
    routing = Routing(**{key: model.pop(key) for key in names})
    values = {"uid": f"uid-{namespace}-{name}", "served_name": name, "routing": routing, **model}
    return Pool(FleetModel(namespace=namespace, name=name, **values), tuple(replicas), outlook, tuple(departing))


@asynccontextmanager
async def running_gateway(
    *pools: Pool, follow: bool = False, access: Access | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, StaticFleet, str]]:
    """A gateway on free ports of 127.0.0.1, its fleet, and its base URL (without /v1); with GatewaySettings.

    `follow`: whether it asks the engines what they are, and follows their blocks and loads. `access`: who is served;
    None = everybody.
    """
    values = {"host": "127.0.0.1", "port": 0, "control_port": 0, "drain_delay": 0.0, "drain_timeout": 5.0, **settings}

    def make_fleet(listener: EngineListener, tokenizers: Tokenizers) -> StaticFleet:
        return StaticFleet(pools, listener=listener, tokenizers=tokenizers) if follow else StaticFleet(pools)

    gateway = Gateway(GatewaySettings(**values), make_fleet, access or OpenAccess())
    assert isinstance(gateway.fleet, StaticFleet)
    running = asyncio.create_task(gateway.run())
    try:
        yield gateway, gateway.fleet, f"http://127.0.0.1:{gateway.port}"
    finally:
        gateway.stop()
        await running


@asynccontextmanager
async def gateway_before(engine_url: str, name: str = "tiny") -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway and its base URL, once it knows load and tokenizer of the one engine behind it."""
    parts = urlsplit(engine_url)
    replica = Replica(uid="one", name="one", host=str(parts.hostname), port=int(parts.port or 0))
    async with running_gateway(make_pool([replica], name=name), follow=True) as (gateway, _, url):
        now = asyncio.get_running_loop().time
        async with asyncio.timeout(30):
            while gateway.datastore.load("one", now()) is None or not all(
                pool.prompts.digests for pool in gateway.pools
            ):
                await asyncio.sleep(0.01)
        yield gateway, url
