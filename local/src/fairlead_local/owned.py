"""A fleet that belongs to the process that started it: for the demo, benchmarks and tests.

It ends with the block, and with the process however that ends: the supervisor's lifeline (`detaching.py`) breaks even
where no handler runs.
"""

import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fairlead_local.detaching import DetachedSupervisor, Write
from fairlead_local.fleet_state import FleetError, FleetFolder, read_state

_ANY_PORTS = ("--api-port", "0", "--gateway-port", "0")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class OwnedFleet:
    """Where it can be reached: the gateway's base URL, and the API by a kubeconfig."""

    gateway: str
    kubeconfig: Path


@contextmanager
def owned_fleet(folder: Path, arguments: Sequence[str] = (), *, write: Write) -> Iterator[OwnedFleet]:
    """`fairlead local up ARGUMENTS` on free ports. `write` takes what it says. Raises FleetError where it fails.

    SIGTERM and SIGHUP end the block as Ctrl-C does. Its own end is not interrupted by any of them: it takes seconds.
    """
    data = FleetFolder(folder)
    with _signals(_interrupt, signal.SIGTERM, signal.SIGHUP):
        supervisor = DetachedSupervisor(data, [*_ANY_PORTS, *arguments])
        try:
            if status := supervisor.wait_until_ready(write):
                raise FleetError(f"`fairlead local up` ended with status {status}")
            state = read_state(data)
            assert state is not None
            yield OwnedFleet(state.gateway, data.kubeconfig)
        finally:
            with _signals(_ignore, *_ENDING):
                status = supervisor.end()
        if status:
            raise FleetError(f"the fleet's supervisor ended with status {status}")


@contextmanager
def temporary_fleet(prefix: str, *, write: Write) -> Iterator[OwnedFleet]:
    """The same in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, owned_fleet(Path(folder), write=write) as fleet:
        yield fleet


@contextmanager
def _signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _ignore(*_: Any) -> None:
    """Unlike SIG_IGN it is not handed down to processes that are started meanwhile."""
