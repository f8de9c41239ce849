"""The files of values in charts/fairlead/examples: each renders, is valid Kubernetes and does what its comments say."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm
import pod_security

from fairlead.operator_settings import OperatorSettings

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install -r requirements/kubernetes.txt")

EXAMPLES = {each.stem: each for each in sorted((helm.CHART / "examples").glob("*.yaml"))}
APIS = [f"monitoring.coreos.com/v1{kind}" for kind in ("", "/PodMonitor", "/PrometheusRule")]
Manifest = dict[str, Any]


def rendered(name: str, **options: Any) -> list[Manifest]:
    return helm.manifests(yaml.safe_load(EXAMPLES[name].read_text()), **options)


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def settings(manifests: list[Manifest]) -> OperatorSettings:
    (text,) = (
        each["data"]["operator.yaml"] for each in of_kind(manifests, "ConfigMap") if "operator.yaml" in each["data"]
    )
    return OperatorSettings.from_mapping(yaml.safe_load(text))


def test_there_is_one_for_each_case() -> None:
    assert set(EXAMPLES) == {"argocd", "gpu-pools", "openshift", "production"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rendering_is_valid_and_restricted(name: str) -> None:
    manifests = rendered(name, api_versions=APIS)
    for each in manifests:
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(each, "1.37", strict=True)
    for each in of_kind(manifests, "Deployment"):
        assert pod_security.restricted_violations(each["spec"]["template"]["spec"]) == []
    assert settings(manifests)
    assert "WARNING" not in helm.render(yaml.safe_load(EXAMPLES[name].read_text()))["fairlead/templates/NOTES.txt"]


def test_in_production_nothing_is_single_and_clients_come_by_tls() -> None:
    manifests = rendered("production", api_versions=APIS)
    operator, gateway = sorted(of_kind(manifests, "Deployment"), key=lambda each: "gateway" in each["metadata"]["name"])
    assert operator["spec"]["replicas"] == 2 and "replicas" not in gateway["spec"]
    (scaler,) = of_kind(manifests, "HorizontalPodAutoscaler")
    assert scaler["spec"]["minReplicas"] == 2
    (ingress,) = of_kind(manifests, "Ingress")
    assert ingress["spec"]["tls"] and not of_kind(manifests, "Secret"), "keys are not the chart's"
    told = settings(manifests)
    assert told.gateway_url.startswith("https://") and told.admission_policy is not None
    assert {"PodMonitor", "PrometheusRule", "ValidatingAdmissionPolicy"} <= {each["kind"] for each in manifests}


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_pod_has_a_priority_that_some_clouds_keep_to_themselves(name: str) -> None:
    """GKE makes no pods of these classes outside kube-system."""
    for each in of_kind(rendered(name), "Deployment"):
        assert not each["spec"]["template"]["spec"].get("priorityClassName", "").startswith("system-")


def test_on_openshift_no_pod_names_an_id() -> None:
    manifests = rendered("openshift")
    for each in of_kind(manifests, "Deployment"):
        context = each["spec"]["template"]["spec"]["securityContext"]
        assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert settings(manifests).engine_pod_security_context.fields == {}


def test_argo_cd_sees_the_same_each_time_whatever_the_cluster_serves() -> None:
    first = rendered("argocd", api_versions=APIS)
    assert first == rendered("argocd", api_versions=APIS, is_upgrade=True) == rendered("argocd")
    assert not of_kind(first, "Secret")


def test_pools_have_their_profiles_alone() -> None:
    told = settings(rendered("gpu-pools"))
    assert set(told.profiles) == {"cpu-small", "cpu-large", "l4", "h100-pair", "h100-slice"}
    assert told.default_profile == "l4"
    of_gpus = [profile for name, profile in told.profiles.items() if not name.startswith("cpu")]
    assert all(profile.shared_memory and "-cuda" in str(profile.image) for profile in of_gpus)


def test_each_is_shown_in_the_guide() -> None:
    guide = (Path(helm.CHART).parent.parent / "docs" / "kubernetes.md").read_text()
    assert all(f"examples/{name}.yaml" in guide for name in EXAMPLES)
