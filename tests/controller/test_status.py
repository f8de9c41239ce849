"""Status: the five conditions in every situation, and the counts."""

import json
from typing import Any

import pytest

from fairlead.api.conditions import ConditionType
from fairlead.controller.capabilities import BASIC, Capabilities
from fairlead.controller.desired import Problem, desired
from fairlead.controller.observe import NameClaim, Observed
from fairlead.controller.plan import key_of
from fairlead.controller.status import situation, status
from fairlead.kube.client import JsonObject
from fairlead.operator_settings import OperatorSettings
from fairlead_common.wire.downloads import DownloadProgress, DownloadStage
from fairlead_testing.fleet_objects import stored

SETTINGS = OperatorSettings(gateway_url="http://gateway/")
NOW = "2026-06-01T00:00:00Z"
SCHEDULED = {"type": "PodScheduled", "status": "True"}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
READY = {"type": "Ready", "status": "True"}


def body(spec: dict[str, Any], **status: Any) -> JsonObject:
    found = stored(**spec)
    found["metadata"]["generation"] = 4
    return found | {"status": status}


def pod(name: str, *conditions: dict[str, str], deleted: bool = False, **container: Any) -> JsonObject:
    metadata = {"name": name, "uid": f"uid-{name}"} | ({"deletionTimestamp": NOW} if deleted else {})
    statuses = [{"name": "engine", "image": "e:1", "restartCount": 0} | container] if container else []
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running", "conditions": list(conditions), "containerStatuses": statuses},
    }


def ready_pod(name: str = "r") -> JsonObject:
    return pod(name, SCHEDULED, READY)


def loading_pod(name: str = "l") -> JsonObject:
    return pod(name, SCHEDULED, state={"running": {}}, started=False)


