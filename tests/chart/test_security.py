"""What the chart's pods may do: Pod Security `restricted`, the least rights, tokens and connections that work needs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm
import pod_security

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.children import children
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored

Manifest = dict[str, Any]
SECURITY_PAGE = (helm.CHART.parent.parent / "docs" / "security.md").read_text()
VLLM = {"type": "vLLM", "image": "vllm/vllm-openai:v0.22.0"}
CHILD_VERBS = {"get", "list", "watch", "create", "patch", "delete"}
OPERATOR_WATCHES = {
    "llmdeployments.fairlead.dev": {"get", "list", "watch"},
    "llmdeployments/status.fairlead.dev": {"patch"},
    "llmdeployments/scale.fairlead.dev": {"patch"},
    "llmdeployments/finalizers.fairlead.dev": {"update"},
    "deployments.apps": CHILD_VERBS,
    "configmaps": CHILD_VERBS,
    "services": CHILD_VERBS,
    "networkpolicies.networking.k8s.io": CHILD_VERBS,
    "poddisruptionbudgets.policy": CHILD_VERBS,
    "resourceclaimtemplates.resource.k8s.io": CHILD_VERBS,
    "podmonitors.monitoring.coreos.com": CHILD_VERBS,
    "pods": {"list", "watch", "patch", "delete"},
    "persistentvolumeclaims": {"get"},
    "events": {"list", "create", "patch"},
}
"""What the operator may do where it looks after LLMDeployments."""
OPERATOR_SYSTEM = {"leases.coordination.k8s.io": {"create", "get", "update"}, "pods": {"list", "watch"}}
"""What it may do in its own namespace."""
GATEWAY_WATCHES = {"llmdeployments.fairlead.dev": {"list", "watch"}, "pods": {"list", "watch"}}


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for manifest in manifests:
        spec = pod_security.pod_spec(manifest)
        if spec is not None:
            yield f"{manifest['kind']} {manifest['metadata']['name']}", spec


def rights(role: Manifest) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault(f"{resource}.{group}".removesuffix("."), set()).update(rule["verbs"])
    return found


def of_kind(manifests: list[Manifest], *kinds: str) -> dict[tuple[str, str], Manifest]:
    """Namespace and name → object."""
    return {
        (one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in manifests
        if one["kind"] in kinds
    }


def test_every_pod_is_restricted_in_every_rendering(installed: dict[str, list[Manifest]]) -> None:
    num_pods = 0
    for case, manifests in installed.items():
        for name, spec in pods(manifests):
            num_pods += 1
            assert pod_security.restricted_violations(spec) == [], f"{case}: {name}"
            assert pod_security.hardening_violations(spec) == [], f"{case}: {name}"
    assert num_pods >= 3 * len(installed)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hostNetwork": True}, "hostNetwork is on"),
        ({"securityContext": {"runAsNonRoot": True}}, "gateway: has no seccomp profile"),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, "gateway: may run as root"),
        ({"volumes": [{"name": "node", "hostPath": {"path": "/"}}]}, "volume node is of a kind that is not allowed"),
    ],
)
def test_a_pod_that_is_not_restricted_is_found(change: dict[str, Any], sentence: str) -> None:
    manifests = dict(pods(helm.manifests()))
    assert pod_security.restricted_violations({**manifests["Deployment fairlead-gateway"], **change}) == [sentence]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"allowPrivilegeEscalation": None}, "gateway: may escalate privileges"),
        ({"capabilities": {"drop": ["NET_RAW"]}}, "gateway: does not drop ALL capabilities"),
        ({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}, "gateway: adds capabilities"),
        ({"runAsUser": 0}, "gateway: runs as root"),
        ({"privileged": True}, "gateway: is privileged"),
    ],
)
def test_a_container_that_is_not_restricted_is_found(change: dict[str, Any], sentence: str) -> None:
    spec = dict(pods(helm.manifests()))["Deployment fairlead-gateway"]
    spec["containers"][0]["securityContext"].update(change)
    assert pod_security.restricted_violations(spec) == [sentence]


def test_the_cluster_may_choose_the_ids() -> None:
    """As OpenShift's restricted-v2 does, which refuses pods that bring ids of their own."""
    none = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    found = dict(pods(helm.manifests({"operator": none, "gateway": none})))
    assert set(found) == {"Deployment fairlead-gateway", "Deployment fairlead-operator", "Pod fairlead-test"}
    for name, spec in found.items():
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, name
        assert pod_security.restricted_violations(spec) == []


