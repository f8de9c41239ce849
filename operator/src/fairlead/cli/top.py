"""`fairlead top`: one or all LLMDeployments, live on a terminal, as plain lines elsewhere."""

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from fairlead.api import names
from fairlead.cli.fleet_view import DrawnView, FleetView, fleet_view, is_measured, lines, to_json
from fairlead.cli.options import COMPLETION_SECONDS, UsageError, add_cluster, completed, duration, tell
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
    completed(parser.add_argument("name", nargs="?", help="one LLMDeployment (default: all)"), _names)
    add_cluster(parser, system="where the gateways are")
    parser.add_argument(
        "--interval", type=duration, default=1.0, metavar="TIME", help="between two looks (default: 1s)"
    )
    parser.add_argument("--once", action="store_true", help="one look, as plain lines")
    parser.add_argument("-o", "--output", choices=("json",), help="each look as a JSON document, on a line of its own")


def _names(args: argparse.Namespace) -> Iterable[str]:
    """Of LLMDeployments, for completion."""

    async def listed() -> Iterable[str]:
        async with (
            asyncio.timeout(COMPLETION_SECONDS),
            await KubeClient.from_environment(args.kubeconfig, args.context) as client,
        ):
            return [item["metadata"]["name"] for item in (await client.list(LLMDEPLOYMENTS, args.namespace))["items"]]

    return asyncio.run(listed())


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
        running, pager = asyncio.create_task(watch.run()), Pager()

        async def look() -> None:
            await watch.synced()
            if args.once:
                _print(console, watch.view(), args.output)
            else:
                await show(watch.view, console, args.interval, args.output, pager)

        try:
            await (look() if args.once else _until_q(look(), pager))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


_KEYS = {
    b"\x1b[A": -1, b"k": -1, b"\x1b[B": 1, b"j": 1, b"\x1b[5~": -10, b"b": -10, b"\x1b[6~": 10, b" ": 10,
    b"\x1b[H": -(10**9), b"g": -(10**9), b"\x1b[F": 10**9, b"G": 10**9,
}  # fmt: skip
"""A key as a terminal sends it → lines that the view moves down."""
_HELP = """\
↑ ↓ or k j      a line up, down
PgUp PgDn       ten lines (b, space)
Home End        the first, the last line (g, G)
?               this, or the fleet again
q or Ctrl-C     leave
"""


class Pager:
    """The lines of a view that a terminal has room for; keys move them."""

    def __init__(self) -> None:
        self.moved = asyncio.Event()
        """Set by a key that changes what is to be seen."""
        self._first, self._is_help = 0, False

    def typed(self, keys: bytes) -> None:
        for key in re.findall(rb"\x1b\[[0-9]*[A-Z~]|.", keys, re.DOTALL):
            self._first = max(0, self._first + _KEYS.get(key, 0))
            self._is_help ^= key == b"?"
            self.moved.set()

    def draw(self, view: FleetView, console: Console) -> RenderableType:
        """What the terminal shows now; lines that do not fit are counted in the last one."""
        if self._is_help:
            return Text(_HELP)
        drawn = console.render_lines(DrawnView(view), console.options.update(height=None), pad=False)
        room = max(1, console.height - 1)
        if len(drawn) <= room:
            self._first = 0
            return SegmentLines(drawn, new_lines=True)
        self._first = min(self._first, len(drawn) - room)
        seen = f"lines {self._first + 1} to {self._first + room} of {len(drawn)} · ↑ ↓ · ? help"
        shown = SegmentLines(drawn[self._first : self._first + room], new_lines=True)
        return Group(shown, Text(seen, style="reverse", no_wrap=True, overflow="crop"))


async def _until_q(showing: Coroutine[Any, Any, None], pager: Pager) -> None:
    """Until q is typed, on a terminal. Keys are read unbuffered and not echoed. Earlier input counts, too; SIGTERM
    restores the terminal's echo and cursor."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return await showing
    keyboard, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    task = loop.create_task(showing)
    before = termios.tcgetattr(keyboard)

    def typed() -> None:
        pager.typed(keys := os.read(keyboard, 64))
        if b"q" in keys.lower():
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


async def show(
    view: Callable[[], FleetView],
    console: Console,
    interval: float,
    output: str | None = None,
    pager: Pager | None = None,
) -> None:
    """Until cancelled: in place on a terminal, block after block of lines elsewhere; `output`: as the argument says."""
    if output or not console.is_terminal:
        while True:
            _print(console, view(), output)
            await asyncio.sleep(interval)
    pager = pager or Pager()
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(pager.draw(view(), console), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await pager.moved.wait()
            pager.moved.clear()


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
