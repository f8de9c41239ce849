"""Rows of files, each of one owner. A row is written before its bytes, and is ready after them: what a killed gateway
leaves expires like everything else."""

import time
from collections.abc import Collection
from typing import Any

import sqlalchemy as sql

from fairlead.gateway.files.file_row import FileRow
from fairlead.gateway.openai.query import ListQuery
from fairlead.gateway.stored.database import Database
from fairlead.gateway.stored.errors import NotStored
from fairlead.gateway.stored.tables import files

UNFINISHED_SECONDS = 86400.0
"""How long the row of a file that is being written is kept."""


class FileTable:
    """`owner`: whose files; nobody sees those of another. Every call raises StoreError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def begin(self, row: FileRow) -> None:
        """A file that is being written."""

        def put(connection: sql.Connection) -> None:
            values = _values(row) | {"expires_at": time.time() + UNFINISHED_SECONDS, "is_ready": False}
            connection.execute(files.insert().values(values))

        await self.database.run(put)

    async def finish(self, row: FileRow) -> None:
        """Its bytes are there."""

        def put(connection: sql.Connection) -> None:
            connection.execute(files.update().where(files.c.id == row.id).values(ready_values(row)))

        await self.database.run(put)

    async def get(self, owner: str, file_id: str) -> FileRow:
        """Raises NotStored."""
        return await self.database.run(lambda connection: found(connection, owner, file_id))

    async def page(self, owner: str, page: ListQuery, purpose: str | None) -> list[FileRow]:
        """One more than the page's limit, where there are more. Raises NotStored where the page is to begin behind a
        file that is not there."""

        def read(connection: sql.Connection) -> list[FileRow]:
            wanted = (files.c.owner == owner) & files.c.is_ready
            if purpose is not None:
                wanted &= files.c.purpose == purpose
            if page.after is not None:
                last = found(connection, owner, page.after)
                key, place = sql.tuple_(files.c.created_at, files.c.id), sql.tuple_(last.created_at, last.id)
                wanted &= key < place if page.is_newest_first else key > place
            columns = files.c.created_at, files.c.id
            order = [each.desc() if page.is_newest_first else each for each in columns]
            rows = connection.execute(sql.select(files).where(wanted).order_by(*order).limit(page.limit + 1))
            return [_row(each) for each in rows]

        return await self.database.run(read)

    async def num_bytes(self, owner: str) -> int:
        """Of all files together."""
        total = sql.select(sql.func.coalesce(sql.func.sum(files.c.num_bytes), 0)).where(files.c.owner == owner)
        return await self.database.run(lambda connection: int(connection.execute(total).scalar_one()))

    async def totals(self) -> tuple[int, int]:
        """Number and bytes of everybody's files."""
        columns = sql.func.count(), sql.func.coalesce(sql.func.sum(files.c.num_bytes), 0)
        row = await self.database.run(lambda connection: connection.execute(sql.select(*columns)).one())
        return int(row[0]), int(row[1])

    async def delete(self, file_id: str) -> None:
        """Its row alone."""
        await self.database.run(lambda connection: connection.execute(files.delete().where(files.c.id == file_id)))

    async def expired(self, limit: int) -> list[str]:
        """Ids of files that are older than they should be."""
        old = sql.select(files.c.id).where(files.c.expires_at < time.time()).limit(limit)
        return await self.database.run(lambda connection: list(connection.execute(old).scalars()))

    async def keep(self, ids: Collection[str], until: float) -> None:
        """These are needed until this Unix time."""
        soon = files.c.id.in_(list(ids)) & (files.c.expires_at < until)
        await self.database.run(
            lambda connection: connection.execute(files.update().where(soon).values(expires_at=until))
        )


def ready_values(row: FileRow) -> dict[str, Any]:
    """Of the row, once its bytes are there."""
    return _values(row) | {"is_ready": True}


def found(connection: sql.Connection, owner: str, file_id: str) -> FileRow:
    """Raises NotStored."""
    wanted = (files.c.id == file_id) & (files.c.owner == owner) & files.c.is_ready
    row = connection.execute(sql.select(files).where(wanted)).one_or_none()
    if row is None:
        raise NotStored(file_id)
    return _row(row)


def _row(row: Any) -> FileRow:
    return FileRow(row.id, row.owner, row.purpose, row.filename, row.num_bytes, row.created_at, row.expires_at)


def _values(row: FileRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FileRow.__slots__}
