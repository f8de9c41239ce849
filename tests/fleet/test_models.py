"""LLMDeployments → served models and outlooks."""

from typing import Any

import pytest

from fairlead.api.llmdeployment import LLMDeployment
from fairlead.fleet.directory import outlook, served_model
from fairlead.fleet.pods import ReplicaPods


def deployment(spec: dict[str, Any] | None = None, **conditions: dict[str, Any]) -> LLMDeployment:
    body = {
        "metadata": {
            "name": "dinghy",
            "namespace": "default",
            "uid": "u1",
            "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:10Z",
        },
        "spec": {"model": {"source": "demo://dinghy"}, **(spec or {})},
        "status": {"conditions": [{"type": kind, **fields} for kind, fields in conditions.items()]},
    }
    return LLMDeployment.from_body(body)


def pod(*, terminating: bool = False, phase: str = "Pending", engine: dict[str, Any] | None = None) -> ReplicaPods:
    metadata: dict[str, Any] = {"name": "p", "namespace": "default", "uid": "p1"}
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    statuses = [] if engine is None else [{"name": "engine", **engine}]
    return ReplicaPods.of({"metadata": metadata, "status": {"phase": phase, "containerStatuses": statuses}})


def test_defaults_and_routing_are_taken_over() -> None:
    model = served_model(deployment())
    assert (
        model.served_name,
        model.routing.policy,
        model.routing.max_queue_time,
        model.routing.cold_start_timeout,
    ) == (
        "dinghy",
        "PredictedTTFT",
        30.0,
        600.0,
    )
    assert model.created == 1767225610.0
    model = served_model(
        deployment(
            {
                "model": {"source": "demo://dinghy", "servedName": "m", "aliases": ["x"]},
                "routing": {"policy": "RoundRobin", "maxQueueTime": "5s", "coldStartTimeout": "1m"},
            }
        )
    )
    assert (
        model.served_name,
        model.aliases,
        model.routing.policy,
        model.routing.max_queue_time,
        model.routing.cold_start_timeout,
    ) == (
        "m",
        ("x",),
        "RoundRobin",
        5.0,
        60.0,
    )


@pytest.mark.parametrize(
    ("engine", "template", "known"),
    [
        ({"maxModelLen": 512}, {}, 512),
        ({}, {}, None),
        ({"maxModelLen": 512, "extraArgs": ["--max-model-len=1024"]}, {}, None),
        ({"maxModelLen": 512, "extraArgs": ["--seed=1"]}, {"spec": {"priorityClassName": "high"}}, 512),
        ({"maxModelLen": 512}, {"spec": {"containers": [{"name": "engine", "args": ["--max-model-len=9"]}]}}, None),
    ],
)
def test_the_context_is_known_as_far_as_nothing_else_may_set_it(engine, template, known) -> None:
    assert served_model(deployment({"engine": engine, "template": template})).max_model_len == known


def test_a_new_object_without_pods_is_expected_to_get_some() -> None:
    assert (outlook(deployment(), []).starting, outlook(deployment(), []).asleep) == (True, False)


ZERO = {"status": "False", "reason": "ScaledToZero", "message": "Scaled to zero.", "observedGeneration": 2}


def test_scaled_to_zero_by_hand_nothing_is_going_to_start_and_the_message_says_how() -> None:
    seen = outlook(deployment({"replicas": 0}, Ready=ZERO), [])
    assert seen.asleep
    assert not seen.starting
    assert "kubectl scale llmdeployment dinghy --namespace default --replicas 1" in seen.message


@pytest.mark.parametrize(
    ("autoscaling", "who"),
    [
        ({"mode": "External"}, "its external autoscaler (autoscaling.mode External)"),
        ({"mode": "External"}, "`kubectl scale llmdeployment dinghy --namespace default --replicas 1`"),
        ({"minReplicas": 0, "maxReplicas": 2}, "Fairlead's autoscaler"),
        ({"minReplicas": 1, "maxReplicas": 2}, "Fairlead's autoscaler"),
    ],
)
def test_scaled_to_zero_under_an_autoscaler_requests_are_held(autoscaling: dict[str, Any], who: str) -> None:
    seen = outlook(deployment({"replicas": 0, "autoscaling": autoscaling}, Ready=ZERO), [])
    assert seen.asleep
    assert seen.starting
    assert who in seen.message


