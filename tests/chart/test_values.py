"""Every value of the chart is documented, in the schema, and does something; anything else is refused by name."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm

from fairlead.gateway.settings import GatewaySettings
from fairlead.settings import BUILT_IN_PROFILES, OperatorSettings

SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
CHOSEN_BY_THE_CHART = {"host", "port", "control_host", "control_port", "drain_delay", "drain_timeout"}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def test_every_value_has_another_one_in_the_tests(alternatives: dict[str, Any], value_paths: set[str]) -> None:
    assert set(alternatives) == value_paths


def test_every_value_changes_what_is_installed(installed: dict[str, list[dict[str, Any]]]) -> None:
    def without_keys(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keys are random: only that there are some counts."""
        return [one | {"stringData": None} if one["kind"] == "Secret" else one for one in manifests]

    default = without_keys(installed["default"])
    idle = [name for name, found in installed.items() if name != "default" and without_keys(found) == default]
    assert idle == [], "these values change nothing"


def test_every_value_is_in_the_schema_and_nothing_else(values: dict[str, Any]) -> None:
    def compare(schema: dict[str, Any], values: Any, path: str) -> None:
        schema = resolve(schema)
        if "properties" not in schema or not isinstance(values, dict) or not values or path.endswith("resources"):
            return
        assert schema["additionalProperties"] is False, f"{path} takes typing errors"
        assert set(schema["properties"]) - {"global"} == set(values), path
        for key, value in values.items():
            compare(schema["properties"][key], value, f"{path}.{key}")

    compare(SCHEMA, values, "values")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"gatway": {"replicas": 2}}, "gatway"),
        ({"gateway": {"replica": 2}}, "replica"),
        ({"gateway": {"settings": {"maxQueues": 2}}}, "maxQueues"),
        ({"gateway": {"replicas": "two"}}, "/gateway/replicas"),
        ({"gateway": {"replicas": 0}}, "/gateway/replicas"),
        ({"operator": {"leaseDuration": "15"}}, "/operator/leaseDuration"),
        ({"watch": {"namespaces": ["Team A"]}}, "/watch/namespaces/0"),
        ({"profiles": {"mine": {"limit": {"cpu": 1}}}}, "limit"),
        ({"profiles": {"mine": {"limits": {"memory": "2 GB"}}}}, "/profiles/mine/limits/memory"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"networkPolicy": {"clients": [{"podSelecter": {}}]}}, "podSelecter"),
        ({"operator": {"logLevel": "chatty"}}, "/operator/logLevel"),
        ({"gateway": {"podLabels": {"app.kubernetes.io/name": "web"}}}, "propertyName .app.kubernetes.io/name"),
        ({"clusterDomain": "cluster.local."}, "/clusterDomain"),
        (
            {"defaultProfile": "cpu-huge"},
            "defaultProfile: there is no profile .*cpu-huge.*; there are amd-mi300x, cpu-l",
        ),
        ({"watch": {"allNamespaces": True, "namespaces": ["a"]}}, "exclude each other"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmError, match=named):
        helm.render(wrong)


def test_the_gateways_limits_are_all_values_with_the_programs_own_defaults(values: dict[str, Any]) -> None:
    def camel(name: str) -> str:
        head, *rest = name.split("_")
        return head + "".join(part.title() for part in rest)

    limits = [field for field in fields(GatewaySettings) if field.name not in CHOSEN_BY_THE_CHART]
    assert values["gateway"]["settings"] == {camel(field.name): field.default for field in limits}


def test_the_operators_own_settings_have_the_programs_own_defaults(values: dict[str, Any]) -> None:
    chart = {name: values["operator"][name] for name in ("workers", "logLevel", "autoscalerInterval", "resyncInterval",
                                                         "leaseDuration")}  # fmt: skip
    found, program = OperatorSettings.from_mapping(chart), OperatorSettings()
    for name in ("workers", "log_level", "autoscaler_interval", "resync_interval", "lease_duration", "default_profile"):
        assert getattr(found, name) == getattr(program, name)
    assert values["defaultProfile"] == program.default_profile


@pytest.mark.parametrize("name", BUILT_IN_PROFILES)
def test_a_built_in_profile_can_be_the_default(name: str) -> None:
    assert helm.render({"defaultProfile": name})


def test_the_profiles_are_those_that_the_documentation_promises(values: dict[str, Any]) -> None:
    gpus = {"nvidia-l4", "nvidia-a100-80g", "nvidia-h100", "nvidia-h200", "amd-mi300x"}
    assert set(values["profiles"]) == {"cpu-small", "cpu-large", *gpus}
    for name in gpus:
        profile = values["profiles"][name]
        resource = "amd.com/gpu" if name.startswith("amd") else "nvidia.com/gpu"
        assert profile["limits"][resource] == "1"
        assert [toleration["key"] for toleration in profile["tolerations"]] == [resource]
        assert profile["nodeSelector"]
        assert profile.get("runtimeClassName") == (None if name.startswith("amd") else "nvidia")


def test_the_reference_lists_every_value(value_paths: set[str]) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "chart-values.md").read_text()
    assert [path for path in value_paths if f"| `{path}` |" not in page] == []
