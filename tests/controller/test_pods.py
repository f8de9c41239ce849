"""Diagnosis of pods: every way not to be ready has a reason and a sentence."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.controller.pod_diagnosis import MAX_MESSAGE_LENGTH, Diagnosis, PodWarning, Stage, diagnose, start_failure
from fairlead_common.wire.downloads import DownloadProgress, DownloadStage

SCHEDULED = {"type": "PodScheduled", "status": "True"}


def pod(*containers: dict[str, Any], conditions: Any = (SCHEDULED,), **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n"},
        "status": {"phase": "Pending", "conditions": list(conditions), "containerStatuses": list(containers)} | status,
    }


def engine(**fields: Any) -> dict[str, Any]:
    return {"name": "engine", "image": "fairlead/engine:1", "restartCount": 0} | fields


def waiting(reason: str, message: str = "", **fields: Any) -> Diagnosis:
    return diagnose(pod(engine(state={"waiting": {"reason": reason, "message": message}}, **fields)))


def crashed(message: str = "", *, exit_code: int = 1, reason: str = "Error", restarts: int = 3) -> Diagnosis:
    ended = {"exitCode": exit_code, "reason": reason, "message": message}
    return waiting("CrashLoopBackOff", "back-off 40s", lastState={"terminated": ended}, restartCount=restarts)


def test_a_ready_pod_needs_no_words() -> None:
    found = diagnose(pod(conditions=(SCHEDULED, {"type": "Ready", "status": "True"})))
    assert found == Diagnosis("p", Stage.READY)


def test_a_pod_that_is_going_drains_whether_it_is_ready_or_not() -> None:
    going = pod(conditions=(SCHEDULED, {"type": "Ready", "status": "True"}))
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert diagnose(going).stage is Stage.DRAINING


def test_an_evicted_pod_is_finished_and_says_why() -> None:
    found = diagnose(pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory"))
    assert (found.stage, found.reason) == (Stage.FINISHED, "Evicted")
    assert "low on resource" in found.message


def test_a_pod_without_any_status_waits_for_the_scheduler() -> None:
    found = diagnose({"metadata": {"name": "p"}})
    assert (found.stage, found.reason) == (Stage.STARTING, "Scheduling")


def test_the_schedulers_message_is_copied() -> None:
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }  # fmt: skip
    found = diagnose(pod(conditions=(condition,)))
    assert (found.stage, found.reason) == (Stage.FAILING, "Unschedulable")
    assert "check resources" in found.message
    assert found.message.endswith("3 Insufficient nvidia.com/gpu.")


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "InvalidImageName"])
def test_an_image_that_does_not_pull_is_named(reason: str) -> None:
    found = waiting(reason, 'Back-off pulling image "fairlead/engine:1"')
    assert (found.stage, found.reason) == (Stage.FAILING, "ImagePullBackOff")
    assert found.message.startswith("fairlead/engine:1 cannot be pulled; check engine.image")


def mounting(*containers: dict[str, Any], name: str = "model", **status: Any) -> dict[str, Any]:
    """A pod that mounts the model's image."""
    found = pod(*containers, **status)
    found["spec"]["volumes"] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": name, "image": {"reference": "registry.example:5000/models/barge:v1", "pullPolicy": "IfNotPresent"}},
    ]
    return found


BARGE = "registry.example:5000/models/barge"


@pytest.mark.parametrize("written", [f"{BARGE}:v1", f"{BARGE}@sha256:0a", f'"{BARGE}"'])
@pytest.mark.parametrize("name", ["model", "speculative"])
def test_the_models_image_that_does_not_pull_is_named_and_not_the_engines(written: str, name: str) -> None:
    """The kubelet says so of the container that mounts it."""
    state = {"waiting": {"reason": "ImagePullBackOff", "message": f"Back-off pulling image {written}: 401"}}
    found = diagnose(mounting(engine(state=state), name=name))
    assert (found.stage, found.reason, found.model_failed) == (Stage.FAILING, "ImagePullBackOff", True)
    field = {"model": "model.source", "speculative": "engine.speculative.source"}[name]
    assert found.message.startswith(f"{BARGE}:v1 cannot be pulled; check {field}, and that model.credentials names")
    assert found.message.endswith("401")


@pytest.mark.parametrize("written", ["fairlead/engine:1", f"{BARGE}-other:1", f"{BARGE}/below:1", ""])
def test_beside_a_models_image_the_engines_own_is_still_named(written: str) -> None:
    found = diagnose(mounting(engine(state={"waiting": {"reason": "ErrImagePull", "message": written}})))
    assert found.message.startswith("fairlead/engine:1 cannot be pulled; check engine.image")
    assert not found.model_failed


