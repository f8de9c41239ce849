"""Adapters listed in a file, a source per line: each is downloaded and held while listed.

Runs beside an engine as long as the pod lives, with credentials that the engine does not have. Only the file gives
orders, and access to the port does not permit writing: orders to download from an attacker's host would send the
credentials there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from fairlead_common.wire.downloads import DownloadStage, SourcesReport, SourceState
from fairlead_common.wire.model_sources import SourceError, parse_source
from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.models_folder import ModelsFolder, hold_model
from fairlead_engine.sources.remote import DownloadError, unreachable, unsupported
from fairlead_engine.sources.reporting import Reporter
from fairlead_engine.sources.selection import SourceKind

_AT_ONCE = 2
"""Downloads at a time."""
_LONGEST_PAUSE_SECONDS = 300.0
_ASKING = (DownloadStage.WAITING, DownloadStage.LISTING)
"""Stages without progress yet, in which the last failure is still reported."""

_log = logging.getLogger("fairlead_engine.sources")


class ListedAdapters:
    """Every source in the file; a missing file lists none."""

    def __init__(
        self,
        listing: Path,
        models: ModelsFolder,
        *,
        size_limit: int | None = None,
        look_seconds: float = 1.0,
        first_pause_seconds: float = 10.0,
    ) -> None:
        """`look_seconds`: between two looks at the file. `first_pause_seconds`: after a failed download, doubled for
        each further one."""
        self._listing = listing
        self._orders = DownloadOrders(source="", models=models, kind=SourceKind.ADAPTER, size_limit=size_limit)
        self._look_seconds = look_seconds
        self._first_pause_seconds = first_pause_seconds
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._kept: dict[str, _Kept] = {}

    def report(self) -> SourcesReport:
        return SourcesReport(sources=[each.state() for each in self._kept.values()])

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Follows the file within the block."""
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await asyncio.gather(*(each.stop() for each in self._kept.values()))

    async def _follow(self) -> None:
        while True:
            wanted = _listed(self._listing)
            for source in [source for source in self._kept if source not in wanted]:
                await self._kept.pop(source).stop()
                _log.info("the adapter is listed no more", extra={"source": source})
            for source in [source for source in wanted if source not in self._kept]:
                self._kept[source] = _Kept(replace(self._orders, source=source), self._gate, self._first_pause_seconds)
            await asyncio.sleep(self._look_seconds)


class _Kept:
    """One source: the downloading task, with retries, and the lock on the result."""

    def __init__(self, orders: DownloadOrders, gate: asyncio.Semaphore, pause_seconds: float) -> None:
        self._orders = orders
        self._gate = gate
        self._reporter: Reporter | None = None
        self._failure: DownloadError | None = None
        self._folder: Path | None = None
        self._held: BinaryIO | None = None
        self._task = asyncio.create_task(self._keep(pause_seconds))

    def state(self) -> SourceState:
        source = self._orders.source
        if self._folder is not None:
            return SourceState(source=source, folder=str(self._folder))
        progress = None if self._reporter is None else self._reporter.progress()
        if self._failure is not None and (progress is None or progress.stage in _ASKING):
            return SourceState(source=source, reason=str(self._failure.reason), message=self._failure.message)
        return SourceState(source=source, progress=progress)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._held is not None:
            self._held.close()

    async def _keep(self, pause_seconds: float) -> None:
        source = self._orders.source
        while True:
            async with self._gate:
                try:
                    parse_source(source)
                    self._reporter = Reporter(source)
                    folder = await download(self._orders, self._reporter)
                    self._held, self._folder = hold_model(folder), folder
                    return
                except DownloadError as error:
                    self._failure = error
                except SourceError as error:
                    self._failure = unsupported(str(error))
                except Exception as error:  # the engine and the other adapters go on
                    _log.exception("a download has failed in a way that nobody foresaw", extra={"source": source})
                    what = f"{source} cannot be downloaded ({type(error).__name__}); the log says where"
                    self._failure = unreachable(what)
                self._reporter = None
                facts = {"source": source, "problem": self._failure.message}
                _log.warning("the adapter is not downloaded", extra=facts)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def _listed(listing: Path) -> list[str]:
    """Sources in order, without duplicates."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))
