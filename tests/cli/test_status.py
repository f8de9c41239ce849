"""`fairlead status`: Leases, LLMDeployments and gateways → who looks after what; and the command itself."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.status_command import OperatorView, lines, operator_view, status_report
from fairlead.kube.lease import Presence
from fairlead.kube.resources import LEASES, LLMDEPLOYMENTS, NAMESPACES, PODS, Resource
from fairlead_testing.api_servers import Refusals, refusing_api_server
from fairlead_testing.fleet_objects import pod
from fairlead_testing.operators import NAMESPACE, SETTINGS, bare_api_server, fleet_at, running_operator

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PRESENCE = Presence(namespaces=("default",), gateway_namespace="system", gateway_selector="app=gateway")


def lease(holder: str = "pod_1", renewed: float = 1.0, presence: Presence | None = PRESENCE) -> dict[str, Any]:
    """One that was renewed so many seconds ago."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
    spec["renewTime"] = (NOW - timedelta(seconds=renewed)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    annotations = presence.annotations if presence else {}
    return {"metadata": {"namespace": "system", "name": "fairlead-operator", "annotations": annotations}, "spec": spec}


def view(**given: Any) -> OperatorView:
    found = operator_view(lease(**given), [pod("one"), pod("two", "starting")], NOW)
    assert found is not None
    return found


def deployment(namespace: str = "default", name: str = "dinghy") -> dict[str, Any]:
    """One that its operator called ready."""
    ready = {"type": "Ready", "status": "True", "reason": "ReplicasReady", "message": "2/2 replicas ready"}
    status = {"readyReplicas": 2, "desiredReplicas": 2, "url": "http://gw/default/dinghy/v1", "conditions": [ready]}
    return {"metadata": {"namespace": namespace, "name": name}, "status": status}


@pytest.mark.parametrize("namespaces", [None, (), ("default",), ("a", "b")])
def test_what_an_operator_says_of_itself_is_read_as_it_was_meant(namespaces: tuple[str, ...] | None) -> None:
    said = Presence(namespaces=namespaces, gateway_namespace="system", gateway_selector="a.b/c=d,e=f")
    assert Presence.from_annotations(said.annotations) == said


def test_all_is_well() -> None:
    report = status_report([view()], [deployment()])
    assert list(lines(report)) == [
        "operator system/fairlead-operator: looks after default; gateways ready: 1/2; held by pod_1",
        "",
        "NAMESPACE   NAME     READY   REASON          GATEWAYS   URL",
        "default     dinghy   2/2     ReplicasReady   1/2        http://gw/default/dinghy/v1",
    ]


def test_a_namespace_that_nobody_watches_is_named_whatever_the_old_status_says() -> None:
    report = status_report([view()], [deployment("elsewhere"), deployment()])
    *_, sentence = lines(report)
    assert sentence.startswith(
        "elsewhere/dinghy: no operator looks after the namespace elsewhere, so this does nothing"
    )
    assert "watch.namespaces" in sentence
    assert [(each.reason, each.is_ready, each.operator) for each in report.deployments] == [
        ("ReplicasReady", True, "system/fairlead-operator"), ("Unwatched", False, None),
    ]  # fmt: skip
    everywhere = view(presence=replace(PRESENCE, namespaces=None))
    assert status_report([everywhere], [deployment("elsewhere")]).deployments[0].operator == everywhere.lease


def test_what_is_ready_and_degraded_says_what_is_wrong() -> None:
    body, message = deployment(), "requests for the model 'ketch' go to the older LLMDeployment default/ketch"
    body["status"]["conditions"].append(
        {"type": "Degraded", "status": "True", "reason": "NameConflict", "message": message}
    )
    report = status_report([view()], [body])
    assert report.deployments[0].is_ready
    *_, row, _, sentence = lines(report)
    assert row.split()[3] == "NameConflict"
    assert sentence == f"default/dinghy: {message}"


def test_what_is_ready_and_paused_says_how_to_resume_it() -> None:
    body, message = deployment(), "the rollout is paused; kubectl rollout resume deployment/dinghy-engine lets it go on"
    progressing = {"type": "Progressing", "status": "False", "reason": "Paused", "message": message}
    body["status"]["conditions"].append(progressing)
    *_, row, _, sentence = lines(status_report([view()], [body]))
    assert row.split()[3] == "Paused"
    assert sentence == f"default/dinghy: {message}"
    progressing |= {"reason": "Complete"}
    *_, row = lines(status_report([view()], [body]))
    assert row.split()[3] == "ReplicasReady"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"holder": ""}, "nobody holds it: is the operator's pod running?"),
        ({"renewed": 90.0}, "held by pod_1, silent for 1m30s: is the operator's pod running?"),
    ],
)
def test_an_operator_that_is_gone_is_told_of_and_nothing_counts_as_ready(given: dict[str, Any], told: str) -> None:
    report = status_report([view(**given)], [deployment()])
    first, *_, last = lines(report)
    assert first.endswith(told)
    assert last == (
        "default/dinghy: nobody holds the Lease system/fairlead-operator, so nothing changes here; "
        "before: 2/2 replicas ready"
    )


def test_a_namespace_of_two_operators_is_named_and_one_that_is_gone_contests_nothing() -> None:
    def other(**given: Any) -> OperatorView:
        return replace(view(presence=replace(PRESENCE, namespaces=None), **given), lease="other/ours-operator")

    *_, note = lines(status_report([view(), other()], [deployment(), deployment("elsewhere")]))
    assert note == (
        "note: other/ours-operator and system/fairlead-operator both look after the namespace default, and undo what "
        "the other does: give each release its own watch.namespaces (docs/kubernetes.md)"
    )
    assert status_report([view(), other(holder="")], [deployment()]).notes == ()


