"""Pods as processes: their life, and what their status says about it."""

import asyncio
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fairlead_local.apiserver.resources import DEPLOYMENTS, EVENTS, PODS
from fairlead_local.apiserver.store import Change
from fairlead_local.controllers.replicasets import is_ready
from fairlead_local.kubelet.probes import watch_probe
from fairlead_testing.local_api import LocalApi, eventually

PODS_PATH = "/api/v1/namespaces/default/pods"
SERVER = """
import http.server, os, signal, sys, time
def bye(*_):
    print("going", flush=True)
    time.sleep(float(os.environ.get("LINGER", "0")))
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists("ready") or self.path == "/" else 503)
        self.end_headers()
    def log_message(self, *_): pass
print("serving on", sys.argv[1], flush=True)
http.server.HTTPServer((sys.argv[1], 8000), Handler).serve_forever()
"""
_REFERENCE = {"name": "none", "key": "k"}
ADDRESS = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def pod(script: str, *args: str, spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    body = {"name": "c", "image": "test/python:1", "args": ["-c", script, *args], **container}
    return {"metadata": {"name": "p"}, "spec": {"containers": [body], **(spec or {})}}


def state(api: LocalApi) -> dict[str, Any]:
    found = api.operations.find(PODS, "default", "p")
    statuses = ((found or {}).get("status") or {}).get("containerStatuses") or [{"state": {}, "lastState": {}}]
    status: dict[str, Any] = statuses[0]
    return status


def waiting(api: LocalApi, reason: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = state(api)["state"].get("waiting")
    return found if found and found.get("reason") == reason else None


def condition(api: LocalApi, kind: str) -> str:
    conditions = (api.operations.get(PODS, "default", "p").get("status") or {}).get("conditions") or ()
    return next((c["status"] for c in conditions if c["type"] == kind), "")


def events(api: LocalApi, reason: str) -> list[str]:
    return [event["message"] for event in api.operations.list(EVENTS) if event["reason"] == reason]


async def test_a_pod_runs_serves_and_ends_gracefully(node_http: Any, node_api: LocalApi) -> None:
    probe = {"httpGet": {"port": "web"}, "periodSeconds": 1}
    ports = [{"name": "web", "containerPort": 8000}]
    body = pod(SERVER, "$(POD_IP)", env=[ADDRESS], ports=ports, readinessProbe=probe)
    created = await node_http("POST", PODS_PATH, body)
    assert created.body["status"]["phase"] == "Pending"
    await eventually(lambda: condition(node_api, "Ready") == "True")
    found = node_api.operations.get(PODS, "default", "p")
    assert found["status"]["phase"] == "Running" and found["status"]["podIP"].startswith("127.20.")
    assert {c["type"]: c["status"] for c in found["status"]["conditions"]} == dict.fromkeys(
        ("PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"), "True"
    )
    assert (state(node_api)["ready"], state(node_api)["started"], state(node_api)["restartCount"]) == (True, True, 0)
    log = await node_http("GET", f"{PODS_PATH}/p/log")
    assert log.body == f"serving on {found['status']['podIP']}\n"
    deleted = await node_http("DELETE", f"{PODS_PATH}/p")
    assert deleted.body["metadata"]["deletionGracePeriodSeconds"] == 30
    await eventually(lambda: not node_api.operations.find(PODS, "default", "p"))
    assert events(node_api, "Killing") == ["Stopping container c"]


async def test_a_container_that_does_not_listen_to_sigterm_is_killed(node_http: Any, node_api: LocalApi) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    await node_http("POST", PODS_PATH, pod(script, spec={"terminationGracePeriodSeconds": 1}))
    await eventually(lambda: "running" in state(node_api)["state"])
    pid = int(state(node_api)["containerID"].removeprefix("process://"))
    await asyncio.sleep(0.3)  # until the script has set its handler
    await node_http("DELETE", f"{PODS_PATH}/p")
    await eventually(lambda: not node_api.operations.find(PODS, "default", "p"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_deletion_by_force_takes_the_pod_at_once_and_its_process_with_it(
    node_http: Any, node_api: LocalApi
) -> None:
    await node_http("POST", PODS_PATH, pod(SERVER, "$(POD_IP)", env=[ADDRESS, {"name": "LINGER", "value": "60"}]))
    await eventually(lambda: "running" in state(node_api)["state"])
    pid = int(state(node_api)["containerID"].removeprefix("process://"))
    await node_http("DELETE", f"{PODS_PATH}/p", gracePeriodSeconds="0")
    assert (await node_http("GET", f"{PODS_PATH}/p")).status == 404
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


async def test_a_container_ends_with_everything_it_started(node_http: Any, node_api: LocalApi, tmp_path: Path) -> None:
    script = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))"
    )
    await node_http("POST", PODS_PATH, pod(script, spec={"restartPolicy": "Never"}))
    await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"]["phase"] == "Succeeded")
    child = (tmp_path / "child").read_text()

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    await eventually(is_gone)


async def test_a_crashing_container_backs_off_and_keeps_its_last_words(node_http: Any, node_api: LocalApi) -> None:
    script = "import os; print('run'); open(os.environ['FAIRLEAD_TERMINATION_LOG'], 'w').write('no model'); exit(3)"
    await node_http("POST", PODS_PATH, pod(script))
    back_off = await eventually(lambda: waiting(node_api, "CrashLoopBackOff"))
    assert "restarting failed container=c pod=p_default(" in back_off["message"]
    ended = state(node_api)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "no model")
    await eventually(lambda: state(node_api)["restartCount"] >= 2)
    assert (await node_http("GET", f"{PODS_PATH}/p/log", previous="true")).body == "run\n"
    assert events(node_api, "BackOff")


