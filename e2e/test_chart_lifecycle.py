"""The chart's whole life on a real cluster: install, test, upgrade, rollback, uninstall, install again.

A release of its own in a namespace of its own, beside whatever else the cluster runs; no engines are started.
"""

import base64
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from homes import Fleet
from homes.kubectl import LABEL_OURS, Kubectl

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

from helm import HelmError, Release

from fairlead import __version__
from fairlead.api.names import CRD_NAME, OPERATOR_IMAGE

CRDS = Path(__file__).parents[1] / "charts/fairlead/crds"

pytestmark = [pytest.mark.core, pytest.mark.kubernetes_only(reason="local mode is not installed by Helm")]

NAMESPACE = "fairlead-lifecycle"
IMAGE = os.environ.get("FAIRLEAD_E2E_OPERATOR_IMAGE") or f"{OPERATOR_IMAGE}:{__version__}"
SMALL = {"requests": {"cpu": "20m", "memory": "128Mi"}}
MODEL = {
    "apiVersion": "fairlead.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {"name": "moored"},
    "spec": {"model": {"source": "demo://dinghy"}, "replicas": 0},
}
"""Needs the operator, and no engine."""


def values(**gateway: Any) -> dict[str, Any]:
    """For a node of two cores that others use, too."""
    repository, _, tag = IMAGE.rpartition(":")
    drain = {"delay": "0s", "timeout": "5s"}
    return {
        "image": {"repository": repository, "tag": tag},
        "operator": {"resources": SMALL},
        "gateway": {"replicas": 1, "resources": SMALL, "drain": drain, **gateway},
    }


class Cluster(Kubectl):
    """kubectl, in the release's namespace."""

    patience = 120.0
    poll_seconds = 0.5
    namespace = NAMESPACE

    def __init__(self, kubeconfig: Path, program: str) -> None:
        """`program`: kubectl."""
        self.kubeconfig = kubeconfig
        self.program = program

    def pods(self, component: str) -> dict[str, str]:
        """Name → uid of the pods that are not on their way out."""
        pods = self.get("pods", "", "-l", f"app.kubernetes.io/component={component}")["items"]
        found = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return {metadata["name"]: metadata["uid"] for metadata in found}

    def key(self) -> str:
        """The key that the chart made."""
        secret = self.get("secret", "fairlead-api-keys")
        return base64.b64decode(secret["data"]["default"]).decode()


@pytest.fixture(scope="module")
def cluster(fleet: Fleet) -> Iterator[Cluster]:
    """The suite's cluster, which has the CRD; the suite's own release looks after other namespaces."""
    fleet.claim_namespace(NAMESPACE)
    cluster = Cluster(fleet.kubeconfig, fleet.program)
    yield cluster
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    """The chart, installed."""
    with Release(cluster.kubeconfig, name="fairlead", namespace=NAMESPACE) as release:
        try:
            release.install(values(), crds=False)
            cluster.apply(MODEL)
            yield release
        finally:
            release.uninstall()


def test_the_programs_work_with_exactly_the_charts_rights(cluster: Cluster, release: Release) -> None:
    cluster.wait("conditions", lambda: cluster.condition("moored", "Ready"))
    events = cluster.kubectl("get", "events", "-o", "name").stdout
    logs = [cluster.kubectl("logs", f"deployment/fairlead-{name}").stdout for name in ("operator", "gateway")]
    for text in (events, *logs):
        for complaint in ("forbidden", "cannot", "lacks the right", "Not enough permissions", "Traceback"):
            assert complaint.lower() not in text.lower(), text
    assert "acquired the lease" in logs[0]


def test_helm_test_asks_with_the_key_through_the_service(release: Release) -> None:
    logs = release.test()
    assert "/v1/models without a key: 401" in logs
    assert "/v1/models with a key: 200" in logs