def test_a_clock_that_is_a_little_off_makes_nobody_silent() -> None:
    assert view(renewed=30.0).acts
    assert view(renewed=-30.0).acts


def test_what_cannot_be_seen_is_no_accusation() -> None:
    assert operator_view(lease(presence=None), [], NOW) is None
    report = status_report([], [deployment()], silent=["system/fairlead-operator"])
    assert report.deployments[0].reason == "ReplicasReady"
    assert list(lines(report))[-1].startswith("note: the holder of the Lease system/fairlead-operator does not say")
    unseen = operator_view(lease(), None, NOW)
    assert unseen is not None and "gateways ready: –;" in next(lines(status_report([unseen], [])))


def of(resource: Resource) -> dict[str, Any]:
    """What an object of this kind begins with."""
    return {"apiVersion": resource.api_version, "kind": resource.kind}


async def test_a_fleet_as_a_process(fairlead, tmp_path: Path) -> None:
    settings = replace(SETTINGS, watch_namespaces=(NAMESPACE,), gateway_namespace=NAMESPACE, gateway_selector="app=gw")
    async with bare_api_server(tmp_path) as path, fleet_at(path) as fleet, running_operator(fleet, settings):
        await fleet.create(replicas=1)
        await fleet.client.create(NAMESPACES, of(NAMESPACES) | {"metadata": {"name": "elsewhere"}})
        stray = {
            "metadata": {"name": "stray", "namespace": "elsewhere"},
            "spec": {"model": {"source": "demo://dinghy"}},
        }
        await fleet.client.create(LLMDEPLOYMENTS, of(LLMDEPLOYMENTS) | stray)
        containers = {"containers": [{"name": "gateway", "image": "fairlead/operator:0"}]}
        gateway = {"metadata": {"name": "gw", "namespace": NAMESPACE, "labels": {"app": "gw"}}, "spec": containers}
        await fleet.client.create(PODS, of(PODS) | gateway)
        await fleet.until(lambda status: bool(status.get("url")))
        (held,) = (await fleet.client.list(LEASES))["items"]
        table = await fairlead("status", KUBECONFIG=str(path))
        parsed = await fairlead("status", "-o", "json", KUBECONFIG=str(path))
        one = await fairlead("status", "--namespace", NAMESPACE, KUBECONFIG=str(path))
    assert (table.status, parsed.status, one.status) == (0, 0, 0), table.err
    holder = held["spec"]["holderIdentity"]
    first, _, head, dinghy, stray_line, _, *sentences = table.out.splitlines()
    assert first == (f"operator default/fairlead-operator: looks after default; gateways ready: 0/1; held by {holder}")
    assert head.split() == ["NAMESPACE", "NAME", "READY", "REASON", "GATEWAYS", "URL"]
    assert dinghy.split()[:3] == ["default", "dinghy", "0/1"]
    assert dinghy.endswith("http://gateway/default/dinghy/v1")
    assert stray_line.split() == ["elsewhere", "stray", "0/–", "Unwatched", "–", "–"]
    assert any(
        line.startswith("elsewhere/stray: no operator looks after the namespace elsewhere") for line in sentences
    )
    report = json.loads(parsed.out)
    assert (
        report["operators"][0] | {"holder": holder, "namespaces": ["default"], "gateways": 1} == report["operators"][0]
    )
    assert [each["operator"] for each in report["deployments"]] == ["default/fairlead-operator", None]
    assert "stray" not in one.out


async def test_who_may_not_look_everywhere_is_told_what_was_not_seen(fairlead, tmp_path: Path) -> None:
    refusals = Refusals()
    settings = replace(SETTINGS, gateway_namespace="hidden", gateway_selector="app=gw")
    async with (
        refusing_api_server(tmp_path, refusals, NAMESPACE, "hidden") as path,
        fleet_at(path) as fleet,
        running_operator(fleet, settings),
    ):
        await fleet.create(replicas=1)
        await fleet.until(lambda status: bool(status.get("url")))
        refusals.lose("", "hidden")  # "" = whatever is asked of all namespaces at once
        everywhere = await fairlead("status", KUBECONFIG=str(path))
        here = ("status", "--namespace", NAMESPACE, "--system-namespace", NAMESPACE)
        allowed = await fairlead(*here, KUBECONFIG=str(path))
        refused = await fairlead(*here[:3], "--system-namespace", "hidden", KUBECONFIG=str(path))
        refusals.give_back("")
    assert (everywhere.status, allowed.status, refused.status) == (1, 0, 1)
    assert "hint: name a namespace that you may read: --namespace" in everywhere.err
    assert "looks after every namespace; gateways ready: –; held by" in allowed.out
    assert "note: operators were looked for in the namespace default only" in allowed.out
    assert "hint: ask for the right to list leases.coordination.k8s.io in the namespace hidden" in refused.err


async def test_no_operator_and_no_api_are_told_of(fairlead, tmp_path: Path) -> None:
    async with bare_api_server(tmp_path) as path:
        without_crd = await fairlead("status", KUBECONFIG=str(path))
        async with fleet_at(path) as fleet:
            await fleet.create()
            alone = await fairlead("status", KUBECONFIG=str(path))
    nowhere = await fairlead("status", "--kubeconfig", str(tmp_path / "none"))
    assert (without_crd.status, alone.status, nowhere.status) == (1, 0, 1)
    assert "hint: has this cluster Fairlead's CRD?" in without_crd.err
    assert alone.out.startswith("operator: none is to be seen")
    assert "default/dinghy: no operator looks after the namespace default" in alone.out
    assert "cannot read the kubeconfig" in nowhere.err and "Traceback" not in nowhere.err
