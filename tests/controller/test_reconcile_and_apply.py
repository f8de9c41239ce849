"""What becomes of a plan when the API refuses, and what is tried again."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.controller.applier import Applier, ChildChange, ownership_problem
from fairlead.controller.desired import desired
from fairlead.controller.events import EventRecorder
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.plan import Plan, make_plan
from fairlead.controller.pod_starts import ASK_AGAIN_SECONDS
from fairlead.controller.reconcile import ReconcileOutcome, Reconciler
from fairlead.fleet.pods import replicas_of
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import EVENTS, LLMDEPLOYMENTS, Resource
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings()
KEY = ("ns", "dinghy")
BODY: JsonObject = stored()


class FakeApi:
    """Takes what is applied, or refuses it by kind."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], JsonObject] = {}
        self.refusals: dict[str, KubeError] = {}
        self.applied: list[str] = []
        self.deleted: list[str] = []
        self.statuses: list[JsonObject] = []
        self.events: list[str] = []

    def _check(self, what: str) -> None:
        if what in self.refusals:
            raise self.refusals[what]

    async def get(self, resource: Resource, name: str, namespace: str) -> JsonObject:
        if (resource.kind, name) not in self.objects:
            raise KubeError(404, "NotFound", "none")
        return self.objects[resource.kind, name]

    apply = KubeClient.apply
    find = KubeClient.find

    async def patch(self, resource: Resource, name: str, body: JsonObject, *args: Any, **options: Any) -> JsonObject:
        if resource is LLMDEPLOYMENTS:
            self._check("status")
            self.statuses.append(body["status"])
            return dict(body)
        if resource is EVENTS:
            return dict(body)
        self._check(resource.kind)
        self.applied.append(resource.kind)
        self.objects[resource.kind, name] = body | {"metadata": body["metadata"] | {"uid": f"uid-{resource.kind}"}}
        return self.objects[resource.kind, name]

    async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> JsonObject:
        self._check("delete")
        self.deleted.append(name)
        return {}

    async def create(self, resource: Resource, obj: JsonObject) -> JsonObject:
        self.events.append(obj["reason"])
        return obj


def reconciler(api: FakeApi, body: JsonObject | None = BODY) -> Reconciler:
    cluster = Cluster(api)  # type: ignore[arg-type]
    found = {} if body is None else {KEY: [body]}
    cluster.bind(
        {"llmdeployments": found, "children": {KEY: list(api.objects.values())}, "pods": {}, "name_claims": {}}
    )
    return Reconciler(cluster, Applier(api), EventRecorder(api, "here"), SETTINGS)  # type: ignore[arg-type]


async def test_the_first_time_everything_is_applied_and_the_second_time_nothing() -> None:
    api = FakeApi()
    assert await reconciler(api).reconcile(KEY) is ReconcileOutcome.APPLIED
    assert api.applied == ["ConfigMap", "Deployment", "Service"]
    assert await reconciler(api).reconcile(KEY) is ReconcileOutcome.UNCHANGED
    assert len(api.applied) == 3


async def test_a_status_that_says_the_same_is_not_written() -> None:
    api = FakeApi()
    await reconciler(api).reconcile(KEY)
    await reconciler(api, BODY | {"status": api.statuses[-1]}).reconcile(KEY)
    written = len(api.statuses)
    await reconciler(api, BODY | {"status": api.statuses[-1]}).reconcile(KEY)
    assert len(api.statuses) == written


async def test_conditions_of_others_are_not_ours_to_write() -> None:
    api = FakeApi()
    await reconciler(api).reconcile(KEY)
    await reconciler(api, BODY | {"status": api.statuses[-1]}).reconcile(KEY)
    theirs = {"type": "Audited", "status": "True"}
    status = api.statuses[-1] | {"conditions": [theirs, *reversed(api.statuses[-1]["conditions"])]}
    written = len(api.statuses)
    await reconciler(api, BODY | {"status": status}).reconcile(KEY)
    assert len(api.statuses) == written


@pytest.mark.parametrize("body", [None, BODY | {"metadata": BODY["metadata"] | {"deletionTimestamp": "x"}}])
async def test_what_is_gone_or_going_is_left_alone(body: JsonObject | None) -> None:
    api = FakeApi()
    assert await reconciler(api, body).reconcile(KEY) is ReconcileOutcome.GONE
    assert api.applied == []
    assert api.statuses == []


