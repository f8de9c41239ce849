"""The chart's ValidatingAdmissionPolicy at a genuine API server: it refuses what the operator refuses, in the same
words."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from crd.author_cases import ALLOWED, ODD, POLICIES, REFUSED, AuthorCase, grafted
from crd.cases import deployment
from crd.verdicts import Collection, Verdict
from homes.genuine import Genuine
from homes.kubectl import CRD, OURS, Json

pytest.importorskip("helm_python", reason="needs Helm's SDK: pip install -r requirements/helm.txt")

import helm
import httpx
import yaml

from fairlead.api import names
from fairlead.api.admission_policy import AdmissionPolicy
from fairlead.api.author_rules import refusals
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, broken_rules
from fairlead.api.schema import decode

pytestmark = [pytest.mark.control_plane, pytest.mark.core, pytest.mark.timeout(300)]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
REFUSED_ALWAYS = deployment(model={"source": "file:///etc"})
"""Under each of the policies."""


def namespace(policy: str) -> str:
    return f"fairlead-author-{policy.lower()}"


def policy_name(policy: str) -> str:
    return f"fairlead-{namespace(policy)}"


class Server:
    """A genuine API server with the chart's policy, another one in each namespace."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def in_namespace(self, name: str) -> Collection:
        return Collection(self.client, f"/apis/{names.API_VERSION}/namespaces/{name}/{names.PLURAL}")

    def judge(self, body: Json, policy: str = "POLICY") -> Verdict:
        return self.in_namespace(namespace(policy)).judge(body)

    def wait(self, what: str, probe: Any) -> None:
        deadline = time.monotonic() + 60
        while not probe():
            assert time.monotonic() < deadline, what
            time.sleep(0.1)

    @contextmanager
    def holding(self, watched: Sequence[str], values: Json, **release: str) -> Iterator[Collection]:
        """The objects in the first of these namespaces, in each of which the chart's policy holds."""
        chart = {"admissionPolicy": {"enabled": True, **values}, "watch": {"namespaces": watched}}
        objects, made = self.in_namespace(watched[0]), list[str]()
        try:
            for each in helm.manifests(chart, **release):
                if each["kind"] in KINDS:
                    path = f"{ADMISSION}/{KINDS[each['kind']]}"
                    reply = self.client.post(path, json=each, params={"fieldValidation": "Strict"})
                    assert reply.status_code == 201, reply.text
                    made.append(f"{path}/{each['metadata']['name']}")
            self.wait("the policy to hold", lambda: not objects.judge(REFUSED_ALWAYS).accepted)
            yield objects
        finally:
            for path in reversed(made):
                self.client.delete(path)


@pytest.fixture(scope="module")
def server(genuine: Genuine) -> Iterator[Server]:
    with genuine.client() as client, ExitStack() as stack:
        found = Server(client)
        if client.get(f"{DEFINITIONS}/{names.CRD_NAME}").status_code != 200:
            stack.callback(client.delete, f"{DEFINITIONS}/{names.CRD_NAME}")
            client.post(DEFINITIONS, json=yaml.safe_load(CRD.read_text())).raise_for_status()
        for name in (*map(namespace, POLICIES), "platform-author", "elsewhere-author"):
            body = {"metadata": {"name": name, "labels": OURS}}
            assert client.post("/api/v1/namespaces", json=body).status_code in (201, 409)
            stack.callback(client.delete, f"/api/v1/namespaces/{name}")
            found.wait("the API", lambda name=name: client.get(found.in_namespace(name).path).status_code == 200)
        for policy, values in POLICIES.items():
            watched = [namespace(policy), *(["platform-author"] if policy == "POLICY" else [])]
            stack.enter_context(found.holding(watched, values, namespace=namespace(policy)))
        yield found


def operators_words(body: Json, policy: str = "POLICY") -> list[str]:
    metadata = {"namespace": namespace(policy), **body["metadata"]}
    return refusals(decode(AdmissionPolicy, POLICIES[policy]), body | {"metadata": metadata})


def test_the_server_finds_no_fault_with_the_policy(server: Server) -> None:
    """It checks the types of expressions against the definition, in its own time."""
    (one, *_) = (f"{ADMISSION}/{KINDS['ValidatingAdmissionPolicy']}/{policy_name(each)}" for each in POLICIES)

    def status() -> Json:
        found: Json = server.client.get(one).raise_for_status().json().get("status", {})
        return found

    server.wait("a look", lambda: status().get("observedGeneration"))
    assert status().get("typeChecking", {}) == {}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.field}-{case.refused}")
def test_what_the_operator_refuses_is_refused_in_its_words(server: Server, case: AuthorCase) -> None:
    verdict = server.judge(case.body, case.policy)
    (sentence,) = operators_words(case.body, case.policy)
    assert (verdict.accepted, verdict.code) == (False, 422), verdict.object
    assert [each.partition(" denied request: ")[2] for each in verdict.sentences] == [sentence]


