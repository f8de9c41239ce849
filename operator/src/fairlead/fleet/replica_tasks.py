"""What goes on for a replica that has joined: it is asked what it is, and its stream is followed until it leaves."""

import asyncio
import logging
from collections.abc import Callable

from fairlead.fleet.engine_stream import EngineListener, EngineStreams
from fairlead.fleet.model_info import ModelInfoClient, ModelInfoError
from fairlead.kube.backoff import Backoff
from fairlead.routing.replica import Replica

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 10.0

OnKnown = Callable[[Replica], None]
"""Called once with the replica, completed by what its engine says of itself."""


class ReplicaTasks:
    """One task per joined replica, by its uid. Needs a running loop."""

    def __init__(self, model_info: ModelInfoClient, listener: EngineListener | None = None) -> None:
        """`listener`: None = streams are not followed."""
        self._model_info = model_info
        self._listener = listener
        self._streams = EngineStreams(listener) if listener is not None else None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled, and not over yet; kept from the garbage collector."""

    def join(self, replica: Replica, on_known: OnKnown) -> None:
        """The replica is ready. One that has joined already has restarted: it leaves and joins."""
        self.leave(replica.uid)
        self._tasks[replica.uid] = asyncio.create_task(self._attend(replica, on_known), name=f"follow {replica.name}")

    def leave(self, uid: str) -> None:
        """The replica is not ready any more, or gone. From now on nobody hears of it."""
        task = self._tasks.pop(uid, None)
        if task is None:
            return
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        if self._listener is not None:
            self._listener.left(uid)

    async def close(self) -> None:
        """Everybody leaves."""
        for uid in list(self._tasks):
            self.leave(uid)
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._streams is not None:
            await self._streams.close()

    async def _attend(self, replica: Replica, on_known: OnKnown) -> None:
        backoff = Backoff(FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS)
        while True:
            try:
                known = await self._model_info.fetch(replica)
                break
            except ModelInfoError as error:
                logger.warning("asking %s what it is: %s; again in %.1f s", replica.name, error, backoff.seconds)
            await backoff.pause()
        on_known(known)
        if self._streams is not None:
            await self._streams.follow(known)
