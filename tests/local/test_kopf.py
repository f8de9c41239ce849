"""Unmodified kopf against the local API: handlers, patches, finalizers, an index, a daemon, events."""

import asyncio
import contextlib
from typing import Any

import kopf
import pytest

from fairlead_local.apiserver.resources import EVENTS
from fairlead_testing.local_api import LocalApi, eventually

GROUP = ("harbour.test", "v1", "boats")


def build_operator(seen: list[Any]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.level = 20
        settings.peering.standalone = True

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        return kopf.login_with_kubeconfig(**kwargs)

    @kopf.index(*GROUP, registry=registry, id="by_name")
    def by_name(name: str, spec: Any, **_: Any) -> dict[str, str]:
        return {name: spec["sails"]}

    @kopf.on.create(*GROUP, registry=registry)
    def created(patch: kopf.Patch, spec: Any, by_name: Any, **_: Any) -> None:
        seen.append(("created", spec["colour"], sorted(by_name)))
        patch.status["afloat"] = True

    @kopf.on.update(*GROUP, registry=registry, field="spec.replicas")
    def updated(old: Any, new: Any, body: Any, **_: Any) -> None:
        seen.append(("updated", old, new))
        kopf.info(body, reason="Resized", message=f"from {old} to {new}")

    @kopf.on.delete(*GROUP, registry=registry)
    def deleted(name: str, **_: Any) -> None:
        seen.append(("deleted", name))

    @kopf.daemon(*GROUP, registry=registry, cancellation_timeout=1.0)
    async def watchman(stopped: Any, **_: Any) -> None:
        seen.append("daemon started")
        await stopped.wait()
        seen.append("daemon stopped")

    return registry


@pytest.fixture
def kubeconfig(api: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig_path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:kopf.*")
async def test_an_operator_sees_the_whole_life_of_an_object(
    http: Any, api: LocalApi, boats: str, boat: dict[str, Any], kubeconfig: None
) -> None:
    seen: list[Any] = []
    ready, stop = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        kopf.operator(registry=build_operator(seen), clusterwide=True, ready_flag=ready, stop_flag=stop)
    )
    try:
        await asyncio.wait_for(ready.wait(), 20)
        path = f"{boats}/argo"
        await http("POST", boats, boat)
        await eventually(lambda: ("created", "white", ["argo"]) in seen)
        await eventually(lambda: "daemon started" in seen)
        await eventually(
            lambda: (api.operations.store.get("boats.harbour.test", "default", "argo") or {}).get("status")
        )
        live = (await http("GET", path)).body
        assert live["status"]["afloat"] is True
        assert live["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
        await http.merge(f"{path}/scale", {"spec": {"replicas": 2}})
        await eventually(lambda: ("updated", 1, 2) in seen)
        await eventually(lambda: [e for e in api.operations.list(EVENTS) if e["reason"] == "Resized"])
        await http("DELETE", path)
        await eventually(lambda: ("deleted", "argo") in seen and "daemon stopped" in seen)
        await eventually(lambda: not api.operations.store.get("boats.harbour.test", "default", "argo"))
    finally:
        stop.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(running, 20)
