"""Observe: what is read from kopf's indexes, who has which name, and whether a claim is there."""

from typing import Any

import pytest

from fairlead.controller.observe import Cluster, name_claims
from fairlead.controller.operator_metrics import figures
from fairlead.controller.pod_diagnosis import Stage
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead_testing.fleet_objects import stored


class Claims:
    """An API that knows some PersistentVolumeClaims."""

    def __init__(self, *found: tuple[str, str], error: KubeError | None = None) -> None:
        self.found, self.error = found, error

    find = KubeClient.find

    async def get(self, resource: Any, name: str, namespace: str) -> JsonObject:
        if self.error is not None:
            raise self.error
        if (namespace, name) not in self.found:
            raise KubeError(404, "NotFound", "none")
        return {}


def body(name: str, created: int = 1, namespace: str = "ns", source: str = "demo://dinghy", **model: Any) -> JsonObject:
    found = stored(name, namespace, model={"source": source} | model)
    found["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": f"2026-01-0{created}T00:00:00Z"}
    return found


def cluster(*bodies: JsonObject, api: Claims | None = None, pods: Any = (), children: Any = ()) -> Cluster:
    made = Cluster(api or Claims())  # type: ignore[arg-type]
    claims: dict[str, list[Any]] = {}
    for each in bodies:
        for name, claim in name_claims(each).items():
            claims.setdefault(name, []).append(claim)
    made.bind(
        {
            "llmdeployments": {(each["metadata"]["namespace"], each["metadata"]["name"]): [each] for each in bodies},
            "name_claims": claims,
            "pods": {("ns", "a"): list(pods)},
            "children": {("ns", "a"): list(children)},
        }
    )
    return made


async def test_what_is_gone_is_not_observed() -> None:
    assert await cluster(body("a")).observe(("ns", "b")) is None
    assert await Cluster(Claims()).observe(("ns", "b")) is None  # type: ignore[arg-type]


async def test_children_by_kind_and_name_and_pods_by_age() -> None:
    pods = [
        {"metadata": {"name": name, "creationTimestamp": time}} for name, time in (("y", "2"), ("z", "1"), ("x", "2"))
    ]
    owner = {"uid": "uid-a", "controller": True}
    children = [
        {"kind": "Service", "metadata": {"name": "a"}},
        {"kind": "Deployment", "metadata": {"name": "a-engine", "ownerReferences": [owner]}},
    ]
    observed = await cluster(body("a"), pods=pods, children=children).observe(("ns", "a"))
    assert observed is not None
    assert [pod["metadata"]["name"] for pod in observed.pods] == ["z", "x", "y"]
    assert set(observed.children) == {("Service", "a"), ("Deployment", "a-engine")}
    assert observed.engine == children[1]


async def test_the_served_name_with_its_namespace_may_be_lost_too_and_ones_own_name_never() -> None:
    served_m, named_m = body("a", created=1, servedName="m"), body("m", created=2, servedName="other")
    found = cluster(served_m, named_m)
    observed = await found.observe(("ns", "a"))
    assert observed is not None
    assert [(claim.name, claim.key) for claim in observed.rivals] == [("ns/m", ("ns", "m"))]
    assert await rivals(found, "m") == []
    elsewhere = cluster(body("b", namespace="elsewhere", servedName="m"), body("a", created=2, servedName="m"))
    observed = await elsewhere.observe(("ns", "a"))
    assert observed is not None
    assert [claim.name for claim in observed.rivals] == ["m"], "and ns/m is still its own"


async def rivals(found: Cluster, name: str, namespace: str = "ns") -> list[tuple[str, str]]:
    observed = await found.observe((namespace, name))
    assert observed is not None
    return sorted({claim.key for claim in observed.rivals})


async def test_the_older_one_has_the_name() -> None:
    found = cluster(body("a", 2, servedName="m"), body("b", 1, servedName="m"), body("c", 3, servedName="m"))
    assert await rivals(found, "b") == []
    assert await rivals(found, "a") == [("ns", "b")]
    assert await rivals(found, "c") == [("ns", "b")]
    assert found.rivals_of(("ns", "b")) == [("ns", "a"), ("ns", "c")]