def test_under_an_autoscaler_at_zero_a_spec_that_cannot_run_is_answered_at_once() -> None:
    condition = {"status": "False", "reason": "UnknownProfile", "message": "No such profile.", "observedGeneration": 2}
    seen = outlook(deployment({"replicas": 0, "autoscaling": {"maxReplicas": 2}}, Ready=condition), [])
    assert (seen.starting, seen.message) == (False, "No such profile.")


def test_why_the_model_cannot_be_loaded_is_what_waiting_clients_are_told() -> None:
    failed = {"status": "False", "reason": "ModelNotFound", "message": "p: no such folder.", "observedGeneration": 2}
    ready = {"status": "False", "reason": "ModelNotFound", "message": "0/1 ready; p: no such…", "observedGeneration": 2}
    seen = outlook(deployment(Ready=ready, ModelAvailable=failed), [pod()])
    assert (seen.starting, seen.message) == (True, "p: no such folder.")
    older = failed | {"observedGeneration": 1}
    assert outlook(deployment(Ready=ready, ModelAvailable=older), [pod()]).message == "0/1 ready; p: no such…"


def waiting(reason: str) -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason}}, "started": False, "restartCount": 1}


@pytest.mark.parametrize(
    ("kind", "reason", "engine", "is_starting"),
    [
        ("ModelAvailable", "ModelNotFound", waiting("CrashLoopBackOff"), False),
        ("ModelAvailable", "ModelNotFound", {"state": {"running": {}}, "started": False, "restartCount": 2}, False),
        ("ModelAvailable", "ModelNotFound", {"state": {"running": {}}, "started": False, "restartCount": 1}, True),
        ("ModelAvailable", "ModelNotFound", {"state": {"running": {}}, "started": True, "restartCount": 5}, True),
        ("ModelAvailable", "SourceUnreachable", waiting("CrashLoopBackOff"), True),
        ("Ready", "ImagePullBackOff", waiting("ImagePullBackOff"), False),
        ("Ready", "ImagePullBackOff", waiting("ErrImagePull"), True),
        ("Ready", "CreateContainerError", waiting("CreateContainerConfigError"), False),
        ("Ready", "CrashLoopBackOff", waiting("CrashLoopBackOff"), True),
        ("Ready", "OutOfMemory", waiting("CrashLoopBackOff"), True),
    ],
)
def test_clients_are_refused_at_once_where_every_replica_fails_for_a_lasting_cause(
    kind: str, reason: str, engine: dict[str, Any], is_starting: bool
) -> None:
    condition = {"status": "False", "reason": reason, "message": "Because.", "observedGeneration": 2}
    found = deployment(**{kind: condition})
    assert outlook(found, [pod(engine=engine)]).starting == is_starting
    assert outlook(found, [pod(engine=engine)]).message == "Because."
    assert outlook(found, [pod(engine=engine), pod()]).starting, "another may become ready"
    older = deployment(**{kind: condition | {"observedGeneration": 1}})
    assert outlook(older, [pod(engine=engine)]).starting


def test_a_sentence_about_an_older_spec_is_not_told() -> None:
    older = {
        "status": "False",
        "reason": "CrashLoopBackOff",
        "message": "0/1 ready; p: it broke",
        "observedGeneration": 1,
    }
    assert outlook(deployment(Ready=older), [pod()]).message == "Its replicas are starting."


def test_pods_that_exist_may_become_ready_whatever_the_conditions_say() -> None:
    assert outlook(deployment({"replicas": 0}), [pod()]).starting


@pytest.mark.parametrize("last", [pod(terminating=True), pod(phase="Failed"), pod(phase="Succeeded")])
def test_pods_that_go_or_are_over_do_not_count(last: ReplicaPods) -> None:
    assert not outlook(deployment({"replicas": 0}), [last]).starting


@pytest.mark.parametrize("reason", ["SourceNotSupported", "InvalidSpec", "UnknownProfile", "ModelSourceNotFound"])
def test_a_spec_that_cannot_run_is_answered_at_once_with_the_conditions_sentence(reason: str) -> None:
    condition = {"status": "False", "reason": reason, "message": "Change it.", "observedGeneration": 2}
    seen = outlook(deployment(Ready=condition), [])
    assert not seen.starting
    assert seen.message == "Change it."


def test_a_condition_about_an_older_spec_says_nothing_about_this_one() -> None:
    condition = {"status": "False", "reason": "InvalidSpec", "message": "Old.", "observedGeneration": 1}
    assert outlook(deployment(Ready=condition), []).starting


def test_a_ready_message_that_is_out_of_date_is_not_shown() -> None:
    assert "ready" not in outlook(deployment(Ready={"status": "True", "message": "1 of 1 ready"}), []).message