def test_a_kubelet_that_only_warns_of_an_image_that_does_not_pull_is_heard() -> None:
    creating = mounting(engine(state={"waiting": {"reason": "ContainerCreating"}}))
    found = diagnose(creating, PodWarning("Failed", f'Failed to pull image "{BARGE}:v1": not found'))
    assert (found.stage, found.reason, found.model_failed) == (Stage.FAILING, "ImagePullBackOff", True)
    assert diagnose(creating, PodWarning("Failed", "something else")).stage is Stage.STARTING


def test_a_pod_that_waits_for_the_models_image_says_so() -> None:
    found = diagnose(mounting(engine(state={"waiting": {"reason": "ContainerCreating"}})))
    assert (found.stage, found.reason) == (Stage.STARTING, "ContainerCreating")
    assert found.message.endswith(f"of which {BARGE}:v1 may have to be pulled, too")


def test_a_node_that_cannot_mount_images_is_suspected() -> None:
    words = 'cannot find volume "model" to mount into container "engine"'
    failed = engine(state={"waiting": {"reason": "CreateContainerConfigError", "message": words}})
    found = diagnose(mounting(failed))
    assert "check whether its node can mount images (else write model.cache: {node: true}), engine.env" in found.message
    assert "mount images" not in diagnose(pod(failed)).message


def test_a_container_that_cannot_be_created_says_why() -> None:
    found = waiting("CreateContainerConfigError", 'secret "s" not found')
    assert (found.stage, found.reason) == (Stage.FAILING, "CreateContainerError")
    assert 'secret "s" not found' in found.message


def test_a_container_that_is_being_created_is_on_its_way() -> None:
    assert waiting("ContainerCreating").reason == "ContainerCreating"
    assert diagnose(pod()).reason == "ContainerCreating"


@pytest.mark.parametrize(
    ("reason", "expected", "words"),
    [
        ("FailedMount", "FailedMount", "a volume cannot be mounted; check the claims, Secrets and ConfigMaps"),
        ("FailedAttachVolume", "FailedMount", "a volume cannot be mounted"),
        ("FailedCreatePodSandBox", "FailedCreatePodSandBox", "check the node's network and container runtime"),
        ("NetworkNotReady", "FailedCreatePodSandBox", "check the node's network"),
    ],
)
def test_what_the_cluster_warns_of_is_told_with_the_way_out(reason: str, expected: str, words: str) -> None:
    found = diagnose(pod(engine(state={"waiting": {"reason": "ContainerCreating"}})), PodWarning(reason, "its words"))
    assert (found.stage, found.reason) == (Stage.FAILING, expected)
    assert words in found.message
    assert found.message.endswith(f"The cluster says: {reason}: its words")
    assert not found.model_failed


def test_a_warning_that_may_mean_little_is_shown_and_the_pod_is_on_its_way() -> None:
    found = diagnose(pod(), PodWarning("DNSConfigForming", "too many name servers"))
    assert (found.stage, found.reason) == (Stage.STARTING, "ContainerCreating")
    assert found.message.endswith("DNSConfigForming: too many name servers")


def test_a_warning_is_bounded_and_says_nothing_of_a_pod_that_has_got_further() -> None:
    warning = PodWarning("FailedMount", "y" * 5000)
    assert len(diagnose(pod(), warning).message) == MAX_MESSAGE_LENGTH
    running = pod(engine(state={"running": {}}, started=False))
    assert diagnose(running, warning) == diagnose(running)


def test_an_engine_that_runs_but_has_not_started_loads_the_model() -> None:
    found = diagnose(pod(engine(state={"running": {}}, started=False)))
    assert (found.stage, found.reason) == (Stage.STARTING, "LoadingModel")


@pytest.mark.parametrize(
    ("unready_since", "reason", "words"),
    [
        ("2026-06-01T12:00:05Z", "EngineNotReady", "does not say that it is ready any more"),
        ("2026-06-01T12:00:01Z", "LoadingModel", "not said yet that it is ready"),
        ("2026-06-01T12:00:00Z", "LoadingModel", "not said yet that it is ready"),
    ],
)
def test_an_engine_that_lost_its_readiness_is_told_from_one_that_has_just_started(
    unready_since: str, reason: str, words: str
) -> None:
    running = engine(state={"running": {"startedAt": "2026-06-01T12:00:01Z"}}, started=True, restartCount=2)
    seen = pod(running)
    seen["status"]["conditions"].append({"type": "Ready", "status": "False", "lastTransitionTime": unready_since})
    found = diagnose(seen)
    assert (found.stage, found.reason) == (Stage.STARTING, reason)
    assert words in found.message and "kubectl logs p" in found.message


