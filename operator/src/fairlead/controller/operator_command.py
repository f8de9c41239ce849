"""`fairlead operator`: arguments in, exit status out."""

import argparse
import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path

from fairlead.controller.capabilities import MissingRights
from fairlead.controller.operator import LeaseLost, Operator, WatchFailed
from fairlead.kube.client import RECURSION_LIMIT, KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead.operator_settings import OperatorSettings, SettingsError
from fairlead_protocol.logs import configure_logging

EXIT_FAILED, EXIT_USAGE = 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `fairlead operator`."""
    parser.add_argument("--settings", type=Path, metavar="FILE", help="YAML file with the operator's settings")
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, the pod's, ~/.kube/config"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig; default: its current one")
    parser.add_argument(
        "--namespace", action="append", metavar="NAME", help="look after this namespace only; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    """0 after a signal, 1 when the operator cannot go on, 2 for settings that cannot be used."""
    try:
        settings = OperatorSettings() if args.settings is None else OperatorSettings.from_file(args.settings)
    except SettingsError as e:
        print(f"fairlead operator: {e}", file=sys.stderr)
        return EXIT_USAGE
    if args.namespace:
        settings = replace(settings, watch_namespaces=tuple(args.namespace))
    configure_logging(settings.log_level, settings.log_format)
    sys.setrecursionlimit(RECURSION_LIMIT)  # kopf decodes objects of any depth, and one must not end its watch
    try:
        asyncio.run(_run(settings, args.kubeconfig, args.context))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the loop no longer hears them, and the exit status stays as it is
    except (KubeConfigError, KubeError, LeaseLost, MissingRights, OSError, WatchFailed) as e:
        print(f"fairlead operator: {e}", file=sys.stderr)
        return EXIT_USAGE if isinstance(e, KubeConfigError) else EXIT_FAILED
    return 0


async def _run(settings: OperatorSettings, kubeconfig: Path | None, context: str | None) -> None:
    async with await KubeClient.from_environment(kubeconfig, context) as client:
        operator = Operator(client, settings)
        operator.install_signal_handlers()
        await operator.run()
