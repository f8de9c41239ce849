"""Our CustomResourceDefinition at a genuine API server, and everything of ours that stands in for it.

The definition must be taken without complaint and do what it says; local mode's API and the operator's own validation
must come to the same verdicts about the same objects. What is asked of local mode alone runs without a genuine server.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from api_schemas import spec_schema
from crd.cases import FULL, LIMITS, RULES, LimitCase, RuleCase, deployment, typos
from crd.local import local_mode
from crd.mutations import mutated_specs
from crd.verdicts import DEFINITIONS, WHOLE_OBJECT, Collection, Verdict
from generate_crds import object_schema
from homes.genuine import Genuine
from hypothesis import HealthCheck, given, settings

from fairlead.api import names
from fairlead.api.llmdeployment import InvalidSpec, LLMDeployment, broken_rules
from fairlead_local.apiserver.structural import prune

pytestmark = [
    pytest.mark.control_plane,
    pytest.mark.core,
    pytest.mark.timeout(900),  # hundreds of generated objects, at two servers
]

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent
NAMESPACE = "fairlead-crd"
DEPLOYMENTS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AllReplicasReady",
    "message": ".",
    "lastTransitionTime": "2030-01-01T00:00:00Z",
}


@dataclass(frozen=True)
class Home:
    """One server that has our definition."""

    client: httpx.Client
    deployments: Collection

    def definition(self) -> Json:
        found: Json = self.client.get(f"{DEFINITIONS}/{names.CRD_NAME}").raise_for_status().json()
        return found

    def is_established(self) -> bool:
        conditions = self.definition().get("status", {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="module", name="genuine_home")
def _genuine_home(genuine: Genuine) -> Iterator[Home]:
    """The genuine API server, in a namespace that no operator watches."""
    with genuine.client() as client:
        had_it = client.get(f"{DEFINITIONS}/{names.CRD_NAME}").status_code == 200
        yield _home(client)
        client.delete(f"/api/v1/namespaces/{NAMESPACE}")
        for made in ("boats.harbour.test", "rafts.harbour.test", *(() if had_it else (names.CRD_NAME,))):
            client.delete(f"{DEFINITIONS}/{made}")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with local_mode(tmp_path_factory.mktemp("local")) as client:
        yield _home(client)


@pytest.fixture(params=["genuine_home", "local"], ids=["genuine", "local"])
def home(request: pytest.FixtureRequest) -> Home:
    """Each of the two servers in turn: what the genuine one does, local mode does."""
    found: Home = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def name(request: pytest.FixtureRequest, home: Home) -> Iterator[str]:
    """A name for one object that the test may create; the object is gone afterwards."""
    chosen = f"test-{next(_numbers)}"
    yield chosen
    if home.client.get(f"{DEPLOYMENTS}/{chosen}").status_code == 200:
        home.deployments.delete(chosen)


_numbers = itertools.count()


def _home(client: httpx.Client) -> Home:
    """Installs the generated definition as a careful client does: a field that the server does not know is refused."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    assert client.post("/api/v1/namespaces", json=namespace).status_code in (201, 409)
    definition = yaml.safe_load((ROOT / "crds" / f"{names.CRD_NAME}.yaml").read_text())
    reply = client.post(DEFINITIONS, json=definition, params={"fieldValidation": "Strict"})
    if reply.status_code == 409:  # a fleet on the same cluster has brought it
        path = f"{DEFINITIONS}/{names.CRD_NAME}"
        metadata = client.get(path).json()["metadata"]
        reply = client.put(path, json=definition | {"metadata": metadata}, params={"fieldValidation": "Strict"})
    assert reply.status_code in (200, 201), reply.text
    assert "Warning" not in reply.headers, reply.headers["Warning"]
    home = Home(client, Collection(client, DEPLOYMENTS))
    # Either may be the first to be so.
    _until(lambda: home.is_established() and client.get(DEPLOYMENTS).status_code == 200)
    return home


