"""Each gateway's requests that the engine's load includes: `seen` of a load line.

A gateway numbers requests to this engine and adds requests to the load until the load includes them. Knows headers and
numbers of the core's commands; neither HTTP nor requests.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)

MAX_GATEWAYS = 64
"""Most gateways remembered, the most recent ones. A fleet has a few, and each restart adds a new name."""
_DISPATCH = re.compile(r"(?P<gateway>[\x21-\x7e]{1,128}):(?P<number>[1-9][0-9]{0,14})")


@dataclass(slots=True, eq=False)
class Dispatch:
    """One request on the way into the load; `gateway` is None for a request without a number."""

    gateway: str | None = None
    number: int = 0
    command: int | None = None
    """Number of the last command to the core; None = no command yet."""


class Dispatches:
    """The highest number of each gateway that the load includes.

    The number of a request refused before the core counts at once, as no load will include the request. Any other
    number counts from the first load with all of the request's commands. A lost number is covered by the next higher
    number.
    """

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        """By gateway, the least recently heard first."""
        self.num_malformed = 0
        """Unreadable headers since the start."""
        self.on_seen: Callable[[str, int], object] = lambda gateway, number: None
        """Called with gateway and number when a number begins to count."""
        self.on_malformed: Callable[[], object] = lambda: None
        self._on_the_way: set[Dispatch] = set()
        self._elsewhere: list[tuple[int, str, int]] = []  # report, gateway, number

    def seen_elsewhere(self, gateway: str, number: int, report: int) -> None:
        """Another process has sent the core a gateway's request; loads include it from this report on."""
        self._elsewhere.append((report, gateway, number))

    @contextmanager
    def arrived(self, header: str | None) -> Iterator[Dispatch]:
        """Context of answering a request with this `x-fairlead-dispatch`; an unreadable header counts as missing."""
        dispatch = Dispatch()
        if header is not None and (found := _DISPATCH.fullmatch(header)):
            dispatch = Dispatch(found["gateway"], int(found["number"]))
            self._on_the_way.add(dispatch)
        elif header is not None:
            self.num_malformed += 1
            self.on_malformed()
            if self.num_malformed == 1:
                log.warning("malformed dispatch header, said once", extra={"header": header[:80]})
        try:
            yield dispatch
        finally:
            if dispatch.command is None:
                self._count(dispatch)

    def obeyed(self, num_commands: int) -> None:
        """The newest load includes so many commands."""
        included = [each for each in self._on_the_way if each.command is not None and each.command <= num_commands]
        for dispatch in included:
            self._count(dispatch)

    def reported(self, num_reports: int) -> None:
        """The newest load belongs to the core's report with this number."""
        if self._elsewhere:
            for report, gateway, number in self._elsewhere:
                if report <= num_reports:
                    self._see(gateway, number)
            self._elsewhere = [each for each in self._elsewhere if each[0] > num_reports]

    def _count(self, dispatch: Dispatch) -> None:
        if dispatch.gateway is None:
            return
        self._on_the_way.discard(dispatch)
        self._see(dispatch.gateway, dispatch.number)

    def _see(self, gateway: str, number: int) -> None:
        self.seen[gateway] = max(self.seen.pop(gateway, 0), number)
        self.on_seen(gateway, number)
        if len(self.seen) > MAX_GATEWAYS:
            del self.seen[next(iter(self.seen))]
