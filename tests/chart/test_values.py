"""Every value of the chart is documented, in the schema, and does something; anything else is refused by name."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm

from fairlead.api.engine_rules import OWNED_VARIABLES
from fairlead.api.quantities import format_duration, parse_duration
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.operator_settings import BUILT_IN_PROFILES, OperatorSettings, SettingsError

SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
CHOSEN_BY_THE_CHART = {
    "host",
    "port",
    "control_host",
    "control_port",
    "grpc_port",
    "drain_delay",
    "drain_timeout",
    "response_store",
    "response_retention",
    "file_store",
    "file_retention",
}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def test_every_value_has_another_one_in_the_tests(alternatives: dict[str, Any], value_paths: set[str]) -> None:
    assert set(alternatives) == value_paths


def test_every_value_changes_what_is_installed(installed: dict[str, list[dict[str, Any]]]) -> None:
    def without_keys(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keys are random: only that there are some counts."""
        return [one | {"stringData": None} if one["kind"] == "Secret" else one for one in manifests]

    idle = [
        name
        for name, found in installed.items()
        if name != "default"
        and not name.startswith("for ")
        and without_keys(found) == without_keys(installed.get(f"for {name}", installed["default"]))
    ]
    assert idle == [], "these values change nothing"


def test_every_value_is_in_the_schema_and_nothing_else(values: dict[str, Any]) -> None:
    def compare(schema: dict[str, Any], values: Any, path: str) -> None:
        schema = resolve(schema)
        if (
            "properties" not in schema
            or not isinstance(values, dict)
            or not values
            or path.endswith(("resources", "podSecurityContext"))
        ):
            return
        assert schema["additionalProperties"] is False, f"{path} takes typing errors"
        known = {name for name, node in schema["properties"].items() if not node.get("deprecated")}
        assert known - {"global"} == set(values), path
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
        ({"profiles": {"mine": {"image": "a b"}}}, "/profiles/mine/image"),
        ({"profiles": {"mine": {"env": {"A": "1"}}}}, "/profiles/mine/env"),
        ({"profiles": {"mine": {"env": [{"name": "a.b"}]}}}, "/profiles/mine/env/0/name"),
        ({"profiles": {"mine": {"env": [{"name": "A", "value": 1}]}}}, "/profiles/mine/env/0/value"),
        ({"profiles": {"mine": {"env": [{"name": "A"}, {"name": "A"}]}}}, "profiles.mine.env: A is there twice"),
        (
            {"profiles": {"mine": {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}]}}},
            "profiles.mine.env: A has both value and valueFrom",
        ),
        ({"profiles": {"mine": {"affinity": {"nodeAfinity": {}}}}}, "nodeAfinity"),
        ({"profiles": {"mine": {"nodeSelector": {"pool": "a b"}}}}, "/profiles/mine/nodeSelector/pool"),
        ({"profiles": {"mine": {"runtimeClassName": "No_Class"}}}, "/profiles/mine/runtimeClassName"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"networkPolicy": {"clients": [{"podSelecter": {}}]}}, "podSelecter"),
        ({"operator": {"logLevel": "chatty"}}, "/operator/logLevel"),
        ({"gateway": {"podLabels": {"app.kubernetes.io/name": "web"}}}, "propertyName .app.kubernetes.io/name"),
        ({"commonLabels": {"app.kubernetes.io/managed-by": "me"}}, "propertyName .app.kubernetes.io/managed-by"),
        ({"monitoring": {"podMonitors": {"labels": {"helm.sh/chart": "a"}}}}, "propertyName .helm.sh/chart"),
        ({"monitoring": {"rules": {"labels": {"app.kubernetes.io/version": "1"}}}}, "propertyName .app.kubernetes"),
        ({"monitoring": {"dashboards": {"labels": {"app.kubernetes.io/name": "a"}}}}, "propertyName .app.kubernetes"),
        ({"operator": {"podAnnotations": {"fairlead.dev/settings-hash": "a"}}}, "propertyName .fairlead.dev/settings"),
        ({"operator": {"serviceAccount": {"create": False}}}, "operator.serviceAccount: with create: false, name must"),
        ({"gateway": {"serviceAccount": {"create": False}}}, "gateway.serviceAccount: with create: false, name must"),
        (
            {"operator": {"serviceAccount": {"name": "fairlead-gateway"}}},
            "both are fairlead-gateway; .* one of its own",
        ),
        ({"operator": {"serviceAccount": {"name": "Our account"}}}, "/operator/serviceAccount/name"),
        (
            {"serviceAccounts": {"create": False}},
            "serviceAccounts: is now operator.serviceAccount and gateway.serviceA",
        ),
        ({"gateway": {"drain": {"delaySeconds": 2.5}}}, "gateway.drain.delaySeconds: is now .*: write delay: 2.5s"),
        ({"gateway": {"drain": {"timeoutSeconds": 60}}}, "gateway.drain.timeoutSeconds: is now .*: write timeout: 60s"),
        ({"gateway": {"drain": {"timeout": 60}}}, "gateway.drain.timeout: 60 has no unit: write 60s for seconds"),
        ({"gateway": {"settings": {"idleTimeout": 60}}}, "gateway.settings.idleTimeout: 60 has no unit: write 60s"),
        ({"gateway": {"settings": {"idleTimeout": "60"}}}, "/gateway/settings/idleTimeout"),
        (
            {"gateway": {"responseStore": {"retention": "0s"}}},
            "gateway.responseStore.retention: is 0s; use more than 0",
        ),
        ({"gateway": {"fileStore": {"claim": "files"}}}, "gateway.fileStore: needs gateway.responseStore.secret"),
        (
            {"gateway": {"fileStore": {"claim": "files", "bucket": "s3://files"}}},
            "gateway.fileStore: claim and bucket exclude each other",
        ),
        ({"gateway": {"settings": {"idleTimeout": "0s"}}}, "gateway.settings.idleTimeout: is 0s; use more than 0"),
        (
            {"gateway": {"settings": {"maxQueueBytes": 1}}},
            "gateway.settings.maxQueueBytes: 1 is below maxBodyBytes 16777",
        ),
        ({"gateway": {"settings": {"maxPartialBodyBytes": 9}}}, "maxPartialBodyBytes: 9 is below maxBodyBytes"),
        ({"operator": {"leaseDuration": 15}}, "operator.leaseDuration: 15 has no unit: write 15s"),
        (
            {"gateway": {"autoscaling": {"enabled": True, "minReplicas": 9}}},
            "gateway.autoscaling: minReplicas 9 is above maxReplicas 8",
        ),
        (
            {"gateway": {"autoscaling": {"enabled": True}, "resources": {"requests": None}}},
            "targetCPUUtilization is a share of gateway.resources.requests.cpu; set that, or metrics",
        ),
        ({"gateway": {"httpRoute": {"enabled": True}}}, "gateway.httpRoute.parentRefs: name the Gateway to attach to"),
        ({"gateway": {"ingress": {"hosts": ["https://a.b"]}}}, "/gateway/ingress/hosts/0"),
        ({"gateway": {"extraVolumes": [{"name": "scratch", "emptyDir": {}}]}}, "/gateway/extraVolumes/0/name"),
        ({"operator": {"extraVolumes": [{"name": "settings", "emptyDir": {}}]}}, "/operator/extraVolumes/0/name"),
        ({"operator": {"extraEnv": [{"value": "nameless"}]}}, "/operator/extraEnv/0"),
        ({"operator": {"extraEnv": [{"name": "A", "value": 1}]}}, "/operator/extraEnv/0/value"),
        ({"gateway": {"extraEnv": [{"name": "A=B", "value": ""}]}}, "/gateway/extraEnv/0/name"),
        (
            {"gateway": {"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
            "gateway.extraEnv: A is there twice",
        ),
        ({"operator": {"extraVolumes": [{"name": "a"}]}}, "/operator/extraVolumes/0"),
        (
            {"operator": {"extraVolumes": [{"name": "a", "emptyDir": {}}] * 2}},
            "operator.extraVolumes: a is there twice",
        ),
        (
            {"operator": {"extraVolumeMounts": [{"name": "nope", "mountPath": "/a"}]}},
            "operator.extraVolumeMounts: there is no volume nope; there are scratch, settings",
        ),
        ({"gateway": {"extraVolumeMounts": [{"name": "scratch", "mountPath": "a"}]}}, "/extraVolumeMounts/0/mountPath"),
        (
            {"gateway": {"extraVolumeMounts": [{"name": "scratch", "mountPath": "/tmp/"}]}},
            "gateway.extraVolumeMounts: something is mounted at /tmp already",
        ),
        (
            {"gateway": {"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": "0m"}}}},
            "gateway.resources.requests.cpu, which is 0; set more",
        ),
        ({"commonLabels": {"team": "a b"}}, "/commonLabels/team"),
        ({"commonLabels": {"a b": "c"}}, "propertyName .a b"),
        ({"gateway": {"podLabels": {"team": "a" * 64}}}, "/gateway/podLabels/team"),
        ({"operator": {"nodeSelector": {"gpu": True}}}, "/operator/nodeSelector/gpu"),
        ({"operator": {"priorityClassName": "High Priority"}}, "/operator/priorityClassName"),
        ({"auth": {"existingSecret": "Our Secret"}}, "/auth/existingSecret"),
        ({"gateway": {"url": "https://a.b/v1?key=c"}}, "/gateway/url"),
        ({"networkPolicy": {"clients": [{"ipBlock": {}}]}}, "/networkPolicy/clients/0/ipBlock"),
        ({"networkPolicy": {"clients": [{"ipBlock": {"cidr": "all"}}]}}, "/networkPolicy/clients/0/ipBlock/cidr"),
        (
            {"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}},
            "networkPolicy.clients: an ipBlock stands alone",
        ),
        ({"podDisruptionBudget": {"maxUnavailable": "150%"}}, "/podDisruptionBudget/maxUnavailable"),
        ({"topologySpread": {"topologyKeys": ["a b"]}}, "/topologySpread/topologyKeys/0"),
        ({"image": None}, "missing property 'image'"),
        ({"gateway": {"drain": {"delay": None}}}, "/gateway/drain': missing property 'delay'"),
        ({"gateway": {"service": {"nodePort": 30080}}}, "gateway.service.nodePort: is for the types NodePort and Load"),
        ({"gateway": {"grpc": {"enabled": True, "port": 80}}}, "gateway.grpc.port: is 80, as gateway.service.port"),
        ({"gateway": {"service": {"externalTrafficPolicy": "Local"}}}, "externalTrafficPolicy: is for the types NodeP"),
        ({"gateway": {"service": {"type": "NodePort", "loadBalancerClass": "a"}}}, "LoadBalancer, not for NodePort"),
        ({"gateway": {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}}, "LoadBalancer, not for ClusterIP"),
        ({"gateway": {"service": {"loadBalancerSourceRanges": ["10.0.0.0"]}}}, "/gateway/service/loadBalancerSourceR"),
        ({"gateway": {"podSecurityContext": {"runAsUser": 0}}}, "/gateway/podSecurityContext/runAsUser"),
        ({"operator": {"podSecurityContext": {"runAsNonRoot": False}}}, "runAsNonRoot"),
        ({"clusterDomain": "cluster.local."}, "/clusterDomain"),
        (
            {"defaultProfile": "cpu-huge"},
            "defaultProfile: there is no profile .*cpu-huge.*; there are cpu-large, cpu-medium",
        ),
        ({"watch": {"allNamespaces": True, "namespaces": ["a"]}}, "exclude each other"),
        (
            {"gateway": {"replicas": 3, "autoscaling": {"enabled": True}}},
            "gateway.replicas: is 3, and gateway.autoscal",
        ),
        ({"operator": {"leaseDuration": "2s500ms"}}, "operator.leaseDuration: is only 2s500ms; use 3s or more"),
        ({"operator": {"resyncInterval": "1s"}}, "operator.resyncInterval: is only 1s; use 3s or more"),
        ({"operator": {"autoscalerInterval": "50ms"}}, "operator.autoscalerInterval: is only 50ms; use 100ms or more"),
        ({"gateway": {"url": "https://a.b/x: z"}}, "/gateway/url"),
        ({"monitoring": {"podMonitors": {"interval": "5s"}}}, "scrapeTimeout of 10s is longer than the interval of 5s"),
        ({"image": {"repository": "registry.example.com:5000/fairlead:v1"}}, "/image/repository"),
        ({"engineImage": {"repository": "fairlead/engine:v1"}}, "/engineImage/repository"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmError, match=named):
        helm.render(wrong)


def test_no_value_that_templates_count_on_may_be_null(values: dict[str, Any]) -> None:
    """Helm takes a null for "as if the chart had not said it"; the schema then names what is missing."""

    def check(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        schema = resolve(schema)
        if schema.get("additionalProperties") is not False or path.endswith(("resources", "podSecurityContext")):
            return
        for name, value in values.items():
            here = f"{path}.{name}"
            is_section = isinstance(value, dict) and "properties" in resolve(schema["properties"][name])
            if is_section and name not in ("resources", "podSecurityContext"):
                check(schema["properties"][name], value, here)
            elif isinstance(value, dict | list) or value == "":
                continue
            assert name in schema["required"], f"{here} may be null"

    check(SCHEMA, values, "")


def test_the_longest_name_makes_labels_that_fit() -> None:
    rendered = helm.render({"nameOverride": "a" * 53}, name="b" * 53, api_versions=["monitoring.coreos.com/v1"])
    labels = [label for one in helm.objects(rendered) for label in one["metadata"]["labels"].values()]
    assert max(map(len, labels)) == 63
    assert "a" * 52 + "-monitoring" in labels and "a" * 53 + "-gateway" in labels


@pytest.mark.parametrize("name", ["leaseDuration", "resyncInterval", "autoscalerInterval"])
def test_the_chart_bounds_the_operators_times_as_the_operator_does(name: str) -> None:
    """The shortest time that the operator takes is rendered, and a millisecond less is refused by both."""
    bound = 0.1 if name == "autoscalerInterval" else 3.0
    OperatorSettings.from_mapping({name: format_duration(bound)})
    assert helm.render({"operator": {name: format_duration(bound)}})
    too_short = format_duration(bound - 0.001)
    with pytest.raises(SettingsError):
        OperatorSettings.from_mapping({name: too_short})
    with pytest.raises(helm.HelmError, match=f"operator.{name}"):
        helm.render({"operator": {name: too_short}})


@pytest.mark.parametrize(
    "repository",
    ["fairlead", "fairlead/operator", "localhost:5000/a/b", "registry.example.com/a_b/c__d-e.f", "[::1]:5000/operator"],
)
def test_an_image_may_be_anywhere(repository: str) -> None:
    manifests = helm.manifests({"image": {"repository": repository, "tag": "v1"}})
    deployments = [one for one in manifests if one["kind"] == "Deployment"]
    found = {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in deployments}
    assert found == {f"{repository}:v1"}


def test_the_gateways_limits_are_all_values_with_the_programs_own_defaults(values: dict[str, Any]) -> None:
    def camel(name: str) -> str:
        head, *rest = name.split("_")
        return head + "".join(part.title() for part in rest)

    limits = [field for field in fields(GatewaySettings) if field.name not in CHOSEN_BY_THE_CHART]
    durations = {camel(field.name) for field in limits if isinstance(field.default, float)}
    written = values["gateway"]["settings"]
    texts = {camel(field.name) for field in limits if isinstance(field.default, str)}
    assert {name for name, value in written.items() if isinstance(value, str)} == durations | texts, "times have units"
    found = {name: parse_duration(value) if name in durations else value for name, value in written.items()}
    assert found == {camel(field.name): field.default for field in limits}


def test_the_operators_own_settings_have_the_programs_own_defaults(values: dict[str, Any]) -> None:
    chart = {name: values["operator"][name] for name in ("workers", "logLevel", "autoscalerInterval", "resyncInterval",
                                                         "leaseDuration")}  # fmt: skip
    found, program = OperatorSettings.from_mapping(chart), OperatorSettings()
    for name in ("workers", "log_level", "autoscaler_interval", "resync_interval", "lease_duration", "default_profile"):
        assert getattr(found, name) == getattr(program, name)
    assert values["defaultProfile"] == program.default_profile


@pytest.mark.parametrize("name", OWNED_VARIABLES)
def test_a_profile_has_no_variable_that_the_operator_would_refuse(name: str) -> None:
    values = {"profiles": {"mine": {"env": [{"name": name.replace("*", "A"), "value": "1"}]}}}
    with pytest.raises(helm.HelmError, match=r"profiles.mine.env: .* is said by the operator"):
        helm.render(values)


def test_a_profile_may_have_one_gpu_of_any_kind() -> None:
    limits = {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": "1", "memory": "8Gi"}
    assert helm.render({"profiles": {"slice": {"limits": limits, "requests": {"nvidia.com/mig-1g.10gb": 1}}}})


@pytest.mark.parametrize("name", BUILT_IN_PROFILES)
def test_a_built_in_profile_can_be_the_default(name: str) -> None:
    assert helm.render({"defaultProfile": name})


def test_the_profiles_are_those_that_the_documentation_promises(values: dict[str, Any]) -> None:
    gpus = {"nvidia-l4", "nvidia-a100-80g", "nvidia-h100", "nvidia-h200"}
    assert set(values["profiles"]) == {"cpu-small", "cpu-large", *gpus}
    for name in gpus:
        profile = values["profiles"][name]
        assert profile["limits"]["nvidia.com/gpu"] == "1"
        assert [toleration["key"] for toleration in profile["tolerations"]] == ["nvidia.com/gpu"]
        assert profile["nodeSelector"]
        assert profile["runtimeClassName"] == "nvidia"


def test_the_reference_lists_every_value(value_paths: set[str]) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "chart-values.md").read_text()
    assert [path for path in value_paths if f"| `{path}` |" not in page] == []


def test_values_that_the_documentation_shows_are_taken(values: dict[str, Any]) -> None:
    docs = helm.CHART.parent.parent / "docs"
    shown = [
        document
        for page in sorted(docs.rglob("*.md"))
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for document in yaml.safe_load_all(block)
        if isinstance(document, dict) and document.keys() & values.keys()
    ]
    assert len(shown) >= 5
    for document in shown:
        assert helm.render(document)
