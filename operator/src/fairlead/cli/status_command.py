"""`fairlead status`: LLMDeployments and operators at a glance, on a cluster or in local mode.

Reads Leases, LLMDeployments and gateway pods; `status_report` interprets them.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from fairlead.api.conditions import ConditionStatus, ConditionType, Reason, find_condition, wrong_condition
from fairlead.api.quantities import format_duration
from fairlead.cli.options import UsageError, add_cluster, tell
from fairlead.cli.report_table import NOTHING
from fairlead.fleet.pods import is_finished, ready_since
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead.kube.lease import PRESENCE_LABELS, Presence
from fairlead.kube.resources import LEASES, LLMDEPLOYMENTS, PODS

UNWATCHED = "Unwatched"
"""Reason shown for an LLMDeployment without an operator, whose status is old."""
_HEAD = ("NAMESPACE", "NAME", "READY", "REASON", "GATEWAYS", "URL")
_PATIENCE = 3.0
"""Lease durations until the holder counts as gone; clocks may differ."""

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorView:
    """One installation's operator, by its Lease."""

    lease: str
    """`namespace/name`."""
    holder: str
    """The process that acts; empty = none does."""
    silent_seconds: float | None
    """Time since a vanished holder's last renewal; None = the holder is there."""
    namespaces: tuple[str, ...] | None
    """Those that it looks after; None = all."""
    gateways_ready: int | None
    """Its gateways that are ready; None = they cannot be seen from here."""
    gateways: int | None
    """How many there are."""

    @property
    def acts(self) -> bool:
        """Whether anybody reconciles what it looks after."""
        return bool(self.holder) and self.silent_seconds is None

    def watches(self, namespace: str) -> bool:
        """Whether LLMDeployments of this namespace are its."""
        return self.namespaces is None or namespace in self.namespaces


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """One LLMDeployment."""

    namespace: str
    name: str
    ready: int
    desired: int | None
    """None before an operator has said."""
    is_ready: bool
    is_degraded: bool
    """Whether something needs a person, Ready or not."""
    reason: str
    """Why it is or is not Ready, degraded or paused, in one word; `UNWATCHED` = no operator looks after it."""
    message: str
    """The same as a sentence."""
    url: str
    """Where clients reach it; empty before an operator has said."""
    operator: str | None
    """The Lease of its operator; None = no operator."""


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Everything at one moment."""

    operators: tuple[OperatorView, ...]
    deployments: tuple[DeploymentView, ...]
    notes: tuple[str, ...] = ()
    """Remarks, such as objects that could not be seen."""


def operator_view(lease: Body, gateways: Sequence[Body] | None, now: datetime) -> OperatorView | None:
    """None where the Lease's holder announces nothing. `gateways`: its pods; None = invisible."""
    presence = Presence.from_annotations(lease["metadata"].get("annotations") or {})
    if presence is None:
        return None
    spec, silent = lease.get("spec") or {}, 0.0
    if renewed := spec.get("renewTime"):
        silent = (now - datetime.fromisoformat(renewed)).total_seconds()
    is_gone = silent > _PATIENCE * float(spec.get("leaseDurationSeconds") or 0)
    there = None if gateways is None else [pod for pod in gateways if not is_finished(pod)]
    return OperatorView(
        lease=key_of(lease),
        holder=spec.get("holderIdentity") or "",
        silent_seconds=silent if is_gone else None,
        namespaces=presence.namespaces,
        gateways_ready=None if there is None else sum(1 for pod in there if ready_since(pod) is not None),
        gateways=None if there is None else len(there),
    )


def status_report(
    operators: Iterable[OperatorView],
    deployments: Iterable[Body],
    *,
    silent: Sequence[str] = (),
    notes: Iterable[str] = (),
) -> StatusReport:
    """`silent`: Leases whose holders announce nothing; then nothing counts as unwatched. `notes`: remarks."""
    known = tuple(sorted(operators, key=lambda each: each.lease))
    views = tuple(_deployment(body, known, may_be_watched=bool(silent)) for body in sorted(deployments, key=key_of))
    said = (
        f"the holder of the Lease {lease} does not say what it looks after: is it older than this?" for lease in silent
    )
    return StatusReport(known, views, (*notes, *said, *_contests(known, {view.namespace for view in views})))


def key_of(body: Body) -> str:
    """`namespace/name` of any object."""
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def lines(report: StatusReport) -> Iterator[str]:
    """Plain lines: operators, a table of LLMDeployments, and a sentence for each problem."""
    for operator in report.operators:
        yield _operator_words(operator)
    if not report.operators:
        yield "operator: none is to be seen: install one (docs/kubernetes.md), or `fairlead local up`"
    yield ""
    if report.deployments:
        gateways = {each.lease: _gateways(each) for each in report.operators}
        rows = [
            (
                each.namespace,
                each.name,
                f"{each.ready}/{NOTHING if each.desired is None else each.desired}",
                each.reason,
                gateways[each.operator] if each.operator is not None else NOTHING,
                each.url or NOTHING,
            )
            for each in report.deployments
        ]
        yield from _columns([_HEAD, *rows])
    else:
        yield "no LLMDeployment"
    sentences = [
        f"{each.namespace}/{each.name}: {each.message}"
        for each in report.deployments
        if each.is_degraded or not each.is_ready or each.reason == Reason.PAUSED
    ]
    sentences += [f"note: {note}" for note in report.notes]
    if sentences:
        yield ""
        yield from sentences