async def test_the_end_of_the_log_stands_in_for_a_message_when_asked(node_http: Any, node_api: LocalApi) -> None:
    body = pod("print('first'); raise SystemExit('it broke')", terminationMessagePolicy="FallbackToLogsOnError")
    body["spec"]["restartPolicy"] = "Never"
    await node_http("POST", PODS_PATH, body)
    await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"]["phase"] == "Failed")
    assert state(node_api)["state"]["terminated"]["message"] == "first\nit broke"


async def test_a_killed_container_says_by_which_signal(node_http: Any, node_api: LocalApi) -> None:
    await node_http("POST", PODS_PATH, pod("import time; time.sleep(60)"))
    await eventually(lambda: "running" in state(node_api)["state"])
    os.kill(int(state(node_api)["containerID"].removeprefix("process://")), signal.SIGKILL)
    ended = await eventually(lambda: state(node_api)["lastState"].get("terminated"))
    assert (ended["exitCode"], ended["signal"]) == (137, 9)
    await eventually(lambda: "running" in state(node_api)["state"] and state(node_api)["restartCount"] == 1)


async def test_a_program_that_cannot_be_started_fails_its_pod(node_http: Any, node_api: LocalApi) -> None:
    await node_http("POST", PODS_PATH, pod("pass", workingDir="/nowhere", spec={"restartPolicy": "Never"}))
    await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"]["phase"] == "Failed")
    ended = state(node_api)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], "/nowhere" in ended["message"]) == (128, "StartError", True)


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [("Never", 0, "Succeeded"), ("Never", 1, "Failed"), ("OnFailure", 0, "Succeeded")],
)
async def test_restart_policies(node_http: Any, node_api: LocalApi, policy: str, code: int, phase: str) -> None:
    await node_http("POST", PODS_PATH, pod(f"exit({code})", spec={"restartPolicy": policy}))
    await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"]["phase"] == phase)
    assert state(node_api)["restartCount"] == 0


