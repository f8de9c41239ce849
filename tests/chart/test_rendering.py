"""What the chart installs: the programs take their arguments and settings, names hold together, changes roll pods."""

import argparse
import base64
import re
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from api_schemas import schema_of

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm

from fairlead import __version__
from fairlead.api import names
from fairlead.api.llmdeployment import EnvironmentVariable
from fairlead.cli import chat
from fairlead.cli.options import KEY_VARIABLE
from fairlead.controller import operator as operator_module
from fairlead.gateway.gateway_command import add_arguments
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.operator_settings import Affinity, OperatorSettings, Profile
from fairlead_common.settings import given, values_of

ROOT = Path(__file__).parent.parent.parent
Manifest = dict[str, Any]
MONITORING_APIS = ["monitoring.coreos.com/v1"]
LONG_NAMES = {"ConfigMap", "PodMonitor", "PrometheusRule"}
"""Kinds whose names become no label and no DNS label."""
LEFT_ALONE = {"admissionPolicy", "allowFileSources", "claimsFolder", "host", "port"}
"""Settings of the operator that no cluster needs to change, and the one that is there where it is asked for."""


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name)


def operator_settings(manifests: list[Manifest], name: str = "fairlead-operator") -> dict[str, Any]:
    return yaml.load(find(manifests, "ConfigMap", name)["data"]["operator.yaml"], Loader=yaml.CSafeLoader)


def told_operator(values: dict[str, Any]) -> OperatorSettings:
    """What the operator of a release with these values makes of its settings."""
    return OperatorSettings.from_mapping(operator_settings(helm.manifests(values)))