def test_other_settings_replace_the_operator_and_leave_gateways_and_key(cluster: Cluster, release: Release) -> None:
    operators, gateways, key = cluster.pods("operator"), cluster.pods("gateway"), cluster.key()
    changed = values()
    changed["operator"]["logLevel"] = "debug"
    release.upgrade(changed)
    cluster.wait("the old operator to go", lambda: not set(operators.values()) & set(cluster.pods("operator").values()))
    cluster.wait("the new one to lead", lambda: _holder(cluster) in cluster.pods("operator"))
    assert cluster.pods("gateway") == gateways
    assert cluster.key() == key
    assert "logLevel: debug" in cluster.get("configmap", "fairlead-operator")["data"]["operator.yaml"]


def test_a_rollback_brings_the_arguments_back_and_no_old_key(cluster: Cluster, release: Release) -> None:
    release.upgrade(values(logLevel="debug"))
    assert "--log-level=debug" in _arguments(cluster)
    rotated = f"fairlead-{secrets.token_hex(24)}"
    patch = json.dumps({"stringData": {"default": rotated}})
    cluster.kubectl("patch", "secret", "fairlead-api-keys", "-p", patch)
    release.rollback()
    assert "--log-level=info" in _arguments(cluster)
    assert cluster.key() == rotated
    assert [state for _, state in release.history()][-1] == "deployed"


def test_a_mistaken_value_changes_nothing(cluster: Cluster, release: Release) -> None:
    revisions, gateways = release.history(), cluster.pods("gateway")
    with pytest.raises(HelmError, match="drainTimeout"):
        release.upgrade({"gateway": {"drainTimeout": 60}})
    assert release.history() == revisions
    assert cluster.pods("gateway") == gateways


def test_uninstalling_leaves_what_people_made_and_installing_again_takes_it_up(
    cluster: Cluster, release: Release
) -> None:
    key = cluster.key()
    release.uninstall()
    for component in ("operator", "gateway"):
        cluster.wait(f"{component} pods to go", lambda component=component: not cluster.pods(component))
    for kind in ("service", "networkpolicy", "serviceaccount", "role", "rolebinding", "poddisruptionbudget"):
        assert "fairlead-" not in cluster.kubectl("get", kind, "-o", "name").stdout
    assert cluster.exists("llmdeployment", "moored")
    assert cluster.exists("crd", CRD_NAME)
    assert cluster.key() == key
    cluster.merge("moored", {"model": {"servedName": "again"}})
    release.install(values(), crds=False)
    cluster.wait("the operator to look at it again", lambda: _is_observed(cluster))
    assert cluster.key() == key


def test_the_documented_command_upgrades_the_crd(fleet: Fleet, cluster: Cluster, release: Release) -> None:
    """Helm leaves `crds/` as it is. What an older one lacked is there afterwards, and so is every LLMDeployment."""
    columns = "/spec/versions/0/additionalPrinterColumns"
    wanted = printed_columns(cluster)
    older = json.dumps([{"op": "replace", "path": columns, "value": wanted[:1]}])
    cluster.kubectl("patch", "crd", CRD_NAME, "--type=json", "-p", older)
    release.upgrade(values())
    assert printed_columns(cluster) == wanted[:1]
    try:
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
        assert printed_columns(cluster) == wanted
        assert cluster.exists("llmdeployment", "moored")
    finally:
        cluster.kubectl("label", "crd", CRD_NAME, f"{LABEL_OURS}=true", "--overwrite")  # the chart's has no such label
        fleet.apply_crd()


def printed_columns(cluster: Cluster) -> list[Any]:
    """What `kubectl get llm` shows."""
    return list(cluster.get("crd", CRD_NAME)["spec"]["versions"][0]["additionalPrinterColumns"])


def _holder(cluster: Cluster) -> str:
    """The operator's pod that leads."""
    return str(cluster.get("lease", "fairlead-operator")["spec"].get("holderIdentity", "")).rpartition("_")[0]


def _arguments(cluster: Cluster) -> list[str]:
    """Of the gateway."""
    return list(cluster.get("deployment", "fairlead-gateway")["spec"]["template"]["spec"]["containers"][0]["args"])


def _is_observed(cluster: Cluster) -> bool:
    found = cluster.get("llmdeployment", "moored")
    return bool(found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"])