async def test_an_image_that_is_not_ours_is_never_pulled(node_http: Any, node_api: LocalApi) -> None:
    await node_http("POST", PODS_PATH, pod("pass", image="docker.io/library/nginx:1.27"))
    back_off = await eventually(lambda: waiting(node_api, "ImagePullBackOff"))
    assert "ErrImagePull" in back_off["message"]
    assert "local mode runs these images only: test/python" in back_off["message"]
    assert any("nginx" in message for message in events(node_api, "Failed"))
    assert (await node_http("GET", f"{PODS_PATH}/p/log")).message.endswith("is waiting to start: ImagePullBackOff")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"command": ["/bin/sh"]}, 'command "/bin/sh" is not in image'),
        (
            {"env": [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}]},
            'configmap "none" not',
        ),
        (
            {"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]},
            'secret "none" not found',
        ),
        ({"livenessProbe": {"exec": {"command": ["true"]}}}, "livenessProbe: local mode probes with httpGet"),
        ({"lifecycle": {"preStop": {"exec": {"command": ["true"]}}}}, "lifecycle hooks"),
        (
            {"lifecycle": {"preStop": {"httpGet": {"port": 1}}, "postStart": {"httpGet": {"port": 1}}}},
            "lifecycle hooks",
        ),
    ],
)
async def test_what_cannot_be_created_says_why(
    node_http: Any, node_api: LocalApi, change: dict[str, Any], sentence: str
) -> None:
    await node_http("POST", PODS_PATH, pod("pass", **change))
    refused = await eventually(lambda: waiting(node_api, "CreateContainerConfigError"))
    assert sentence in refused["message"]
    assert any(sentence in message for message in events(node_api, "Failed"))


@pytest.mark.parametrize(
    ("volume", "sentence"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
        ({"hostPath": {"path": "/", "type": "Socket"}}, "of type Directory and DirectoryOrCreate, not Socket"),
        ({"hostPath": {"path": "/no/such", "type": "Directory"}}, "/no/such is not a directory"),
        ({"projected": {"sources": []}}, "local mode does not support projected volumes"),
    ],
)
async def test_a_volume_that_cannot_be_mounted_says_why(
    node_http: Any, node_api: LocalApi, volume: dict[str, Any], sentence: str
) -> None:
    await node_http("POST", PODS_PATH, pod("pass", spec={"volumes": [{"name": "v", **volume}]}))
    messages = await eventually(lambda: events(node_api, "FailedMount"))
    assert sentence in messages[0]
    assert waiting(node_api, "ContainerCreating")


async def test_a_pod_starts_once_its_config_map_exists_and_sees_its_changes(node_http: Any, node_api: LocalApi) -> None:
    script = "import sys, time\nwhile True: print(open(sys.argv[1]).read(), flush=True); time.sleep(0.05)"
    mounts = [{"name": "v", "mountPath": "/etc/x"}]
    volumes = [{"name": "v", "configMap": {"name": "cm", "items": [{"key": "k", "path": "deep/file"}]}}]
    await node_http("POST", PODS_PATH, pod(script, "/etc/x/deep/file", volumeMounts=mounts, spec={"volumes": volumes}))
    await eventually(lambda: events(node_api, "FailedMount"))
    maps = "/api/v1/namespaces/default/configmaps"
    await node_http("POST", maps, {"metadata": {"name": "cm"}, "data": {"k": "one"}})
    await eventually(lambda: "running" in state(node_api)["state"])
    await node_http.merge(f"{maps}/cm", {"data": {"k": "two"}})
    deadline = time.monotonic() + 10
    while "two" not in str((await node_http("GET", f"{PODS_PATH}/p/log", tailLines="1")).body):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_environment_volumes_and_paths_reach_the_process(node_http: Any, node_api: LocalApi) -> None:
    await node_http("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "cm"}, "data": {"K": "v"}})
    secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}}
    await node_http("POST", "/api/v1/namespaces/default/secrets", secret)
    script = (
        "import os, sys; e = os.environ;"
        "print(e['CM_K'], e['PASSWORD'], e['BOTH'], e['NAME'], e['LIMIT'], open(e['FILE']).read(), sys.argv[1:])"
    )
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
        {"name": "BOTH", "value": "$(CM_K)+$(PASSWORD)+$(NOBODY)+$$(CM_K)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "FILE", "value": "/secrets/password"},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x", "optional": True}}},
    ]
    body = pod(
        script,
        "$(NAME)",
        "--file=/secrets/password",
        env=env,
        envFrom=[{"prefix": "CM_", "configMapRef": {"name": "cm"}}],
        resources={"limits": {"memory": "1Gi"}},
        volumeMounts=[{"name": "s", "mountPath": "/secrets"}],
        spec={"restartPolicy": "Never", "volumes": [{"name": "s", "secret": {"secretName": "s"}}]},
    )
    await node_http("POST", PODS_PATH, body)
    await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"].get("phase") == "Succeeded")
    log = str((await node_http("GET", f"{PODS_PATH}/p/log")).body)
    assert log.startswith("v hunter2 v+hunter2+$(NOBODY)+$(CM_K) p 1024 hunter2 ['p', '--file=/")
    assert log.rstrip().endswith("/volumes/s/password']")