def gateway_arguments(manifests: list[Manifest], name: str = "fairlead-gateway") -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    program, *arguments = find(manifests, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert program == "gateway"
    parsed = parser.parse_args(arguments)
    return argparse.Namespace(**vars(parsed) | values_of(GatewaySettings, given(parsed, [GatewaySettings])))


def test_lint_has_nothing_to_say() -> None:
    assert helm.lint() == []


def test_the_chart_has_the_products_version_and_crds() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    root = Path(__file__).parent.parent.parent / "crds"
    chart_crds = {path.name: path.read_text() for path in (helm.CHART / "crds").iterdir()}
    assert chart_crds == {path.name: path.read_text() for path in root.iterdir()}, "copy crds/ into charts/fairlead/"


def test_every_rendering_is_taken_by_the_programs(installed: dict[str, list[Manifest]]) -> None:
    for case, manifests in installed.items():
        prefix = "harbour" if case == "fullnameOverride" else "fairlead"
        OperatorSettings.from_mapping(operator_settings(manifests, f"{prefix}-operator"))
        arguments = gateway_arguments(manifests, f"{prefix}-gateway")
        GatewaySettings(**given(arguments, [GatewaySettings]))
        assert (arguments.api_keys_dir is None) is bool(arguments.no_api_keys), case


def test_the_operator_is_told_every_setting_that_depends_on_the_cluster(installed: dict[str, list[Manifest]]) -> None:
    written = operator_settings(installed["everything"])
    assert set(schema_of(OperatorSettings)["properties"]) - set(written) == LEFT_ALONE


def test_no_setting_is_written_twice(installed: dict[str, list[Manifest]]) -> None:
    text = find(installed["everything"], "ConfigMap", "fairlead-operator")["data"]["operator.yaml"]
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    assert len(keys) == len(set(keys))


class OneKeyLoader(yaml.SafeLoader):
    """Refuses a map that has a key twice, as Kubernetes does where it is asked to be strict."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(names) == len(set(names)), f"a key twice in {names}"
        return super().construct_mapping(node, deep=deep)


def test_no_key_is_written_twice_whoever_labels_what() -> None:
    mine = {"example.com/team": "inference"}
    values = {
        "commonLabels": {"example.com/team": "platform", "example.com/cost-centre": "7"},
        "gateway": {"podLabels": mine},
        "operator": {"podLabels": mine, "podAnnotations": mine},
        "monitoring": {part: {"labels": mine} for part in ("podMonitors", "rules", "dashboards")},
    }
    rendering = helm.render(values, api_versions=MONITORING_APIS)
    found = [
        one
        for name, text in rendering.items()
        if not name.endswith(".txt")
        for one in yaml.load_all(text, OneKeyLoader)
        if one
    ]
    assert find(found, "PodMonitor", "fairlead-gateway")["metadata"]["labels"]["example.com/team"] == "inference"
    assert find(found, "Service", "fairlead-gateway")["metadata"]["labels"]["example.com/team"] == "platform"
    for manifest in found:
        assert manifest["metadata"]["labels"]["example.com/cost-centre"] == "7"
        if manifest["kind"] == "Deployment":
            assert "example.com/cost-centre" not in manifest["spec"]["selector"]["matchLabels"]
            assert pod_labels(manifest) | {"example.com/cost-centre": "7", **mine} == pod_labels(manifest)


def test_a_key_twice_would_be_found() -> None:
    with pytest.raises(AssertionError, match="a key twice"):
        yaml.load("{a: 1, a: 2}", OneKeyLoader)


def test_names_follow_the_release_and_its_namespace() -> None:
    manifests = helm.manifests({"gateway": {"service": {"port": 8000}}}, name="blue", namespace="models")
    assert {one["metadata"]["name"].partition("-")[0] for one in manifests} == {"blue"}
    assert {one["metadata"]["namespace"] for one in manifests} == {"models"}
    settings = OperatorSettings.from_mapping(operator_settings(manifests, "blue-operator"))
    assert settings.gateway_url == "http://blue-gateway.models:8000"
    assert settings.gateway_service == "blue-gateway.models.svc.cluster.local"
    assert settings.watch_namespaces == ("models",)
    assert (settings.lease_namespace, settings.lease_name) == ("models", "blue-operator")


def test_names_that_look_like_numbers_stay_names() -> None:
    values = {
        "fullnameOverride": "harbour",
        "networkPolicy": {"monitoringNamespace": "30"},
        "watch": {"namespaces": ["10"]},
    }
    manifests = helm.manifests(values, name="2026", namespace="20", api_versions=MONITORING_APIS)
    assert {one["metadata"]["namespace"] for one in manifests} == {"10", "20"}
    for manifest in manifests:
        assert all(isinstance(value, str) for value in manifest["metadata"]["labels"].values())
    settings = OperatorSettings.from_mapping(operator_settings(manifests, "harbour-operator"))
    assert (settings.gateway_namespace, settings.lease_namespace, settings.monitoring_namespace) == ("20", "20", "30")


DIGEST = f"sha256:{'0' * 64}"
IN_NUMBERS = {
    "requests": {"cpu": 0.5, "memory": 2147483648}, "limits": {"cpu": 2}, "sharedMemory": 1e9, "gpuMemory": 8e10,
}  # fmt: skip
AS_TEXT = Profile(
    requests={"cpu": "0.5", "memory": "2147483648"}, limits={"cpu": "2"}, shared_memory="1000000000",
    gpu_memory="80000000000",
)  # fmt: skip
WHOLE = {
    "image": "registry.example.com/engine@sha256:1",
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}],
    "nodeSelector": {"pool": "a"}, "affinity": {"nodeAffinity": {"a": [1]}, "podAntiAffinity": {"b": {}}},
    "tolerations": [{"operator": "Exists"}], "runtimeClassName": "nvidia", "priorityClassName": "high",
}  # fmt: skip
READ = Profile(
    image="registry.example.com/engine@sha256:1",
    env=(EnvironmentVariable(name="A", value="1"), EnvironmentVariable(name="B", value_from={})),
    node_selector={"pool": "a"},
    affinity=Affinity(node_affinity={"a": [1]}, pod_anti_affinity={"b": {}}),
    tolerations=({"operator": "Exists"},), runtime_class_name="nvidia", priority_class_name="high",
)  # fmt: skip
SERVICE = "fairlead-gateway.fairlead-system.svc"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"clusterDomain": "k8s.example.com"}, {"gateway_service": f"{SERVICE}.k8s.example.com"}),
        (
            {"gateway": {"url": "https://models.example.com"}},
            {"gateway_url": "https://models.example.com", "gateway_service": f"{SERVICE}.cluster.local"},
        ),
        ({"gateway": {"url": "https://a.example.com/a:"}}, {"gateway_url": "https://a.example.com/a:"}),
        ({}, {"engine_image_pull_policy": "IfNotPresent", "engine_image_pull_secrets": ()}),
        (
            {"engineImage": {"pullPolicy": "Never", "pullSecrets": [{"name": "b"}, {"name": "a"}]}},
            {"engine_image_pull_policy": "Never", "engine_image_pull_secrets": ("b", "a")},
        ),
        ({"engineImage": {"digest": DIGEST, "tag": "v1"}}, {"engine_image": f"fairlead/engine@{DIGEST}"}),
    ],
    ids=["another domain", "the world's address", "an odd address", "pulled as usual", "never pulled", "by digest"],
)
def test_what_is_set_reaches_the_operator(values: dict[str, Any], told: dict[str, Any]) -> None:
    settings = told_operator(values)
    assert {name: getattr(settings, name) for name in told} == told


@pytest.mark.parametrize(
    ("written", "profile"),
    [(IN_NUMBERS, AS_TEXT), (WHOLE, READ), ({}, Profile())],
    ids=["quantities in numbers", "nodes, image and variables", "nothing reserved"],
)
def test_a_profile_reaches_the_operator(written: dict[str, Any], profile: Profile) -> None:
    assert told_operator({"profiles": {"1": written}, "defaultProfile": "1"}).profiles["1"] == profile


@pytest.mark.parametrize("name", ["2026", "my.release", "7up"])
def test_a_release_whose_name_no_service_may_have_needs_another_name(name: str) -> None:
    with pytest.raises(helm.HelmError, match=rf"release {re.escape(name)}: .* set fullnameOverride"):
        helm.render(name=name)
    manifests = helm.manifests({"fullnameOverride": "harbour"}, name=name)
    assert find(manifests, "Service", "harbour-gateway")


def test_the_default_release_has_the_names_that_local_mode_has() -> None:
    manifests = helm.manifests(name="fairlead", namespace=names.SYSTEM_NAMESPACE)
    settings, program = OperatorSettings.from_mapping(operator_settings(manifests)), OperatorSettings()
    for name in (
        "gateway_url",
        "gateway_service",
        "gateway_namespace",
        "lease_namespace",
        "lease_name",
        "engine_image",
    ):
        assert getattr(settings, name) == getattr(program, name), name
    for name in (names.GATEWAY_NAME, names.OPERATOR_NAME):
        assert find(manifests, "Deployment", name)["spec"]["template"]["metadata"]["labels"][names.LABEL_NAME] == name
    image = find(manifests, "Deployment", names.GATEWAY_NAME)["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"{names.OPERATOR_IMAGE}:{__version__}"


def test_no_name_is_too_long_with_the_longest_release_name() -> None:
    for values in ({}, {"watch": {"allNamespaces": True}}, {"operator": {"replicas": 2}}):
        for manifest in helm.manifests(values, name="r" * 53):
            limit = 253 if manifest["kind"] in LONG_NAMES else 63
            assert len(manifest["metadata"]["name"]) <= limit
            labels = {**manifest["metadata"]["labels"], **pod_labels(manifest)}
            assert [value for value in labels.values() if len(value) > 63] == []


def pod_labels(manifest: Manifest) -> dict[str, str]:
    template = manifest.get("spec", {}).get("template") or {"metadata": {}}
    return template["metadata"].get("labels", {})


def test_selectors_find_the_pods_of_this_release_only() -> None:
    ours, others = (helm.manifests(name=name) for name in ("fairlead", "second"))
    for component in ("gateway", "operator"):
        own = find(ours, "Deployment", f"fairlead-{component}")
        labels = pod_labels(own)
        foreign = pod_labels(find(others, "Deployment", f"second-{component}"))
        policy = find(ours, "NetworkPolicy", f"fairlead-{component}")
        selectors = [own["spec"]["selector"]["matchLabels"], policy["spec"]["podSelector"]["matchLabels"]]
        if component == "gateway":
            selectors += [find(ours, "Service", "fairlead-gateway")["spec"]["selector"]]
            selectors += [find(ours, "PodDisruptionBudget", "fairlead-gateway")["spec"]["selector"]["matchLabels"]]
        text = operator_settings(ours)[f"{component}Selector"]
        selectors += [dict(part.split("=") for part in text.split(","))]
        for selector in selectors:
            assert selector.items() <= labels.items()
            assert not selector.items() <= foreign.items()


def test_watched_namespaces_reach_both_programs() -> None:
    manifests = helm.manifests({"watch": {"namespaces": ["b", "a"]}})
    assert gateway_arguments(manifests).namespace == ["a", "b"]
    assert operator_settings(manifests)["watchNamespaces"] == ["a", "b"]
    manifests = helm.manifests({"watch": {"allNamespaces": True}})
    assert gateway_arguments(manifests).namespace is None
    assert "watchNamespaces" not in operator_settings(manifests)


def test_a_gateway_gets_the_time_that_its_drain_takes() -> None:
    manifests = helm.manifests({"gateway": {"drain": {"delay": "2s500ms", "timeout": "1m"}}})
    pod = find(manifests, "Deployment", "fairlead-gateway")["spec"]["template"]["spec"]
    arguments = gateway_arguments(manifests)
    assert (arguments.drain_delay, arguments.drain_timeout) == (2.5, 60)
    assert pod["terminationGracePeriodSeconds"] == 73


def test_other_settings_roll_the_operator_and_nothing_else() -> None:
    before, after = (helm.manifests({"operator": {"workers": number}}) for number in (4, 5))
    for name, rolls in (("fairlead-operator", True), ("fairlead-gateway", False)):
        templates = [find(manifests, "Deployment", name)["spec"]["template"] for manifests in (before, after)]
        assert (templates[0] != templates[1]) is rolls


def test_a_new_chart_with_the_same_programs_rolls_nothing(tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(helm.CHART, tmp_path / "fairlead")
    text = (copy / "Chart.yaml").read_text()
    (copy / "Chart.yaml").write_text(text.replace(f"version: {__version__}\n", "version: 99.0.0\n", 1))
    for name in ("fairlead-operator", "fairlead-gateway"):
        before, after = (find(helm.manifests(chart=chart), "Deployment", name) for chart in (helm.CHART, copy))
        assert before["metadata"]["labels"] != after["metadata"]["labels"]
        assert before["spec"]["template"] == after["spec"]["template"]


def test_a_roll_of_the_gateways_never_has_fewer_than_asked_for() -> None:
    deployment = find(helm.manifests(), "Deployment", "fairlead-gateway")["spec"]
    assert deployment["replicas"] >= 2
    assert deployment["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def test_a_profile_can_be_added_changed_and_removed() -> None:
    changes = {"mine": {"limits": {"cpu": 2}}, "cpu-small": {"limits": {"memory": "3Gi"}}, "nvidia-l4": None}
    profiles = operator_settings(helm.manifests({"profiles": changes}))["profiles"]
    assert profiles["mine"] == {"limits": {"cpu": "2"}}
    assert profiles["cpu-small"] == {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    assert "nvidia-l4" not in profiles


def test_the_key_is_random_is_made_once_and_stays() -> None:
    first, second = (find(helm.manifests(), "Secret", "fairlead-api-keys") for _ in range(2))
    assert first["stringData"]["default"] != second["stringData"]["default"]
    assert len(first["stringData"]["default"]) >= 40
    assert first["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "before-hook-creation" not in first["metadata"]["annotations"]["helm.sh/hook-delete-policy"]


@pytest.mark.parametrize("auth", [{"enabled": False}, {"existingSecret": "ours"}])
def test_no_key_is_made_where_none_is_needed(auth: dict[str, Any]) -> None:
    assert [one["metadata"]["name"] for one in helm.manifests({"auth": auth}) if one["kind"] == "Secret"] == []


def test_keys_reach_the_gateway_and_the_test_as_files() -> None:
    manifests = helm.manifests({"auth": {"existingSecret": "ours"}})
    gateway = find(manifests, "Deployment", "fairlead-gateway")["spec"]["template"]["spec"]
    test = find(manifests, "Pod", "fairlead-test")["spec"]
    folder = str(gateway_arguments(manifests).api_keys_dir)
    assert test["containers"][0]["env"][1] == {"name": "API_KEYS", "value": folder}
    for pod in (gateway, test):
        volume = next(volume for volume in pod["volumes"] if volume.get("secret", {}).get("secretName") == "ours")
        assert {"name": volume["name"], "mountPath": folder, "readOnly": True} in pod["containers"][0]["volumeMounts"]


def test_the_service_is_what_a_load_balancer_needs() -> None:
    chosen = {
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/internal",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
    }  # fmt: skip
    values = {"gateway": {"service": {**chosen, "nodePort": 30080}}}
    spec = find(helm.manifests(values), "Service", "fairlead-gateway")["spec"]
    assert {name: spec[name] for name in chosen} == chosen
    assert spec["ports"] == [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP", "nodePort": 30080}]
    plain = find(helm.manifests(), "Service", "fairlead-gateway")["spec"]
    assert set(plain) == {"type", "selector", "ports"}
    assert "nodePort" not in plain["ports"][0]


def test_grpc_has_a_port_of_its_own_where_it_is_wanted() -> None:
    manifests = helm.manifests({"gateway": {"grpc": {"enabled": True, "port": 9000}}})
    pod = find(manifests, "Deployment", "fairlead-gateway")["spec"]["template"]["spec"]["containers"][0]
    assert "--grpc-port=8082" in pod["args"]
    assert {"name": "grpc", "containerPort": 8082, "protocol": "TCP"} in pod["ports"]
    _, port = find(manifests, "Service", "fairlead-gateway")["spec"]["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("grpc", 9000, "grpc")
    policy = find(manifests, "NetworkPolicy", "fairlead-gateway")["spec"]["ingress"][0]
    assert {"port": 8082, "protocol": "TCP"} in policy["ports"]


def test_what_other_charts_are_told_changes_nothing() -> None:
    values = {"auth": {"existingSecret": "ours"}}
    assert helm.render({**values, "global": {"imageRegistry": "registry.example.com"}}) == helm.render(values)


def test_the_test_runs_where_gateways_do() -> None:
    nodes = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "2026",
    }
    in_zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [in_zone]}}}
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    manifests = helm.manifests({"gateway": {**nodes, "affinity": {**affinity, **anti}}})
    gateway = find(manifests, "Deployment", "fairlead-gateway")["spec"]["template"]["spec"]
    test = find(manifests, "Pod", "fairlead-test")["spec"]
    assert {name: gateway[name] for name in nodes} == {name: test[name] for name in nodes} == nodes
    assert gateway["affinity"] == {**affinity, **anti}
    assert test["affinity"] == affinity, "gateways keep apart from one another, not the test from them"
    assert "topologySpreadConstraints" not in test


def test_notes_name_the_next_commands() -> None:
    notes = helm.render(name="blue", namespace="models")["fairlead/templates/NOTES.txt"]
    for command in ("helm test blue --namespace models", "kubectl apply --namespace models -f examples/01-dinghy.yaml",
                    "kubectl get secret --namespace models blue-api-keys", "use http://blue-gateway.models/v1.",
                    "fairlead dashboard --system-namespace models --service blue-gateway\n",
                    "kubectl apply --server-side --force-conflicts -f charts/fairlead/crds/"):  # fmt: skip
        assert command in notes
    open_notes = helm.render({"auth": {"enabled": False}})["fairlead/templates/NOTES.txt"]
    assert "secret" not in open_notes and "API_KEY" not in open_notes and "fairlead dashboard\n" in open_notes
    assert "dashboard" not in notes_of({"gateway": {"settings": {"pages": False}}})


def test_notes_take_a_key_from_the_secret_that_was_given() -> None:
    command = "get secret --namespace fairlead-system ours -o go-template='{{range .data}}{{. | base64decode}}"
    assert command in notes_of({"auth": {"existingSecret": "ours"}})


def test_notes_say_first_which_namespaces_are_served() -> None:
    first = " ".join(notes_of({"watch": {"namespaces": ["team-b", "team-a"]}}).split())
    assert first.startswith(
        "Fairlead 0.1.0 looks after LLMDeployments in team-a, team-b, and nowhere else: those of other"
    )
    assert "nowhere else" not in notes_of({"watch": {"allNamespaces": True}})


def notes_of(values: Manifest, **options: Any) -> str:
    return helm.render(values, **options)["fairlead/templates/NOTES.txt"]


@pytest.mark.parametrize("auth", [True, False])
def test_the_notes_ask_with_the_gateways_own_programs(auth: bool) -> None:
    values = {"auth": {"enabled": auth}}
    lines = notes_of(values).replace("\\\n", "").splitlines()
    words = shlex.split(next(line for line in lines if "kubectl exec" in line))
    place, command = words[: words.index("--")], words[words.index("--") + 1 :]
    assert place == ["kubectl", "exec", "--namespace", "fairlead-system", "deploy/fairlead-gateway"]
    if auth:
        assert command[:2] == ["env", f"{KEY_VARIABLE}=$KEY"]
        command = command[2:]
    assert command[:2] == ["fairlead", "chat"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    chat.add_arguments(parser)
    arguments = parser.parse_args(command[2:])
    assert (arguments.model, arguments.prompt) == ("dinghy", ["What is 7 plus 5?"])
    pod = find(helm.manifests(values), "Deployment", "fairlead-gateway")["spec"]["template"]["spec"]
    ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert arguments.gateway == f"http://127.0.0.1:{ports['http']}"


def test_notes_say_who_may_ask_and_where() -> None:
    assert "networkPolicy.clients" not in notes_of({})
    limited = notes_of({"networkPolicy": {"clients": [{"podSelector": {"matchLabels": {"team": "web"}}}]}})
    assert 'admit only networkPolicy.clients: [{"podSelector":{"matchLabels":{"team":"web"}}}]' in limited
    assert "those outside https://models.example.com/v1" in notes_of({"gateway": {"url": "https://models.example.com"}})


@pytest.mark.parametrize(
    ("repository", "named"),
    [
        ("fairlead/operator", False), ("operator", False), ("registry.example.com/operator", True),
        ("localhost/operator", True), ("hub:5000/operator", True),
    ],
)  # fmt: skip
def test_notes_warn_of_an_image_that_names_no_registry(repository: str, named: bool) -> None:
    engine = {"repository": "registry.example.com/engine"}
    notes = notes_of({"image": {"repository": repository}, "engineImage": engine})
    assert ("WARNING: image.repository names no registry" in notes) is not named
    assert "engineImage.repository" not in notes
    assert "WARNING: image.repository and engineImage.repository name no registry" in notes_of({})


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({}, True),
        ({"monitoring": {"prometheusOperator": "always"}}, True),
        ({"monitoring": {"prometheusOperator": "never"}}, False),
        ({"monitoring": {"podMonitors": {"enabled": False}, "rules": {"enabled": False}}}, False),
        ({"networkPolicy": {"monitoringNamespace": "monitoring"}}, False),
        ({"networkPolicy": {"enabled": False, "engines": False}}, False),
    ],
)
def test_notes_warn_where_prometheus_is_kept_out(values: Manifest, warned: bool) -> None:
    notes = notes_of(values, api_versions=MONITORING_APIS)
    assert ("Set networkPolicy.monitoringNamespace to" in notes) is warned
    assert "monitoringNamespace" not in notes_of({}), "no Prometheus operator, no warning"


@pytest.mark.parametrize("page", ["README.md", "docs/kubernetes.md", "charts/fairlead/README.md"])
def test_documented_installs_name_images_that_nodes_can_find(page: str) -> None:
    text = (ROOT / page).read_text().replace("\\\n", "")
    (command,) = re.findall(r"^helm install fairlead .*", text, re.MULTILINE)
    words = shlex.split(command)
    chosen = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--set")
    values = {name: {"repository": chosen[f"{name}.repository"]} for name in ("image", "engineImage")}
    assert "no registry" not in notes_of(values)


def test_notes_fit_on_a_screen() -> None:
    values = {"gateway": {"url": "https://models.example.com"}, "networkPolicy": {"clients": []}}
    assert len(notes_of(values, api_versions=MONITORING_APIS).splitlines()) <= 40


def documented(part: str, value: str = "") -> dict[str, Any]:
    """The values of docs/kubernetes.md that set this part, and this of it."""
    text = (helm.CHART.parent.parent / "docs" / "kubernetes.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(rf"```yaml\n({part}:.*?)```", text, re.DOTALL)]
    return next(block for block in blocks if not value or value in block[part])


def test_the_documented_profiles_are_what_they_say() -> None:
    profiles = operator_settings(helm.manifests(documented("profiles")))["profiles"]
    assert "nvidia-h100" not in profiles
    assert profiles["nvidia-a100-80g"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe"}
    assert "runtimeClassName" not in profiles["nvidia-a100-80g"]
    assert profiles["h100-slice"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"


def test_the_documented_ingress_leads_to_the_service_and_the_status_says_its_address() -> None:
    values = documented("gateway", "ingress")
    manifests = helm.manifests(values)
    service, ingress = find(manifests, "Service", "fairlead-gateway"), find(manifests, "Ingress", "fairlead-gateway")
    (rule,) = ingress["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert ingress["spec"]["tls"] == [{"hosts": [rule["host"]], "secretName": "models-tls"}]
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert operator_settings(manifests)["gatewayUrl"] == f"https://{rule['host']}"


def test_the_documented_route_leads_to_the_service() -> None:
    manifests = helm.manifests(documented("gateway", "httpRoute"))
    route = find(manifests, "HTTPRoute", "fairlead-gateway")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    assert route["spec"] == {
        "parentRefs": [{"name": "world", "namespace": "ingress", "sectionName": "https"}],
        "hostnames": ["models.example.com"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [{"name": "fairlead-gateway", "port": 80}],
                "timeouts": {"request": "0s"},
            }
        ],
    }
    ports = find(manifests, "Service", "fairlead-gateway")["spec"]["ports"]
    assert route["spec"]["rules"][0]["backendRefs"][0]["port"] in [port["port"] for port in ports]


def test_an_ingress_without_hosts_is_about_all_of_them() -> None:
    values = {"gateway": {"ingress": {"enabled": True}}}
    (rule,) = find(helm.manifests(values), "Ingress", "fairlead-gateway")["spec"]["rules"]
    assert set(rule) == {"http"}
    assert "WARNING: clients come from outside, but gateway.url is empty" in notes_of(values)
    told = {"gateway": values["gateway"] | {"url": "https://models.example.com"}}
    assert "gateway.url is empty" not in notes_of(told)


def test_a_gateway_autoscaler_is_the_only_one_that_says_how_many() -> None:
    manifests = helm.manifests({"gateway": {"autoscaling": {"enabled": True}}})
    deployment = find(manifests, "Deployment", "fairlead-gateway")
    scaler = find(manifests, "HorizontalPodAutoscaler", "fairlead-gateway")["spec"]
    assert "replicas" not in deployment["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "fairlead-gateway"}
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 8)
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}
    assert scaler["metrics"] == [{"type": "Resource", "resource": cpu}]
    plain = helm.manifests()
    assert find(plain, "Deployment", "fairlead-gateway")["spec"]["replicas"] == 2
    assert [one for one in plain if one["kind"] == "HorizontalPodAutoscaler"] == []


def test_what_else_the_pods_are_given_reaches_them() -> None:
    given = {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "extraVolumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "extraVolumeMounts": [{"name": "authorities", "mountPath": "/etc/ssl/ours", "readOnly": True}],
    }
    values = {
        "gateway": given | {"extraArgs": ["--max-queue=7"]},
        "operator": given | {"extraArgs": ["--namespace=a b"]},
    }
    manifests = helm.manifests(values)
    for part in ("gateway", "operator"):
        pod = find(manifests, "Deployment", f"fairlead-{part}")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["env"] == given["extraEnv"]
        assert given["extraVolumes"][0] in pod["volumes"] and len(pod["volumes"]) == 3
        assert given["extraVolumeMounts"][0] in container["volumeMounts"] and len(container["volumeMounts"]) == 3
    assert gateway_arguments(manifests).max_queue == 7, "the last one wins"
    parser = argparse.ArgumentParser(exit_on_error=False)
    operator_module.add_arguments(parser)
    container = find(manifests, "Deployment", "fairlead-operator")["spec"]["template"]["spec"]["containers"][0]
    arguments = parser.parse_args(container["args"][1:])
    assert (str(arguments.settings), arguments.namespace) == ("/etc/fairlead/operator.yaml", ["a b"])


def test_the_icon_is_the_one_beside_the_chart() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    kind, _, text = chart["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(text) == (helm.CHART / "icon.svg").read_bytes()
    assert ElementTree.fromstring(base64.b64decode(text)).tag == "{http://www.w3.org/2000/svg}svg"
    assert chart["maintainers"]
