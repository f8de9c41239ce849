"""A cluster whose owner refuses things: policies, quotas, limit ranges. What is refused is told in the owner's words,
and goes on by itself once it is allowed."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from children import OWNED, everything, listed, stands_still, versions
from homes.kubectl import OURS, Json
from hopeless import TOO_LARGE

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(300)]

RESYNC = 4.0
"""Seconds in which the operator looks at everything at least once."""
SENTENCE = "the harbour takes ships of its own registry only"


# -- policies --


@contextmanager
def policy(plane: Any, name: str, resource: Json, expression: str, *actions: str) -> Iterator[None]:
    """Within the block a ValidatingAdmissionPolicy holds for what is called after `name`: its expression, else
    SENTENCE. `resource`: apiGroups and resources. `actions`: Deny, unless others are given."""
    rule = {"apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], **resource}
    mine = f"!(has(object.metadata.name) ? object.metadata.name : object.metadata.generateName).startsWith('{name}')"
    admission = "admissionregistration.k8s.io/v1"
    metadata = {"name": f"{name}-policy", "labels": OURS}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"{mine} || {expression}", "message": SENTENCE}],
    }
    binding = {
        "policyName": f"{name}-policy",
        "validationActions": list(actions or ("Deny",)),
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": plane.namespace}}},
    }
    plane.apply(
        {"apiVersion": admission, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {"apiVersion": admission, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding},
    )
    try:
        plane.wait("the policy to hold", lambda: holds(plane, name, resource["resources"][0]))
        yield
    finally:
        kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings"
        plane.kubectl("delete", kinds, f"{name}-policy")


PROBES: dict[str, Json] = {
    "pods": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", "image": "elsewhere.test/a:1"}]}},
    "services": {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}},
    "configmaps": {"apiVersion": "v1", "kind": "ConfigMap"},
    "deployments": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "a", "image": "elsewhere.test/a:1"}]},
            },
        },
    },
}
"""Resource → an object less its name that the policies here refuse."""


def holds(plane: Any, name: str, resource: str) -> bool:
    """Whether the server goes by the policy already, which takes it a moment."""
    probe = {**PROBES[resource], "metadata": {"name": f"{name}-probe"}}
    tried = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(probe), check=False)
    return SENTENCE in tried.stderr


DEPLOYMENTS: Json = {"apiGroups": ["apps"], "resources": ["deployments"]}
PODS: Json = {"apiGroups": [""], "resources": ["pods"]}
OWN_IMAGES = "all(each, each.image.startsWith('registry.example.com/'))"


def test_a_refused_deployment_is_told_with_the_policy_s_name_and_sentence_and_made_once_it_may(
    plane: Any, applied: Callable[..., str], name: str
) -> None:
    with policy(plane, name, DEPLOYMENTS, f"object.spec.template.spec.containers.{OWN_IMAGES}"):
        applied(name, replicas=0)
        seen = plane.wait_condition(name, "Degraded", "True", "ApplyFailed")
        for words in (f"Deployment '{name}-engine' was refused by the API server: ", f"'{name}-policy'", SENTENCE):
            assert words in seen["message"]
        assert SENTENCE in plane.condition(name, "Ready")["message"]
        assert {each["kind"] for each in listed(plane, OWNED, name)} == {"ConfigMap", "NetworkPolicy", "Service"}
        stands_still(plane, lambda: everything(plane, name), RESYNC)
    plane.wait_condition(name, "Degraded", "False")
    assert plane.exists("deployment", f"{name}-engine")
    assert "Traceback" not in plane.operator.log


@pytest.mark.parametrize("resource", ["services", "configmaps"])
def test_what_else_is_refused_is_told_and_the_rest_is_made(
    plane: Any, applied: Callable[..., str], name: str, resource: str
) -> None:
    kind = {"services": "Service", "configmaps": "ConfigMap"}[resource]
    with policy(plane, name, {"apiGroups": [""], "resources": [resource]}, "false"):
        applied(name, replicas=0)
        seen = plane.wait_condition(name, "Degraded", "True", "ApplyFailed")
        assert f"{kind} '{name}" in seen["message"] and SENTENCE in seen["message"]
        kinds = {each["kind"] for each in listed(plane, OWNED, name)}
        assert kinds == {"ConfigMap", "Deployment", "NetworkPolicy", "Service"} - {kind}
    plane.wait_condition(name, "Degraded", "False")
    assert len(listed(plane, OWNED, name)) == 4


def test_refused_pods_are_told_with_the_policy_s_sentence_and_come_once_they_may(
    plane: Any, applied: Callable[..., str], name: str
) -> None:
    with policy(plane, name, PODS, f"object.spec.containers.{OWN_IMAGES}"):
        applied(name, resources=TOO_LARGE)
        seen = plane.wait_condition(name, "Degraded", "True", "PodsRefused")
        for words in ("pods cannot be created: ", f"'{name}-policy'", SENTENCE):
            assert words in seen["message"]
        assert plane.condition(name, "Ready")["reason"] == "PodsRefused"
    plane.wait_condition(name, "Degraded", "True", "Unschedulable")


def test_a_change_that_is_refused_leaves_what_runs_and_is_told(
    plane: Any, applied: Callable[..., str], pending: str
) -> None:
    def template() -> Json:
        found: Json = plane.get("deployment", f"{pending}-engine")["spec"]["template"]
        return found

    before, pods = template(), versions(listed(plane, "pods", pending)).keys()
    with policy(plane, pending, DEPLOYMENTS, f"object.spec.template.spec.containers.{OWN_IMAGES}"):
        applied(pending, resources=TOO_LARGE, engine={"maxNumSeqs": 4})
        assert SENTENCE in plane.wait_condition(pending, "Degraded", "True", "ApplyFailed")["message"]
        assert template() == before
        assert versions(listed(plane, "pods", pending)).keys() == pods
    plane.wait("the change", lambda: template() != before)
    plane.wait_condition(pending, "Degraded", "True", "Unschedulable")


def test_a_policy_that_only_warns_or_audits_changes_nothing(plane: Any, applied: Callable[..., str], name: str) -> None:
    with policy(plane, name, DEPLOYMENTS, "false", "Warn", "Audit"):
        applied(name, replicas=0)
        plane.wait_condition(name, "Degraded", "False", "AsExpected")
        stands_still(plane, lambda: everything(plane, name), RESYNC)
        assert len(listed(plane, OWNED, name)) == 4
        assert plane.condition(name, "Degraded")["status"] == "False"


# -- quotas and limit ranges --


@contextmanager
def bounded(plane: Any, kind: str, name: str, spec: Json) -> Iterator[None]:
    """Within the block the namespace has a ResourceQuota or LimitRange."""
    plane.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": OURS}, "spec": spec})
    try:
        if kind == "ResourceQuota":
            plane.wait("the quota to count", lambda: plane.get(kind, name).get("status", {}).get("hard"))
        yield
    finally:
        plane.kubectl("delete", kind, name)


@pytest.mark.parametrize("resource", ["count/deployments.apps", "services"])
def test_an_object_beyond_a_quota_is_told_in_the_quota_s_words_and_made_when_there_is_room(
    plane: Any, applied: Callable[..., str], name: str, resource: str
) -> None:
    with bounded(plane, "ResourceQuota", name, {"hard": {resource: "0"}}):
        applied(name, replicas=0)
        seen = plane.wait_condition(name, "Degraded", "True", "ApplyFailed")
        assert f"exceeded quota: {name}, requested: {resource}=1, used: " in seen["message"]
        assert len(listed(plane, OWNED, name)) == 3
    plane.wait_condition(name, "Degraded", "False")
    assert len(listed(plane, OWNED, name)) == 4


@pytest.mark.parametrize(
    ("kind", "spec", "more", "words"),
    [
        # Pods of the tests before may still be counted.
        ("ResourceQuota", {"hard": {"requests.cpu": "1"}}, {},
         "exceeded quota: {name}, requested: requests.cpu=4k, used: requests.cpu="),
        ("LimitRange", {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]}, {"limits": {"memory": "1Gi"}},
         "maximum memory usage per Container is 64Mi"),
    ],
)  # fmt: skip
def test_pods_beyond_a_bound_are_told_in_its_words_and_come_when_there_is_room(
    plane: Any, applied: Callable[..., str], name: str, kind: str, spec: Json, more: Json, words: str
) -> None:
    with bounded(plane, kind, name, spec):
        applied(name, resources=TOO_LARGE | more)
        seen = plane.wait_condition(name, "Degraded", "True", "PodsRefused")
        assert words.format(name=name) in seen["message"]
    plane.wait_condition(name, "Degraded", "True", "Unschedulable")


def test_what_a_limit_range_adds_to_pods_is_no_reason_to_write_anything(
    plane: Any, applied: Callable[..., str], name: str
) -> None:
    defaults = {"type": "Container", "default": {"cpu": "5k", "memory": "1Gi"}, "defaultRequest": {"memory": "64Mi"}}
    with bounded(plane, "LimitRange", name, {"limits": [defaults]}):
        applied(name, resources=TOO_LARGE)
        plane.wait_condition(name, "Ready", "False", "Unschedulable")
        (pod,) = listed(plane, "pods", name)
        resources = pod["spec"]["containers"][0]["resources"]
        assert (resources["limits"], resources["requests"]["memory"]) == ({"cpu": "5k", "memory": "1Gi"}, "64Mi")
        stands_still(plane, lambda: everything(plane, name), RESYNC)
        assert plane.get("deployment", f"{name}-engine")["metadata"]["generation"] == 1
        assert len(listed(plane, "replicasets", name)) == 1
