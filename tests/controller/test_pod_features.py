"""What API servers keep of pods: what one does to an image volume, or to a sidecar, is the answer, and it is asked
without making anything."""

import copy
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.conditions import Reason
from fairlead.controller.capabilities import ASK_AGAIN_SECONDS, IMAGE_VOLUMES, SIDECARS, PodFeatures
from fairlead.controller.desired import desired
from fairlead.controller.observe import Cluster, Observed
from fairlead.controller.status import conditions, situation
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import DEPLOYMENTS
from fairlead.operator_settings import OperatorSettings
from fairlead_testing.local_api import local_api_server


class Server:
    """An API server that answers what `answer` makes of the Deployment that it is given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *, params: dict[str, str], body: JsonObject) -> JsonObject:
        assert (method, params) == ("POST", {"dryRun": "All"})
        self.asked.append(path)
        made = copy.deepcopy(body)
        answer = self.answer(made["spec"]["template"]["spec"])
        if isinstance(answer, KubeError):
            raise answer
        return made


def kept(pod: JsonObject) -> None:
    assert pod["volumes"][0]["image"]["reference"]


def taken_out(pod: JsonObject) -> None:
    """As Kubernetes 1.31 to 1.34 do with the feature gate off."""
    pod["volumes"] = None
    pod["containers"][0]["volumeMounts"] = None


def emptied(pod: JsonObject) -> None:
    """As servers do that do not know the field: a volume without a source is an emptyDir."""
    pod["volumes"] = [{"name": "image", "emptyDir": {}}]


def invalid(pod: JsonObject) -> KubeError:
    return KubeError(422, "Invalid", "spec.template.spec.volumes[0]: Required value: must specify a volume type")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (kept, True),
        (taken_out, False),
        (emptied, False),
        (invalid, False),
        (lambda pod: KubeError(422, "Invalid", "spec.replicas: a policy wants two"), None),
        (lambda pod: KubeError(400, "BadRequest", "admission webhook does not support dry run"), None),
        (lambda pod: KubeError(403, "Forbidden", "no"), None),
        (lambda pod: KubeError(0, "Unreachable", "nobody"), None),
    ],
)
async def test_what_a_server_makes_of_an_image_volume_is_the_answer(answer: Any, expected: bool | None) -> None:
    server = Server(answer)
    assert await PodFeatures(server).are_kept(IMAGE_VOLUMES, "ns") is expected  # type: ignore[arg-type]
    assert server.asked == ["/apis/apps/v1/namespaces/ns/deployments"]


def with_sidecar(pod: JsonObject) -> None:
    (container,) = pod["initContainers"]
    assert container["restartPolicy"] == "Always"


def without_policy(pod: JsonObject) -> None:
    """As servers before 1.28 do, which do not know the field, and others with the feature gate off."""
    del pod["initContainers"][0]["restartPolicy"]


def refused(pod: JsonObject) -> KubeError:
    return KubeError(422, "Invalid", "spec.template.spec.initContainers[0].restartPolicy: Forbidden: not here")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (with_sidecar, True),
        (without_policy, False),
        (refused, False),
        (lambda pod: KubeError(422, "Invalid", "spec.replicas: a policy wants two"), None),
    ],
)
async def test_what_a_server_makes_of_a_sidecar_is_the_answer(answer: Any, expected: bool | None) -> None:
    assert await PodFeatures(Server(answer)).are_kept(SIDECARS, "ns") is expected  # type: ignore[arg-type]


async def test_each_feature_has_an_answer_of_its_own() -> None:
    server = Server(lambda pod: None if pod.get("initContainers") else taken_out(pod))
    features = PodFeatures(server)  # type: ignore[arg-type]
    for _ in range(2):
        assert await features.are_kept(SIDECARS, "ns") is True
        assert await features.are_kept(IMAGE_VOLUMES, "ns") is False
    assert len(server.asked) == 2


async def test_an_answer_counts_for_a_while_and_none_does_not() -> None:
    now, server = [0.0], Server(taken_out)
    features = PodFeatures(server, clock=lambda: now[0])  # type: ignore[arg-type]
    assert [await features.are_kept(IMAGE_VOLUMES, each) for each in ("a", "b")] == [False, False]
    assert len(server.asked) == 1
    now[0], server.answer = ASK_AGAIN_SECONDS, kept
    assert await features.are_kept(IMAGE_VOLUMES, "a") is True
    server.answer = lambda pod: KubeError(403, "Forbidden", "no")
    now[0] *= 2
    assert [await features.are_kept(IMAGE_VOLUMES, "a"), await features.are_kept(IMAGE_VOLUMES, "a")] == [None, None]
    assert len(server.asked) == 4


async def test_a_server_that_is_asked_makes_nothing(tmp_path: Path) -> None:
    async with (
        local_api_server(tmp_path) as server,
        await KubeClient.from_environment(server.kubeconfig_path) as client,
    ):
        features = PodFeatures(client)
        assert await features.are_kept(IMAGE_VOLUMES, "default") is not None
        assert await features.are_kept(SIDECARS, "default") is True
        assert (await client.list(DEPLOYMENTS))["items"] == []


def body(**model: Any) -> JsonObject:
    created = "2026-01-01T00:00:00Z"
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "generation": 1, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"model": {"source": "oci://h.example/a", **model}}}


@pytest.mark.parametrize(("cache", "num_asked"), [({"image": True}, 1), ({"node": True}, 0), (None, 0)])
async def test_only_who_wants_an_image_volume_has_it_asked_for(cache: Any, num_asked: int) -> None:
    server = Server(taken_out)
    cluster = Cluster(server)  # type: ignore[arg-type]
    found = body(cache=cache)
    key = ("ns", "a")
    cluster.bind({"llmdeployments": {key: [found]}, "name_claims": {}, "pods": {key: []}, "children": {key: []}})
    observed = await cluster.observe(("ns", "a"))
    assert observed is not None
    assert (observed.image_volumes, len(server.asked)) == (False if num_asked else None, num_asked)


def external(**spec: Any) -> JsonObject:
    made = body(source="hf://org/boat")
    made["spec"] |= {"engine": {"type": "vLLM", "image": "vllm:1"}} | spec
    return made


@pytest.mark.parametrize("answer", [True, None])
def test_where_sidecars_are_kept_or_nobody_knows_it_is_tried(answer: bool | None) -> None:
    assert desired(Observed(body=external(), sidecars=answer), SETTINGS).children


def test_without_sidecars_no_pod_is_made_that_needs_one_and_the_way_out_is_told() -> None:
    observed = Observed(body=external(), sidecars=False)
    wanted = desired(observed, SETTINGS)
    assert wanted.children == () and wanted.obstacle is not None
    made = {str(each.type): each for each in conditions(situation(observed, wanted, (), is_applying=False))}
    for kind, status in (("Ready", "False"), ("ModelAvailable", "False"), ("Degraded", "True")):
        assert (made[kind].status, made[kind].reason) == (status, Reason.SIDECARS_NOT_SUPPORTED)
        assert "Kubernetes has from 1.29 on: upgrade it, or use engine.type: Fairlead" in made[kind].message
    on_a_claim = body(source="demo://dinghy")
    on_a_claim["spec"]["adapters"] = [{"name": "a", "source": "pvc://adapters/a"}]
    assert desired(Observed(body=on_a_claim, sidecars=False), SETTINGS).children, "this one needs none"


@pytest.mark.parametrize(
    ("found", "is_stored", "num_asked"),
    [
        (external(), False, 1),
        (external(), True, 0),
        (body(source="demo://dinghy"), False, 0),
        (body(source="demo://dinghy") | {"spec": {"adapters": [{"name": "a", "source": "hf://a/b"}]}}, False, 1),
    ],
)
async def test_only_who_may_have_sidecars_and_has_none_yet_has_them_asked_for(
    found: JsonObject, is_stored: bool, num_asked: int
) -> None:
    """`is_stored`: whether the engine's Deployment is there."""
    server, key = Server(with_sidecar), ("ns", "a")
    made = desired(Observed(body=external()), SETTINGS).children
    children = [each for each in made if each["kind"] == "Deployment" and is_stored]
    cluster = Cluster(server)  # type: ignore[arg-type]
    cluster.bind({"llmdeployments": {key: [found]}, "name_claims": {}, "pods": {key: []}, "children": {key: children}})
    observed = await cluster.observe(key)
    assert observed is not None
    assert (observed.sidecars, len(server.asked)) == (True if num_asked else None, num_asked)


