"""What a gateway's metrics say of the gateway itself: whether clients should come, and what it costs."""

import asyncio
import sys

import pytest

from fairlead.gateway import gateway_metrics as metrics


async def ready(setup) -> str:
    lines = (await setup.metrics()).splitlines()
    return next(line.split()[1] for line in lines if line.startswith("fairlead_gateway_ready "))


async def test_readiness_is_told_as_the_probe_tells_it(start, monkeypatch) -> None:
    setup = await start(drain_delay=30.0)
    assert await ready(setup) == "1.0"
    with monkeypatch.context() as patched:
        patched.setattr(type(setup.fleet), "synced", property(lambda fleet: False))
        assert await ready(setup) == "0.0"
    setup.gateway.drain()
    assert await ready(setup) == "0.0"


@pytest.mark.skipif(sys.platform != "linux", reason="Prometheus' client reads /proc")
async def test_the_cost_of_the_process_is_told(start) -> None:
    text = await (await start()).metrics()
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds"):
        assert f"\nfairlead_gateway_process_{name} " in text


async def test_many_who_ask_at_once_cost_no_more_than_one(start, monkeypatch) -> None:
    """A rendering takes milliseconds of the loop that tokens pass through, and this port asks for no key."""
    num_rendered, render = 0, metrics.generate_latest

    def counted(registry) -> bytes:
        nonlocal num_rendered
        num_rendered += 1
        return render(registry)

    monkeypatch.setattr(metrics, "generate_latest", counted)
    setup = await start()
    texts = await asyncio.gather(*(setup.metrics() for _ in range(200)))
    assert all("fairlead_gateway_ready 1.0" in text for text in texts)
    assert num_rendered < 50
