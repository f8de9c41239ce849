"""A genuine HorizontalPodAutoscaler scales an LLMDeployment by what waits in the gateways, up and down again.

The metrics adapter is a stand-in (`external_metrics.py`); HPA, API aggregation and the scale subresource are the
cluster's own.
"""

import json
import os
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import external_metrics
import pytest
import yaml
from homes.servers import PORT, server

Json = dict[str, Any]
EXAMPLE = Path(__file__).parent.parent / "examples" / "04-external-autoscaler.yaml"
ADAPTER = "fairlead-e2e-metrics"
API_SERVICE = "v1beta1.external.metrics.k8s.io"
PROMETHEUS_VARIABLE = "FAIRLEAD_E2E_PROMETHEUS"
"""Environment variable: the URL of the cluster's Prometheus, as KEDA reaches it."""
GATEWAY_LABELS = {"app.kubernetes.io/component": "gateway"}
HPA_USERS = [
    {"kind": "ServiceAccount", "name": "horizontal-pod-autoscaler", "namespace": "kube-system"},
    {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:kube-controller-manager"},
]
"""As whom the HPA's controller asks: its own account, or the controller manager's where controllers have none."""

pytestmark = pytest.mark.kubernetes_only("local mode has no HorizontalPodAutoscaler")


def test_an_hpa_adds_a_replica_while_requests_wait_and_takes_it_away_again(
    fleet, deployed: Callable[..., str], name: str, adapter: None, say: Callable[[str], None]
) -> None:
    engine = {"maxNumSeqs": 1}
    deployed(name, engine=engine, autoscaling={"mode": "External"}, replicas=1)
    fleet.wait_ready(name)
    assert fleet.condition(name, "ScalingActive")["reason"] == "ExternalAutoscaler"
    fleet.apply(autoscaler(fleet, name))
    try:
        with waiting_requests(fleet, name, 6) as statuses:
            fleet.wait("the HPA to want two replicas", lambda: replicas(fleet, name) == 2)
            reason = fleet.condition(name, "ScalingActive")["reason"]
            assert reason == "ExternalAutoscaler", "Fairlead's own autoscaler must stay out of it"
            fleet.wait_ready(name, 2)
        assert statuses and set(statuses) == {200}, statuses
        fleet.wait("the HPA to want one replica again", lambda: replicas(fleet, name) == 1)
        fleet.wait("one replica to be left", lambda: len(fleet.pods(name)) == 1)
        say(f"{len(statuses)} requests, all answered; the HPA scaled 1 → 2 → 1")
    finally:
        fleet.delete("hpa", name)


def test_keda_wakes_a_model_scales_it_and_lets_it_sleep_again(
    fleet, deployed: Callable[..., str], name: str, prometheus: str, say: Callable[[str], None]
) -> None:
    deployed(name, engine={"maxNumSeqs": 1}, autoscaling={"mode": "External"}, replicas=0)
    fleet.wait_condition(name, "Ready", "False", "ScaledToZero")
    fleet.kubectl("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(scaled_object(name, prometheus)))
    try:
        with waiting_requests(fleet, name, 6) as statuses:
            fleet.wait("the first answer from zero", lambda: statuses)
            fleet.wait_ready(name, 2)
        assert set(statuses) == {200}, statuses
        fleet.wait("no replica to be left", lambda: not fleet.pods(name))
        say(f"{len(statuses)} requests, all answered; KEDA scaled 0 → 2 → 0")
    finally:
        fleet.delete("scaledobjects.keda.sh", name)


def test_at_zero_requests_wait_until_somebody_scales_and_the_503_says_who(
    fleet, deployed: Callable[..., str], name: str
) -> None:
    routing = {"coldStartTimeout": "2s"}
    deployed(name, autoscaling={"mode": "External"}, routing=routing, replicas=0)
    fleet.wait_condition(name, "Ready", "False", "ScaledToZero")
    status, body, _ = fleet.refusal("/v1/chat/completions", chat(name))
    assert status == 503
    assert "external autoscaler" in body["error"]["message"]
    assert f"kubectl scale llmdeployment {name} --namespace {fleet.namespace} --replicas 1" in body["error"]["message"]
    fleet.merge(name, {"routing": {"coldStartTimeout": "10m"}})
    with waiting_requests(fleet, name, 1) as statuses:
        fleet.wait("the request to be in the gateways' line", lambda: queued(fleet, name) == 1)
        fleet.kubectl("scale", "llm", name, "--replicas=1")
        fleet.wait("the request that waited to be answered", lambda: statuses)
    assert set(statuses) == {200}


# -- the load --


def chat(name: str) -> Json:
    return {"model": name, "max_tokens": 200, "messages": [{"role": "user", "content": "Count from one to fifty."}]}


@contextmanager
def waiting_requests(fleet, name: str, number: int) -> Iterator[list[int]]:
    """So many clients, each with one request after another until the block ends; the statuses they got, 0 where
    there was no answer."""
    statuses: list[int] = []
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():
            try:
                with urllib.request.urlopen(
                    fleet.request(fleet.gateway + "/v1/chat/completions", chat(name)), timeout=300
                ) as reply:
                    reply.read()
                    statuses.append(reply.status)
            except urllib.error.HTTPError as error:
                statuses.append(error.code)
            except OSError:
                statuses.append(0)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        enough.set()
        for thread in threads:
            thread.join(timeout=300)


def replicas(fleet, name: str) -> int:
    return int(fleet.get("llm", name)["spec"]["replicas"])


def queued(fleet, name: str) -> float:
    """Requests that wait for a model, over all gateways, as the adapter would tell the HPA."""
    path = f"/apis/{external_metrics.GROUP_VERSION}/namespaces/{fleet.namespace}/fairlead_gateway_queue_requests"
    told = fleet.kubectl("get", "--raw", f"{path}?labelSelector=llmdeployment%3D{name}", check=False)
    if told.returncode:
        return gateway_metric(fleet, name)
    return sum(float(item["value"].removesuffix("m")) / 1000 for item in json.loads(told.stdout)["items"])


def gateway_metric(fleet, name: str) -> float:
    """The same, asked of the gateways' own control ports through the API server."""
    total = 0.0
    for pod in fleet.system_pods("gateway").values():
        metadata = pod["metadata"]
        proxy = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:8081/proxy/metrics"
        text = fleet.kubectl("get", "--raw", proxy).stdout
        found = external_metrics.summed(
            [text], "fairlead_gateway_queue_requests", fleet.namespace, f"llmdeployment={name}"
        )
        total += sum(value for _, value in found)
    return total


# -- the HPA and its metrics --


def autoscaler(fleet, name: str) -> Json:
    """The example's, for this LLMDeployment, with both its metrics; but two requests may wait per replica, and there is
    no stabilisation, so that a test need not wait for it."""
    hpa: Json = next(
        each for each in yaml.safe_load_all(EXAMPLE.read_text()) if each["kind"] == "HorizontalPodAutoscaler"
    )
    hpa["metadata"]["name"] = hpa["spec"]["scaleTargetRef"]["name"] = name
    queue, in_flight = (metric["external"] for metric in hpa["spec"]["metrics"])
    for metric in (queue, in_flight):
        metric["metric"]["selector"]["matchLabels"]["llmdeployment"] = name
    queue["target"]["averageValue"] = "2"
    hpa["spec"]["maxReplicas"] = 2
    hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 0
    return hpa


def scaled_object(name: str, prometheus: str) -> Json:
    """The example's, for this LLMDeployment, with times of seconds and at most two replicas."""
    text = (EXAMPLE.parent / "06-keda.yaml").read_text()
    made: Json = next(each for each in yaml.safe_load_all(text) if each["kind"] == "ScaledObject")
    spec, model = made["spec"], made["spec"]["scaleTargetRef"]["name"]
    made["metadata"]["name"] = spec["scaleTargetRef"]["name"] = name
    spec |= {"pollingInterval": 2, "cooldownPeriod": 20, "maxReplicaCount": 2}
    spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"] = {"stabilizationWindowSeconds": 5}
    for trigger in spec["triggers"]:
        query = trigger["metadata"]["query"].replace(f'llmdeployment="{model}"', f'llmdeployment="{name}"')
        trigger["metadata"] |= {"query": query, "serverAddress": prometheus, "threshold": "2"}
    return made


@pytest.fixture
def prometheus(fleet) -> str:
    """The URL of the cluster's Prometheus, which scrapes the gateways every few seconds; skips without it or KEDA."""
    if not fleet.exists("crd", "scaledobjects.keda.sh"):
        pytest.skip("this cluster has no KEDA: there is no CRD scaledobjects.keda.sh")
    url = os.environ.get(PROMETHEUS_VARIABLE)
    if not url:
        pytest.skip(f"{PROMETHEUS_VARIABLE} does not say where KEDA finds a Prometheus that scrapes the gateways")
    return url


@pytest.fixture
def adapter(fleet, tmp_path: Path) -> Iterator[None]:
    """The stand-in for a metrics adapter, registered with the API server and allowed to the HPA's controller."""
    taken = fleet.kubectl("get", "apiservice", API_SERVICE, check=False)
    if taken.returncode == 0:
        pytest.skip("this cluster has a metrics adapter of its own")
    suffix = uuid.uuid4().hex[:6]
    objects = [*_adapter_objects(fleet, f"{ADAPTER}-{suffix}", _certificate(tmp_path)), *_api_objects(fleet, suffix)]
    try:
        fleet.apply(*objects, namespace=fleet.system_namespace)
        fleet.wait("the metrics adapter to be available", lambda: _is_available(fleet))
        yield
    finally:
        for each in reversed(objects):
            fleet.kubectl(
                "delete", each["kind"], each["metadata"]["name"], "-n", fleet.system_namespace,
                "--ignore-not-found", "--wait=false", check=False,
            )  # fmt: skip


def _is_available(fleet) -> bool:
    conditions = fleet.get("apiservice", API_SERVICE).get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


def _certificate(folder: Path) -> dict[str, str]:
    """A self-signed one, as the adapter's environment; the API server is told not to check it."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={ADAPTER}",
         "-keyout", str(folder / "key"), "-out", str(folder / "certificate")],
        check=True, capture_output=True,
    )  # fmt: skip
    pair = "".join((folder / name).read_text() for name in ("certificate", "key"))
    return {external_metrics.CERTIFICATE_VARIABLE: pair}


def _adapter_objects(fleet, name: str, certificate: dict[str, str]) -> list[Json]:
    """The pod, what it runs, its Service, and its way through the gateways' NetworkPolicy."""
    from homes.kubernetes import OPERATOR  # needs Helm's SDK, which the home `local` does without

    fleet.wait_rolled_out("gateway")  # an earlier run's gateways may be on their way out
    gateways = [pod for pod in fleet.system_pods("gateway").values() if "deletionTimestamp" not in pod["metadata"]]
    urls = [f"http://{pod['status']['podIP']}:8081" for pod in gateways]
    script = Path(external_metrics.__file__).read_text()
    labels = {"app.kubernetes.io/name": name}
    metadata = {"name": name, "labels": labels}
    pod = server(name, OPERATOR, script, urls, certificate) | {"metadata": metadata}
    allowed = {
        "podSelector": {"matchLabels": GATEWAY_LABELS},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": labels}}], "ports": [{"port": 8081}]}],
    }
    return [
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": allowed},
        pod,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": PORT}]},
        },
        _api_service(fleet, name),
    ]


def _api_service(fleet, service: str) -> Json:
    spec = {
        "group": "external.metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": service, "namespace": fleet.system_namespace, "port": 443},
    }
    metadata = {"name": API_SERVICE}
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": spec}


def _api_objects(fleet, suffix: str) -> list[Json]:
    """The right to read the metrics, for the HPA's controller."""
    api, name = "rbac.authorization.k8s.io", f"{ADAPTER}-{suffix}"
    rule = {"apiGroups": ["external.metrics.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    role = {"apiGroup": api, "kind": "ClusterRole", "name": name}
    metadata = {"name": name}
    binding = {"kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role, "subjects": HPA_USERS}
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": [rule]},
        {"apiVersion": f"{api}/v1", **binding},
    ]
