"""`fairlead top`: one or all LLMDeployments, live on a terminal, as plain lines elsewhere."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Coroutine
from typing import Any

from rich.console import Console
from rich.live import Live

from fairlead.api import names
from fairlead.cli.fleet_view import FleetView, fleet_view, is_measured, lines, renderable, to_json
from fairlead.cli.options import UsageError, add_cluster, duration, tell
from fairlead.fleet.gateways import GatewayFollower
from fairlead.fleet.pods import POD_SELECTOR
from fairlead.kube.client import KubeClient, KubeError
from fairlead.kube.kubeconfig import KubeConfigError
from fairlead.kube.resources import LLMDEPLOYMENTS, PODS
from fairlead.kube.watch import Reflector

GATEWAY_SELECTOR = f"{names.LABEL_NAME}={names.GATEWAY_NAME}"
PATIENCE_SECONDS = 3.0
"""How long a first view waits for gateways to speak; they are asked to every second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="one LLMDeployment (default: all)")
    add_cluster(parser, system="where the gateways are")
    parser.add_argument(
        "--interval", type=duration, default=1.0, metavar="TIME", help="between two looks (default: 1s)"
    )
    parser.add_argument("--once", action="store_true", help="one look, as plain lines")
    parser.add_argument("-o", "--output", choices=("json",), help="each look as a JSON document, on a line of its own")


def run(args: argparse.Namespace) -> int:
    """0 after Ctrl-C, q or one look; 1 without an API, or for an unknown name."""
    logging.getLogger("fairlead").addHandler(logging.NullHandler())  # a watch that breaks is mended; no line about it
    try:
        console = Console(highlight=False)
        console.soft_wrap = not console.is_terminal  # a pipe has no width; a terminal's lines are folded
        asyncio.run(_top(args, console))
    except KeyboardInterrupt:
        return 0
    except (KubeConfigError, KubeError, UsageError) as error:
        tell(error)
        return 1
    return 0


async def _top(args: argparse.Namespace, console: Console) -> None:
    async with await KubeClient.from_environment(args.kubeconfig, args.context) as client:
        found = await client.list(LLMDEPLOYMENTS, args.namespace)  # fails at once, where following would go on trying
        present = sorted(item["metadata"]["name"] for item in found["items"])
        if args.name is not None and args.name not in present:
            where = f"in {args.namespace}" if args.namespace else "in any namespace"
            hint = f"there is: {', '.join(present) or 'none at all'}"
            raise UsageError(f"there is no LLMDeployment {args.name!r} {where}", hint)
        watch = FleetWatch(client, namespace=args.namespace, name=args.name, system_namespace=args.system_namespace)
        running = asyncio.create_task(watch.run())

        async def look() -> None:
            await watch.synced()
            if args.once:
                _print(console, watch.view(), args.output)
            else:
                await show(watch.view, console, args.interval, args.output)

        try:
            await (look() if args.once else _until_q(look()))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _until_q(showing: Coroutine[Any, Any, None]) -> None:
    """Until q is typed, on a terminal. Keys are read unbuffered and not echoed. Earlier input counts, too; SIGTERM
    restores the terminal's echo and cursor."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return await showing
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    task = loop.create_task(showing)
    before = termios.tcgetattr(keyboard)

    def typed() -> None:
        if b"q" in os.read(keyboard, 64).lower():
            task.cancel()

    tty.setcbreak(keyboard, termios.TCSADRAIN)
    loop.add_reader(keyboard, typed)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        loop.remove_reader(keyboard)
        loop.remove_signal_handler(signal.SIGTERM)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        task.cancel()
    return None if task.cancelled() else task.result()


async def show(view: Callable[[], FleetView], console: Console, interval: float, output: str | None = None) -> None:
    """Until cancelled: in place on a terminal, block after block of lines elsewhere; `output`: as the argument says."""
    if output or not console.is_terminal:
        while True:
            _print(console, view(), output)
            await asyncio.sleep(interval)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(renderable(view()), refresh=True)
            await asyncio.sleep(interval)


def _print(console: Console, view: FleetView, output: str | None = None) -> None:
    if output == "json":
        print(json.dumps(to_json(view)), flush=True)
        return
    for line in lines(view):
        console.print(line, markup=False)


class FleetWatch:
    """Follows LLMDeployments, their pods and the gateways' signals, here and in the demo; `fleet_view.py` interprets
    them. `run` it as a task; `view` gives the present state after `synced`."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str | None = None,
        name: str | None = None,
        system_namespace: str = names.SYSTEM_NAMESPACE,
    ) -> None:
        """`namespace`, `name`: which LLMDeployments; None = all. `system_namespace`: where the gateways are."""
        self._name = name
        self._deployments = Reflector(client, LLMDEPLOYMENTS, namespace=namespace)
        self._pods = Reflector(client, PODS, namespace=namespace, label_selector=POD_SELECTOR)
        self._gateways = GatewayFollower(client, namespace=system_namespace, selector=GATEWAY_SELECTOR)

    async def run(self) -> None:
        """Follows everything until cancelled."""
        async with asyncio.TaskGroup() as group:
            for follower in (self._deployments, self._pods, self._gateways):
                group.create_task(follower.run())

    async def synced(self) -> None:
        """Returns once every object has been seen, and gateways had the time to speak twice: rates are differences."""
        for reflector in (self._deployments, self._pods):
            await reflector.synced.wait()
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE_SECONDS
        while clock() < deadline:
            readings = self._gateways.readings()
            if not readings.num_missing and is_measured(readings):
                return
            await asyncio.sleep(0.05)

    def view(self) -> FleetView:
        """What is known now."""
        deployments = self._deployments.store.values()
        return fleet_view(
            [body for body in deployments if self._name in (None, body["metadata"]["name"])],
            self._pods.store.values(),
            self._gateways.readings(),
        )
