"""`fairlead gateway`: parses settings, connects to the Kubernetes API, runs a Gateway until it is told to stop."""

import argparse
import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

from fairlead.fleet.kubernetes import KubernetesFleet
from fairlead.gateway.access import Access, KeyedAccess, KeysError, OpenAccess
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.prompts.reader import Tokenizers
from fairlead.gateway.server import Gateway, PreciseLoop
from fairlead.gateway.stored.errors import StoreError
from fairlead.kube.client import KubeClient
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead.routing.datastore import Datastore
from fairlead_common.http.connections import allow_descriptors
from fairlead_common.logs import LogFormat, configure_logging
from fairlead_common.settings import SettingError, add_flags, given, values_of

_GC_THRESHOLDS = 700, 10, 60
"""Only the last differs from Python's: searching the 120,000 objects of 1,000 streams takes 50 to 100 ms, stops all
tokens and finds nothing, as requests leave no cycles. So it happens a sixth as often; at most half a million garbage
objects wait. Searches of young objects stay at 12 ms at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag per setting, and flags to reach the API."""
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="how to reach the cluster; default: $KUBECONFIG, the pod's ServiceAccount, ~/.kube/config",
    )
    parser.add_argument("--context", help="context of the kubeconfig; default: its current one")
    parser.add_argument(
        "--namespace",
        action="append",
        metavar="NAME",
        help="follow LLMDeployments of this namespace only; may be repeated; default: every namespace",
    )
    parser.add_argument(
        "--api-keys-dir",
        type=Path,
        metavar="DIR",
        help="serve only whoever presents a key found in this folder, such as a mounted Secret: a file per client, a "
        "key per line; changes take effect while it runs; this or --no-api-keys must be given",
    )
    parser.add_argument(
        "--no-api-keys", action="store_true", help="serve everybody who can reach the port, without asking for a key"
    )
    parser.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="how much is logged (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        default=LogFormat.TEXT.value,
        choices=[each.value for each in LogFormat],
        help="how its lines are written: logfmt, or a JSON object a line with the same keys (default: %(default)s)",
    )
    add_flags(parser, GatewaySettings)


def run(args: argparse.Namespace) -> int:
    """Runs the gateway. Returns 0 after an orderly end, 1 where it could not start, 2 for bad settings."""
    configure_logging(args.log_level, args.log_format)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else it starts a thread for every core of the node
    try:
        settings = GatewaySettings(**values_of(GatewaySettings, given(args, [GatewaySettings])))
        access = _access(args.api_keys_dir, args.no_api_keys)
    except (SettingError, KeysError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    num_ports = 1 if settings.grpc_port is None else 2
    allow_descriptors(num_ports * settings.max_connections, per_connection=2)  # the client's, and one to a replica
    try:
        with asyncio.Runner(loop_factory=PreciseLoop) as runner:
            runner.run(_serve(args, settings, access))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the loop no longer hears them, and the exit status stays as it is
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (OSError, KubeConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _access(keys: Path | None, serve_everybody: bool) -> Access:
    """There is no default, so nobody opens or closes a gateway unawares."""
    if (keys is not None) == serve_everybody:
        raise KeysError(
            "say who may use this gateway, by exactly one of two flags: --api-keys-dir DIR for a folder with a file of "
            "keys per client, or --no-api-keys to serve everybody who can reach its port"
        )
    return OpenAccess() if keys is None else KeyedAccess(keys)


async def _serve(args: argparse.Namespace, settings: GatewaySettings, access: Access) -> None:
    async with await KubeClient.from_environment(args.kubeconfig, args.context) as client:

        def make_fleet(datastore: Datastore, tokenizers: Tokenizers) -> KubernetesFleet:
            return KubernetesFleet(client, namespaces=args.namespace, listener=datastore, tokenizers=tokenizers)

        for number in (signal.SIGINT, signal.SIGTERM):  # what comes once ports are bound is for the gateway
            asyncio.get_running_loop().add_signal_handler(number, lambda: None)
        gateway = Gateway(settings, make_fleet, access)
        gateway.install_signal_handlers()
        gc.collect()
        gc.freeze()  # what is here from the start need not be looked at again, which would hold up tokens
        gc.set_threshold(*_GC_THRESHOLDS)
        await gateway.run()