def test_the_engines_own_reason_and_message_are_copied() -> None:
    told = {"reason": "NotEnoughMemory", "message": "The KV cache needs 3 GiB and 1 GiB is left: lower maxNumSeqs."}
    found = crashed(json.dumps(told))
    assert (found.stage, found.reason) == (Stage.FAILING, "NotEnoughMemory")
    assert found.message == told["message"] + " (restarted 3 times)"
    assert found.model_failed


def test_the_reason_stays_while_the_engine_is_tried_again() -> None:
    ended = {"exitCode": 1, "message": json.dumps({"reason": "ModelNotFound", "message": "no folder /models/x"})}
    again = engine(state={"running": {}}, started=False, restartCount=1, lastState={"terminated": ended})
    assert diagnose(pod(again)).reason == "ModelNotFound"
    just_ended = engine(state={"terminated": ended})
    assert diagnose(pod(just_ended)).reason == "ModelNotFound"


def test_a_restart_long_ago_does_not_make_a_started_engine_fail() -> None:
    ended = {"exitCode": 1, "message": json.dumps({"reason": "ModelNotFound", "message": "x"})}
    found = diagnose(pod(engine(state={"running": {}}, started=True, restartCount=1, lastState={"terminated": ended})))
    assert found.stage is Stage.STARTING


def test_memory_kills_say_what_to_raise() -> None:
    found = crashed(exit_code=137, reason="OOMKilled")
    assert found.reason == "OutOfMemory"
    assert "raise resources.limits.memory" in found.message
    assert not found.model_failed


def test_a_memory_kill_of_one_process_wins_over_what_the_other_could_say_about_it() -> None:
    """The kernel may kill only the process that computes; the one that serves HTTP then sees a death with no cause."""
    found = crashed(json.dumps({"reason": "EngineDead", "message": "ended by signal 9"}), reason="OOMKilled")
    assert found.reason == "OutOfMemory"
    assert "raise resources.limits.memory" in found.message


def test_any_other_end_shows_the_last_line_and_where_to_read_on() -> None:
    found = crashed("Traceback\nValueError: boom\n", exit_code=3)
    assert found.reason == "CrashLoopBackOff"
    assert "exit code 3 (restarted 3 times); see kubectl logs p --previous" in found.message
    assert found.message.endswith("Its last line: ValueError: boom")


OUT_OF_MEMORY = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


def test_a_sidecar_that_fails_is_named_and_is_not_taken_for_the_engine() -> None:
    told = json.dumps({"reason": "ModelNotFound", "message": "x"})
    sidecar = {"name": "side", "state": {"terminated": {"exitCode": 1, "message": told}}}
    found = diagnose(pod(engine(state={"running": {}}, started=True), sidecar))
    assert found.reason == "CrashLoopBackOff"
    assert "'side'" in found.message
    assert not found.model_failed


def beside(container: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """A pod whose engine, a server that is not ours, is a sidecar of its front."""
    found = pod(*others, initContainerStatuses=[container])
    return found | {"spec": {"initContainers": [{"name": "engine", "restartPolicy": "Always"}]}}


WAITS = {"name": "front", "restartCount": 0, "state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        ({"state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}, "ImagePullBackOff", "engine.image"),
        ({"state": {"running": {}}, "started": False}, "LoadingModel", "the engine is loading the model"),
        (
            {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3, "lastState": OUT_OF_MEMORY},
            "OutOfMemory",
            "or lower engine.kvCache.memory",
        ),
        ({"state": {"running": {}}, "started": True}, "ContainerCreating", "the container 'front' is being created"),
    ],
)
def test_a_server_that_is_a_sidecar_is_told_of_as_the_engine(status: dict[str, Any], reason: str, words: str) -> None:
    found = diagnose(beside(engine(**status), WAITS))
    assert found.reason == reason
    assert words in found.message


def test_a_failing_init_container_is_seen() -> None:
    init = {"name": "fetch", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}, "image": "f:1"}
    assert diagnose(pod(initContainerStatuses=[init])).reason == "ImagePullBackOff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("plain text", None),
        ("[1]", None),
        ('{"reason": "X"}', None),
        ('{"message": "only"}', ("EngineStartFailed", "only")),
        ('{"reason": "two words", "message": "m"}', ("EngineStartFailed", "m")),
        ('{"reason": 7, "message": "m"}', ("EngineStartFailed", "m")),
        ('{"reason": "NotEnoughMemory", "message": "m"}', ("NotEnoughMemory", "m")),
    ],
)
def test_only_a_reason_that_a_condition_can_have_is_taken_over(text: str, expected: tuple[str, str] | None) -> None:
    assert start_failure(text) == expected


