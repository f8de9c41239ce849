"""A gateway as a process of its own, in front of engines that it is told of: for tests that look at the process.

`python -m fairlead_testing.static_gateway --engine NAME=URL …` follows them as it would follow pods, prints its ports
as one line of JSON, and serves until SIGTERM. A gateway that follows a cluster is `fairlead gateway`.
"""

import argparse
import asyncio
import json
import os
from urllib.parse import urlsplit

from fairlead.api.llmdeployment import RoutingPolicy
from fairlead.fleet.engine_stream import EngineListener
from fairlead.gateway.access import OpenAccess
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.prompts.reader import Tokenizers
from fairlead.gateway.server import Gateway, PreciseLoop
from fairlead.routing.replica import Replica
from fairlead_common.logs import configure_logging
from fairlead_testing.gateways import make_pool
from fairlead_testing.static_fleet import StaticFleet


def replica(text: str) -> Replica:
    """From `NAME=URL`."""
    name, _, url = text.partition("=")
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        raise argparse.ArgumentTypeError(f"not NAME=http://HOST:PORT: {text}")
    return Replica(uid=name, name=name, host=parts.hostname, port=parts.port)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m fairlead_testing.static_gateway", description=__doc__)
    made.add_argument("--engine", type=replica, action="append", default=[], metavar="NAME=URL", help="one of them")
    made.add_argument("--model", default="fake", help="the name it is served under (default: %(default)s)")
    made.add_argument("--policy", default="PredictedTTFT", help="the routing policy (default: %(default)s)")
    made.add_argument("--max-queue-time", type=float, default=30.0, help="seconds (default: %(default)s)")
    made.add_argument("--idle-timeout", type=float, default=60.0, help="seconds (default: %(default)s)")
    made.add_argument("--store", default="", help="folder for responses, files and batches (default: none are kept)")
    made.add_argument("--log-level", default="warning", help="how much is logged (default: %(default)s)")
    return made


async def serve(args: argparse.Namespace) -> None:
    """Until it was told to stop and everything is answered."""
    settings = GatewaySettings(
        host="127.0.0.1", port=0, control_port=0, drain_delay=0.0, drain_timeout=5.0, idle_timeout=args.idle_timeout,
        response_store=f"sqlite:///{args.store}/store.db" if args.store else None,
        file_store=f"{args.store}/files" if args.store else None,
    )  # fmt: skip
    pool = make_pool(
        args.engine, name=args.model, policy=RoutingPolicy(args.policy), max_queue_time=args.max_queue_time
    )

    def make_fleet(listener: EngineListener, tokenizers: Tokenizers) -> StaticFleet:
        return StaticFleet([pool], listener=listener, tokenizers=tokenizers)

    gateway = Gateway(settings, make_fleet, OpenAccess())
    gateway.install_signal_handlers()
    ports = {"port": gateway.port, "control_port": gateway.control_port, "pid": os.getpid()}
    print(json.dumps(ports), flush=True)
    await gateway.run()


if __name__ == "__main__":
    arguments = parser().parse_args()
    configure_logging(arguments.log_level)
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        runner.run(serve(arguments))
