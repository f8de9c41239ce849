"""What the chart's parts may not do, tried for real: with their own tokens, from within their pods, without a key."""

import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator

import pytest
from api_server import ApiServer, Json
from homes import Fleet

pytestmark = pytest.mark.kubernetes_only("local mode has neither RBAC nor containers, and asks for no key")

ACCOUNTS = ("fairlead-operator", "fairlead-gateway")
GROUP = "/apis/fairlead.dev/v1alpha1"
NUM_AGREEING = 20
"""Requests in a row that must end alike before both gateways are taken to have heard of a change."""


@pytest.fixture(scope="module", params=ACCOUNTS)
def account(fleet: Fleet, request: pytest.FixtureRequest) -> ApiServer:
    """The API as that ServiceAccount of the chart sees it."""
    return ApiServer(fleet, fleet.system_namespace, request.param)


@pytest.fixture(scope="module")
def gateway_account(fleet: Fleet) -> ApiServer:
    return ApiServer(fleet, fleet.system_namespace, "fairlead-gateway")


def role_binding(account: str) -> Json:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "more-power"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "fairlead-system"}],
    }


def pod(name: str) -> Json:
    spec = {"containers": [{"name": "shell", "image": "local.test/shell:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def attempts(fleet: Fleet, a_pod: str, a_node: str) -> list[tuple[str, str, Json | None]]:
    """(method, path, body) of what neither account may do, in namespaces it works in and in others."""
    tried: list[tuple[str, str, Json | None]] = [
        ("GET", "/api/v1/secrets", None),
        ("GET", "/api/v1/pods", None),
        ("GET", "/api/v1/namespaces", None),
        ("GET", "/api/v1/nodes", None),
        ("PATCH", f"/api/v1/nodes/{a_node}", {"spec": {"unschedulable": True}}),
        ("GET", f"{GROUP}/llmdeployments", None),
        ("GET", "/apis/apps/v1/deployments", None),
        ("GET", "/apis/apps/v1/namespaces/kube-system/deployments", None),
        ("GET", f"{GROUP}/namespaces/kube-system/llmdeployments", None),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
         {**role_binding("fairlead-operator"), "kind": "ClusterRoleBinding"}),
        ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/llmdeployments.fairlead.dev",
         {"metadata": {"labels": {"touched": "true"}}}),
    ]  # fmt: skip
    for namespace in (fleet.namespace, fleet.system_namespace, "kube-system"):
        core, name = f"/api/v1/namespaces/{namespace}", "llm" + secrets.token_hex(3)
        tried += [
            ("GET", f"{core}/secrets", None),
            ("GET", f"{core}/secrets/fairlead-e2e-keys", None),
            ("POST", f"{core}/secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}),
            ("POST", f"{core}/pods", pod(name)),
            ("POST", f"{core}/pods/{a_pod}/exec?command=id&stdout=true", None),
            ("GET", f"{core}/pods/{a_pod}/exec?command=id&stdout=true", None),
            ("POST", f"{core}/pods/{a_pod}/attach", None),
            ("POST", f"{core}/pods/{a_pod}/portforward", None),
            ("GET", f"{core}/pods/{a_pod}/log", None),
            ("GET", f"{core}/pods/{a_pod}/proxy/", None),
            ("GET", f"{core}/services/fairlead-gateway/proxy/", None),
            ("POST", f"{core}/pods/{a_pod}/eviction", None),
            ("POST", f"{core}/serviceaccounts/default/token",
             {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
            ("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
             role_binding("fairlead-operator")),
            ("DELETE", f"{GROUP}/namespaces/{namespace}/llmdeployments/any", None),
            ("PATCH", f"{GROUP}/namespaces/{namespace}/llmdeployments/any", {"spec": {"replicas": 0}}),
            ("POST", f"{GROUP}/namespaces/{namespace}/llmdeployments",
             {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": name}}),
            ("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/other", None),
            ("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs",
             {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}),
        ]  # fmt: skip
    return tried


def test_neither_token_may_do_what_its_part_does_not_need(fleet: Fleet, account: ApiServer) -> None:
    a_pod = next(iter(running(fleet, "gateway")))
    a_node = fleet.get("nodes")["items"][0]["metadata"]["name"]
    allowed = []
    for method, path, body in attempts(fleet, a_pod, a_node):
        status, answer = account.call(method, path, body)
        if status != 403 or answer.get("reason") != "Forbidden":
            allowed.append((method, path, status, answer.get("message")))
    assert not allowed, f"{account.name} was not refused: {allowed}"


def test_the_gateways_token_may_only_read_what_it_serves(fleet: Fleet, gateway_account: ApiServer) -> None:
    here = f"namespaces/{fleet.namespace}"
    for path in (f"{GROUP}/{here}/llmdeployments", f"/api/v1/{here}/pods"):
        assert gateway_account.call("GET", path)[0] == 200
    changes: list[tuple[str, str, Json | None]] = [
        ("PATCH", f"{GROUP}/{here}/llmdeployments/any/scale", {"spec": {"replicas": 0}}),
        ("PATCH", f"{GROUP}/{here}/llmdeployments/any/status", {"status": {}}),
        ("DELETE", f"/api/v1/{here}/pods/any", None),
        ("POST", f"/apis/apps/v1/{here}/deployments", {"metadata": {"name": "any"}}),
        ("GET", f"/api/v1/{here}/configmaps", None),
        ("GET", f"/api/v1/namespaces/{fleet.system_namespace}/pods", None),
    ]
    for method, path, body in changes:
        assert gateway_account.call(method, path, body)[0] == 403, path


@pytest.fixture(scope="module")
def engine(fleet: Fleet, manifest: Callable[..., Json]) -> Iterator[Json]:
    """The pod of an LLMDeployment that serves."""
    name = f"safe-{secrets.token_hex(3)}"
    fleet.apply(manifest(name))
    try:
        fleet.wait_ready(name)
        yield {**next(iter(fleet.pods(name).values())), "model": name}
    finally:
        fleet.delete("llm", name)


def inside(fleet: Fleet, pod: Json, script: str) -> str:
    """What Python prints in the pod's first container."""
    metadata = pod["metadata"]
    return fleet.kubectl("exec", metadata["name"], "-n", metadata["namespace"], "--", "python", "-c", script).stdout


def test_no_engine_has_a_token_though_its_account_could(fleet: Fleet, engine: Json) -> None:
    assert engine["spec"]["automountServiceAccountToken"] is False
    script = "import pathlib; print(pathlib.Path('/var/run/secrets').exists(), pathlib.Path('/run/secrets').exists())"
    assert inside(fleet, engine, script).split() == ["False", "False"]


def test_pods_run_without_rights_on_their_nodes(fleet: Fleet, engine: Json) -> None:
    """Not as the manifest says but as the kernel does: user, capabilities, privileges to gain, system calls, root."""
    script = """
import json, os
status = dict(line.split(':\\t', 1) for line in open('/proc/1/status').read().splitlines() if ':\\t' in line)
try:
    open('/written', 'w')
    written = True
except OSError as error:
    written = error.errno
keys = ('Uid', 'CapEff', 'CapBnd', 'NoNewPrivs', 'Seccomp')
print(json.dumps({**{key: status[key].split()[0] for key in keys}, 'written': written}))
"""
    read_only = 30
    expected = {
        "Uid": "65532",
        "CapEff": "0" * 16,
        "CapBnd": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "written": read_only,
    }
    for each in (engine, *running(fleet, "gateway", "operator").values()):
        assert json.loads(inside(fleet, each, script)) == expected, each["metadata"]["name"]


def test_the_service_has_no_way_to_the_control_port(fleet: Fleet) -> None:
    spec = fleet.get("service", "fairlead-gateway", "-n", fleet.system_namespace)["spec"]
    assert [port["targetPort"] for port in spec["ports"]] in ([8080], ["http"])
    for path in ("/metrics", "/fairlead/v1/signals"):
        assert ask(fleet, path, fleet.api_key)[0] == 404


# Keys.


def ask(fleet: Fleet, path: str, key: str | None) -> tuple[int, Json]:
    """(status, answer) of a GET with this key; None = without any."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    request = urllib.request.Request(fleet.gateway + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_without_a_key_nobody_is_served(fleet: Fleet, engine: Json) -> None:
    chat = {"model": engine["model"], "messages": [{"role": "user", "content": "2 + 3 ="}]}
    url = f"{fleet.gateway}/v1/chat/completions"
    for key in (None, "not-the-key-of-anybody"):
        headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        request = urllib.request.Request(url, json.dumps(chat).encode(), headers)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 401
        assert refused.value.headers["www-authenticate"] == "Bearer"
        assert json.load(refused.value)["error"]["code"] == "invalid_api_key"
    with urllib.request.urlopen(fleet.request(url, chat), timeout=60) as response:
        assert response.status == 200
    assert ask(fleet, "/v1/models", None)[0] == 401
    assert ask(fleet, "/ready", None)[0] == 200


def test_no_prompt_and_no_answer_is_in_any_log(fleet: Fleet, engine: Json) -> None:
    word = f"rhinoceros{secrets.token_hex(4)}"
    for stream in (False, True):
        chat = {"model": engine["model"], "messages": [{"role": "user", "content": word}], "stream": stream}
        with urllib.request.urlopen(fleet.request(f"{fleet.gateway}/v1/chat/completions", chat), timeout=60) as answer:
            answer.read()
    everything = logs(fleet, fleet.system_namespace, running(fleet, "gateway", "operator"))
    everything += logs(fleet, fleet.namespace, [engine["metadata"]["name"]])
    assert f"asked_model={engine['model']}" in everything
    assert word not in everything


def test_keys_are_rotated_by_changing_the_secret_and_are_never_logged(fleet: Fleet, say: Callable[[str], None]) -> None:
    gateways = running(fleet, "gateway")
    secret = _keys_secret(next(iter(gateways.values())))
    old, new, client = (secrets.token_urlsafe(24) for _ in range(3))
    client = f"rotating-{client[:4].strip('-_')}x"

    def put(value: str | None) -> None:
        entry: Json = {"data": {client: None}} if value is None else {"stringData": {client: value}}
        patch = ("--type=merge", "-p", json.dumps(entry))
        fleet.kubectl("patch", "secret", secret, "-n", fleet.system_namespace, *patch)

    def all_say(key: str, status: int) -> bool:
        return all(ask(fleet, "/v1/models", key)[0] == status for _ in range(NUM_AGREEING))

    try:
        put(f"{old}\n{new}\n")
        fleet.wait("both keys to be good", lambda: all_say(old, 200) and all_say(new, 200))
        put(f"{new}\n")
        fleet.wait("the old key to be refused", lambda: all_say(old, 401))
        assert all_say(new, 200)
    finally:
        put(None)
    fleet.wait("the client to be gone", lambda: all_say(new, 401))
    assert ask(fleet, "/v1/models", fleet.api_key)[0] == 200
    after = running(fleet, "gateway")
    assert _starts(after) == _starts(gateways), "no gateway was replaced or restarted"
    everything = logs(fleet, fleet.system_namespace, running(fleet, "gateway", "operator"))
    assert client in everything, "whose keys changed is said"
    assert "outcome=unauthorized" in everything
    for key in (old, new, fleet.api_key):
        assert key not in everything
    say("keys added, rotated and removed while both gateways ran on; none was logged")


def running(fleet: Fleet, *components: str) -> dict[str, Json]:
    """The system's pods that are there to stay: an upgrade before this module may still be sending others away."""
    found = {name: pod for component in components for name, pod in fleet.system_pods(component).items()}
    return {name: pod for name, pod in found.items() if "deletionTimestamp" not in pod["metadata"]}


def logs(fleet: Fleet, namespace: str, pods: Iterable[str]) -> str:
    """Everything that these pods have logged."""
    return "".join(fleet.kubectl("logs", pod, "-n", namespace, "--all-containers").stdout for pod in pods)


def _keys_secret(gateway: Json) -> str:
    """The Secret that the pod mounts as its folder of keys."""
    (name,) = (volume["secret"]["secretName"] for volume in gateway["spec"]["volumes"] if volume["name"] == "api-keys")
    return str(name)


def _starts(pods: dict[str, Json]) -> dict[str, int]:
    """Pod → how often its containers were restarted."""
    return {
        name: sum(status["restartCount"] for status in pod["status"]["containerStatuses"]) for name, pod in pods.items()
    }
