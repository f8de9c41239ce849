"""Load lines of a fake engine: what it says of itself, and when."""

import asyncio

import msgspec

from fairlead_common.wire.messages import LoadLine
from fairlead_testing.fake_engine.core import FakeCore

BUSY_SECONDS = 0.1
IDLE_SECONDS = 1.0
MOST_GATEWAYS = 64


class Seen:
    """By gateway, the highest number of its requests that came. Forgets the gateways it has not heard of longest."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def came(self, header: str | None) -> None:
        """`header`: `<gateway>:<n>`; None and what cannot be read are ignored."""
        gateway, _, number = (header or "").rpartition(":")
        if gateway and number.isdecimal():
            highest = max(int(number), self._numbers.pop(gateway, 0))
            self._numbers[gateway] = highest
            while len(self._numbers) > MOST_GATEWAYS:
                del self._numbers[next(iter(self._numbers))]

    def numbers(self) -> dict[str, int]:
        return dict(self._numbers)

    def clear(self) -> None:
        """After a restart."""
        self._numbers.clear()


class LoadTeller:
    """Sends a load line every 100 ms while busy, every second while idle, and at once where that matters."""

    def __init__(self, core: FakeCore, seen: Seen) -> None:
        self.core = core
        self.seen = seen
        self.draining = False
        self._hurry = asyncio.Event()
        self._was_full = self._was_busy = False

    def load(self) -> LoadLine:
        """As of now."""
        started = self.core.step_started
        age = 0.0 if started is None else asyncio.get_running_loop().time() - started
        load = self.core.load(seq=self.core.stream.seq, seen=self.seen.numbers(), age=age)
        return msgspec.structs.replace(load, draining=self.draining)

    def drain(self) -> None:
        """Says so from now on."""
        self.draining = True
        self._hurry.set()

    def hurry(self) -> None:
        """Something is to be told at once."""
        self._hurry.set()

    def changed(self) -> None:
        """A request came or went: says so at once where that made the engine busy, full, or no longer full."""
        num_requests = self.core.num_requests
        is_full = num_requests >= self.core.limits.max_num_seqs
        if is_full != self._was_full or (num_requests and not self._was_busy):
            self._hurry.set()
        self._was_full, self._was_busy = is_full, bool(num_requests)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._hurry.clear()
            self.core.stream.send_load(self.load())
            is_busy = bool(self.core.num_requests)
            try:
                async with asyncio.timeout(BUSY_SECONDS if is_busy else IDLE_SECONDS):
                    await self._hurry.wait()
            except TimeoutError:
                pass