def failed_pod(reason: str = "NotEnoughMemory", name: str = "f") -> JsonObject:
    ended = {"exitCode": 1, "message": json.dumps({"reason": reason, "message": "lower maxNumSeqs"})}
    return pod(name, SCHEDULED, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": ended})


class Seen:
    """The status for a spec, pods and more; conditions by type."""

    def __init__(
        self,
        *pods: JsonObject,
        spec: dict[str, Any] | None = None,
        problems: tuple[Problem, ...] = (),
        engine: dict[str, Any] | None = None,
        paused: bool = False,
        before: dict[str, Any] | None = None,
        is_configuring: bool = False,
        capabilities: Capabilities = BASIC,
        left_out: tuple[str, ...] = (),
        **observed: Any,
    ) -> None:
        raw = body(spec or {}, **(before or {}))
        children = {key_of(child): child for child in desired(Observed(body=raw), SETTINGS).children}
        if engine is not None:
            children["Deployment", "dinghy-engine"] |= {"status": engine}
        if paused:
            children["Deployment", "dinghy-engine"]["spec"]["paused"] = True
        seen = Observed(body=raw, pods=pods, children=children, **observed)
        wanted = desired(seen, SETTINGS, capabilities)
        now = situation(seen, wanted, problems, is_applying=False, is_configuring=is_configuring, left_out=left_out)
        self.fields = status(seen, now, SETTINGS, time=NOW)
        self.conditions = {condition["type"]: condition for condition in self.fields["conditions"]}

    def brief(self, kind: str) -> tuple[str, str]:
        return self.conditions[kind]["status"], self.conditions[kind]["reason"]

    def message(self, kind: str) -> str:
        text: str = self.conditions[kind]["message"]
        return text


def test_all_conditions_are_always_there_with_message_and_generation() -> None:
    for seen in (Seen(), Seen(spec={"replicas": -1}), Seen(ready_pod()), Seen(failed_pod())):
        assert list(seen.conditions) == list(ConditionType)
        assert all(condition["message"] for condition in seen.conditions.values())
        assert {condition["observedGeneration"] for condition in seen.conditions.values()} == {4}
        assert seen.fields["observedGeneration"] == 4


def of_template(pod: JsonObject, template: str) -> JsonObject:
    pod["metadata"]["labels"] = {"pod-template-hash": template}
    return pod


def test_after_an_edit_the_pods_of_before_decide_no_sentence_once_a_later_one_is_there() -> None:
    waiting = of_template(pod("old", UNSCHEDULABLE), "1")
    failed = of_template(failed_pod(name="old"), "1")
    for old, reason in ((waiting, "Unschedulable"), (failed, "NotEnoughMemory")):
        assert Seen(old).brief("Ready") == ("False", reason), "alone it is all there is"
        seen = Seen(old, of_template(loading_pod(), "2"))
        assert seen.brief("Ready") == ("False", "LoadingModel") and seen.message("Ready").startswith(
            "0/1 replica ready; l: "
        )
        assert seen.brief("Degraded") == ("False", "AsExpected")
        assert seen.brief("ModelAvailable") == ("Unknown", "NotLoadedYet")
        also_failed = Seen(old, of_template(failed_pod("TensorMissing", "new"), "2"))
        assert also_failed.brief("Degraded") == ("True", "TensorMissing")
        assert also_failed.message("Degraded").startswith("new: ")
        going = of_template(pod("gone", SCHEDULED, deleted=True), "2")
        assert Seen(old, going).brief("Ready") == ("False", reason), "what goes replaces nothing"
    slow = Seen(of_template(loading_pod("old"), "1"), of_template(pod("new", SCHEDULED), "2"))
    assert slow.message("Progressing").startswith("new")


def test_everything_is_well() -> None:
    seen = Seen(ready_pod("a"), ready_pod("b"), spec={"replicas": 2})
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.message("Ready") == "2/2 replicas ready"
    assert seen.brief("Progressing") == ("False", "Complete")
    assert seen.brief("ModelAvailable") == ("True", "ModelLoaded")
    assert seen.brief("Degraded") == ("False", "AsExpected")


def test_of_two_pods_the_one_that_downloads_is_told_of_not_the_one_that_waits_for_it() -> None:
    pods, stages = [], {"a": DownloadStage.WAITING, "b": DownloadStage.DOWNLOADING}
    for name in stages:
        pods.append(pod(name, SCHEDULED, state={"waiting": {"reason": "PodInitializing"}}))
        pods[-1]["status"]["initContainerStatuses"] = [{"name": "download", "state": {"running": {}}}]
    downloads = {
        f"uid-{name}": DownloadProgress(source="hf://a/b", stage=stage, bytes=1) for name, stage in stages.items()
    }
    for order in (pods, pods[::-1]):
        seen = Seen(*order, spec={"replicas": 2}, downloads=downloads)
        for kind in ("Ready", "Progressing"):
            assert "downloading hf://a/b: 1 B" in seen.message(kind), seen.message(kind)


def test_counts_selector_and_url() -> None:
    seen = Seen(
        ready_pod(), loading_pod(), pod("d", SCHEDULED, READY, deleted=True), failed_pod(), spec={"replicas": 3}
    )
    fields = {key: value for key, value in seen.fields.items() if key != "conditions"}
    assert fields == {
        "observedGeneration": 4,
        "desiredReplicas": 3,
        "replicas": 3,
        "readyReplicas": 1,
        "drainingReplicas": 1,
        "selector": "fairlead.dev/llmdeployment=dinghy,app.kubernetes.io/component=engine",
        "url": "http://gateway/ns/dinghy/v1",
    }


def test_no_pods_yet() -> None:
    seen = Seen()
    assert seen.brief("Ready") == ("False", "Reconciling")
    assert seen.brief("Progressing") == ("True", "Reconciling")
    assert seen.brief("ModelAvailable") == ("Unknown", "NotLoadedYet")
    assert seen.brief("Degraded") == ("False", "AsExpected")


def test_loading_is_progress_and_no_trouble() -> None:
    seen = Seen(loading_pod())
    assert seen.brief("Ready") == ("False", "LoadingModel")
    assert seen.message("Ready") == "0/1 replica ready; l: the engine is loading the model"
    assert seen.brief("Progressing") == ("True", "LoadingModel")
    assert seen.brief("Degraded") == ("False", "AsExpected")


def test_an_engine_that_cannot_start_says_so_everywhere() -> None:
    seen = Seen(failed_pod())
    assert seen.brief("Ready") == ("False", "NotEnoughMemory")
    assert "lower maxNumSeqs" in seen.message("Ready")
    assert seen.brief("ModelAvailable") == ("False", "NotEnoughMemory")
    assert seen.brief("Degraded") == ("True", "NotEnoughMemory")
    assert seen.brief("Progressing") == ("False", "NotEnoughMemory")


def test_an_unschedulable_pod_is_no_statement_about_the_model() -> None:
    seen = Seen(pod("p", UNSCHEDULABLE))
    assert seen.brief("Ready") == ("False", "Unschedulable")
    assert "0/3 nodes" in seen.message("Ready")
    assert seen.brief("ModelAvailable") == ("Unknown", "NotLoadedYet")
    assert seen.brief("Degraded") == ("True", "Unschedulable")


def test_a_rollout_that_fails_leaves_ready_but_is_degraded() -> None:
    seen = Seen(ready_pod("old"), failed_pod("MissingTensor"))
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.brief("ModelAvailable") == ("False", "MissingTensor")
    assert seen.brief("Degraded") == ("True", "MissingTensor")


def test_the_engines_words_go_before_the_schedulers() -> None:
    seen = Seen(pod("p", UNSCHEDULABLE), failed_pod(), spec={"replicas": 2})
    assert seen.brief("Degraded") == ("True", "NotEnoughMemory")


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"replicas": -1}, "InvalidSpec", "spec.replicas"),
        ({"rollout": {"maxSurge": 0}}, "InvalidSpec", "must not both be 0"),
        ({"resources": {"profile": "absent"}}, "UnknownProfile", "use one of cpu-large, cpu-medium"),
    ],
)
def test_a_spec_that_cannot_be_done_is_said_with_the_way_out(spec: dict[str, Any], reason: str, words: str) -> None:
    seen = Seen(spec=spec)
    assert seen.brief("Ready") == ("False", reason)
    assert words in seen.message("Ready")
    assert seen.brief("Degraded") == ("True", reason)
    assert seen.brief("Progressing") == ("False", reason)
    assert seen.brief("ModelAvailable") == ("Unknown", "NotLoadedYet")


