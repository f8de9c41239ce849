"""Every rendering is valid Kubernetes, for each version that people run and there are schemas of."""

import re
from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install -r requirements/kubernetes.txt")

VERSIONS = ("1.29", "1.32", "1.36", "1.37")
THOROUGH = VERSIONS[-1:]
"""With these every value of the chart is tried, with the others a few cases."""
FEW = ("default", "everything", "no keys")
CUSTOM = ("monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1")


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_rendering_is_valid(version: str, installed: dict[str, list[dict[str, Any]]]) -> None:
    seen: set[int] = set()
    for case in installed if version in THOROUGH else FEW:
        for manifest in installed[case]:
            if id(manifest) in seen or manifest["apiVersion"] in CUSTOM:
                continue
            seen.add(id(manifest))
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                pytest.fail(f"{case}: {manifest['kind']} {manifest['metadata']['name']}: {error}")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_documented_objects_are_valid(version: str) -> None:
    text = (helm.CHART.parent.parent / "docs" / "kubernetes.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    objects = [found for block in blocks for found in yaml.safe_load_all(block) if "kind" in found]
    assert [each["kind"] for each in objects] == ["ClusterRole", "ClusterRole"]
    for each in objects:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_mistake_would_be_found() -> None:
    manifest = next(one for one in helm.manifests() if one["kind"] == "Service")
    manifest["spec"]["selecter"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest, "1.32", strict=True)