SETTINGS = OperatorSettings()


def said(image_volumes: bool | None, settings: OperatorSettings = SETTINGS) -> dict[str, Any]:
    observed = Observed(body=body(cache={"image": True}), image_volumes=image_volumes)
    wanted = desired(observed, settings)
    made = conditions(situation(observed, wanted, (), is_applying=False))
    return {"children": len(wanted.children)} | {str(each.type): each for each in made}


@pytest.mark.parametrize("answer", [True, None])
def test_where_images_can_be_mounted_or_nobody_knows_it_is_tried(answer: bool | None) -> None:
    found = said(answer)
    assert found["children"]
    assert (found["ModelAvailable"].status, found["ModelAvailable"].reason) == ("Unknown", "NotLoadedYet")


def test_without_image_volumes_no_pod_is_made_and_the_way_out_is_told() -> None:
    found = said(False)
    assert found["children"] == 0
    for kind, status in (("Ready", "False"), ("ModelAvailable", "False"), ("Degraded", "True")):
        assert (found[kind].status, found[kind].reason) == (status, Reason.SOURCE_NOT_SUPPORTED)
        assert "this cluster has no image volumes" in found[kind].message
        assert "write model.cache: {node: true}" in found[kind].message


def test_local_mode_says_its_own_sentence() -> None:
    found = said(False, OperatorSettings(claims_folder="/claims"))
    assert "local mode mounts no images" in found["Ready"].message