async def test_of_two_of_the_same_age_exactly_one_has_the_name() -> None:
    found = cluster(body("m", namespace="x"), body("m", namespace="y"))
    assert await rivals(found, "m", "x") == []
    assert await rivals(found, "m", "y") == [("x", "m")]


async def test_aliases_and_default_names_contend_too() -> None:
    found = cluster(body("a", 1, aliases=["chat"]), body("chat", 2))
    assert await rivals(found, "chat") == [("ns", "a")]
    assert await rivals(found, "a") == []


async def test_a_name_with_a_namespace_is_nobodys_to_claim() -> None:
    found = cluster(
        body("a", 1, aliases=["ns/b", "other/c"]), body("b", 2, aliases=["ns/b"]), body("c", namespace="other")
    )
    for name, namespace in (("a", "ns"), ("b", "ns"), ("c", "other")):
        assert await rivals(found, name, namespace) == []


async def test_one_that_is_going_has_no_claim() -> None:
    going = body("a", 1, servedName="m")
    going["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    assert await rivals(cluster(going, body("b", 2, servedName="m")), "b") == []


def test_those_in_conflict_are_known_from_their_status() -> None:
    waiting = body("b")
    waiting["status"] = {"conditions": [{"type": "Degraded", "status": "True", "reason": "NameConflict"}]}
    assert cluster(body("a"), waiting).keys_in_conflict() == [("ns", "b")]


async def test_a_claim_is_asked_for_only_where_the_source_names_one() -> None:
    api = Claims(("ns", "models"))
    here = cluster(body("a", source="pvc://models/x"), body("b", source="pvc://absent"), api=api)
    first, second = await here.observe(("ns", "a")), await here.observe(("ns", "b"))
    assert first is not None
    assert first.missing_claims == {}
    assert second is not None
    assert second.missing_claims == {"model.source": "absent"}


async def test_a_claim_of_what_guesses_tokens_is_asked_for_too() -> None:
    guessed_for = body("a", source="pvc://models/x")
    guessed_for["spec"]["engine"] = {"speculative": {"method": "eagle3", "source": "pvc://heads/x"}}
    seen = await cluster(guessed_for, api=Claims(("ns", "models"))).observe(("ns", "a"))
    assert seen is not None
    assert seen.missing_claims == {"engine.speculative.source": "heads"}


async def test_a_profile_is_asked_for_where_one_is_named() -> None:
    begun = body("a")
    begun["spec"]["engine"] = {"profile": {"configMap": "measured"}}
    for api, profile in ((Claims(("ns", "measured")), {}), (Claims(), None)):
        seen = await cluster(begun, api=api).observe(("ns", "a"))
        assert seen is not None and seen.profile == profile


async def test_an_api_that_cannot_say_is_no_missing_claim() -> None:
    api = Claims(error=KubeError(503, "ServiceUnavailable", "soon"))
    with pytest.raises(KubeError):
        await cluster(body("a", source="pvc://models"), api=api).observe(("ns", "a"))


async def test_what_keeps_a_pod_is_heard_once_and_known_to_whoever_looks_later() -> None:
    """The metrics and the autoscaler look without asking, and must count as the conditions do."""

    class Api(Claims):
        async def list(self, resource: Any, namespace: str, *, field_selector: str) -> JsonObject:
            assert (resource.plural, namespace, field_selector) == ("events", "ns", "involvedObject.uid=u")
            seen = {"lastTimestamp": "2026-01-01T00:00:09Z"}
            return {"items": [{"type": "Warning", "reason": "FailedMount", "message": "no secret"} | seen]}

    metadata = {"name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    deployment = body("a")
    deployment["metadata"] |= {"uid": "u-a", "generation": 1}
    here = cluster(deployment, api=Api(), pods=[{"metadata": metadata, "spec": {"nodeName": "n"}}])
    before = here.last_seen(("ns", "a"))
    await here.observe(("ns", "a"))
    after = here.last_seen(("ns", "a"))
    assert before is not None and after is not None
    assert [each.stage for each in before.diagnoses] == [Stage.STARTING]
    assert [(each.stage, each.reason) for each in after.diagnoses] == [(Stage.FAILING, "FailedMount")]
    figures_of = {labels: value for name, labels, value in figures(after) if name == "pods"}
    assert figures_of["failing",] == 1