def _contests(operators: Sequence[OperatorView], namespaces: Iterable[str]) -> Iterator[str]:
    """Namespaces that two operators look after, each with its own settings."""
    for namespace in sorted(namespaces):
        leases = [each.lease for each in operators if each.acts and each.watches(namespace)]
        if len(leases) > 1:
            yield (
                f"{' and '.join(leases)} both look after the namespace {namespace}, and undo what the other does: give "
                "each release its own watch.namespaces (docs/kubernetes.md)"
            )


def _deployment(body: Body, operators: Sequence[OperatorView], *, may_be_watched: bool) -> DeploymentView:
    namespace, status = body["metadata"]["namespace"], body.get("status") or {}
    operator = next((each for each in operators if each.watches(namespace)), None)
    ready, wrong = find_condition(status, ConditionType.READY), wrong_condition(status)
    is_ready, is_degraded = (each.get("status") == ConditionStatus.TRUE for each in (ready, wrong))
    telling = wrong if is_ready and wrong else ready
    reason = str(telling.get("reason") or "Unseen")
    message = str(telling.get("message") or "no operator has seen it yet")
    if operator is None and not may_be_watched:
        reason, is_ready = UNWATCHED, False
        message = (
            f"no operator looks after the namespace {namespace}, so this does nothing: add it to watch.namespaces of "
            "the chart (docs/kubernetes.md), or create the LLMDeployment where one does"
        )
    elif operator is not None and not operator.acts:
        is_ready = False
        message = f"nobody holds the Lease {operator.lease}, so nothing changes here; before: {message}"
    return DeploymentView(
        namespace=namespace,
        name=body["metadata"]["name"],
        ready=status.get("readyReplicas") or 0,
        desired=status.get("desiredReplicas"),
        is_ready=is_ready,
        is_degraded=is_degraded,
        reason=reason,
        message=message,
        url=status.get("url") or "",
        operator=None if operator is None else operator.lease,
    )


def _operator_words(operator: OperatorView) -> str:
    watched = "every namespace" if operator.namespaces is None else ", ".join(operator.namespaces) or "no namespace"
    if not operator.holder:
        held = "nobody holds it: is the operator's pod running?"
    elif operator.silent_seconds is not None:
        silent = format_duration(round(operator.silent_seconds))
        held = f"held by {operator.holder}, silent for {silent}: is the operator's pod running?"
    else:
        held = f"held by {operator.holder}"
    gateways = _gateways(operator)
    return f"operator {operator.lease}: looks after {watched}; gateways ready: {gateways}; {held}"


def _gateways(operator: OperatorView) -> str:
    return NOTHING if operator.gateways is None else f"{operator.gateways_ready}/{operator.gateways}"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """As kubectl prints tables: nothing is cut, whatever the width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


LEASE_SELECTOR = ",".join(f"{key}={value}" for key, value in PRESENCE_LABELS.items())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser, system="where to look for operators if you may not look everywhere")
    parser.add_argument("-o", "--output", choices=["json"], help="for other programs (default: a table)")


def run(args: argparse.Namespace) -> int:
    """0 after a look, whatever it shows; 1 where the API cannot be asked."""
    try:
        report = asyncio.run(_look(args))
    except (KubeConfigError, KubeError, UsageError) as error:
        tell(error)
        return 1
    if args.output == "json":
        print(json.dumps(asdict(report), indent=2))
    else:
        console = Console(highlight=False)
        for line in lines(report):
            console.print(line, markup=False, soft_wrap=not console.is_terminal)
    return 0


async def _look(args: argparse.Namespace) -> StatusReport:
    notes, views = [], []
    async with await KubeClient.from_environment(args.kubeconfig, args.context) as client:
        deployments = (await client.list(LLMDEPLOYMENTS, args.namespace))["items"]
        leases = await _unless_forbidden(client.list(LEASES, label_selector=LEASE_SELECTOR))
        if leases is None:
            where = f"in the namespace {args.system_namespace}"
            notes = [f"operators were looked for {where} only: you may not list Leases elsewhere"]
            here = client.list(LEASES, args.system_namespace, label_selector=LEASE_SELECTOR)
            if (leases := await _unless_forbidden(here)) is None:
                hint = f"ask for the right to list leases.coordination.k8s.io {where}"
                raise UsageError("you may not see which operators there are", hint)
        for lease in leases["items"]:
            pods = None
            if said := Presence.from_annotations(lease["metadata"].get("annotations") or {}):
                gateways = client.list(PODS, said.gateway_namespace, label_selector=said.gateway_selector)
                pods = await _unless_forbidden(gateways)
            views.append((lease, operator_view(lease, None if pods is None else pods["items"], datetime.now(UTC))))
    silent = [key_of(lease) for lease, view in views if view is None]
    return status_report([view for _, view in views if view is not None], deployments, silent=silent, notes=notes)


async def _unless_forbidden(asked: Awaitable[JsonObject]) -> Any:
    """None where we may not know."""
    try:
        return await asked
    except KubeError as e:
        if e.status != 403:
            raise
        return None
