"""Who owns which field: users, the operator, its autoscaler and others write to the same objects, and nobody fights."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import yaml
from children import OWNED, everything, listed, stands_still, versions
from homes.kubectl import Json
from hopeless import TOO_LARGE

from fairlead.api import names

pytestmark = [pytest.mark.control_plane, pytest.mark.timeout(300)]

RESYNC = 4.0
"""Seconds in which the operator looks at everything at least once."""
OTHER = "harbour-master"
"""A field manager that is neither the user's nor ours."""


def apply(plane: Any, manifest: Json, *options: str) -> subprocess.CompletedProcess[str]:
    """`kubectl apply --server-side`."""
    found: subprocess.CompletedProcess[str] = plane.kubectl(
        "apply", "--server-side", *options, "-f", "-", stdin=yaml.safe_dump(manifest), check=False
    )
    return found


@pytest.fixture
def written(plane: Any, manifest: Callable[..., Json], name: str) -> Iterator[Json]:
    """A manifest that a user has applied, and which has settled at no replicas."""
    made = manifest(name, replicas=0)
    assert apply(plane, made).returncode == 0
    plane.wait_condition(name, "Ready", "False", "ScaledToZero")
    yield made
    plane.delete("llm", name)


def managers(plane: Any, kind: str, name: str) -> dict[str, Json]:
    """Field manager (and the subresource it writes, if any) → the fields it owns."""
    entries = plane.get(kind, name, "--show-managed-fields")["metadata"]["managedFields"]
    return {"/".join(filter(None, (each["manager"], each.get("subresource")))): each["fieldsV1"] for each in entries}


def test_everybody_owns_what_they_wrote_and_nothing_else(plane: Any, manifest: Callable[..., Json], name: str) -> None:
    assert apply(plane, manifest(name, resources=TOO_LARGE)).returncode == 0
    plane.wait_condition(name, "Ready", "False", "Unschedulable")
    assert "f:replicas" in managers(plane, "llm", name)["kubectl"]["f:spec"]
    plane.kubectl("scale", "llm", name, "--replicas=2")
    owned = managers(plane, "llm", name)
    assert set(owned) == {"kubectl", "kubectl/scale", f"{names.FIELD_MANAGER_STATUS}/status"}
    assert "f:replicas" not in owned["kubectl"]["f:spec"]
    assert owned["kubectl/scale"]["f:spec"] == {"f:replicas": {}}
    assert set(owned[f"{names.FIELD_MANAGER_STATUS}/status"]) == {"f:status"}
    for child in listed(plane, OWNED, name):
        owners = managers(plane, child["kind"], child["metadata"]["name"])
        assert {each for each in owners if not each.endswith("/status")} - {"kube-controller-manager"} == {
            names.FIELD_MANAGER
        }, child["kind"]
    plane.delete("llm", name)


def test_a_count_that_was_scaled_survives_a_manifest_that_says_none(
    plane: Any, manifest: Callable[..., Json], name: str
) -> None:
    made = manifest(name, resources=TOO_LARGE)
    del made["spec"]["replicas"]
    assert apply(plane, made).returncode == 0
    plane.kubectl("scale", "llm", name, "--replicas=2")
    made["metadata"]["labels"] = {"team": "harbour"}
    assert apply(plane, made).returncode == 0
    found = plane.get("llm", name)
    assert (found["spec"]["replicas"], found["metadata"]["labels"]) == (2, {"team": "harbour"})
    plane.wait("two in the Deployment", lambda: plane.get("deployment", f"{name}-engine")["spec"]["replicas"] == 2)
    plane.delete("llm", name)


def test_a_manifest_with_a_count_is_refused_with_who_scaled_it(
    plane: Any, manifest: Callable[..., Json], name: str
) -> None:
    """By Fairlead's autoscaler, which goes to the minimum while it hears of no gateway. Kubernetes notes who writes a
    scale only where the count had an owner, as here, and is not 0."""
    autoscaling = {"minReplicas": 2, "maxReplicas": 3}
    made = manifest(name, resources=TOO_LARGE, autoscaling=autoscaling)
    assert apply(plane, made).returncode == 0
    plane.wait("the autoscaler to scale", lambda: plane.get("llm", name)["spec"]["replicas"] == 2)
    refused = apply(plane, made)
    assert refused.returncode == 1
    assert f'conflict with "{names.FIELD_MANAGER_AUTOSCALER}" with subresource "scale"' in refused.stderr
    assert ".spec.replicas" in refused.stderr
    del made["spec"]["replicas"]
    assert apply(plane, made).returncode == 0, "without a count there is nothing to quarrel about"
    stands_still(plane, lambda: plane.get("llm", name)["spec"], 3.0)
    assert plane.get("llm", name)["spec"]["replicas"] == 2
    plane.delete("llm", name)


