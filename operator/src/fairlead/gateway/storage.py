"""What a gateway stores for clients: responses, files and batches, in one database. Gateways without it load no
database."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.gateway.batches.batch_run import ServeLine
from fairlead.gateway.batches.runner import BatchRunner
from fairlead.gateway.files.blobs import BlobError, make_blobs
from fairlead.gateway.files.keeper import FileKeeper, FileLimits
from fairlead.gateway.gateway_metrics import GatewayMetrics
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.stored.errors import StoreError
from fairlead.gateway.stored.keeper import Keeper

if TYPE_CHECKING:
    from fairlead.gateway.stored.database import Database


@dataclass(frozen=True, slots=True)
class Storage:
    """Of one gateway."""

    database: "Database"
    responses: Keeper
    files: FileKeeper | None
    """None = no files are taken."""
    batches: BatchRunner | None = None
    """None without files."""

    def works(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """What runs while the gateway does, by name."""
        yield "keeping responses", self.responses.run()
        if self.files is not None:
            yield "keeping files", self.files.run()
        if self.batches is not None:
            yield "running batches", self.batches.run()

    def drain(self) -> None:
        """The gateway is going to end."""
        if self.batches is not None:
            self.batches.drain()

    async def close(self, seconds: float) -> None:
        """Lets what runs in the background take so long."""
        batches = [] if self.batches is None else [self.batches.close(seconds)]
        await asyncio.gather(self.responses.close(seconds), *batches)


def make_storage(
    settings: GatewaySettings, url: str, gateway_id: str, serve: ServeLine, metrics: GatewayMetrics
) -> Storage:
    """`url`: as of the setting `response_store`. `gateway_id`: names this run of the gateway. `serve`: of the batches'
    lines. Raises StoreError."""
    from fairlead.gateway.batches.batch_table import BatchTable
    from fairlead.gateway.files.file_table import FileTable
    from fairlead.gateway.stored.database import Database, store_url  # with 23 MB of libraries
    from fairlead.gateway.stored.store import ResponseStore

    try:
        database = Database(store_url(url))
    except StoreError as error:
        raise StoreError(f"--response-store: {error}") from error
    responses = Keeper(ResponseStore(database, settings.response_retention), settings.max_body_bytes)
    if settings.file_store is None:
        return Storage(database, responses, None)
    limits = FileLimits(
        max_bytes=settings.max_file_bytes,
        max_bytes_of_owner=settings.max_client_file_bytes,
        retention=settings.file_retention,
    )
    try:
        blobs = make_blobs(settings.file_store)
    except BlobError as error:
        raise StoreError(f"--file-store: {error}") from error
    files = FileKeeper(FileTable(database), blobs, limits)
    batches = BatchRunner(
        BatchTable(database),
        files,
        serve,
        gateway_id,
        settings.max_body_bytes,
        metrics.batch_line,
        metrics.batch_ended,
    )
    files.reader_of = batches.table.reads
    return Storage(database, responses, files, batches)