def test_a_spec_that_becomes_invalid_leaves_the_replicas_and_says_so() -> None:
    seen = Seen(ready_pod(), spec={"replicas": -1})
    assert seen.brief("Ready") == ("False", "InvalidSpec")
    assert seen.message("Ready").startswith("1 replica still serving as configured before; spec.replicas")
    assert seen.fields["readyReplicas"] == 1


def test_a_source_that_is_not_supported_is_about_the_model() -> None:
    seen = Seen(spec={"model": {"source": "file:///srv"}})
    assert seen.brief("ModelAvailable") == ("False", "SourceNotSupported")
    assert seen.brief("Ready") == ("False", "SourceNotSupported")


def test_a_missing_claim_is_named() -> None:
    seen = Seen(spec={"model": {"source": "pvc://models/x"}}, missing_claims={"model.source": "models"})
    assert seen.brief("ModelAvailable") == ("False", "ModelSourceNotFound")
    told = "model.source: there is no PersistentVolumeClaim 'models' in the namespace 'ns': create it"
    assert told in seen.message("Ready")


def test_problems_with_writing_are_shown() -> None:
    seen = Seen(ready_pod(), problems=(Problem("ResourceNotOwned", "Service 'dinghy' exists and is not ours"),))
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.brief("Degraded") == ("True", "ResourceNotOwned")


def test_pods_that_the_api_refuses_are_shown_in_its_words() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota'}
    seen = Seen(engine={"conditions": [failure]})
    assert seen.brief("Ready") == ("False", "PodsRefused")
    assert "exceeded quota" in seen.message("Degraded")


def test_a_name_that_an_older_one_has_degrades_but_serves() -> None:
    seen = Seen(ready_pod(), rivals=(NameClaim("dinghy", "2025-01-01T00:00:00Z", ("other", "dinghy")),))
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.brief("Degraded") == ("True", "NameConflict")
    assert seen.message("Degraded") == (
        "requests for the model 'dinghy' go to the older LLMDeployment other/dinghy. This one is reached by "
        "'ns/dinghy', or the path /ns/dinghy/v1: choose another model.servedName than 'dinghy'"
    )


def test_every_name_that_was_lost_is_told_with_what_is_left_and_what_to_do() -> None:
    rivals = tuple(
        NameClaim(name, "2025-01-01T00:00:00Z", key)
        for name, key in (("small", ("other", "b")), ("m", ("other", "b")), ("tiny", ("ns", "elder")))
    )
    model = {"source": "demo://dinghy", "servedName": "m", "aliases": ["small", "tiny", "free"]}
    assert Seen(spec={"model": model}, rivals=rivals).message("Degraded") == (
        "requests for the model 'm' go to the older LLMDeployment other/b; "
        "requests for the model 'small' go to the older LLMDeployment other/b; "
        "requests for the model 'tiny' go to the older LLMDeployment ns/elder. "
        "This one is reached by 'free', 'ns/m', 'ns/dinghy', or the path /ns/dinghy/v1: "
        "choose another model.servedName than 'm', and take 'small', 'tiny' out of model.aliases"
    )
    only_alias = Seen(spec={"model": model}, rivals=rivals[:1]).message("Degraded")
    assert "reached by 'm', 'tiny', 'free', 'ns/m', 'ns/dinghy'" in only_alias
    assert "servedName" not in only_alias


