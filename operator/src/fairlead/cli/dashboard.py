"""`fairlead dashboard`: the page of a gateway in a browser, also through kubectl's port-forward."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairlead.api import names
from fairlead.cli.options import GATEWAY_VARIABLE, UsageError, address, local_gateway, tell, text
from fairlead.kube.kubeconfig import KubeConfigError, load

_FORWARDED = "Forwarding from "
"""How kubectl tells the port of this machine."""
_LOGGED = re.compile(r"[IWEF]\d{4} [\d:.]+ ")
"""How lines of Kubernetes' log begin: kubectl writes five before it says that it reaches no server."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Opens the page of a gateway: models, a chat, the last hour. The gateway is that of --gateway, of "
        f"${GATEWAY_VARIABLE}, of the fleet on this machine, or of a cluster, through `kubectl port-forward`."
    )
    parser.add_argument("--gateway", type=address, metavar="URL", help="address of the gateway")
    parser.add_argument("--no-browser", action="store_true", help="print the address alone")
    parser.add_argument("--port", type=int, default=0, help="of this machine, for a cluster's gateway (default: any)")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="a cluster's gateway; default: as kubectl does")
    parser.add_argument("--context", type=text, metavar="NAME", help="a cluster's gateway, of this context")
    parser.add_argument(
        "--system-namespace",
        type=text,
        default=names.SYSTEM_NAMESPACE,
        metavar="NAME",
        help="where the gateways run (default: %(default)s)",
    )
    parser.add_argument(
        "--service",
        type=text,
        default=names.GATEWAY_NAME,
        metavar="NAME",
        help="of the gateways (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit status. A cluster's gateway is forwarded until Ctrl-C, which ends with 0."""
    means_cluster = args.kubeconfig is not None or args.context is not None
    gateway = args.gateway or (None if means_cluster else os.environ.get(GATEWAY_VARIABLE) or local_gateway())
    if gateway:
        show(f"{gateway.rstrip('/').removesuffix('/v1')}/", opens=not args.no_browser)
        return 0
    if shutil.which("kubectl") is None:
        tell(UsageError("kubectl is not there, which reaches a cluster's gateway", "install it, or name --gateway URL"))
        return 2
    try:
        load(args.kubeconfig, args.context)  # kubectl would try port 8080 of this machine
        return forward(command(args), opens=not args.no_browser)
    except KubeConfigError as error:
        tell(error)
        return 1
    except KeyboardInterrupt:
        return 0


def command(args: argparse.Namespace) -> list[str]:
    """What kubectl is asked for. The Service's port by its name: `gateway.service.port` chooses the number."""
    cluster = [f"--kubeconfig={args.kubeconfig}"] if args.kubeconfig else []
    cluster += [f"--context={args.context}"] if args.context else []
    ports = f"{args.port or ''}:http"
    where = ["--namespace", args.system_namespace, f"service/{args.service}", ports]
    return ["kubectl", *cluster, "port-forward", "--address", "127.0.0.1", *where]


def forward(words: Sequence[str], *, opens: bool) -> int:
    """Until kubectl ends: 1, after kubectl's own words, but for those that its library writes to the log."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as kubectl:
        assert kubectl.stdout is not None and kubectl.stderr is not None
        complaining = threading.Thread(target=_complaints, args=(kubectl.stderr,), daemon=True)
        complaining.start()
        try:
            is_shown = False
            for line in kubectl.stdout:
                if line.startswith(_FORWARDED) and not is_shown:
                    is_shown = True
                    show(f"http://{line.removeprefix(_FORWARDED).split()[0]}/", opens=opens)
                    print("Ctrl-C ends the forwarding.", flush=True)
        finally:
            kubectl.terminate()
            complaining.join()
    return 1


def _complaints(lines: Iterable[str]) -> None:
    for line in lines:
        if not _LOGGED.match(line):
            print(line, end="", file=sys.stderr, flush=True)


def show(url: str, *, opens: bool) -> None:
    """Prints the address, and opens the page where there is a browser."""
    print(url, flush=True)
    if opens:
        webbrowser.open(url)
