"""Rows of batches, and the answers of their lines until they are in files.

One gateway runs a batch: whoever has its lease, which is renewed every few seconds. Every write of a run names the
lease's holder and changes nothing where the lease is another's, so an answer is stored once: two gateways may for a
moment run the same line, but not both store it.
"""

import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sql

from fairlead.gateway.batches.batch import ACTIVE, BatchApi, BatchRow, BatchStatus
from fairlead.gateway.files.file_row import FileRow
from fairlead.gateway.files.file_table import ready_values
from fairlead.gateway.openai.query import ListQuery
from fairlead.gateway.stored.database import Database
from fairlead.gateway.stored.errors import NotStored
from fairlead.gateway.stored.tables import batch_answers, batches, files

LEASE_SECONDS = 20.0
"""A batch that no gateway has said to run for so long is taken over."""
_PAGE_ROWS = 50
_COLUMNS = tuple(BatchRow.__slots__)


class BatchLeaseLost(Exception):
    """Another gateway runs the batch."""


class LineAnswer(NamedTuple):
    """What a line ended with."""

    number: int
    """Of the line."""
    is_error: bool
    data: bytes
    """A line of the output or error file, without its end."""


class BatchTable:
    """`owner`: whose batches; nobody sees those of another. Every call raises StoreError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(self, row: BatchRow, max_active: int) -> bool:
        """False where the owner has as many that have not ended."""

        def put(connection: sql.Connection) -> bool:
            active = (batches.c.owner == row.owner) & batches.c.status.in_(ACTIVE)
            if connection.execute(sql.select(sql.func.count()).where(active)).scalar_one() >= max_active:
                return False
            values = {name: getattr(row, name) for name in _COLUMNS}
            connection.execute(batches.insert().values(values | {"runner": "", "lease_until": 0.0}))
            return True

        return await self.database.run(put)

    async def get(self, owner: str, batch_id: str) -> BatchRow:
        """Raises NotStored."""
        return await self.database.run(lambda connection: _found(connection, owner, batch_id))

    async def page(self, owner: str, api: BatchApi, page: ListQuery) -> list[BatchRow]:
        """One more than the page's limit, where there are more. The newest first; of a page before a batch, the oldest
        first. Raises NotStored where the page names an unknown batch."""

        def read(connection: sql.Connection) -> list[BatchRow]:
            wanted = (batches.c.owner == owner) & batches.c.id.startswith(api, autoescape=True)
            key = sql.tuple_(batches.c.created_at, batches.c.id)
            if page.after is not None:
                wanted &= key < _place(connection, owner, page.after)
            order = [batches.c.created_at.desc(), batches.c.id.desc()]
            if page.before is not None:
                wanted &= key > _place(connection, owner, page.before)
                order = [batches.c.created_at.asc(), batches.c.id.asc()]
            rows = connection.execute(sql.select(batches).where(wanted).order_by(*order).limit(page.limit + 1))
            return [_row(each) for each in rows]

        return await self.database.run(read)

    async def cancel(self, owner: str, batch_id: str) -> BatchRow:
        """The batch, which its gateway ends soon; as it is where it has ended. Raises NotStored."""

        def mark(connection: sql.Connection) -> BatchRow:
            running = batches.c.status.in_((BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS))
            mine = (batches.c.id == batch_id) & (batches.c.owner == owner) & running
            changes = {"status": BatchStatus.CANCELLING, "cancelling_at": time.time()}
            connection.execute(batches.update().where(mine).values(changes))
            return _found(connection, owner, batch_id)

        return await self.database.run(mark)

    async def delete(self, owner: str, batch_id: str) -> None:
        """One that has ended; its files stay."""
        mine = (batches.c.id == batch_id) & (batches.c.owner == owner) & sql.not_(batches.c.status.in_(ACTIVE))
        await self.database.run(lambda connection: connection.execute(batches.delete().where(mine)))

    async def reads(self, file_id: str) -> str | None:
        """The id of a batch that has not ended and reads this file."""
        wanted = (batches.c.input_file_id == file_id) & batches.c.status.in_(ACTIVE)
        found = sql.select(batches.c.id).where(wanted).limit(1)
        return await self.database.run(lambda connection: connection.execute(found).scalar_one_or_none())

    async def free(self, limit: int) -> list[BatchRow]:
        """Batches that nobody runs, the oldest first."""
        wanted = batches.c.status.in_(ACTIVE) & (batches.c.lease_until < time.time())
        rows = sql.select(batches).where(wanted).order_by(batches.c.created_at).limit(limit)
        return await self.database.run(lambda connection: [_row(each) for each in connection.execute(rows)])

    async def claim(self, batch_id: str, runner: str) -> BatchRow | None:
        """The batch, whose lease `runner` now has; None = it is another's, or over."""

        def take(connection: sql.Connection) -> BatchRow | None:
            now = time.time()
            is_free = batches.c.status.in_(ACTIVE) & (batches.c.lease_until < now)
            changes = {"runner": runner, "lease_until": now + LEASE_SECONDS}
            taken = batches.update().where((batches.c.id == batch_id) & is_free).values(changes)
            if not connection.execute(taken).rowcount:
                return None
            return _row(connection.execute(sql.select(batches).where(batches.c.id == batch_id)).one())

        return await self.database.run(take)

    async def renew(self, ids: Collection[str], runner: str) -> Mapping[str, str]:
        """The status of each batch whose lease `runner` still has."""

        def mark(connection: sql.Connection) -> Mapping[str, str]:
            held = batches.c.id.in_(list(ids)) & (batches.c.runner == runner)
            connection.execute(batches.update().where(held).values(lease_until=time.time() + LEASE_SECONDS))
            found = connection.execute(sql.select(batches.c.id, batches.c.status).where(held))
            return {row.id: row.status for row in found}

        return await self.database.run(mark)

    async def release(self, batch_id: str, runner: str) -> None:
        """Another gateway may run it at once."""
        held = (batches.c.id == batch_id) & (batches.c.runner == runner)
        await self.database.run(
            lambda connection: connection.execute(batches.update().where(held).values(runner="", lease_until=0.0))
        )

    async def change(self, batch_id: str, runner: str, only_from: Sequence[str], **changes: Any) -> BatchRow:
        """The batch, changed where it has one of these states, else as it is. Raises BatchLeaseLost."""

        def put(connection: sql.Connection) -> BatchRow:
            row = _held(connection, batch_id, runner)
            if row.status not in only_from:
                return row
            connection.execute(batches.update().where(batches.c.id == batch_id).values(changes))
            return _row(connection.execute(sql.select(batches).where(batches.c.id == batch_id)).one())

        return await self.database.run(put)

    async def answered(self, batch_id: str) -> set[int]:
        """Numbers of the lines whose answers are stored."""
        numbers = sql.select(batch_answers.c.number).where(batch_answers.c.batch_id == batch_id)
        return await self.database.run(lambda connection: set(connection.execute(numbers).scalars()))

    async def add_answers(self, batch_id: str, runner: str, answers: Sequence[LineAnswer]) -> None:
        """All of them or none. Raises BatchLeaseLost."""

        def put(connection: sql.Connection) -> None:
            row = _held(connection, batch_id, runner)
            numbers = [each.number for each in answers]
            these = (batch_answers.c.batch_id == batch_id) & batch_answers.c.number.in_(numbers)
            known = set(connection.execute(sql.select(batch_answers.c.number).where(these)).scalars())
            new = [each for each in answers if each.number not in known]  # a commit may end in an error, and hold
            rows = [
                {"batch_id": batch_id, "number": each.number, "is_error": each.is_error, "data": packed}
                for each, packed in zip(new, map(_packed, new), strict=True)
            ]
            if rows:
                connection.execute(batch_answers.insert(), rows)
            failed = sum(each.is_error for each in new)
            counts = {"completed": row.completed + len(new) - failed, "failed": row.failed + failed}
            connection.execute(batches.update().where(batches.c.id == batch_id).values(counts))

        await self.database.run(put)

    async def answers(self, batch_id: str, *, is_error: bool, after: int) -> list[tuple[int, bytes]]:
        """The next ones behind a line's number, in order; empty = there are no more."""
        of_kind = (batch_answers.c.batch_id == batch_id) & (batch_answers.c.is_error == is_error)
        wanted = sql.select(batch_answers.c.number, batch_answers.c.data).where(
            of_kind & (batch_answers.c.number > after)
        )
        wanted = wanted.order_by(batch_answers.c.number).limit(_PAGE_ROWS)
        return await self.database.run(
            lambda connection: [(row.number, zlib.decompress(row.data)) for row in connection.execute(wanted)]
        )

    async def end(self, batch_id: str, runner: str, written: Sequence[FileRow], changes: Mapping[str, Any]) -> BatchRow:
        """The batch as it has ended, with its files, which hold the answers from now on. Raises BatchLeaseLost."""

        def put(connection: sql.Connection) -> BatchRow:
            _held(connection, batch_id, runner)
            for file in written:
                connection.execute(files.update().where(files.c.id == file.id).values(ready_values(file)))
            connection.execute(batches.update().where(batches.c.id == batch_id).values(**changes))
            connection.execute(batch_answers.delete().where(batch_answers.c.batch_id == batch_id))
            return _row(connection.execute(sql.select(batches).where(batches.c.id == batch_id)).one())

        return await self.database.run(put)

    async def expire(self, before: float) -> None:
        """Deletes batches that ended, and whose window closed before this Unix time."""
        old = sql.not_(batches.c.status.in_(ACTIVE)) & (batches.c.expires_at < before)

        def drop(connection: sql.Connection) -> None:
            ids = list(connection.execute(sql.select(batches.c.id).where(old)).scalars())
            for start in range(0, len(ids), 500):
                some = ids[start : start + 500]
                connection.execute(batch_answers.delete().where(batch_answers.c.batch_id.in_(some)))
                connection.execute(batches.delete().where(batches.c.id.in_(some)))

        await self.database.run(drop)


def _held(connection: sql.Connection, batch_id: str, runner: str) -> BatchRow:
    """Locked until the transaction ends. Raises BatchLeaseLost."""
    wanted = (batches.c.id == batch_id) & (batches.c.runner == runner)
    connection.execute(batches.update().where(wanted).values(lease_until=time.time() + LEASE_SECONDS))
    row = connection.execute(sql.select(batches).where(wanted)).one_or_none()
    if row is None:
        raise BatchLeaseLost(batch_id)
    return _row(row)


def _found(connection: sql.Connection, owner: str, batch_id: str) -> BatchRow:
    wanted = (batches.c.id == batch_id) & (batches.c.owner == owner)
    row = connection.execute(sql.select(batches).where(wanted)).one_or_none()
    if row is None:
        raise NotStored(batch_id)
    return _row(row)


def _place(connection: sql.Connection, owner: str, batch_id: str) -> Any:
    row = _found(connection, owner, batch_id)
    return sql.tuple_(sql.literal(row.created_at), sql.literal(row.id))


def _row(row: Any) -> BatchRow:
    return BatchRow(**{name: getattr(row, name) for name in _COLUMNS})


def _packed(answer: LineAnswer) -> bytes:
    return zlib.compress(answer.data, 1)