def test_a_replica_that_is_to_go_is_draining_although_its_pod_is_not_deleted_yet() -> None:
    chosen = ready_pod("d")
    chosen["metadata"]["annotations"] = {"fairlead.dev/drain": NOW}
    seen = Seen(ready_pod(), chosen, spec={"replicas": 1})
    assert (seen.fields["replicas"], seen.fields["readyReplicas"], seen.fields["drainingReplicas"]) == (1, 1, 1)
    assert seen.brief("Progressing") == ("True", "Scaling")


def test_zero_replicas_are_ready_where_the_next_request_starts_one() -> None:
    seen = Seen(spec={"replicas": 0, "autoscaling": {"minReplicas": 0, "maxReplicas": 2}})
    assert seen.brief("Ready") == ("True", "ScaledToZero")
    assert seen.message("Ready") == "scaled to zero: the next request starts a replica and waits for it"
    assert seen.brief("Degraded") == ("False", "AsExpected")
    outside = Seen(spec={"replicas": 0, "autoscaling": {"mode": "External"}})
    assert outside.brief("Ready") == ("False", "ScaledToZero")
    assert "until the external autoscaler or a person raises spec.replicas" in outside.message("Ready")


def test_what_is_done_without_is_said_and_nothing_is_wrong() -> None:
    sentence = "Done without PodDisruptionBudget: this API server does not serve policy/v1."
    seen = Seen(ready_pod(), spec={"replicas": 1}, capabilities=Capabilities(done_without=(sentence,)))
    assert seen.brief("Degraded") == ("False", "AsExpected")
    assert seen.message("Degraded") == f"Nothing is wrong. {sentence}"
    assert Seen(ready_pod(), spec={"replicas": 1}).message("Degraded") == "nothing is wrong"


def test_what_the_crd_cannot_keep_is_said_with_the_way_out() -> None:
    seen = Seen(ready_pod(), spec={"replicas": 1}, left_out=("status.url",))
    assert seen.brief("Degraded") == ("False", "AsExpected")
    assert "The CRD is older than this operator: status.url cannot be kept" in seen.message("Degraded")
    assert "kubectl apply --server-side" in seen.message("Degraded")


def test_replicas_that_a_tainted_node_loses_are_told_of_while_others_take_their_place() -> None:
    going = ready_pod("g")
    going["metadata"]["deletionTimestamp"] = NOW
    said = "Taint manager: deleting due to NoExecute taint"
    going["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": said}
    )
    alone = Seen(going, spec={"replicas": 1}).message("Progressing")
    assert alone.endswith(f"; g: is taken away (DeletionByTaintManager). {said}")
    replaced = Seen(going, loading_pod("r"), spec={"replicas": 1})
    assert replaced.fields["replicas"] == 1
    assert replaced.message("Progressing").startswith("r: ")
    assert said in replaced.message("Progressing")
    without_place = Seen(going, pod("u", UNSCHEDULABLE), spec={"replicas": 1})
    assert without_place.message("Progressing").startswith("u: no node can take it")
    assert without_place.message("Progressing").endswith(f"; g: is taken away (DeletionByTaintManager). {said}")


def test_zero_replicas_are_not_ready_and_nothing_is_wrong() -> None:
    seen = Seen(spec={"replicas": 0})
    assert seen.brief("Ready") == ("False", "ScaledToZero")
    assert seen.brief("Progressing") == ("False", "Complete")
    assert seen.brief("ModelAvailable") == ("Unknown", "ScaledToZero")
    assert seen.brief("Degraded") == ("False", "AsExpected")


