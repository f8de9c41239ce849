"""Sidecars (init containers that are always restarted) as processes: when they start and end, and what is said of
them."""

from pathlib import Path
from typing import Any

import pytest

from fairlead_local.apiserver.resources import DEPLOYMENTS, EVENTS, PODS
from fairlead_local.controllers.replicasets import victims
from fairlead_local.controllers.scheduler import requests
from fairlead_local.kubelet.pod_status import ContainerRecord, pod_status
from fairlead_testing.local_api import LocalApi, eventually

PODS_PATH = "/api/v1/namespaces/default/pods"
ACTOR = """
import os, pathlib, signal, socket, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def say(word):
    with (folder / "said").open("a") as file:
        file.write(f"{name} {word}\\n")
def told(*_):
    say("told")
    while (folder / f"{name}.lingers").exists():
        time.sleep(0.02)
    say("ended")
    os._exit(0)
signal.signal(signal.SIGTERM, told)
say("began")
print(name, flush=True)
while True:
    if (folder / f"{name}.listens").exists():
        listener = socket.create_server((os.environ["POD_IP"], 8000))
        (folder / f"{name}.listens").unlink()
    if (folder / f"{name}.ends").exists() and (code := (folder / f"{name}.ends").read_text()):
        (folder / f"{name}.ends").unlink()
        say("ended")
        os._exit(int(code))
    time.sleep(0.02)
"""
"""Writes down when it begins, is told to end, and ends; does what files in a folder tell it."""


def actor(name: str, **fields: Any) -> dict[str, Any]:
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {"name": name, "image": "test/python:1", "args": ["-c", ACTOR, name, "/stage"], "env": [address]}
    return container | {"volumeMounts": [{"name": "stage", "mountPath": "/stage"}], **fields}


def sidecar(name: str, **fields: Any) -> dict[str, Any]:
    return actor(name, restartPolicy="Always", **fields)


def pod(folder: Path, *init: dict[str, Any], **spec: Any) -> dict[str, Any]:
    volume = {"name": "stage", "hostPath": {"path": str(folder)}}
    return {
        "metadata": {"name": "p"},
        "spec": {"initContainers": list(init), "containers": [actor("main")], "volumes": [volume], **spec},
    }


def said(folder: Path) -> list[str]:
    file = folder / "said"
    return file.read_text().splitlines() if file.exists() else []


async def have_begun(folder: Path, *names: str) -> None:
    """Waits until each has said so; what they say from then on is all that `said` has."""
    await eventually(lambda: {f"{name} began" for name in names} <= set(said(folder)))
    (folder / "said").unlink()


def status(api: LocalApi) -> dict[str, Any]:
    found: dict[str, Any] = (api.operations.find(PODS, "default", "p") or {}).get("status") or {}
    return found


def of(api: LocalApi, name: str) -> dict[str, Any]:
    statuses = [*status(api).get("initContainerStatuses", ()), *status(api).get("containerStatuses", ())]
    return next((each for each in statuses if each["name"] == name), {"state": {}})


def condition(api: LocalApi, kind: str) -> tuple[str, str]:
    found = next((each for each in status(api).get("conditions") or () if each["type"] == kind), {})
    return found.get("status", ""), found.get("message", "")


