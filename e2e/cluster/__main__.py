"""`python -m cluster`: a genuine Kubernetes node for tests on this machine.

preflight             what this machine has of what a node needs
                      (exit status 0: it can host a node, 3: a control plane only, 4: neither)
build                 put Kubernetes into the cache, unless it is there
up                    start the node; prints the line that makes kubectl use it
upgrade VERSION       replace the node's Kubernetes by another version, in place
load-image TAR…       import image archives into the node
status                what runs
down                  stop the node and remove every trace of it
"""

import argparse
import json
import signal
import sys
from pathlib import Path
from types import FrameType

from cluster import kubectl, node, preflight
from cluster.commands import ClusterError, Progress
from cluster.layout import Layout
from cluster.programs import chosen_version, obtain


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(_COMMANDS[arguments.command](arguments))
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("preflight").add_argument("--json", action="store_true", help="the result as JSON")
    commands.add_parser("build")
    commands.add_parser("up").add_argument(
        "--control-plane-only",
        action="store_true",
        help="no node: etcd, API server, controllers and scheduler on loopback",
    )
    commands.add_parser("upgrade").add_argument("version", help="such as 1.37, or 1.37.2")
    commands.add_parser("load-image").add_argument("archive", type=Path, nargs="+")
    commands.add_parser("status")
    commands.add_parser("down")
    return parser


def _preflight(arguments: argparse.Namespace) -> int:
    report = preflight.examine()
    print(report.json() if arguments.json else report.text())
    return report.verdict.exit_status


def _build(_: argparse.Namespace) -> int:
    obtain(Progress())
    return 0


def _up(arguments: argparse.Namespace) -> int:
    started = node.Node(control_plane_only=arguments.control_plane_only)
    started.up()
    started.progress.say("up")
    if kubectl.find() is None:
        started.progress.say(f"there is no kubectl on PATH; the node's own is {kubectl.require(of_node=True)}")
    print(f"export KUBECONFIG={started.kubeconfig}")
    return 0


def _upgrade(arguments: argparse.Namespace) -> int:
    upgraded = node.Node()
    upgraded.upgrade(chosen_version(arguments.version))
    upgraded.progress.say(f"the node is of Kubernetes {upgraded.version}")
    return 0


def _load_image(arguments: argparse.Namespace) -> int:
    for archive in arguments.archive:
        node.load_image(Layout.default(), archive)
    return 0


def _status(_: argparse.Namespace) -> int:
    found = node.status(Layout.default())
    print(json.dumps(found, indent=2))
    return 0 if found["mode"] else 1


def _down(_: argparse.Namespace) -> int:
    progress = Progress()
    node.Node().down()
    progress.say("down")
    return 0


_COMMANDS = {
    "preflight": _preflight,
    "build": _build,
    "up": _up,
    "upgrade": _upgrade,
    "load-image": _load_image,
    "status": _status,
    "down": _down,
}


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a command as Ctrl-C does: what was begun is taken down."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