def test_a_model_that_could_not_be_loaded_is_not_well_because_it_sleeps() -> None:
    asleep = {"replicas": 0, "autoscaling": {"minReplicas": 0, "maxReplicas": 2}}
    failed = Seen(failed_pod(), spec=asleep | {"replicas": 1})
    before = {"conditions": failed.fields["conditions"]}
    going = failed_pod()
    going["metadata"]["deletionTimestamp"] = NOW
    for pods in ((going,), ()):
        seen = Seen(*pods, spec=asleep, before=before)
        assert seen.brief("Ready") == ("False", "NotEnoughMemory")
        assert seen.message("Ready") == "scaled to zero, and the model could not be loaded: f: lower maxNumSeqs"
        assert seen.brief("ModelAvailable") == ("False", "NotEnoughMemory")
        assert seen.brief("Degraded") == ("True", "NotEnoughMemory")
        before = {"conditions": seen.fields["conditions"]}
    assert Seen(spec=asleep, before=before).fields["conditions"] == before["conditions"], "said once, it stays the same"
    for tried in (loading_pod(), ready_pod()):
        assert Seen(tried, spec=asleep | {"replicas": 1}, before=before).brief("Degraded") == ("False", "AsExpected")
    changed = Seen(spec=asleep, before=before, is_configuring=True)
    assert (changed.brief("Ready"), changed.brief("Degraded")) == (("True", "ScaledToZero"), ("False", "AsExpected"))


def test_draining_replicas_are_no_capacity_but_progress() -> None:
    seen = Seen(ready_pod(), pod("d", SCHEDULED, READY, deleted=True))
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.brief("Progressing") == ("True", "Scaling")
    assert (seen.fields["replicas"], seen.fields["drainingReplicas"]) == (1, 1)


def test_an_unfinished_rollout_is_progress() -> None:
    seen = Seen(ready_pod(), engine={"observedGeneration": 1, "replicas": 2, "updatedReplicas": 1})
    assert seen.brief("Progressing") == ("True", "RollingOut")


@pytest.mark.parametrize(
    ("autoscaling", "reason", "words"),
    [
        (None, "AutoscalingNotConfigured", "not asked for"),
        ({"mode": "External"}, "ExternalAutoscaler", "through the scale subresource"),
        ({"minReplicas": 3, "maxReplicas": 2}, "InvalidSpec", "spec.replicas stays as it is: autoscaling.minReplicas"),
    ],
)
def test_who_else_scales_is_said_honestly(autoscaling: dict[str, Any] | None, reason: str, words: str) -> None:
    seen = Seen(spec={"autoscaling": autoscaling})
    assert seen.brief("ScalingActive") == ("False", reason)
    assert words in seen.message("ScalingActive")


@pytest.mark.parametrize(
    ("scaling", "brief", "words"),
    [
        (None, ("Unknown", "SignalsMissing"), "has not looked at the gateways yet"),
        ({"desired": 1}, ("False", "SignalsMissing"), "check that a gateway is ready"),
        (
            {"desired": 1, "signals": {"queue": 0, "missingGateways": 1}},
            ("True", "SignalsMissing"),
            "1 gateway says nothing, so replicas may be added, but none are taken away",
        ),
        ({"desired": 1, "signals": {"queue": 0}}, ("True", "ScalingActive"), "between 1 and 3"),
    ],
)
def test_what_the_autoscaler_sees_is_said_honestly(
    scaling: dict[str, Any] | None, brief: tuple[str, str], words: str
) -> None:
    seen = Seen(spec={"autoscaling": {"maxReplicas": 3}}, before={"scaling": scaling} if scaling else None)
    assert seen.brief("ScalingActive") == brief
    assert words in seen.message("ScalingActive")


def test_times_move_only_with_the_status() -> None:
    first = Seen(loading_pod())
    for condition in first.fields["conditions"]:
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    second = Seen(ready_pod(), before=first.fields)
    times = {kind: condition["lastTransitionTime"] for kind, condition in second.conditions.items()}
    changed = {kind for kind in times if first.conditions[kind]["status"] != second.conditions[kind]["status"]}
    assert changed >= {"Ready", "Progressing", "ModelAvailable"}
    assert times == {kind: NOW if kind in changed else "2026-01-01T00:00:00Z" for kind in times}


SINCE = "2026-05-31T23:59:46Z"


def test_a_ready_replica_that_hangs_is_degraded_and_told_with_what_comes_next() -> None:
    seen = Seen(ready_pod("a"), ready_pod("b"), spec={"replicas": 2}, hanging={"uid-b": SINCE})
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.brief("Degraded") == ("True", "ReplicaHangs")
    assert seen.message("Degraded").startswith(f"b: its engine has been in one step since {SINCE}")
    for words in ("--step-timeout", "kubelet restarts it", "kubectl delete pod b "):
        assert words in seen.message("Degraded")
    assert seen.fields["readyReplicas"] == 2
    assert Seen(ready_pod("a"), ready_pod("b"), spec={"replicas": 2}).brief("Degraded") == ("False", "AsExpected")


