"""Plan: writes only what has to be written, and only what is ours."""

from copy import deepcopy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.controller.desired import Desired, desired
from fairlead.controller.observe import ChildKey, Observed
from fairlead.controller.plan import Plan, content_hash, differs, key_of, make_plan
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.fleet_objects import stored as body

SETTINGS = OperatorSettings()


def stored(**spec: Any) -> dict[ChildKey, JsonObject]:
    """The children as an API server would have them after they were applied: with fields of its own."""
    children = {}
    for manifest in desired(Observed(body=body(**spec)), SETTINGS).children:
        child = deepcopy(manifest)
        child["metadata"] |= {"uid": f"uid-{child['kind']}", "resourceVersion": "7", "generation": 1}
        child["status"] = {"observedGeneration": 1}
        if child["kind"] == "Deployment":
            child["spec"]["template"]["spec"] |= {"restartPolicy": "Always", "schedulerName": "default-scheduler"}
        children[key_of(child)] = child
    return children


def plan(
    children: dict[ChildKey, JsonObject],
    settled: dict[ChildKey, str] | None = None,
    pods: tuple[JsonObject, ...] = (),
    **spec: Any,
) -> Plan:
    observed = Observed(body=body(**spec), children=children, pods=pods)
    return make_plan(desired(observed, SETTINGS), observed, settled)


def kinds(made: Plan) -> list[str]:
    return [manifest["kind"] for manifest in made.apply]


DEPLOYMENT = ("Deployment", "dinghy-engine")


def configuration(children: dict[ChildKey, JsonObject]) -> ChildKey:
    (found,) = (key for key in children if key[0] == "ConfigMap")
    return found


def test_a_new_llmdeployment_gets_all_children_configuration_first() -> None:
    assert kinds(plan({})) == ["ConfigMap", "Deployment", "Service"]


def test_nothing_is_written_when_nothing_has_changed() -> None:
    assert plan(stored()) == Plan()


def test_only_what_is_wanted_differently_is_applied() -> None:
    assert kinds(plan(stored(), replicas=3)) == ["Deployment"]
    assert kinds(plan(stored(), engine={"maxNumSeqs": 4})) == ["ConfigMap", "Deployment"]


def test_a_field_that_is_no_longer_set_is_a_change_too() -> None:
    before = stored(template={"spec": {"priorityClassName": "high"}})
    assert kinds(plan(before)) == ["Deployment"]


def test_somebody_elses_edit_is_undone() -> None:
    children = stored()
    children[DEPLOYMENT]["spec"]["replicas"] = 9
    assert kinds(plan(children)) == ["Deployment"]


def test_somebody_elses_addition_is_left_alone() -> None:
    children = stored()
    children[DEPLOYMENT]["metadata"]["labels"]["team"] = "a"
    children[DEPLOYMENT]["spec"]["template"]["spec"]["hostNetwork"] = False
    assert plan(children) == Plan()


def test_what_a_webhook_insists_on_is_applied_once_and_then_accepted() -> None:
    children = stored()
    engine = children[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]
    engine["image"] = "mirror.example/fairlead/engine"
    assert kinds(plan(children)) == ["Deployment"]
    settled = {DEPLOYMENT: content_hash(children[DEPLOYMENT])}
    assert plan(children, settled) == Plan()
    children[DEPLOYMENT]["status"] = {"replicas": 1}
    children[DEPLOYMENT]["metadata"]["resourceVersion"] = "8"
    assert plan(children, settled) == Plan()
    engine["image"] = "something/else"
    assert kinds(plan(children, settled)) == ["Deployment"]


def test_quantities_that_the_api_server_rewrote_are_the_same() -> None:
    wanted = {"resources": {"requests": {"memory": "1024Mi", "cpu": "1000m"}}}
    children = stored(**wanted)
    resources = children[DEPLOYMENT]["spec"]["template"]["spec"]["containers"][0]["resources"]
    resources["requests"] = {"memory": "1Gi", "cpu": "1"}
    assert plan(children, **wanted) == Plan()
    resources["requests"] = {"memory": "2Gi", "cpu": "1"}
    assert kinds(plan(children, **wanted)) == ["Deployment"]


def test_children_that_are_not_wanted_any_more_are_pruned_if_they_are_ours() -> None:
    children = stored()
    old = deepcopy(children[configuration(children)])
    old["metadata"]["name"] = "dinghy-old"
    foreign = deepcopy(old)
    foreign["metadata"] |= {"name": "theirs", "ownerReferences": [{"uid": "other", "controller": True}]}
    children |= {("ConfigMap", "dinghy-old"): old, ("ConfigMap", "theirs"): foreign}
    made = plan(children)
    assert [child["metadata"]["name"] for child in made.prune] == ["dinghy-old"]
    assert made.apply == ()


def test_the_configuration_of_pods_that_are_still_there_is_kept_until_they_are_gone() -> None:
    before, changed = stored(), {"engine": {"maxNumSeqs": 4}}
    old = configuration(before)
    made = plan(before, **changed)
    assert (kinds(made), made.prune) == (["ConfigMap", "Deployment"], ())
    children = stored(**changed) | {old: before[old]}
    children[DEPLOYMENT]["metadata"]["generation"] = 2
    assert plan(children, **changed).prune == (), "the Deployment has not been acted upon"
    children[DEPLOYMENT]["status"] = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1}
    assert plan(children, **changed).prune == (), "there are pods of the old template"
    children[DEPLOYMENT]["status"] = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1}
    going = {
        "metadata": {"name": "p", "uid": "p", "deletionTimestamp": "2026-01-02T00:00:00Z"},
        "spec": {"volumes": [{"name": "config", "configMap": {"name": old[1]}}]},
    }
    assert plan(children, pods=(going,), **changed).prune == (), "one of them is still draining"
    assert [key_of(child) for child in plan(children, **changed).prune] == [old]


def test_an_obstacle_changes_nothing_that_runs() -> None:
    assert plan(stored(), model={"source": "file:///srv"}) == Plan()
    assert plan(stored(), replicas=-1) == Plan()
    assert plan(stored(), resources={"profile": "absent"}) == Plan()


def test_an_object_that_is_going_is_left_to_the_garbage_collector() -> None:
    going = body()
    going["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    observed = Observed(body=going)
    assert make_plan(desired(observed, SETTINGS), observed) == Plan()


def test_an_external_autoscaler_gets_a_count_to_start_from_once() -> None:
    assert plan(stored(), autoscaling={"mode": "External"}).initial_replicas == 1
    assert plan(stored(), autoscaling={"mode": "External"}, replicas=1).initial_replicas is None
    assert plan(stored(), autoscaling={"maxReplicas": 2}).initial_replicas is None
    assert plan(stored()).initial_replicas is None


def test_desired_without_a_deployment_means_no_plan() -> None:
    assert make_plan(Desired(None), Observed(body=body())) == Plan()


json_objects = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "1", "1Gi"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=50)
@given(json_objects, st.integers())
def test_an_object_never_differs_from_itself_nor_from_itself_with_additions(wanted: Any, added: int) -> None:
    found = deepcopy(wanted)
    assert not differs(wanted, found)
    if isinstance(found, dict):
        found["added"] = added
        assert not differs(wanted, found)
        assert differs(found, {key: value for key, value in found.items() if key != "added"})