async def test_a_refusal_for_good_is_told_in_the_apis_words_and_the_others_are_applied() -> None:
    api = FakeApi()
    api.refusals["Deployment"] = KubeError(422, "Invalid", "spec.template: bad image")
    assert await reconciler(api).reconcile(KEY) is ReconcileOutcome.REFUSED
    assert api.applied == ["ConfigMap", "Service"]
    degraded = api.statuses[-1]["conditions"][-1]
    assert (degraded["type"], degraded["status"], degraded["reason"]) == ("Degraded", "True", "ApplyFailed")
    assert "Deployment 'dinghy-engine' was refused by the API server: spec.template: bad image" in degraded["message"]


UNTYPED = "failed to create typed patch object (ns/dinghy-engine; apps/v1, Kind=Deployment): .spec.x: expected list"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (KubeError(400, "BadRequest", UNTYPED), ReconcileOutcome.REFUSED),
        (KubeError(500, "Unknown", UNTYPED), ReconcileOutcome.REFUSED),
        (KubeError(422, "Invalid", "x" * 2_000_000), ReconcileOutcome.REFUSED),
        (KubeError(403, "Forbidden", "exceeded quota"), ReconcileOutcome.BLOCKED),
    ],
)
async def test_whatever_is_refused_is_a_condition_and_tried_again_slowly_where_it_is_of_no_use(
    error: KubeError, outcome: ReconcileOutcome
) -> None:
    api = FakeApi()
    api.refusals["Deployment"] = error
    assert await reconciler(api).reconcile(KEY) is outcome
    degraded = api.statuses[-1]["conditions"][-1]
    assert degraded["reason"] == "ApplyFailed"
    assert error.message[:100] in degraded["message"]
    assert len(degraded["message"]) < 5000, "an object holds no more than a megabyte and a half"


@pytest.mark.parametrize("error", [KubeError(503, "ServiceUnavailable", "soon"), KubeError(409, "Conflict", "faster")])
async def test_what_may_pass_is_raised_so_that_it_is_tried_again(error: KubeError) -> None:
    api = FakeApi()
    api.refusals["Deployment"] = error
    with pytest.raises(KubeError):
        await reconciler(api).reconcile(KEY)


async def test_an_object_deleted_before_its_status_was_written_is_no_failure() -> None:
    api = FakeApi()
    api.refusals["status"] = KubeError(404, "NotFound", "gone")
    assert await reconciler(api).reconcile(KEY) is ReconcileOutcome.APPLIED


async def test_a_status_that_cannot_be_written_is_tried_again() -> None:
    api = FakeApi()
    api.refusals["status"] = KubeError(500, "InternalError", "oops")
    with pytest.raises(KubeError):
        await reconciler(api).reconcile(KEY)


async def test_a_status_that_is_refused_for_good_is_told_once_and_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As for an old object whose name breaks a rule of the CRD."""
    api = FakeApi()
    api.refusals["status"] = KubeError(422, "Invalid", "metadata.name must not be longer")
    looked = reconciler(api)
    for _ in range(3):
        assert await looked.reconcile(KEY) is ReconcileOutcome.BLOCKED
    assert api.events.count("StatusRefused") == 1
    (told,) = (each.message for each in caplog.records if "cannot be written" in each.message)
    assert told == "ns/dinghy: the status cannot be written: metadata.name must not be longer"
    del api.refusals["status"]
    assert await looked.reconcile(KEY) is ReconcileOutcome.APPLIED
    assert api.statuses


async def test_only_what_is_blocked_is_looked_at_again_without_an_event() -> None:
    at_rest = reconciler(FakeApi())
    looked_at = [outcome for outcome in ReconcileOutcome if at_rest.recheck_after(KEY, outcome) is not None]
    assert looked_at == [ReconcileOutcome.BLOCKED, ReconcileOutcome.REFUSED]
    soon, late = (at_rest.recheck_after(KEY, outcome) for outcome in looked_at)
    assert soon is not None and late is not None and late > 10 * soon


async def test_a_node_that_prepares_a_pod_is_looked_at_again_because_no_watch_tells_what_keeps_it() -> None:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    pods = {KEY: [{"metadata": metadata, "spec": {"nodeName": "n"}, "status": {}}]}
    waiting = reconciler(FakeApi())
    waiting.cluster.bind({"llmdeployments": {KEY: [BODY]}, "children": {}, "pods": pods, "name_claims": {}})
    assert waiting.recheck_after(KEY, ReconcileOutcome.UNCHANGED) == ASK_AGAIN_SECONDS


async def test_children_no_longer_wanted_are_deleted_and_a_lost_race_is_no_failure() -> None:
    api = FakeApi()
    await reconciler(api).reconcile(KEY)
    old = next(found for (kind, _), found in api.objects.items() if kind == "ConfigMap")
    old = old | {"metadata": old["metadata"] | {"name": "dinghy-old"}}
    observed = Observed(body=BODY, children={("ConfigMap", "dinghy-old"): old})
    plan = make_plan(desired(observed, SETTINGS), observed)
    applied = await Applier(api).apply(plan, BODY)  # type: ignore[arg-type]
    assert api.deleted == ["dinghy-old"]
    assert ChildChange("Deleted", "ConfigMap", "dinghy-old") in applied.changes
    api.refusals["delete"] = KubeError(404, "NotFound", "gone")
    again = await Applier(api).apply(plan, BODY)  # type: ignore[arg-type]
    assert "Deleted" not in [change.verb for change in again.changes]


class RecordingDrainer:
    """Notes in the API's own log when it was asked."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api

    async def ask(self, pods: Iterable[JsonObject]) -> None:
        self.api.applied.append("ask " + ", ".join(pod["metadata"]["name"] for pod in pods))