def test_each_program_may_run_as_somebody_else() -> None:
    chosen = {
        "runAsUser": 1000680000,
        "runAsGroup": 0,
        "seccompProfile": {"type": "Localhost", "localhostProfile": "a"},
    }
    found = dict(pods(helm.manifests({"gateway": {"podSecurityContext": chosen}})))
    ours = {"runAsNonRoot": True, "fsGroup": 65532}
    assert found["Deployment fairlead-gateway"]["securityContext"] == {**ours, **chosen}
    assert found["Pod fairlead-test"]["securityContext"] == {**ours, **chosen}
    assert found["Deployment fairlead-operator"]["securityContext"]["runAsUser"] == 65532


def test_only_operator_and_gateway_have_a_token() -> None:
    manifests = helm.manifests()
    with_token = {name for name, spec in pods(manifests) if spec["automountServiceAccountToken"]}
    assert with_token == {"Deployment fairlead-gateway", "Deployment fairlead-operator"}
    for account in of_kind(manifests, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False


def test_roles_are_exactly_what_the_programs_do() -> None:
    values = {"watch": {"namespaces": ["a", "b"]}}
    roles = {key: rights(role) for key, role in of_kind(helm.manifests(values, namespace="s"), "Role").items()}
    watched = {(namespace, f"fairlead-{part}"): allowed for namespace in "ab"
               for part, allowed in (("operator", OPERATOR_WATCHES), ("gateway", GATEWAY_WATCHES))}  # fmt: skip
    assert roles == {**watched, ("s", "fairlead-system"): OPERATOR_SYSTEM}


def test_only_the_own_lease_can_be_read_or_changed() -> None:
    system = of_kind(helm.manifests(name="blue", namespace="s"), "Role")["s", "blue-system"]
    named = [rule for rule in system["rules"] if "leases" in rule["resources"] and rule["verbs"] != ["create"]]
    assert [rule["resourceNames"] for rule in named] == [["blue-operator"]]


def test_nothing_is_cluster_wide_unless_it_is_asked_for() -> None:
    assert of_kind(helm.manifests(), "ClusterRole", "ClusterRoleBinding") == {}
    manifests = helm.manifests({"watch": {"allNamespaces": True}})
    roles = {name: rights(role) for (_, name), role in of_kind(manifests, "ClusterRole").items()}
    assert roles == {"fairlead-operator": OPERATOR_WATCHES, "fairlead-gateway": GATEWAY_WATCHES}
    assert list(of_kind(manifests, "Role")) == [("fairlead-system", "fairlead-system")]


def test_devices_of_the_cluster_are_listed_only_where_that_is_asked_for() -> None:
    manifests = helm.manifests({"rbac": {"readDevices": True}})
    ((_, role),) = of_kind(manifests, "ClusterRole").items()
    kinds = ("nodes", "resourceslices.resource.k8s.io", "deviceclasses.resource.k8s.io")
    assert rights(role) == {kind: {"list"} for kind in kinds}
    ((_, binding),) = of_kind(manifests, "ClusterRoleBinding").items()
    assert [each["name"] for each in binding["subjects"]] == ["fairlead-operator"]


def test_no_role_reaches_secrets_or_shells_or_everything(installed: dict[str, list[Manifest]]) -> None:
    for case, manifests in installed.items():
        for role in of_kind(manifests, "Role", "ClusterRole").values():
            text = yaml.safe_dump(role["rules"])
            for word in ("secrets", "pods/exec", "pods/attach", "pods/portforward", "'*'", "escalate", "impersonate"):
                assert word not in text, case


def test_every_role_is_bound_to_its_own_programs_account(installed: dict[str, list[Manifest]]) -> None:
    for case, manifests in installed.items():
        accounts = {spec["serviceAccountName"] for name, spec in pods(manifests) if name.startswith("Deployment")}
        bindings = of_kind(manifests, "RoleBinding", "ClusterRoleBinding")
        assert set(bindings) == set(of_kind(manifests, "Role", "ClusterRole")), case
        for (_, name), binding in bindings.items():
            (subject,) = binding["subjects"]
            assert binding["roleRef"]["name"] == name
            assert subject["namespace"] == "fairlead-system"
            assert subject["name"] in accounts


def test_what_others_made_is_not_made_again() -> None:
    accounts = {part: {"serviceAccount": {"create": False, "name": name}}
                for part, name in (("operator", "ours"), ("gateway", "theirs"))}  # fmt: skip
    manifests = helm.manifests(accounts)
    assert of_kind(manifests, "ServiceAccount") == {}
    used = {one["metadata"]["name"]: one["spec"]["template"]["spec"]["serviceAccountName"]
            for one in of_kind(manifests, "Deployment").values()}  # fmt: skip
    assert used == {"fairlead-operator": "ours", "fairlead-gateway": "theirs"}
    without_roles = helm.manifests({"rbac": {"create": False}, "watch": {"allNamespaces": True}})
    assert of_kind(without_roles, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding") == {}


def test_each_account_can_be_left_to_others_and_annotated_alone() -> None:
    gateway = {"create": False, "name": "theirs"}
    operator = {"annotations": {"example.com/role": "operator"}}
    manifests = helm.objects(
        helm.render({"gateway": {"serviceAccount": gateway}, "operator": {"serviceAccount": operator}})
    )
    (account,) = of_kind(manifests, "ServiceAccount").values()
    assert (account["metadata"]["name"], account["metadata"]["annotations"]) == (
        "fairlead-operator", operator["annotations"],
    )  # fmt: skip
    subjects = {key: one["subjects"][0]["name"] for key, one in of_kind(manifests, "RoleBinding").items()}
    assert subjects["fairlead-system", "fairlead-gateway"] == "theirs"
    assert subjects["fairlead-system", "fairlead-operator"] == "fairlead-operator"


def admits(policy: Manifest, port: int, namespace: dict[str, str], labels: dict[str, str], *, same: bool) -> bool:
    """Whether a pod with these labels, in a namespace with those, may connect. `same`: it is the policy's namespace."""

    def chosen(selector: Manifest, found: dict[str, str]) -> bool:
        return set(selector) <= {"matchLabels"} and selector.get("matchLabels", {}).items() <= found.items()

    def is_peer(peer: Manifest) -> bool:
        in_namespace = chosen(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else same
        return "ipBlock" not in peer and in_namespace and chosen(peer.get("podSelector", {}), labels)

    assert policy["spec"]["policyTypes"] == ["Ingress"]
    return any(
        any(each["port"] == port and each["protocol"] == "TCP" for each in rule["ports"])
        and any(is_peer(peer) for peer in rule["from"])
        for rule in policy["spec"]["ingress"]
    )


OURS = {"kubernetes.io/metadata.name": "fairlead-system"}
THEIRS = {"kubernetes.io/metadata.name": "team"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
OPERATOR = {"app.kubernetes.io/name": "fairlead-operator", "app.kubernetes.io/instance": "fairlead"}


@pytest.mark.parametrize(
    ("port", "namespace", "labels", "allowed"),
    [
        (8080, THEIRS, {}, True),  # a client
        (8081, THEIRS, {}, False),  # a client at the control port
        (8081, OURS, OPERATOR, True),  # the operator, for signals
        (8081, THEIRS, OPERATOR, False),  # somebody with its labels elsewhere
        (8081, MONITORING, {}, True),  # Prometheus
        (8000, MONITORING, {}, False),
    ],
)
def test_who_may_connect_to_the_gateway(
    port: int, namespace: dict[str, str], labels: dict[str, str], allowed: bool
) -> None:
    manifests = helm.manifests({"networkPolicy": {"monitoringNamespace": "monitoring"}})
    policy = of_kind(manifests, "NetworkPolicy")["fairlead-system", "fairlead-gateway"]
    assert admits(policy, port, namespace, labels, same=namespace is OURS) is allowed


def test_clients_can_be_limited() -> None:
    clients = [{"namespaceSelector": {"matchLabels": THEIRS}}]
    manifests = helm.manifests({"networkPolicy": {"clients": clients}})
    policy = of_kind(manifests, "NetworkPolicy")["fairlead-system", "fairlead-gateway"]
    assert admits(policy, 8080, THEIRS, {}, same=False)
    assert not admits(policy, 8080, MONITORING, {}, same=False)
    test = of_kind(manifests, "Pod")["fairlead-system", "fairlead-test"]["metadata"]["labels"]
    assert admits(policy, 8080, OURS, test, same=True), "helm test must work whoever the clients are"


def test_only_monitoring_may_connect_to_the_operator() -> None:
    for values, allowed in (({}, False), ({"networkPolicy": {"monitoringNamespace": "monitoring"}}, True)):
        policy = of_kind(helm.manifests(values), "NetworkPolicy")["fairlead-system", "fairlead-operator"]
        assert admits(policy, 8081, MONITORING, {}, same=False) is allowed
        assert not admits(policy, 8081, THEIRS, {}, same=False)
        assert not admits(policy, 8081, OURS, OPERATOR, same=True)


def test_several_pods_are_spread_and_evicted_one_by_one() -> None:
    manifests = helm.manifests({"operator": {"replicas": 2}})
    for name in ("fairlead-gateway", "fairlead-operator"):
        budget = of_kind(manifests, "PodDisruptionBudget")["fairlead-system", name]
        spec = of_kind(manifests, "Deployment")["fairlead-system", name]["spec"]
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"] == spec["selector"]
        spread = spec["template"]["spec"]["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert all(each["labelSelector"] == spec["selector"] for each in spread)
    single = helm.manifests({"gateway": {"replicas": 1}})
    assert of_kind(single, "PodDisruptionBudget") == {}


def test_gateways_that_scale_themselves_are_spread_and_evicted_one_by_one_too() -> None:
    autoscaling = {"enabled": True, "minReplicas": 1, "maxReplicas": 3}
    manifests = helm.manifests({"gateway": {"autoscaling": autoscaling}})
    budget = of_kind(manifests, "PodDisruptionBudget")["fairlead-system", "fairlead-gateway"]["spec"]
    assert budget["maxUnavailable"] == 1, "of one gateway this keeps no node from being drained"
    pod = of_kind(manifests, "Deployment")["fairlead-system", "fairlead-gateway"]["spec"]["template"]["spec"]
    assert len(pod["topologySpreadConstraints"]) == 2
    still = helm.manifests({"gateway": {"autoscaling": autoscaling | {"maxReplicas": 1}}})
    assert of_kind(still, "PodDisruptionBudget") == {}


def test_each_revision_is_spread_by_itself() -> None:
    deployments = of_kind(helm.manifests({"operator": {"replicas": 2}}), "Deployment")
    spread = [
        constraint
        for deployment in deployments.values()
        for constraint in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    ]
    assert [constraint["matchLabelKeys"] for constraint in spread] == [["pod-template-hash"]] * 4


def scanned(manifests: list[Manifest]) -> set[tuple[str, str]]:
    """(check, component) of what checkov finds, of the checks that the documentation gives reasons for."""
    found = set()
    protected = {name.rpartition("-")[2] for _, name in of_kind(manifests, "NetworkPolicy")}
    for name, spec in pods(manifests):
        component = name.rpartition("-")[2]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            limits = container["resources"].get("limits", {})
            user = {**spec["securityContext"], **container["securityContext"]}.get("runAsUser", 0)
            fails = {
                "CKV_K8S_8": "livenessProbe" not in container and container in spec["containers"],
                "CKV_K8S_9": "readinessProbe" not in container and container in spec["containers"],
                "CKV_K8S_11": "cpu" not in limits,
                "CKV_K8S_13": "memory" not in limits,
                "CKV_K8S_15": container["imagePullPolicy"] != "Always",
                "CKV_K8S_38": spec["automountServiceAccountToken"] is not False,
                "CKV_K8S_40": user < 10_000,
                "CKV_K8S_43": "@sha256:" not in container["image"],
                "CKV2_K8S_6": component not in protected,
            }
            found |= {(check, component) for check, failed in fails.items() if failed}
    return found


def told(beginning: str) -> set[str]:
    """The checks that the documentation's paragraph with this beginning names."""
    (paragraph,) = (each for each in SECURITY_PAGE.split("\n\n") if each.startswith(beginning))
    return set(re.findall(r"CKV\w+", paragraph))


def test_what_scanners_find_is_what_the_documentation_gives_reasons_for() -> None:
    rows = re.findall(r"^\| (CKV[^|]*) \| ([^|]*) \| [^|]+ \|$", SECURITY_PAGE, re.MULTILINE)
    documented = {
        (check, component)
        for checks, components in rows
        for check in re.findall(r"CKV\w+", checks)
        for component in components.split(", ")
    }
    assert scanned(helm.manifests()) == documented
    assert f"finds {len(documented)} of its" in SECURITY_PAGE
    mended = {"image": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"}}
    checks = {check for check, _ in scanned(helm.manifests(mended))}
    assert checks == {"CKV_K8S_8", "CKV_K8S_9", "CKV_K8S_11", "CKV_K8S_38"}


@pytest.mark.parametrize("example", sorted((helm.CHART / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_scanners_find_with_a_file_of_values_is_told_too(example: Path) -> None:
    more = scanned(helm.manifests(yaml.safe_load(example.read_text()))) - scanned(helm.manifests())
    expected = told("`examples/openshift.yaml` adds") if example.stem == "openshift" else set()
    assert {check for check, _ in more} == expected


def test_what_scanners_find_of_engines_is_told_too() -> None:
    manifests = helm.manifests()
    (text,) = (
        each["data"]["operator.yaml"]
        for each in of_kind(manifests, "ConfigMap").values()
        if "operator.yaml" in each["data"]
    )
    settings = OperatorSettings.from_mapping(yaml.safe_load(text))
    found: set[str] = set()
    for spec in (
        {"resources": {"profile": "cpu-small"}},
        {"resources": {"profile": "nvidia-l4"}, "model": {"source": "hf://a/b"}, "engine": VLLM},
    ):
        deployment = LLMDeployment.from_body(stored("dinghy", **spec))
        made = [dict(each) for each in children(deployment, settings, ("NetworkPolicy",))]
        found |= {check for check, _ in scanned(made)}
    assert found == told("Of an engine's Deployment")