# ── the definition ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_definition_is_established_and_structural(home: Home) -> None:
    status = home.definition()["status"]
    conditions = {condition["type"]: condition["status"] for condition in status["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}, "NonStructuralSchema must be absent"
    assert status["storedVersions"] == [names.VERSION]
    assert status["acceptedNames"]["shortNames"] == [names.SHORT_NAME]


def test_the_definition_is_kept_as_it_was_written(genuine_home: Home) -> None:
    """Nothing is dropped: a keyword that the server does not know would be missing."""
    (sent,) = yaml.safe_load((ROOT / "crds" / f"{names.CRD_NAME}.yaml").read_text())["spec"]["versions"]
    (kept,) = genuine_home.definition()["spec"]["versions"]
    assert kept["schema"] == sent["schema"]
    assert kept["additionalPrinterColumns"] == sent["additionalPrinterColumns"]
    assert kept["subresources"] == sent["subresources"]


def test_a_rule_that_costs_too_much_would_have_been_refused(genuine_home: Home) -> None:
    """The estimate of costs is on: so that our rules are within their budget is a finding."""
    definition = yaml.safe_load((ROOT / "crds" / f"{names.CRD_NAME}.yaml").read_text())
    definition["metadata"]["name"] = f"dear.{names.GROUP}"
    definition["spec"]["names"] = {"plural": "dear", "kind": "Dear"}
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["words"] = {"type": "array", "items": {"type": "string"}}
    spec["x-kubernetes-validations"] = [{"rule": "self.words.all(a, self.words.all(b, a == b || a.contains(b)))"}]
    reply = genuine_home.client.post(DEFINITIONS, json=definition, params={"dryRun": "All"})
    assert reply.status_code == 422
    assert "estimated rule cost exceeds budget" in reply.text


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.sentence)
def test_an_object_that_breaks_one_rule_is_refused_with_its_sentence(home: Home, case: RuleCase) -> None:
    refused = home.deployments.judge(case.broken)
    assert (refused.accepted, refused.code, refused.fields) == (False, 422, {case.field}), refused.sentences
    assert [case.sentence in sentence for sentence in refused.sentences] == [True], refused.sentences


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.sentence)
def test_an_object_that_just_keeps_the_rule_is_taken(home: Home, case: RuleCase) -> None:
    taken = home.deployments.judge(case.kept, fieldValidation="Strict")
    assert taken.accepted, taken.sentences


def test_rules_are_checked_beside_patterns_but_not_beside_wrong_types(home: Home) -> None:
    broken_rule = {"minReplicas": 3, "maxReplicas": 2}
    both = home.deployments.judge(deployment(autoscaling=broken_rule, engine={"env": [{"name": "1"}]}))
    assert both.fields == {"spec.autoscaling", "spec.engine.env[0].name"}
    types_only = home.deployments.judge(deployment(autoscaling=broken_rule, engine={"dtype": "x"}))
    assert types_only.fields == {"spec.engine.dtype"}


def test_no_rule_looks_at_the_past() -> None:
    """There is no transition rule: a rule that mentions oldSelf needs a case of its own here."""
    assert [
        s for s in _schemas(object_schema()) for r in s.get("x-kubernetes-validations", ()) if "oldSelf" in r["rule"]
    ] == []


def test_rules_hold_for_changes_too(home: Home, name: str) -> None:
    assert home.deployments.create(deployment(name, rollout={"maxSurge": 1})).accepted
    refused = home.deployments.merge(name, {"spec": {"rollout": {"maxSurge": 0}}})
    assert (refused.code, refused.fields) == (422, {"spec.rollout"})
    assert home.deployments.get(name)["spec"]["rollout"] == {"maxSurge": 1}


# ── types, limits, unknown fields ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", LIMITS, ids=lambda case: f"{case.field}-{str(case.body['spec'])[-40:]}")
def test_what_breaks_a_limit_is_refused_by_the_field(home: Home, case: LimitCase) -> None:
    refused = home.deployments.judge(case.body)
    assert (refused.accepted, refused.code, refused.fields) == (False, 422, {case.field}), refused.sentences


@pytest.mark.parametrize("case", LIMITS, ids=lambda case: f"{case.field}-{str(case.body['spec'])[-40:]}")
def test_the_operator_refuses_it_by_the_same_field(case: LimitCase) -> None:
    assert _operator_fields(case.body) == {case.field}


def test_every_field_is_taken_and_kept(home: Home) -> None:
    taken = home.deployments.judge(FULL, fieldValidation="Strict")
    assert taken.accepted, taken.sentences
    assert taken.object["spec"] == FULL["spec"], "nothing is pruned and nothing is defaulted"