def lowering(*victims: str) -> Plan:
    """A plan that takes these pods away."""
    observed = Observed(body=BODY)
    pods = ({"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}} for name in victims)
    deployment = next(child for child in desired(observed, SETTINGS).children if child["kind"] == "Deployment")
    return Plan(apply=(deployment,), drain=replicas_of(pods))


def applier(api: FakeApi) -> Applier:
    return Applier(api, drain=RecordingDrainer(api).ask, now=lambda: datetime(2026, 6, 1, tzinfo=UTC))  # type: ignore[arg-type]


async def test_victims_are_marked_then_asked_and_only_then_the_count_is_lowered() -> None:
    api = FakeApi()
    using = applier(api)
    applied = await using.apply(lowering("p", "q"), BODY)
    assert api.applied == ["Pod", "Pod", "ask p, q", "Deployment"]
    assert api.objects["Pod", "p"]["metadata"]["annotations"] == {
        "fairlead.dev/drain": "2026-06-01T00:00:00Z",
        "controller.kubernetes.io/pod-deletion-cost": "-2147483647",
    }
    assert [change.name for change in applied.changes if change.verb == "Draining"] == ["p", "q"]
    await using.apply(lowering("p", "q"), BODY)
    assert api.applied[4:] == ["ask p, q", "Deployment"], "each is marked and told once"
    assert using.asked(KEY, [{"metadata": {"uid": "uid-p"}}]) == {"uid-p"}


async def test_nothing_is_lowered_while_the_mark_may_still_be_made() -> None:
    api = FakeApi()
    api.refusals["Pod"] = KubeError(503, "ServiceUnavailable", "soon")
    with pytest.raises(KubeError):
        await applier(api).apply(lowering("p"), BODY)
    assert api.applied == []


@pytest.mark.parametrize("error", [KubeError(403, "Forbidden", "no"), KubeError(404, "NotFound", "gone")])
async def test_a_mark_that_cannot_be_made_stops_nothing(error: KubeError) -> None:
    api = FakeApi()
    api.refusals["Pod"] = error
    await applier(api).apply(lowering("p"), BODY)
    assert api.applied == ["ask p", "Deployment"]


async def test_who_was_asked_to_drain_and_is_to_stay_after_all_is_deleted() -> None:
    api = FakeApi()
    pod = {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}}
    applied = await applier(api).apply(Plan(replace=replicas_of([pod])), BODY)
    assert (api.deleted, applied.changes) == (["p"], (ChildChange("Replacing", "Pod", "p"),))


def test_ownership_is_by_uid_and_controller() -> None:
    ours = {"uid": "u-1", "kind": "LLMDeployment", "name": "dinghy", "controller": True}

    def problem(*owners: dict[str, Any]) -> str | None:
        found = ownership_problem({"kind": "Service", "metadata": {"name": "s", "ownerReferences": list(owners)}}, BODY)
        return None if found is None else found.message

    assert problem(ours) is None
    assert "is not ours: delete it" in str(problem())
    assert "is not ours" in str(problem({"uid": "u-9", "kind": "Deployment", "name": "x", "controller": True}))
    assert "earlier LLMDeployment" in str(problem(ours | {"uid": "u-0"}))