async def test_a_volume_over_the_folder_of_our_own_programs_does_not_hide_them(
    node_http: Any, node_api: LocalApi
) -> None:
    """As when the checkout lies below /tmp, where pods mount scratch space."""
    top = "/" + Path(sys.executable).parts[1]
    mounts = [{"name": "scratch", "mountPath": top}]
    script = "import sys; open(sys.argv[1], 'w').close(); print('ran with', sys.argv[1], flush=True)"
    spec = {"volumes": [{"name": "scratch", "emptyDir": {}}], "restartPolicy": "Never"}
    await node_http("POST", PODS_PATH, pod(script, f"{top}/file", spec=spec, volumeMounts=mounts))
    await eventually(lambda: "terminated" in state(node_api)["state"])
    assert state(node_api)["state"]["terminated"]["exitCode"] == 0
    log = await node_http("GET", f"{PODS_PATH}/p/log")
    assert "/volumes/scratch/file" in log.body


async def test_startup_then_readiness_then_liveness(node_http: Any, node_api: LocalApi, tmp_path: Path) -> None:
    get = {"httpGet": {"port": 8000, "path": "/ready"}, "periodSeconds": 1}
    probes = {
        "startupProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1, "failureThreshold": 30},
        "readinessProbe": {**get, "failureThreshold": 1},
    }
    body = pod(SERVER, "$(POD_IP)", env=[ADDRESS], workingDir=str(tmp_path), **probes)
    await node_http("POST", PODS_PATH, body)
    await eventually(lambda: state(node_api).get("started"))
    assert condition(node_api, "Ready") == "False"
    await eventually(lambda: any("statuscode: 503" in text for text in events(node_api, "Unhealthy")))
    (tmp_path / "ready").touch()
    await eventually(lambda: condition(node_api, "Ready") == "True")
    (tmp_path / "ready").unlink()
    await eventually(lambda: condition(node_api, "Ready") == "False")
    assert state(node_api)["restartCount"] == 0


async def test_a_held_answer_is_followed_by_the_next_question_at_once() -> None:
    """As from the kubelet's ticker; else an engine that holds its startup probe is not asked half of the time."""
    probe, asked = Mock(delay=0.0, period=0.2, successes=1, failures=99), []

    async def ask(session: Any) -> str:
        asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.2)
        return "not yet"

    probe.ask = ask
    watching = asyncio.create_task(watch_probe(probe, Mock(), Mock(), Mock()))
    await eventually(lambda: len(asked) > 5)
    watching.cancel()
    assert sorted(after - before for before, after in pairwise(asked))[2] < 0.35