def test_long_messages_are_cut() -> None:
    assert len(crashed(json.dumps({"reason": "X", "message": "y" * 5000}), restarts=1).message) == MAX_MESSAGE_LENGTH


texts = st.none() | st.text(max_size=5)
states = st.fixed_dictionaries(
    {},
    optional={
        "waiting": st.fixed_dictionaries({"reason": texts, "message": texts}),
        "running": st.just({}),
        "terminated": st.fixed_dictionaries({}, optional={"exitCode": st.integers(0, 2), "message": texts}),
    },
)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(["engine", "side"])},
    optional={"state": states, "lastState": states, "restartCount": st.integers(0, 3), "started": st.booleans()},
)


@settings(deadline=None, max_examples=50)
@given(st.lists(containers, max_size=2), st.sampled_from([None, "Pending", "Running", "Failed", "Unknown"]))
def test_no_status_makes_it_fail_and_whatever_is_not_ready_has_a_reason(found: list[Any], phase: str | None) -> None:
    diagnosis = diagnose(pod(*found, phase=phase))
    assert diagnosis.stage in (Stage.READY, Stage.DRAINING) or (diagnosis.reason and diagnosis.message)


def downloading(**fields: Any) -> dict[str, Any]:
    """A pod in the middle of its download."""
    status = {"name": "download", "restartCount": 0, "state": {"running": {}}} | fields
    return pod(engine(state={"waiting": {"reason": "PodInitializing"}}), initContainerStatuses=[status])


def progress(stage: str = "downloading", **fields: Any) -> DownloadProgress:
    return DownloadProgress(source="hf://org/name", stage=DownloadStage(stage), **fields)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            progress(bytes=3_100_000_000, total_bytes=15_200_000_000, bytes_per_second=2.1e8, remaining_seconds=57.6),
            "downloading hf://org/name: 3.1 of 15.2 GB, 210 MB/s, 58 s left",
        ),
        (
            progress(bytes=0, total_bytes=15_000_000, bytes_per_second=999.0, remaining_seconds=1500.0),
            "downloading hf://org/name: 0 of 15 MB, 999 B/s, 25 min left",
        ),
        (progress(bytes=1500), "downloading hf://org/name: 1.5 kB"),
        (progress("verifying", bytes=5, total_bytes=5), "verifying hf://org/name: 5 of 5 B"),
        (progress("waiting"), "waits for another pod's download of hf://org/name"),
        (progress("listing"), "asks which files hf://org/name has"),
        (None, "the model is downloaded"),
    ],
)
def test_a_download_says_how_far_it_is(said: DownloadProgress | None, words: str) -> None:
    found = diagnose(downloading(), progress=said)
    assert (found.stage, found.reason, found.message) == (Stage.STARTING, "Downloading", words)


def test_a_download_that_failed_says_why_in_its_own_words() -> None:
    message = json.dumps({"reason": "RevisionNotFound", "message": "hf://org/name has no revision v9"})
    ended = {"terminated": {"exitCode": 1, "message": message}}
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    found = diagnose(downloading(state=back_off, lastState=ended, restartCount=2), progress=progress())
    assert (found.stage, found.reason) == (Stage.FAILING, "RevisionNotFound")
    assert found.message == "hf://org/name has no revision v9 (restarted 2 times)"
    assert found.model_failed
    again = downloading(lastState=ended, restartCount=2)
    assert diagnose(again).reason == "RevisionNotFound", "until the next attempt has said anything"
    assert diagnose(again, progress=progress()).reason == "Downloading"


def test_a_download_of_what_guesses_tokens_names_its_field() -> None:
    message = json.dumps({"reason": "SourceNotFound", "message": "https://hub has no model org/head"})
    found = diagnose(
        downloading(name="download-speculative", state={"terminated": {"exitCode": 1, "message": message}})
    )
    assert (found.stage, found.reason) == (Stage.FAILING, "SourceNotFound")
    assert found.message == "engine.speculative.source: https://hub has no model org/head"
    runs = diagnose(downloading(name="download-speculative"), progress=progress(bytes=1500))
    assert (runs.reason, runs.message) == ("Downloading", "downloading hf://org/name: 1.5 kB")


def test_a_download_without_its_secret_names_the_field() -> None:
    missing = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}}
    found = diagnose(downloading(state=missing))
    assert (found.stage, found.reason) == (Stage.FAILING, "CreateContainerError")
    assert "check model.credentials and template" in found.message and 'secret "hub" not found' in found.message
