"""kubectl, unmodified, against the local API. Skipped where there is none."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import kubectl as kubectl_on_this_machine

from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import load
from fairlead_local.apiserver.resources import PODS
from fairlead_local.applying import apply_manifest, read_manifests
from fairlead_testing.local_api import LocalApi, eventually

KUBECTL = kubectl_on_this_machine.find()
pytestmark = pytest.mark.skipif(KUBECTL is None, reason=kubectl_on_this_machine.EXPLAINED)


@dataclass(frozen=True)
class Output:
    code: int
    out: str
    err: str

    @property
    def first_words(self) -> list[str]:
        return [line.split()[0] for line in self.out.splitlines() if line.strip()]


Kubectl = Callable[..., Awaitable[Output]]


@pytest.fixture
async def kubectl(node_api: LocalApi, tmp_path: Path) -> AsyncIterator[Kubectl]:
    async def run(*arguments: str, stdin: Any = None, succeeds: bool = True) -> Output:
        process = await asyncio.create_subprocess_exec(
            str(KUBECTL),
            *arguments,
            env={**os.environ, "KUBECONFIG": str(node_api.kubeconfig_path), "HOME": str(tmp_path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        text = b"" if stdin is None else yaml.safe_dump(stdin).encode()
        out, err = await asyncio.wait_for(process.communicate(text), 30)
        output = Output(process.returncode or 0, out.decode(), err.decode())
        assert (output.code == 0) is succeeds, (arguments, output)
        return output

    yield run


@pytest.fixture
async def with_boats(kubectl: Kubectl, boat_definition: dict[str, Any]) -> None:
    await kubectl("apply", "-f", "-", stdin=boat_definition)
    await kubectl("wait", "--for=condition=established", "crd/boats.harbour.test", "--timeout=10s")


async def test_custom_objects_are_applied_shown_and_explained(
    kubectl: Kubectl, with_boats: None, boat: dict[str, Any]
) -> None:
    assert "boat.harbour.test/argo created" in (await kubectl("apply", "-f", "-", stdin=boat)).out
    assert "unchanged" in (await kubectl("apply", "-f", "-", stdin=boat)).out
    header, row = (await kubectl("get", "bt")).out.splitlines()
    assert header.split() == ["NAME", "READY", "REPLICAS", "AGE"]
    assert row.split()[:2] == ["argo", "1"]
    assert "SAILS" in (await kubectl("get", "boats", "-o", "wide")).out
    assert "boat.harbour.test/argo" in (await kubectl("get", "all")).out
    assert "Colour:    white" in (await kubectl("describe", "boat", "argo")).out
    assert "Something that floats." in (await kubectl("explain", "boat")).out
    assert "What drives it." in (await kubectl("explain", "boat.spec.sails")).out
    assert "boats" in (await kubectl("api-resources", "--api-group=harbour.test")).out


async def test_a_typo_is_refused_by_name_and_a_rule_by_its_sentence(
    kubectl: Kubectl, with_boats: None, boat: dict[str, Any]
) -> None:
    typo = {**boat, "spec": {"sails": "gaff", "sials": 1}}
    for flags in ([], ["--server-side"]):
        refused = await kubectl("apply", *flags, "-f", "-", stdin=typo, succeeds=False)
        assert "spec.sials" in refused.err
    crowded = {**boat, "spec": {"sails": "gaff", "minCrew": 4, "maxCrew": 2}}
    for flags in ([], ["--server-side"]):
        refused = await kubectl("apply", *flags, "-f", "-", stdin=crowded, succeeds=False)
        assert "minCrew must not be above maxCrew" in refused.err


async def test_objects_are_changed_in_every_way(kubectl: Kubectl, with_boats: None, boat: dict[str, Any]) -> None:
    await kubectl("apply", "-f", "-", stdin=boat)
    await kubectl("patch", "boat", "argo", "--type=merge", "-p", '{"spec":{"colour":"red"}}')
    await kubectl("patch", "boat", "argo", "--type=json", "-p", '[{"op":"add","path":"/spec/minCrew","value":2}]')
    await kubectl("scale", "boat/argo", "--replicas=4")
    await kubectl("label", "boat", "argo", "harbour=piraeus")
    await kubectl("annotate", "boat", "argo", "note=fast")
    found = yaml.safe_load((await kubectl("get", "boat", "argo", "-o", "yaml")).out)
    assert found["spec"] == {"sails": "gaff", "colour": "red", "minCrew": 2, "replicas": 4}
    assert found["metadata"]["labels"] == {"fleet": "greek", "harbour": "piraeus"}
    stale = await kubectl("scale", "boat/argo", "--replicas=5", "--current-replicas=1", succeeds=False)
    assert "Expected replicas to be 1" in stale.err
    assert (await kubectl("get", "boats", "-l", "harbour=piraeus", "-o", "name")).out == "boat.harbour.test/argo\n"
    assert (await kubectl("replace", "-f", "-", stdin=found)).code == 0
    await kubectl("delete", "boat", "argo", "--timeout=10s")
    assert "NotFound" in (await kubectl("get", "boat", "argo", succeeds=False)).err


async def test_server_side_apply_conflicts_until_forced(
    kubectl: Kubectl, with_boats: None, boat: dict[str, Any]
) -> None:
    await kubectl("apply", "--server-side", "-f", "-", stdin=boat)
    await kubectl("scale", "boat/argo", "--replicas=3")
    refused = await kubectl("apply", "--server-side", "-f", "-", stdin=boat, succeeds=False)
    assert "conflict with" in refused.err and ".spec.replicas" in refused.err
    await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=boat)
    assert (await kubectl("get", "boat", "argo", "-o", "jsonpath={.spec.replicas}")).out == "1"


async def test_what_up_applied_kubectl_goes_on_with_and_the_other_way_round(
    kubectl: Kubectl, with_boats: None, boat: dict[str, Any], node_api: LocalApi, tmp_path: Path
) -> None:
    plain, crewed = tmp_path / "plain.yaml", tmp_path / "crewed.yaml"
    plain.write_text(yaml.safe_dump({**boat, "spec": {"sails": "gaff"}}))
    crewed.write_text(yaml.safe_dump({**boat, "spec": {"sails": "gaff", "minCrew": 2}}))

    async def up(file: Path) -> None:
        async with KubeClient(load(node_api.kubeconfig_path)) as client:
            for manifest in read_manifests([file]):
                await apply_manifest(client, manifest)

    async def spec() -> Any:
        return yaml.safe_load((await kubectl("get", "boat", "argo", "-o", "yaml")).out)["spec"]

    await up(plain)
    before = await spec()
    await kubectl("scale", "boat/argo", "--replicas=3")
    for way in (("apply", "-f", str(crewed)), ("apply", "-f", str(crewed))):
        applied = await kubectl(*way)
        assert applied.err == "", "no warning"
    assert await spec() == {**before, "minCrew": 2, "replicas": 3}
    await up(plain)
    assert await spec() == {**before, "replicas": 3}, "what only the other file says is taken back, and nothing else"
    await up(crewed)
    assert (await kubectl("apply", "-f", str(plain))).err == ""
    assert await spec() == {**before, "replicas": 3}
    assert "unchanged" in (await kubectl("apply", "-f", str(plain))).out


async def test_diff_and_dry_run_change_nothing(kubectl: Kubectl, with_boats: None, boat: dict[str, Any]) -> None:
    await kubectl("apply", "-f", "-", stdin=boat)
    red = {**boat, "spec": {**boat["spec"], "colour": "red"}}
    different = await kubectl("diff", "-f", "-", stdin=red, succeeds=False)
    assert (different.code, "+  colour: red" in different.out) == (1, True)
    await kubectl("apply", "--dry-run=server", "-f", "-", stdin=red)
    assert (await kubectl("get", "boat", "argo", "-o", "jsonpath={.spec.colour}")).out == "white"
    await kubectl("diff", "-f", "-", stdin=boat)


async def test_a_watch_prints_rows_as_they_come(
    kubectl: Kubectl, with_boats: None, boat: dict[str, Any], node_http: Any, node_api: LocalApi, tmp_path: Path
) -> None:
    await kubectl("apply", "-f", "-", stdin=boat)
    environment = {**os.environ, "KUBECONFIG": str(node_api.kubeconfig_path), "HOME": str(tmp_path)}
    watching = await asyncio.create_subprocess_exec(
        str(KUBECTL), "get", "boats", "-w", env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert watching.stdout is not None
    try:
        header, row = [(await asyncio.wait_for(watching.stdout.readline(), 20)).split() for _ in range(2)]
        await node_http.merge("/apis/harbour.test/v1/namespaces/default/boats/argo", {"spec": {"replicas": 7}})
        changed = (await asyncio.wait_for(watching.stdout.readline(), 20)).split()
    finally:
        watching.kill()
        await watching.wait()
    assert (header[:3], row[:2], changed[:2]) == ([b"NAME", b"READY", b"REPLICAS"], [b"argo", b"1"], [b"argo", b"7"])


async def test_wait_sees_a_condition_of_the_status(
    kubectl: Kubectl, with_boats: None, boat: dict[str, Any], node_http: Any
) -> None:
    await kubectl("apply", "-f", "-", stdin=boat)
    waiting = asyncio.create_task(kubectl("wait", "--for=condition=Ready", "boat/argo", "--timeout=10s"))
    await asyncio.sleep(0.3)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await node_http.merge("/apis/harbour.test/v1/namespaces/default/boats/argo/status", {"status": status})
    assert "condition met" in (await waiting).out


def deployment(script: str) -> dict[str, Any]:
    container = {"name": "c", "image": "test/python", "args": ["-c", script]}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}


async def test_deployments_roll_out_and_back(kubectl: Kubectl, node_api: LocalApi) -> None:
    await kubectl("apply", "-f", "-", stdin=deployment("import time; print('hello', flush=True); time.sleep(60)"))
    assert "successfully rolled out" in (await kubectl("rollout", "status", "deploy/x", "--timeout=20s")).out
    async with asyncio.timeout(15):  # it runs before it prints
        while not (log := (await kubectl("logs", "deploy/x")).out):
            await asyncio.sleep(0.02)
    assert log == "hello\n"
    assert "Successfully assigned" in (await kubectl("describe", "pod", "-l", "app=x")).out
    assert "ScalingReplicaSet" in (await kubectl("events", "--for", "deploy/x")).out
    await kubectl("set", "env", "deploy/x", "K=V")
    await kubectl("rollout", "status", "deploy/x", "--timeout=20s")
    await kubectl("rollout", "undo", "deploy/x")
    await kubectl("rollout", "status", "deploy/x", "--timeout=20s")
    assert (await kubectl("get", "rs", "--no-headers")).out.count("\n") == 2
    revisions = (await kubectl("rollout", "history", "deploy/x")).first_words
    assert revisions[-2:] == ["2", "3"]
    await kubectl("scale", "deploy/x", "--replicas=0")
    await eventually(lambda: not node_api.operations.list(PODS))
    await kubectl("delete", "deploy", "x", "--cascade=foreground", "--timeout=20s")
    assert (await kubectl("get", "all", "-o", "name")).out == ""


async def test_logs_of_a_crashing_container_are_kept(kubectl: Kubectl, node_api: LocalApi) -> None:
    await kubectl("apply", "-f", "-", stdin=deployment("print('last words'); exit(1)"))

    def restarted() -> bool:
        statuses = [s for p in node_api.operations.list(PODS) for s in p["status"].get("containerStatuses", ())]
        return bool(statuses and statuses[0]["restartCount"] > 0)

    await eventually(restarted)
    assert (await kubectl("logs", "deploy/x", "--previous")).out == "last words\n"


async def test_what_is_not_supported_is_said(kubectl: Kubectl) -> None:
    refused = await kubectl("create", "deployment", "x", "--image=fairlead/engine:1", succeeds=False)
    assert "kubectl apply -f -" in refused.err
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    assert 'no matches for kind "Job"' in (await kubectl("apply", "-f", "-", stdin=job, succeeds=False)).err
    rendered = await kubectl("create", "configmap", "x", "--from-literal=a=b", "--dry-run=client", "-o", "yaml")
    await kubectl("apply", "-f", "-", stdin=yaml.safe_load(rendered.out))
    assert (await kubectl("get", "cm", "x", "-o", "jsonpath={.data.a}")).out == "b"


async def test_typed_commands_create_what_guides_tell_people_to_create(kubectl: Kubectl, tmp_path: Path) -> None:
    """kubectl sends these in protobuf."""
    certificate = tmp_path / "ca.crt"
    certificate.write_bytes(b"-----BEGIN\xff")
    literal = ("--from-literal", "HF_TOKEN=hf_1")
    await kubectl("create", "secret", "generic", "hub", *literal, f"--from-file={certificate}")
    hub = yaml.safe_load((await kubectl("get", "secret", "hub", "-o", "yaml")).out)
    assert hub["type"] == "Opaque"
    assert hub["data"] == {"HF_TOKEN": "aGZfMQ==", "ca.crt": base64.b64encode(certificate.read_bytes()).decode()}
    login = ("--docker-server=r.example", "--docker-username=u", "--docker-password=p")
    await kubectl("create", "secret", "docker-registry", "registry", *login)
    registry = yaml.safe_load((await kubectl("get", "secret", "registry", "-o", "yaml")).out)
    assert registry["type"] == "kubernetes.io/dockerconfigjson"
    await kubectl("create", "configmap", "settings", *literal)
    assert "hf_1" in (await kubectl("get", "configmap", "settings", "-o", "yaml")).out
    await kubectl("create", "namespace", "harbour")
    assert (await kubectl("get", "namespace", "harbour", "-o", "name")).out == "namespace/harbour\n"
    again = await kubectl("create", "secret", "generic", "hub", *literal, succeeds=False)
    assert 'secrets "hub" already exists' in again.err


async def test_other_typed_commands_say_what_to_do(kubectl: Kubectl) -> None:
    refused = await kubectl("create", "deployment", "a", "--image=a", succeeds=False)
    assert "Deployment is not among them" in refused.err and "kubectl apply -f -" in refused.err
