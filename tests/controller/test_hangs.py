"""Since when which replicas hang, and who is looked at when that changes."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fairlead.controller.observe import HangWatch, TokenizerWatch
from fairlead.controller.worker import Key
from fairlead.fleet.gateways import Hanging
from fairlead.kube.resources import EVENTS, LLMDEPLOYMENTS, PODS
from fairlead_testing.fake_gateway import FakeGateway
from fairlead_testing.fleet_objects import load
from fairlead_testing.operators import (
    NAMESPACE,
    READY,
    SCHEDULED,
    SETTINGS,
    bare_api_server,
    fleet_at,
    gateway_pod,
    running_operator,
)


class Watched:
    """A HangWatch with its clock, and what it had looked at."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        self.hanging: dict[str, Hanging] = {}
        self.looked_at: list[list[Key]] = []
        self.watch = HangWatch(lambda: self.hanging, self._changed, now=lambda: self.time)

    def _changed(self, keys: Iterable[Key]) -> None:
        self.looked_at.append(sorted(keys))

    def look(self, **seconds: float) -> dict[str, str]:
        """After one second; by uid, how long each has hung."""
        self.time += timedelta(seconds=1)
        self.hanging = {uid: Hanging(f"ns/{uid[0]}", each) for uid, each in seconds.items()}
        self.watch.look()
        return self.watch.since


def test_the_time_stays_as_first_told_and_only_changes_are_looked_at() -> None:
    watched = Watched()
    assert watched.look() == {}
    assert watched.look(x1=6.0) == {"x1": "2025-12-31T23:59:56Z"}
    for seconds in (7.4, 7.9, 9.2):
        assert watched.look(x1=seconds) == {"x1": "2025-12-31T23:59:56Z"}
    assert watched.looked_at == [[("ns", "x")]]
    assert watched.look(x1=10.0, y1=6.0)["x1"] == "2025-12-31T23:59:56Z"
    assert watched.look(y1=7.0) == {"y1": "2026-01-01T00:00:00Z"}
    assert watched.look() == {}
    assert watched.looked_at == [[("ns", "x")], [("ns", "y")], [("ns", "x")], [("ns", "y")]]


def test_one_that_hangs_again_hangs_since_then() -> None:
    watched = Watched()
    watched.look(x1=6.0)
    watched.look()
    watched.time += timedelta(minutes=1)
    assert watched.look(x1=5.0) == {"x1": "2026-01-01T00:00:58Z"}


def test_one_look_at_an_llmdeployment_however_many_replicas_change() -> None:
    watched = Watched()
    watched.look(x1=6.0, x2=6.0, x3=6.0)
    watched.look(x1=7.0)
    assert watched.looked_at == [[("ns", "x")]] * 2


async def test_a_hang_is_a_condition_and_an_event_while_it_lasts_and_costs_one_write(tmp_path: Path) -> None:
    settings, gateway = replace(SETTINGS, gateway_namespace=NAMESPACE), FakeGateway()
    async with (
        bare_api_server(tmp_path) as kubeconfig,
        fleet_at(kubeconfig) as fleet,
        gateway.serving() as port,
        running_operator(fleet, settings),
    ):
        await fleet.create()
        await fleet.pod("p", SCHEDULED, READY)
        await gateway_pod(fleet, port)
        await fleet.until_reason("AsExpected", "Degraded")
        uid = (await fleet.get(PODS, "p"))["metadata"]["uid"]
        gateway.say(replicas={uid: load("p", hangs=True, step_age_seconds=6.0)})
        hangs = await fleet.until_reason("ReplicaHangs", "Degraded")
        assert hangs["status"] == "True" and hangs["message"].startswith("p: its engine has been in one step since 2")
        before = (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["status"]["conditions"]
        for seconds in (7.3, 8.1, 9.7):
            gateway.say(replicas={uid: load("p", hangs=True, step_age_seconds=seconds)})
            await asyncio.sleep(0.5)
        assert (await fleet.get(LLMDEPLOYMENTS, "dinghy"))["status"]["conditions"] == before
        gateway.say(replicas={uid: load("p")})
        await fleet.until_reason("AsExpected", "Degraded")
        await fleet.at_rest()
        events = (await fleet.client.list(EVENTS, NAMESPACE))["items"]
        [told] = [each for each in events if each["reason"] == "ReplicaHangs"]
        assert (told["type"], told["message"], told["count"]) == ("Warning", hangs["message"], 1)
        assert [each["type"] for each in events if each["reason"] == "AsExpected"] == ["Normal"]


def test_whom_gateways_begin_or_cease_to_tokenise_for_is_looked_at() -> None:
    problems: dict[str, str] = {}
    looked_at: list[object] = []
    watch = TokenizerWatch(lambda: dict(problems), looked_at.append)
    watch.look()
    problems["default/a"] = "it takes more memory than it may"
    watch.look()
    watch.look()
    assert watch.known == problems
    del problems["default/a"]
    watch.look()
    assert looked_at == [{("default", "a")}, {("default", "a")}]
