"""Jobs of programs in processes of their own, done again where a process was ended for what was not the job's fault."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from fairlead_engine.errors import Draining, NotReady
from fairlead_protocol.workers.branch import WorkerInterrupted
from fairlead_protocol.workers.pool import WorkersClosed

_TRIES = 50
"""For a job whose process is ended again and again: by those that stand before it, or by the system."""
_PAUSE_SECONDS = 0.01
"""Between those."""


class Loadable(Protocol):
    """What does the jobs, as `Workers`."""

    async def loaded(self) -> None: ...


async def tried(workers: Loadable, ask: Callable[[], Awaitable[bytes]]) -> bytes:
    """What `ask` returns. Raises what that does, but NotReady in place of WorkerInterrupted, and Draining in place of
    WorkersClosed."""
    for _ in range(_TRIES):
        try:
            await workers.loaded()
            return await ask()
        except WorkerInterrupted:
            await asyncio.sleep(_PAUSE_SECONDS)
        except WorkersClosed:
            raise Draining from None
    raise NotReady("the processes that do this engine's work are being started again; send the request again")
