"""uvicorn's server, but stopped by a call instead of by signals, and without waking up ten times a second."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn


class HttpServer(uvicorn.Server):
    """Serves one ASGI application: `await serve([socket])` until `stop` was called and what runs has ended."""

    def __init__(
        self, app: Any, protocol: type[asyncio.Protocol], *, backlog: int, keep_alive_seconds: float, grace_seconds: int
    ) -> None:
        """`keep_alive_seconds`: how long idle connections stay open. `grace_seconds`: how long what runs may take after
        `stop`."""
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                interface="asgi3",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                backlog=backlog,
                timeout_keep_alive=int(keep_alive_seconds),
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        self._stopping = asyncio.Event()
        self._cut = asyncio.Event()

    def stop(self) -> None:
        """Takes nothing new and finishes what runs; a second call cuts what still runs."""
        if self.should_exit:
            self._cut.set()
        self.should_exit = True
        self._stopping.set()

    def cut(self) -> None:
        """Takes nothing new and ends what runs, as when its time is over: each client gets an error."""
        self._cut.set()
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # renews the Date header
            try:
                await asyncio.wait_for(self._stopping.wait(), 1.0)
            except TimeoutError:
                pass

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's, which waits for what runs for as long as it may take; over at once when that is to be cut."""
        waits = {asyncio.create_task(super().shutdown(sockets)), asyncio.create_task(self._cut.wait())}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for task in done:
            task.result()
        if self._cut.is_set():
            for running in list(self.server_state.tasks):
                running.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
