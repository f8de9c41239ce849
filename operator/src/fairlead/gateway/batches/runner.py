"""The runner: which batches this gateway runs.

Every few seconds it renews the leases of those that it runs, hears of cancelling there, and takes batches that nobody
runs. A lease that cannot be renewed in time ends the run before another gateway begins it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from fairlead.gateway.batches.batch import BatchRow, BatchStatus
from fairlead.gateway.batches.batch_run import BatchRun, ServeLine
from fairlead.gateway.files.blobs import BlobError
from fairlead.gateway.files.keeper import FileKeeper
from fairlead.gateway.stored.errors import NotStored, StoreError

if TYPE_CHECKING:
    from fairlead.gateway.batches.batch_table import BatchTable

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0
MAX_RUNNING = 32
"""Batches that one gateway runs at once."""
MAX_OF_OWNER = 8
"""Of those, batches of one API key's client: others' are not to wait for batches of a model at zero."""
STUCK_SECONDS = 30.0
"""A run without a line at a replica for so long makes way for a waiting batch."""
REST_SECONDS = 30.0
"""For how long one that made way is not taken again, so that all get their turns."""
MAX_FREE = 10_000
"""Batches without a gateway that are looked at."""
GIVE_UP_SECONDS = 15.0
"""A run ends when its lease was not renewed for so long, which is before the lease ends."""
EXPIRE_SECONDS = 600.0


class BatchRunner:
    """Of one gateway."""

    def __init__(
        self,
        table: "BatchTable",
        files: FileKeeper,
        serve: ServeLine,
        gateway_id: str,
        max_line_bytes: int,
        on_line: Callable[[str], object],
        on_ended: Callable[[str], object],
    ) -> None:
        """`gateway_id`: names this run of the gateway. `on_ended`: called with the state of a batch that has ended."""
        self.table = table
        self.files = files
        self._serve, self._id, self._max_line_bytes = serve, gateway_id, max_line_bytes
        self._on_line, self._on_ended = on_line, on_ended
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._rests: dict[str, float] = {}
        """Batches that made way → until when, in monotonic time."""
        self._nudge = asyncio.Event()
        self._renewed_at = time.monotonic()
        self._is_draining = False

    @property
    def num_running(self) -> int:
        """Batches that this gateway runs."""
        return len(self._runs)

    def nudge(self) -> None:
        """There is something new: a batch, or a cancelled one."""
        self._nudge.set()

    def drain(self) -> None:
        """Takes no more lines; other gateways go on when those under way are answered."""
        self._is_draining = True
        for run, _ in self._runs.values():
            run.drain()

    async def close(self, seconds: float) -> None:
        """Lets lines under way take so long."""
        self.drain()
        if tasks := [task for _, task in self._runs.values()]:
            await asyncio.wait(tasks, timeout=seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """For ever."""
        expired_at = float("-inf")
        while True:
            try:
                await self.table.database.start()
                await self._look()
                if time.monotonic() - expired_at > EXPIRE_SECONDS:
                    expired_at = time.monotonic()
                    await self.table.expire(time.time() - self.files.limits.retention)
            except StoreError as error:
                logger.warning("batches cannot be looked at: %s", error)
                self._give_up_if_late()
            try:
                await asyncio.wait_for(self._nudge.wait(), POLL_SECONDS)
            except TimeoutError:
                pass
            self._nudge.clear()

    async def _look(self) -> None:
        asked_at = time.monotonic()
        if self._runs:
            held = await self.table.renew(list(self._runs), self._id)
            for batch_id, (run, task) in list(self._runs.items()):
                if batch_id not in held:
                    task.cancel()
                elif held[batch_id] == BatchStatus.CANCELLING:
                    run.cancel()
        self._renewed_at = asked_at
        if not self._is_draining:
            await self._take(asked_at)

    async def _take(self, now: float) -> None:
        """Runs batches that nobody runs, as far as there is room."""
        stuck = {run for run, _ in self._runs.values() if not run.is_draining and run.stuck_seconds > STUCK_SECONDS}
        if len(self._runs) >= MAX_RUNNING and not stuck:
            return
        self._rests = {batch_id: until for batch_id, until in self._rests.items() if until > now}
        per_owner = Counter(run.row.owner for run, _ in self._runs.values())
        for row in await self.table.free(MAX_FREE):
            if row.id in self._runs or row.id in self._rests:
                continue
            is_owner_full = per_owner[row.owner] >= (MAX_OF_OWNER if row.owner else MAX_RUNNING)
            if is_owner_full or len(self._runs) >= MAX_RUNNING:
                may_go = (run for run in stuck if not is_owner_full or run.row.owner == row.owner)
                if (longest := max(may_go, key=lambda run: run.stuck_seconds, default=None)) is not None:
                    stuck.remove(longest)
                    self._rests[longest.row.id] = now + REST_SECONDS
                    longest.drain()
                continue
            per_owner[row.owner] += 1
            claimed = await self.table.claim(row.id, self._id)
            if claimed is not None:
                self._begin(claimed)

    def _give_up_if_late(self) -> None:
        if time.monotonic() - self._renewed_at > GIVE_UP_SECONDS:
            for _, task in self._runs.values():
                task.cancel()

    def _begin(self, row: BatchRow) -> None:
        run = BatchRun(row, self.table, self.files, self._serve, self._id, self._max_line_bytes, self._on_line)
        task = asyncio.create_task(self._run(run), name=f"batch {row.id}")
        self._runs[row.id] = run, task
        task.add_done_callback(lambda _: self._ended(row.id))

    def _ended(self, batch_id: str) -> None:
        del self._runs[batch_id]
        if batch_id in self._rests:
            self.nudge()  # it made way for another

    async def _run(self, run: BatchRun) -> None:
        from fairlead.gateway.batches.batch_table import BatchLeaseLost

        batch_id = run.row.id
        logger.info("running the batch %s, which is %s", batch_id, run.row.status)
        try:
            ended = await run.run()
            if not run.is_draining:
                self._on_ended(ended.status)
            logger.info("the batch %s is %s", batch_id, ended.status)
            await self.table.release(batch_id, self._id)
        except BatchLeaseLost:
            logger.warning("the batch %s is run by another gateway now", batch_id)
        except (StoreError, BlobError, NotStored) as error:  # whoever gets the lease next goes on
            logger.warning("the batch %s pauses: %s", batch_id, error)
            with suppress(StoreError):  # the next look takes it, and not the one after the lease's end
                await self.table.release(batch_id, self._id)
        except Exception:
            logger.exception("the batch %s pauses by a defect of the gateway", batch_id)