def test_a_tokenizer_that_gateways_do_not_run_is_degraded_and_told_after_all_else() -> None:
    problem = "it takes more than 1 s of a processor"
    seen = Seen(ready_pod("a"), spec={"replicas": 1}, tokenizer_problem=problem)
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert seen.brief("Degraded") == ("True", "TokenizerNotRun")
    assert problem in seen.message("Degraded")
    hangs = Seen(ready_pod("a"), spec={"replicas": 1}, tokenizer_problem=problem, hanging={"uid-a": SINCE})
    assert hangs.brief("Degraded") == ("True", "ReplicaHangs")


def test_all_that_hang_are_named_and_what_fails_goes_first() -> None:
    hanging = {"uid-a": SINCE, "uid-b": SINCE, "uid-gone": SINCE}
    seen = Seen(ready_pod("a"), ready_pod("b"), spec={"replicas": 2}, hanging=hanging)
    assert seen.message("Degraded").endswith("replaces it at once. So does b")
    assert (
        Seen(ready_pod("a"), failed_pod(), spec={"replicas": 2}, hanging=hanging).brief("Degraded")[1] != "AsExpected"
    )
    assert Seen(failed_pod(name="a"), hanging=hanging).brief("Degraded") == ("True", "NotEnoughMemory")
    assert Seen(pod("a", SCHEDULED, READY, deleted=True), hanging=hanging).brief("Degraded")[0] == "False"


def test_one_that_hangs_stays_degraded_until_the_kubelet_restarts_it() -> None:
    """Its /ready fails before that, so it is no longer among the ready ones that gateways tell of."""
    lost = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-06-01T12:00:05Z"}
    running = {"state": {"running": {"startedAt": "2026-06-01T12:00:01Z"}}, "started": True}
    seen = Seen(ready_pod("a"), pod("b", SCHEDULED, lost, **running), spec={"replicas": 2})
    assert seen.brief("Degraded") == ("True", "EngineNotReady")
    assert seen.message("Degraded").startswith("b: ")
    just_started = {**lost, "lastTransitionTime": "2026-06-01T12:00:00Z"}
    assert Seen(pod("b", SCHEDULED, just_started, **running)).brief("Degraded")[0] == "False"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "(120 s by default)"),
        (["--step-timeout", "20s"], "(20s)"),
        (["--step-timeout=20s", "--step-timeout=45"], "(45)"),
        (["--step-timeout"], "(120 s by default)"),
    ],
)
def test_the_step_timeout_that_is_told_is_the_engines_own(words: list[str], told: str) -> None:
    hanging = ready_pod("b")
    hanging["spec"]["containers"] = [{"name": "sidecar"}, {"name": "engine", "args": ["serve", *words]}]
    assert told in Seen(hanging, hanging={"uid-b": SINCE}).message("Degraded")


ROLLING = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 0}
RESUME = "kubectl rollout resume deployment/dinghy-engine -n ns"


@pytest.mark.parametrize("pods", [(ready_pod(), loading_pod()), (failed_pod(), ready_pod()), (ready_pod("a"),)])
def test_a_rollout_that_is_paused_is_called_so_before_what_its_old_pods_do(pods: tuple[JsonObject, ...]) -> None:
    seen = Seen(*pods, spec={"replicas": len(pods)}, engine=ROLLING, paused=True)
    assert seen.brief("Progressing") == ("False", "Paused")
    assert RESUME in seen.message("Progressing") and "pods stay as configured before" in seen.message("Progressing")


def test_paused_at_rest_is_told_too_but_not_before_what_goes_on_all_the_same() -> None:
    rest = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1}
    seen = Seen(ready_pod(), engine=rest, paused=True)
    assert seen.brief("Progressing") == ("False", "Paused")
    assert RESUME in seen.message("Progressing")
    assert seen.brief("Ready") == ("True", "ReplicasReady")
    assert Seen(loading_pod(), engine=rest, paused=True).brief("Progressing") == ("True", "LoadingModel")
    assert Seen(failed_pod(), engine=rest, paused=True).brief("Progressing") == ("False", "NotEnoughMemory")
    assert Seen(ready_pod(), engine=rest).brief("Progressing") == ("False", "Complete")
