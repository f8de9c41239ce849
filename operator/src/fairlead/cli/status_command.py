"""`fairlead status`: one look at what is served and who looks after it, on a cluster or in local mode.

Reads Leases, LLMDeployments and gateway pods; what they mean is worked out in `status_report.py`.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fairlead.api import presence
from fairlead.api.presence import Presence
from fairlead.cli.options import UsageError, add_cluster, tell
from fairlead.cli.status_report import StatusReport, key_of, lines, operator_view, status_report
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead.kube.resources import LEASES, LLMDEPLOYMENTS, PODS

LEASE_SELECTOR = ",".join(f"{key}={value}" for key, value in presence.LABELS.items())


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
        for line in lines(report):
            print(line)
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
