"""`fairlead gateway`: parses settings, connects to the Kubernetes API, runs a Gateway until it is told to stop."""

import argparse
import asyncio
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fairlead.docstrings import docstrings
from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.fleet.listener import EngineListener
from fairlead.fleet.tokenizers import Tokenizers
from fairlead.gateway.loop import PreciseLoop
from fairlead.gateway.server import Gateway
from fairlead.gateway.settings import GatewaySettings, SettingsError
from fairlead.kube.client import KubeClient
from fairlead.kube.config import KubeConfigError
from fairlead.logs import configure_logging


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and how to reach the API."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="how to reach the cluster; default: $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config",
    )
    parser.add_argument("--context", help="context of the kubeconfig; default: its current one")
    parser.add_argument("--namespace", help="follow LLMDeployments of this namespace only; default: every namespace")
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="how much is logged (default: %(default)s)",
    )
    texts = docstrings(GatewaySettings)
    for field in fields(GatewaySettings):
        assert field.default is not MISSING
        kind = str if field.default is None else type(field.default)
        text = f"{texts[field.name]} (default: {field.default})"
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=text)


def run(args: argparse.Namespace) -> int:
    """Runs the gateway. Returns 0 after an orderly end, 1 where it could not start, 2 for bad settings."""
    configure_logging(args.log_level)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else it starts a thread for every core of the node
    values: dict[str, Any] = {field.name: getattr(args, field.name) for field in fields(GatewaySettings)}
    try:
        settings = GatewaySettings(**values)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        with asyncio.Runner(loop_factory=PreciseLoop) as runner:
            runner.run(_serve(args, settings))
    except (OSError, KubeConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def _serve(args: argparse.Namespace, settings: GatewaySettings) -> None:
    async with await KubeClient.from_environment(args.kubeconfig, args.context) as client:

        def make_fleet(listener: EngineListener, tokenizers: Tokenizers) -> KubernetesFleet:
            return KubernetesFleet(client, namespace=args.namespace, listener=listener, tokenizers=tokenizers)

        gateway = Gateway(settings, make_fleet)
        gateway.install_signal_handlers()
        await gateway.run()