@pytest.mark.parametrize("body", ALLOWED, ids=lambda body: str(body["spec"])[-60:])
def test_what_is_listed_is_taken(server: Server, body: Json) -> None:
    verdict = server.judge(body)
    assert verdict.accepted, verdict.sentences


@pytest.mark.parametrize("body", ODD, ids=lambda body: str(body["spec"])[-60:])
def test_what_is_no_pod_is_refused(server: Server, body: Json) -> None:
    verdict = server.judge(body)
    assert (verdict.accepted, verdict.code) == (False, 422), verdict.object


def test_server_and_operator_agree_about_objects_of_any_shape(server: Server) -> None:
    """Of those that the definition and the operator's other rules take."""
    num_refused = num_taken = 0
    for seed in range(600):
        body = grafted(seed)
        verdict = server.judge(body)
        if not verdict.accepted and " denied request: " not in verdict.sentences[0]:
            continue
        metadata = {"namespace": namespace("POLICY"), "uid": "u", "creationTimestamp": "2030-01-01T00:00:00Z"}
        stored = {
            **body,
            "metadata": {**metadata, **body["metadata"]},
            "spec": verdict.object.get("spec", body["spec"]),
        }
        try:
            LLMDeployment.from_body(stored)
        except InvalidSpec:
            continue
        if broken_rules(stored):
            continue
        assert verdict.accepted == (operators_words(stored) == []), (seed, body["spec"], verdict.sentences)
        num_taken += verdict.accepted
        num_refused += not verdict.accepted
    assert min(num_taken, num_refused) > 25


def test_what_cannot_be_quoted_is_refused_by_the_field_alone(server: Server) -> None:
    verdict = server.judge(deployment(engine={"extraArgs": ["--a\n" + "b" * 1000] * 20}))
    assert "spec.engine.extraArgs[]: an argument that is no number" in verdict.sentences[0]


def test_namespaces_that_are_exempt_or_not_served_are_left_alone(server: Server) -> None:
    for name in ("platform-author", "elsewhere-author"):
        assert server.in_namespace(name).judge(REFUSED_ALWAYS).accepted


def test_what_was_there_before_can_be_labelled_scaled_and_deleted_but_not_grow(server: Server) -> None:
    """Made in a namespace of its own before the policy holds there."""
    name, body = "fairlead-author-before", deployment("old", template={"spec": {"hostNetwork": True}})
    server.client.post("/api/v1/namespaces", json={"metadata": {"name": name, "labels": OURS}})
    objects = server.in_namespace(name)
    assert objects.create(body | {"metadata": {"name": "old", "finalizers": ["example.com/hold"]}}).accepted
    try:
        with server.holding([name], {}, namespace=name):
            assert objects.merge("old", {"metadata": {"labels": {"a": "b"}}}).accepted
            assert objects.merge("old", {"spec": {"replicas": 3}}, "scale").accepted
            assert objects.merge("old", {"status": {"replicas": 3}}, "status").accepted
            refused = objects.merge("old", {"spec": {"drain": {"timeout": "1m"}}})
            assert not refused.accepted and "'hostNetwork'" in refused.sentences[0]
            objects.delete("old")
            assert objects.merge("old", {"metadata": {"finalizers": None}}).accepted
    finally:
        objects.merge("old", {"metadata": {"finalizers": None}})
        server.client.delete(f"/api/v1/namespaces/{name}")


def test_a_large_object_costs_no_more_than_a_server_allows(server: Server) -> None:
    """Of 64 arguments and adapters, and 64 variables in every container, all compared with 64 entries."""
    longest = "a" * 40
    largest = {
        "sources": [*(f"hf://{longest}{i}/" for i in range(63)), "hf://"],
        "arguments": [*(f"--{longest}{i}" for i in range(63)), "--seed"],
        "environment": [*(f"{longest}{i}*" for i in range(63)), "OMP_*"],
        "resources": [*(f"{longest}{i}" for i in range(63)), "cpu"],
    }
    variables = [{"name": f"OMP_{'A' * 30}{i}", "value": "1"} for i in range(64)]
    containers = [
        {"name": name, "env": variables, "resources": {"limits": {"cpu": "1"}}}
        for name in ("engine", "front", "download", "download-speculative", "download-adapters")
    ]
    body = deployment(
        model={"source": f"hf://o/{longest}"},
        adapters=[{"name": f"a{i}", "source": f"hf://o/{longest}"} for i in range(64)],
        engine={"env": variables, "extraArgs": [f"--seed={longest}"] * 64},
        template={"spec": {"containers": containers, "initContainers": containers}},
    )
    with server.holding(["elsewhere-author"], largest, name="largest") as objects:
        verdict = objects.judge(body)
    assert verdict.accepted, verdict.sentences