async def test_a_container_that_fails_its_liveness_probe_is_restarted(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    probe = {"httpGet": {"port": 8000, "path": "/alive"}, "periodSeconds": 1, "failureThreshold": 1}
    body = pod(SERVER, "$(POD_IP)", env=[ADDRESS], workingDir=str(tmp_path), livenessProbe=probe)
    await node_http("POST", PODS_PATH, body)
    await eventually(lambda: state(node_api).get("restartCount", 0) >= 1)
    assert "Container c failed liveness probe, will be restarted" in events(node_api, "Killing")


async def test_a_probes_own_grace_period_goes_before_the_pods(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    """What is frozen, or deaf, is not waited for as long as a pod that drains."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    probe = {"tcpSocket": {"port": 8000}, "failureThreshold": 1, "terminationGracePeriodSeconds": 1}
    probe |= {"initialDelaySeconds": 2, "periodSeconds": 1}  # not before it is deaf
    body = pod(deaf, livenessProbe=probe, spec={"terminationGracePeriodSeconds": 600})
    await node_http("POST", PODS_PATH, body)
    await eventually(lambda: state(node_api).get("restartCount", 0) >= 1)


async def test_logs_are_followed_until_the_container_ends(node_http: Any, node_api: LocalApi) -> None:
    script = "import time\nfor n in range(5): print(n, flush=True); time.sleep(0.1)"
    await node_http("POST", PODS_PATH, pod(script, spec={"restartPolicy": "Never"}))
    await eventually(lambda: "waiting" not in state(node_api)["state"])
    assert (await node_http("GET", f"{PODS_PATH}/p/log", follow="true")).body == "0\n1\n2\n3\n4\n"
    assert (await node_http("GET", f"{PODS_PATH}/p/log", tailLines="2")).body == "3\n4\n"
    assert (await node_http("GET", f"{PODS_PATH}/p/log", tailLines="0")).body == ""
    assert (await node_http("GET", f"{PODS_PATH}/p/log", limitBytes="3")).body == "0\n1"
    assert (await node_http("GET", f"{PODS_PATH}/p/log", container="x")).status == 400
    assert (await node_http("GET", f"{PODS_PATH}/p/log", timestamps="true")).status == 501
    assert (await node_http("GET", f"{PODS_PATH}/p/log", previous="true")).status == 400


async def test_a_rolling_update_always_keeps_pods_serving(node_http: Any, node_api: LocalApi) -> None:
    container = pod(SERVER, "$(POD_IP)", env=[ADDRESS], readinessProbe={"httpGet": {"port": 8000}, "periodSeconds": 1})
    template = {"metadata": {"labels": {"app": "x"}}, "spec": container["spec"]}
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "x"}}, "template": template, "strategy": rolling}
    path = "/apis/apps/v1/namespaces/default/deployments"
    await node_http("POST", path, {"metadata": {"name": "x"}, "spec": spec})

    def settled(generation: int) -> bool:
        status = node_api.operations.get(DEPLOYMENTS, "default", "x").get("status") or {}
        counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
        return status.get("observedGeneration") == generation and counts == [2, 2, 2]

    await eventually(lambda: settled(1))
    first = {found["metadata"]["name"] for found in node_api.operations.list(PODS)}
    ready: list[int] = []

    def count(change: Change) -> None:
        if change.resource == PODS.qualified:
            staying = [p for p in node_api.operations.list(PODS) if "deletionTimestamp" not in p["metadata"]]
            ready.append(sum(map(is_ready, staying)))

    unsubscribe = node_api.operations.store.subscribe(count)
    changed = {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}
    await node_http.merge(f"{path}/x", changed)
    await eventually(lambda: settled(2))
    unsubscribe()
    assert min(ready) >= 2
    await eventually(lambda: not first & {found["metadata"]["name"] for found in node_api.operations.list(PODS)})
    status = node_api.operations.get(DEPLOYMENTS, "default", "x")["status"]
    reasons = {c["type"]: c["reason"] for c in status["conditions"]}
    assert reasons == {"Available": "MinimumReplicasAvailable", "Progressing": "NewReplicaSetAvailable"}


def initialized_by(script: str, **spec: Any) -> dict[str, Any]:
    """A pod whose first container runs this with a folder of the machine, and whose second prints what is in it."""
    mount = [{"name": "v", "mountPath": "/shared"}]
    init = {"name": "first", "image": "test/python:1", "args": ["-c", script, "/shared/word"], "volumeMounts": mount}
    show = "import sys, time; print(open(sys.argv[1]).read(), flush=True); time.sleep(60)"
    return pod(show, "/shared/word", volumeMounts=mount, spec={"initContainers": [init], **spec})


def first(api: LocalApi) -> dict[str, Any]:
    """What is said of the first init container."""
    found = api.operations.get(PODS, "default", "p").get("status") or {}
    return next(iter(found.get("initContainerStatuses") or ()), {"state": {}})


async def test_init_containers_end_well_before_the_others_begin(
    node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    script = (
        "import os, sys, time\nprint('at work', flush=True)\n"
        "while not os.path.exists(sys.argv[1] + '.go'): time.sleep(0.02)\nopen(sys.argv[1], 'w').write('ahoy')"
    )
    folder = tmp_path / "node"
    volume = {"name": "v", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}
    await node_http("POST", PODS_PATH, initialized_by(script, volumes=[volume]))

    await eventually(lambda: "running" in first(node_api)["state"])
    assert waiting(node_api, "PodInitializing")
    assert condition(node_api, "Initialized") == "False"
    assert node_api.operations.get(PODS, "default", "p")["status"]["phase"] == "Pending"
    log = await node_http("GET", f"{PODS_PATH}/p/log", container="first", follow="true", limitBytes="8")
    assert log.body == "at work\n"  # which a process that runs may be about to write
    (folder / "word.go").touch()
    await eventually(lambda: condition(node_api, "Ready") == "True")
    assert first(node_api)["ready"] and first(node_api)["state"]["terminated"]["reason"] == "Completed"
    await eventually(lambda: "running" in state(node_api)["state"])
    assert (folder / "word").read_text() == "ahoy"


@pytest.mark.parametrize(("policy", "is_tried_again"), [("Always", True), ("Never", False)])
async def test_an_init_container_that_fails_keeps_the_others_waiting(
    node_http: Any, node_api: LocalApi, policy: str, is_tried_again: bool
) -> None:
    script = "import os, sys; open(os.environ['FAIRLEAD_TERMINATION_LOG'], 'w').write('no luck'); sys.exit(3)"
    body = initialized_by(script, volumes=[{"name": "v", "emptyDir": {}}], restartPolicy=policy)
    await node_http("POST", PODS_PATH, body)

    if is_tried_again:
        await eventually(lambda: first(node_api).get("restartCount", 0) >= 2)
        assert first(node_api)["lastState"]["terminated"]["message"] == "no luck"
    else:
        await eventually(lambda: node_api.operations.get(PODS, "default", "p")["status"]["phase"] == "Failed")
        assert first(node_api)["state"]["terminated"]["exitCode"] == 3
    assert waiting(node_api, "PodInitializing")


HELD = """
import http.server, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told", flush=True), os._exit(0)))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", self.path, flush=True)
        while os.path.exists(sys.argv[3]):
            time.sleep(0.05)
        self.send_response(int(sys.argv[2]))
        self.end_headers()
        print("answered", flush=True)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 8000), Handler)
print("serving", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("status", [200, 500])
async def test_a_container_is_asked_to_end_when_its_pre_stop_hook_is_answered(
    status: int, node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    hook = {"preStop": {"httpGet": {"path": "done", "port": "web"}}}
    ports = [{"name": "web", "containerPort": 8000}]
    body = pod(HELD, "$(POD_IP)", str(status), str(held), env=[ADDRESS], ports=ports, lifecycle=hook)
    await node_http("POST", PODS_PATH, body)

    async def log() -> str:
        return str((await node_http("GET", f"{PODS_PATH}/p/log")).body)

    await eventually(lambda: bool(state(node_api)["state"].get("running")))
    while "serving" not in await log():
        await asyncio.sleep(0.02)
    await node_http("DELETE", f"{PODS_PATH}/p")
    while "asked /done" not in await log():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.2)
    assert "told" not in await log()
    held.unlink()
    await eventually(lambda: node_api.operations.find(PODS, "default", "p") is None)
    assert bool(events(node_api, "FailedPreStopHook")) == (status == 500)