def test_nothing_is_defaulted_by_the_server(home: Home) -> None:
    taken = home.deployments.judge(deployment())
    assert taken.object["spec"] == deployment()["spec"]


@pytest.mark.parametrize(("path", "body"), list(typos()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_that_nobody_knows_is_named(home: Home, path: str, body: Json) -> None:
    strict = home.deployments.judge(body, fieldValidation="Strict")
    assert (strict.code, strict.fields) == (400, {path})
    warned = home.deployments.judge(body, fieldValidation="Warn")
    assert (warned.accepted, warned.warned) == (True, {path})
    assert warned.object["spec"] == FULL["spec"], "it is pruned"
    silent = home.deployments.judge(body, fieldValidation="Ignore")
    assert (silent.accepted, silent.warned, silent.object["spec"]) == (True, frozenset(), FULL["spec"])


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_taken(home: Home, path: Path) -> None:
    examples = [d for d in yaml.safe_load_all(path.read_text()) if d and d["kind"] == names.KIND]
    for example in examples:
        taken = home.deployments.judge(example, fieldValidation="Strict")
        assert taken.accepted, (example["metadata"]["name"], taken.sentences)


# ── subresources, columns, managers ───────────────────────────────────────────────────────────────────────────────────


def test_the_status_is_written_apart(home: Home, name: str) -> None:
    created = home.deployments.create(deployment(name) | {"status": {"replicas": 7}})
    assert "status" not in created.object
    status = {"replicas": 1, "readyReplicas": 1, "url": "http://gateway.test"}
    written = home.deployments.merge(name, {"spec": {"replicas": 9}, "status": status}, "status").object
    assert (written["status"], "replicas" in written["spec"], written["metadata"]["generation"]) == (status, False, 1)
    changed = home.deployments.merge(name, {"spec": {"replicas": 2}, "status": {"replicas": 5}}).object
    assert (changed["status"], changed["metadata"]["generation"]) == (status, 2)
    labelled = home.deployments.merge(name, {"metadata": {"labels": {"a": "b"}}}).object
    assert labelled["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("status", "field"),
    [
        ({"replicas": -1}, "status.replicas"),
        ({"replicas": "1"}, "status.replicas"),
        ({"selector": 1}, "status.selector"),
        ({"scaling": {"history": [{"from": 1}]}}, "status.scaling.history[0]"),
        ({"scaling": {"lastScaleTime": "yesterday"}}, "status.scaling.lastScaleTime"),
        ({"conditions": [{"type": "Ready", "status": "Yes"}]}, "status.conditions[0]"),
        ({"conditions": [READY, READY]}, "status.conditions[1]"),
    ],
)
def test_a_status_that_is_none_is_refused(home: Home, name: str, status: Json, field: str) -> None:
    assert home.deployments.create(deployment(name)).accepted
    refused = home.deployments.merge(name, {"status": status}, "status")
    assert (refused.accepted, refused.code) == (False, 422)
    assert all(found.startswith(field) for found in refused.fields), refused.sentences


def test_the_scale_reads_and_writes_replicas(home: Home, name: str) -> None:
    assert home.deployments.create(deployment(name, replicas=1)).accepted
    status = {"replicas": 1, "selector": f"{names.LABEL_LLMDEPLOYMENT}={name}"}
    assert home.deployments.merge(name, {"status": status}, "status").accepted
    scale = home.deployments.get(name, "scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 1}, status)
    scaled = home.deployments.merge(name, {"spec": {"replicas": 3}}, "scale")
    assert (scaled.accepted, scaled.object["spec"]) == (True, {"replicas": 3})
    assert home.deployments.get(name)["spec"]["replicas"] == 3
    assert home.deployments.replace(name, scale | {"spec": {"replicas": 2}}, "scale").code == 409
    for wrong in (-1, 10001):
        refused = home.deployments.merge(name, {"spec": {"replicas": wrong}}, "scale")
        assert (refused.code, refused.fields) == (422, {"spec.replicas"}), refused.sentences


def test_the_scale_of_an_object_without_replicas_can_be_written_but_not_read(home: Home, name: str) -> None:
    """Which is why the operator writes a first count where an external autoscaler is to come."""
    assert home.deployments.create(deployment(name)).accepted
    reply = home.client.get(f"{DEPLOYMENTS}/{name}/scale")
    assert (reply.status_code, "replicas" in reply.json()["message"]) == (500, True)
    assert home.deployments.merge(name, {"spec": {"replicas": 2}}, "scale").accepted
    assert home.deployments.get(name)["spec"]["replicas"] == 2


def test_the_columns_show_what_they_say(home: Home, name: str) -> None:
    assert home.deployments.create(deployment(name)).accepted
    signals = {"queue": 3, "running": 2, "ttft": "250ms"}
    status = {"desiredReplicas": 2, "readyReplicas": 1, "conditions": [READY], "scaling": {"signals": signals}}
    assert home.deployments.merge(name, {"status": status}, "status").accepted
    table = home.deployments.table()
    titles = [column["name"] for column in table["columnDefinitions"]]
    row = next(row for row in table["rows"] if row["object"]["metadata"]["name"] == name)
    cells = dict(zip(titles, row["cells"], strict=True))
    age = cells.pop("Age")
    assert cells == {
        "Name": name, "Model": "demo://dinghy", "Ready": 1, "Desired": 2, "Queue": 3, "TTFT-P90": "250ms",
        "Reason": "AllReplicasReady", "Profile": None, "Image": None, "URL": None,
    }  # fmt: skip
    assert age.endswith("s") and titles[-1] == "Age"


def test_users_operator_and_autoscaler_apply_their_own_fields(home: Home, name: str) -> None:
    """The user applies a manifest, the operator its status, the autoscaler replicas: nobody takes from another."""
    user = deployment(name, autoscaling={"maxReplicas": 3})
    assert home.deployments.apply(name, user, "kubectl").code == 201
    head = {key: user[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": name}}
    assert home.deployments.apply(
        name, head | {"status": {"replicas": 1}}, names.FIELD_MANAGER_STATUS, "status"
    ).accepted
    scaled = head | {"spec": {"replicas": 2}}
    assert home.deployments.merge(name, {"spec": {"replicas": 2}}, fieldManager=names.FIELD_MANAGER_AUTOSCALER).accepted
    again = home.deployments.apply(name, user, "kubectl")
    assert (again.accepted, again.object["spec"]["replicas"], again.object["status"]) == (True, 2, {"replicas": 1})
    owners = {entry["manager"]: entry["fieldsV1"] for entry in again.object["metadata"]["managedFields"]}
    assert owners[names.FIELD_MANAGER_STATUS] == {"f:status": {"f:replicas": {}}}
    assert owners[names.FIELD_MANAGER_AUTOSCALER] == {"f:spec": {"f:replicas": {}}}
    conflict = home.deployments.apply(name, scaled | {"spec": user["spec"] | {"replicas": 1}}, "kubectl")
    assert (conflict.code, conflict.fields) == (409, {"spec.replicas"})
    assert names.FIELD_MANAGER_AUTOSCALER in conflict.sentences[0]
    forced = home.deployments.apply(name, scaled | {"spec": user["spec"] | {"replicas": 1}}, "kubectl", force=True)
    assert forced.object["spec"]["replicas"] == 1


def test_lists_with_keys_merge_between_managers_and_sets_do_too(home: Home, name: str) -> None:
    def manifest(*variables: str, aliases: tuple[str, ...]) -> Json:
        env = [{"name": variable, "value": "1"} for variable in variables]
        model = {"source": "demo://dinghy", "aliases": list(aliases)}
        return deployment(name, model=model, engine={"env": env, "extraArgs": ["--seed", "1"]})

    assert home.deployments.apply(name, manifest("A", aliases=("a",)), "one").accepted
    both = home.deployments.apply(name, manifest("B", aliases=("b",)), "two").object["spec"]
    assert [variable["name"] for variable in both["engine"]["env"]] == ["A", "B"]
    assert both["model"]["aliases"] == ["a", "b"]
    left = home.deployments.apply(name, manifest(aliases=()), "one").object["spec"]
    assert [variable["name"] for variable in left["engine"]["env"]] == ["B"]
    assert left["model"]["aliases"] == ["b"]


# ── what our definition does not have ─────────────────────────────────────────────────────────────────────────────────


def test_defaults_and_rules_about_the_past(home: Home) -> None:
    """Held with another definition: local mode serves any."""
    definition = yaml.safe_load((ROOT / "tests" / "local" / "boats.yaml").read_text())
    assert home.client.post(DEFINITIONS, json=definition).status_code == 201
    boats = Collection(home.client, f"/apis/harbour.test/v1/namespaces/{NAMESPACE}/boats")
    _until(lambda: home.client.get(boats.path).status_code == 200)
    boat = {"apiVersion": "harbour.test/v1", "kind": "Boat", "metadata": {"name": "argo"}}
    created = boats.create(boat | {"spec": {"sails": "gaff", "colour": None}})
    assert created.object["spec"] == {"sails": "gaff", "colour": "white"}
    assert boats.merge("argo", {"spec": {"colour": "red"}}).object["spec"]["colour"] == "red"
    assert boats.merge("argo", {"spec": {"colour": None}}).object["spec"]["colour"] == "white"
    sewn_on = boats.merge("argo", {"spec": {"sails": "lateen"}})
    assert (sewn_on.code, sewn_on.fields) == (422, {"spec"})
    assert "sails are sewn on" in sewn_on.sentences[0]
    boats.delete("argo")


def raft_definition(*, is_strict: bool) -> Json:
    """Everything that is wrong with the raft below is so since the definition became strict."""
    number: Json = {"type": "integer"} | ({"maximum": 1} if is_strict else {})
    pair: Json = {"type": "object", "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}}}
    if is_strict:
        pair["x-kubernetes-validations"] = [{"rule": "self.low <= self.high", "message": "wrong order"}]
    keyed = {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": number}}
    properties: Json = {
        "name": {"type": "string"} | ({"maxLength": 2} if is_strict else {}),
        "count": number,
        "inner": {"type": "object", "properties": {"free": {"type": "integer"}, "must": {"type": "string"}}},
        "keyed": {
            "type": "array", "items": keyed, "maxItems": 9,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        },
        "plain": {"type": "array", "items": number, "maxItems": 9},
        "whole": {"type": "array", "items": number, "maxItems": 9, "x-kubernetes-list-type": "atomic"},
        "set": {"type": "array", "items": {"type": "string"}, "maxItems": 9},
        "pair": pair,
        "pairs": {"type": "array", "items": pair, "maxItems": 9, "x-kubernetes-list-type": "atomic"},
    }  # fmt: skip
    if is_strict:
        properties["inner"]["required"] = ["must"]
        properties["set"]["x-kubernetes-list-type"] = "set"
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rafts.harbour.test"},
        "spec": {
            "group": "harbour.test",
            "scope": "Namespaced",
            "names": {"plural": "rafts", "singular": "raft", "kind": "Raft", "listKind": "RaftList"},
            "versions": [version],
        },
    }


RAFT: Json = {
    "name": "long", "count": 9, "inner": {"free": 1}, "keyed": [{"k": "a", "v": 9}, {"k": "b", "v": 9}],
    "plain": [9, 9], "whole": [9, 9], "set": ["a", "a"], "pair": {"low": 2, "high": 1},
    "pairs": [{"low": 2, "high": 1}],
}  # fmt: skip
CHANGES: list[tuple[Json, set[str]]] = [
    ({}, set()),
    ({"name": "ok"}, set()),
    ({"name": "other"}, {"spec.name"}),
    ({"count": 8}, {"spec.count"}),
    ({"inner": {"free": 2}}, {"spec.inner.must"}),
    ({"keyed": [{"k": "b", "v": 9}, {"k": "a", "v": 9}]}, set()),
    ({"keyed": [{"k": "b", "v": 9}, {"k": "a", "v": 8}]}, {"spec.keyed[1].v"}),
    ({"keyed": [{"k": "c", "v": 9}]}, {"spec.keyed[0].v"}),
    ({"plain": [9, 9, 1]}, {"spec.plain[0]", "spec.plain[1]"}),
    ({"whole": [9, 9, 1]}, {"spec.whole[0]", "spec.whole[1]"}),
    ({"set": ["a", "a", "b", "b"]}, set()),
    ({"pair": {"low": 3}}, {"spec.pair"}),
    ({"pairs": [{"low": 2, "high": 1}, {"low": 1, "high": 1}]}, {"spec.pairs[0]"}),
]
"""A merge patch of the raft's spec, and the fields for which it is refused."""


def test_what_an_update_leaves_alone_is_tolerated_by_a_definition_that_became_stricter(home: Home) -> None:
    path = f"{DEFINITIONS}/rafts.harbour.test"
    assert home.client.post(DEFINITIONS, json=raft_definition(is_strict=False)).status_code == 201
    rafts = Collection(home.client, f"/apis/harbour.test/v1/namespaces/{NAMESPACE}/rafts")
    raft = {"apiVersion": "harbour.test/v1", "kind": "Raft", "metadata": {"name": "kon-tiki"}, "spec": RAFT}
    _until(lambda: home.client.get(rafts.path).status_code == 200)
    assert rafts.create(raft).accepted
    definition = home.client.get(path).json() | {"spec": raft_definition(is_strict=True)["spec"]}
    assert home.client.put(path, json=definition).status_code == 200
    _until(lambda: not rafts.judge(raft | {"metadata": {"name": "other"}}).accepted)
    found = [(change, set(rafts.merge("kon-tiki", {"spec": change}, dryRun="All").fields)) for change, _ in CHANGES]
    assert found == CHANGES
    rafts.delete("kon-tiki")


def _until(holds: Callable[[], bool]) -> None:
    """A definition takes effect a moment after it was taken."""
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ── the same verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("case", [*RULES, *LIMITS], ids=lambda case: f"{case.field}")
def test_both_servers_say_the_same_sentences(genuine_home: Home, local: Home, case: RuleCase | LimitCase) -> None:
    body = case.broken if isinstance(case, RuleCase) else case.body
    genuine, ours = genuine_home.deployments.judge(body), local.deployments.judge(body)
    if _is_about_int32(case):
        assert ours.fields == genuine.fields
    else:
        assert sorted(ours.sentences) == sorted(genuine.sentences)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spec=mutated_specs())
def test_nearly_valid_objects_get_the_same_verdict_everywhere(genuine_home: Home, local: Home, spec: Json) -> None:
    body = deployment("mutant") | {"spec": spec}
    genuine, ours = (home.deployments.judge(body) for home in (genuine_home, local))
    assert ours == genuine, (genuine.sentences, ours.sentences)
    if genuine.accepted:
        assert ours.object["spec"] == genuine.object["spec"]
    assert _operator_agrees(body, genuine), (genuine.sentences, _operator_fields(body))


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(spec=mutated_specs())
def test_strict_validation_names_the_same_fields_everywhere(genuine_home: Home, local: Home, spec: Json) -> None:
    body = deployment("mutant") | {"spec": spec}
    genuine, ours = (home.deployments.judge(body, fieldValidation="Strict") for home in (genuine_home, local))
    assert ours == genuine, genuine.sentences


def _is_about_int32(case: RuleCase | LimitCase) -> bool:
    """The genuine server has Go's types for what is no number of 32 bits, and says so often; ours says once what
    it must be."""
    return isinstance(case, LimitCase) and case.field in ("spec.engine.maxModelLen", "spec.replicas")


def _operator_agrees(body: Json, genuine: Verdict) -> bool:
    """The operator reads what a server has pruned. It names the first field only, and knows the spec's alone."""
    named = _operator_fields(body)
    if genuine.accepted:
        return named == frozenset()
    return bool(named) and named <= genuine.fields


def _operator_fields(body: Json) -> frozenset[str]:
    """The fields that the operator refuses an object for."""
    spec, _ = prune(spec_schema(), deepcopy(body["spec"]), "spec")
    metadata = body["metadata"] | {"namespace": "default", "uid": "1", "creationTimestamp": "2030-01-01T00:00:00Z"}
    known = body | {"metadata": metadata, "spec": spec}
    try:
        LLMDeployment.from_body(known)
    except InvalidSpec as refused:
        return frozenset({refused.path})
    return frozenset(each.path or WHOLE_OBJECT for each in broken_rules(known))


def _schemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and every schema in it."""
    yield schema
    inner = [*(schema.get("properties") or {}).values(), schema.get("items"), schema.get("additionalProperties")]
    for child in inner:
        if isinstance(child, Mapping):
            yield from _schemas(child)