async def shown(http: Any) -> list[Any]:
    """READY, STATUS and RESTARTS, as kubectl prints them."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    found = await http("GET", f"{PODS_PATH}/p", headers=accept)
    cells: list[Any] = found.body["rows"][0]["cells"]
    return cells[1:4]


def gone(api: LocalApi) -> bool:
    return api.operations.find(PODS, "default", "p") is None


async def test_what_comes_after_a_sidecar_begins_once_its_startup_probe_has_succeeded(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60}
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("early"), sidecar("late", startupProbe=probe)))
    await have_begun(tmp_path, "early", "late")
    assert (of(node_api, "early")["started"], of(node_api, "early")["ready"]) == (True, True)
    assert (of(node_api, "late")["started"], of(node_api, "late")["ready"]) == (False, False)
    assert of(node_api, "main")["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert (status(node_api)["phase"], condition(node_api, "Initialized")[0]) == ("Pending", "False")
    assert condition(node_api, "Initialized")[1] == "containers with incomplete status: [late]"
    assert await shown(node_http) == ["1/3", "Init:1/2", "0"]
    assert said(tmp_path) == []
    (tmp_path / "late.listens").touch()
    await eventually(lambda: condition(node_api, "Ready")[0] == "True")
    await have_begun(tmp_path, "main")
    assert (status(node_api)["phase"], condition(node_api, "Initialized")[0]) == ("Running", "True")
    assert await shown(node_http) == ["3/3", "Running", "0"]
    log = await node_http("GET", f"{PODS_PATH}/p/log", container="late")
    assert log.body == "late\n"


async def test_sidecars_are_told_to_end_when_all_others_have_ended_the_last_one_first(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("first"), sidecar("second")))
    await have_begun(tmp_path, "first", "second", "main")
    for name in ("main", "second"):
        (tmp_path / f"{name}.lingers").touch()
    await node_http("DELETE", f"{PODS_PATH}/p")
    await eventually(lambda: said(tmp_path) == ["main told"])
    (tmp_path / "main.lingers").unlink()
    await eventually(lambda: said(tmp_path) == ["main told", "main ended", "second told"])
    (tmp_path / "second.lingers").unlink()
    await eventually(lambda: gone(node_api))
    assert said(tmp_path)[-3:] == ["second ended", "first told", "first ended"]


async def test_a_sidecar_that_ends_is_started_again_and_nothing_else(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60}
    (tmp_path / "side.listens").touch()
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("side", startupProbe=probe), restartPolicy="Never"))
    await eventually(lambda: condition(node_api, "Ready")[0] == "True")
    await have_begun(tmp_path, "side", "main")
    (tmp_path / "side.ends").write_text("3")
    await eventually(lambda: of(node_api, "side").get("restartCount") == 1)
    await eventually(lambda: "running" in of(node_api, "side")["state"])
    assert condition(node_api, "Ready") == ("False", "containers with unready status: [side]")
    assert (status(node_api)["phase"], condition(node_api, "Initialized")[0]) == ("Running", "True")
    assert of(node_api, "side")["lastState"]["terminated"]["exitCode"] == 3
    ready, reason, restarts = await shown(node_http)
    assert (ready, reason) == ("1/2", "Running") and restarts.startswith("1 (")
    (tmp_path / "side.listens").touch()
    await eventually(lambda: condition(node_api, "Ready")[0] == "True")
    assert said(tmp_path) == ["side ended", "side began"]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
async def test_sidecars_end_with_the_pod_and_decide_nothing_about_how(
    node_http: Any, node_api: LocalApi, tmp_path: Path, code: int, phase: str
) -> None:
    (tmp_path / "side.lingers").touch()
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("side"), restartPolicy="Never"))
    await have_begun(tmp_path, "side", "main")
    (tmp_path / "main.ends").write_text(str(code))
    await eventually(lambda: said(tmp_path)[-2:] == ["main ended", "side told"])
    assert status(node_api)["phase"] == "Running"
    (tmp_path / "side.lingers").unlink()
    await eventually(lambda: status(node_api)["phase"] == phase)
    assert said(tmp_path)[-1] == "side ended"


async def test_sidecars_end_where_an_init_container_fails_for_good(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("side"), actor("check"), restartPolicy="Never"))
    await have_begun(tmp_path, "side", "check")
    (tmp_path / "check.ends").write_text("3")
    await eventually(lambda: status(node_api).get("phase") == "Failed")
    assert said(tmp_path) == ["check ended", "side told", "side ended"]
    assert await shown(node_http) == ["0/2", "Init:Error", "0"]


async def test_a_pod_that_is_deleted_while_a_sidecar_starts_ends(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 60}
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("early"), sidecar("late", startupProbe=probe)))
    await have_begun(tmp_path, "early", "late")
    await node_http("DELETE", f"{PODS_PATH}/p")
    await eventually(lambda: gone(node_api))
    assert said(tmp_path) == ["late told", "late ended", "early told", "early ended"]


async def test_a_sidecar_whose_turn_does_not_come_in_time_is_told_all_the_same(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    body = pod(tmp_path, sidecar("side"), terminationGracePeriodSeconds=1)
    await node_http("POST", PODS_PATH, body)
    await have_begun(tmp_path, "side", "main")
    (tmp_path / "main.lingers").touch()
    await node_http("DELETE", f"{PODS_PATH}/p")
    await eventually(lambda: gone(node_api))
    assert said(tmp_path) == ["main told", "side told", "side ended"], "main is killed when its time is over"


async def test_a_hook_is_asked_when_the_pod_ends_and_not_when_the_turn_comes(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    hook = {"preStop": {"httpGet": {"port": 1}}}  # where nobody answers
    await node_http("POST", PODS_PATH, pod(tmp_path, sidecar("side", lifecycle=hook)))
    await have_begun(tmp_path, "side", "main")
    (tmp_path / "main.lingers").touch()
    await node_http("DELETE", f"{PODS_PATH}/p")
    await eventually(lambda: any(each["reason"] == "FailedPreStopHook" for each in node_api.operations.list(EVENTS)))
    assert "side told" not in said(tmp_path)
    (tmp_path / "main.lingers").unlink()
    await eventually(lambda: gone(node_api))
    assert said(tmp_path) == ["main told", "main ended", "side told", "side ended"]


def failing(field: str, value: Any, *, init: bool = True, **fields: Any) -> tuple[dict[str, Any], str]:
    container = actor("c") | {field: value} | fields
    body = pod(Path("/stage"), container) if init else pod(Path("/stage"), containers=[container])
    return body, f"spec.{'initContainers' if init else 'containers'}[0].{field}"


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (failing("restartPolicy", "OnFailure"), 'Unsupported value: "OnFailure": supported values: "Always"'),
        (failing("restartPolicy", "Always", init=False), "Forbidden: may not be set for non-init containers"),
        *(
            (failing(field, value), "Forbidden: may not be set for init containers without restartPolicy=Always")
            for field, value in (
                *((kind, {"tcpSocket": {"port": 1}}) for kind in ("startupProbe", "readinessProbe", "livenessProbe")),
                ("lifecycle", {"preStop": {"httpGet": {"port": 1}}}),
            )
        ),
    ],
)
async def test_what_may_not_be_is_refused_by_name(http: Any, refused: tuple[dict[str, Any], str], words: str) -> None:
    body, field = refused
    reply = await http("POST", PODS_PATH, body)
    assert reply.status == 422
    (cause,) = reply.body["details"]["causes"]
    assert (cause["field"], cause["message"]) == (field, words)


async def test_a_deployment_keeps_its_sidecars(http: Any, api: LocalApi) -> None:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": pod(Path("/stage"), sidecar("side"))["spec"]}
    body = {
        "metadata": {"name": "x"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    await http("POST", "/apis/apps/v1/namespaces/default/deployments", body)
    kept = api.operations.get(DEPLOYMENTS, "default", "x")["spec"]["template"]["spec"]
    assert kept["initContainers"][0]["restartPolicy"] == "Always"


def test_nodes_have_room_for_sidecars_beside_the_others() -> None:
    asked = {"resources": {"requests": {"cpu": "500m"}}}
    found = requests({"spec": {"containers": [asked], "initContainers": [asked, asked | {"restartPolicy": "Always"}]}})
    assert str(found["cpu"]) == "1.000"


def test_of_two_pods_the_one_goes_whose_sidecar_was_restarted() -> None:
    def made(name: str, restarts: int) -> dict[str, Any]:
        statuses = [{"name": "side", "restartCount": restarts}, {"name": "download", "restartCount": 9 - restarts}]
        return {
            "metadata": {"name": name, "creationTimestamp": "2030-01-01T00:00:00Z"},
            "spec": {"nodeName": "n", "initContainers": [{"name": "side", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "initContainerStatuses": statuses},
        }

    (goes,) = victims([made("a", 1), made("b", 2)], 1)
    assert goes["metadata"]["name"] == "b"


def test_a_sidecar_is_ready_as_it_says_and_an_init_container_when_it_is_done() -> None:
    ended = {"terminated": {"exitCode": 0}}
    init = [
        ContainerRecord("download", "i", state=ended, is_done=True),
        ContainerRecord("side", "i", state={"running": {}}, started=True, is_sidecar=True, container_id="c"),
    ]
    main = [ContainerRecord("main", "i", state={"running": {}}, started=True, ready=True, container_id="c")]
    found = pod_status({"spec": {"containers": []}}, main, "10.0.0.1", "10.0.0.2", "now", init=init)
    assert [each["ready"] for each in found["initContainerStatuses"]] == [True, False]
    conditions = {each["type"]: each["status"] for each in found["conditions"]}
    assert (conditions["Initialized"], conditions["Ready"]) == ("True", "False")
