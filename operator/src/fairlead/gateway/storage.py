"""What a gateway stores for clients: responses and files, in one database. Gateways without it load no database."""

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairlead.gateway.files.blobs import BlobError, make_blobs
from fairlead.gateway.files.keeper import FileKeeper, FileLimits
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

    def works(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """What runs while the gateway does, by name."""
        yield "keeping responses", self.responses.run()
        if self.files is not None:
            yield "keeping files", self.files.run()

    async def close(self, seconds: float) -> None:
        """Lets what runs in the background take so long."""
        await self.responses.close(seconds)


def make_storage(settings: GatewaySettings, url: str) -> Storage:
    """`url`: as of the setting `response_store`. Raises StoreError."""
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
    return Storage(database, responses, FileKeeper(FileTable(database), blobs, limits))