def test_labels_and_annotations_that_others_put_on_children_stay(plane: Any, written: Json, name: str) -> None:
    theirs = {"labels": {"cost-centre": "harbour"}, "annotations": {"example.com/seen-by": "auditor"}}
    for child in listed(plane, OWNED, name):
        mine = {key: child[key] for key in ("apiVersion", "kind")}
        mine["metadata"] = {"name": child["metadata"]["name"], **theirs}
        assert apply(plane, mine, f"--field-manager={OTHER}").returncode == 0
    seen = stands_still(plane, lambda: everything(plane, name), RESYNC)
    assert apply(plane, written).returncode == 0
    assert everything(plane, name) == seen, "the same manifest again changes nothing"
    before = versions(listed(plane, OWNED, name))
    plane.merge(name, {"engine": {"maxNumSeqs": 4}})
    deployment = f"Deployment/{name}-engine"

    def is_rewritten() -> bool:
        now = versions(listed(plane, OWNED, name))
        return now[deployment] != before[deployment] and len(now) == len(before)

    plane.wait("the operator to have written again", is_rewritten)
    stands_still(plane, lambda: everything(plane, name), RESYNC)
    kept = [child["metadata"] for child in listed(plane, OWNED, name) if child["kind"] != "ConfigMap"]
    assert len(kept) == 3
    for metadata in kept:
        for field, values in theirs.items():
            assert metadata[field].items() >= values.items(), metadata["name"]


FORCED: dict[str, tuple[str, Json, Json]] = {
    "deployment": ("{}-engine", {"replicas": 3}, {"minReadySeconds": 1}),
    "service": ("{}", {"externalName": "elsewhere.example.com"}, {}),
    "networkpolicy": ("{}-engine", {"policyTypes": ["Ingress", "Egress"]}, {}),
}
"""Kind of a child → its name, and what somebody forces on its spec: a field of ours, and one that is not."""


def test_a_field_that_somebody_forces_is_put_right_once(plane: Any, written: Json, name: str) -> None:
    del written
    stands_still(plane, lambda: everything(plane, name), 1.0)
    with ExitStack() as stack:
        seen = {}
        for kind, (form, ours, theirs) in FORCED.items():
            child = form.format(name)
            before = plane.get(kind, child)
            manifest = {key: before[key] for key in ("apiVersion", "kind")}
            manifest |= {"metadata": {"name": child}, "spec": ours | theirs}
            refused = apply(plane, manifest, f"--field-manager={OTHER}")
            assert (refused.returncode, f'with "{names.FIELD_MANAGER}"' in refused.stderr) == (1, True), refused.stderr
            seen[kind] = (before["spec"], stack.enter_context(watched(plane, kind, child)))
            assert apply(plane, manifest, f"--field-manager={OTHER}", "--force-conflicts").returncode == 0
        for _, specs in seen.values():
            plane.wait("the operator's second thought", lambda specs=specs: len(specs()) >= 2)
        stands_still(plane, lambda: versions(listed(plane, OWNED, name)), RESYNC)
        for kind, (before, specs) in seen.items():
            _, ours, theirs = FORCED[kind]
            assert specs() == [before | ours | theirs, before | theirs], f"{kind}: what is not ours stays, too"


@contextmanager
def watched(plane: Any, kind: str, name: str) -> Iterator[Callable[[], list[Json]]]:
    """Tells each spec that the object has had within the block."""
    command = plane.kubectl_command("get", kind, name, "--watch", "-o", 'jsonpath={.spec}{"\\n"}')
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output) as process:

        def specs() -> list[Json]:
            output.seek(0)
            found = [json.loads(line) for line in output.read().splitlines()]
            return [spec for spec, before in zip(found[1:], found, strict=False) if spec != before]

        try:
            plane.wait("the watch to begin", lambda: output.seek(0) or output.read())
            yield specs
        finally:
            process.terminate()
