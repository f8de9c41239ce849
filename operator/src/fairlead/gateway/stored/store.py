"""The store of responses. Items belong to the conversation: a response's history are the items of its chain of
previous responses.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sql

from fairlead.gateway.stored.database import Database
from fairlead.gateway.stored.errors import RUNNING, Json, NotStored
from fairlead.gateway.stored.event_log import BEFORE_FIRST, LoggedEvent, unpacked
from fairlead.gateway.stored.tables import events, items, responses

LOST_SECONDS = 30.0
"""A running response that no gateway has touched for so long is lost."""
MAX_TURNS = 10_000


class ResponseStore:
    """In one database. `owner`: whose responses; nobody sees those of another."""

    def __init__(self, database: Database, retention: float) -> None:
        """`retention`: seconds from a conversation's last turn."""
        self.database = database
        self._retention = retention

    async def begin(self, owner: str, response: Json, given: Sequence[Json], *, is_logged: bool = False) -> None:
        """A response that is being made; `given`: its new items; `is_logged`: whether its events will come. The whole
        conversation is kept from now on for the retention. Raises StoreError."""

        def put(connection: sql.Connection) -> None:
            now = time.time()
            previous = response["previous_response_id"]
            expires = now + self._retention
            if previous is not None:
                chain = [each.id for each in _chain(connection, owner, previous)]
                for start in range(0, len(chain), 500):
                    within = responses.c.id.in_(chain[start : start + 500])
                    connection.execute(responses.update().where(within).values(expires_at=expires))
            row = {
                "id": response["id"], "owner": owner, "previous_id": previous, "status": response["status"],
                "body": _body(response), "expires_at": expires, "touched_at": now,
            }  # fmt: skip
            connection.execute(responses.insert().values(row))
            _put_items(connection, response["id"], 0, given, is_output=False)
            if is_logged:
                row = {"response_id": response["id"], "number": BEFORE_FIRST, "data": b""}
                connection.execute(events.insert().values(row))

        await self.database.run(put)

    async def log(self, response_id: str, number: int, data: bytes) -> None:
        """More events of a response, unless it has been deleted. `number`: of the first. Raises StoreError."""

        def put(connection: sql.Connection) -> None:
            known = sql.select(responses.c.id).where(responses.c.id == response_id)
            if connection.execute(known).one_or_none() is not None:
                row = {"response_id": response_id, "number": number, "data": data}
                connection.execute(events.insert().values(row))

        await self.database.run(put)

    async def logged(self, response_id: str, after: int) -> list[LoggedEvent] | None:
        """Events of a response from about this number on, with the last in any case; None = they are not logged.
        Raises StoreError."""

        def read(connection: sql.Connection) -> list[bytes]:
            of_response = events.c.response_id == response_id
            before = of_response & (events.c.number <= max(after + 1, BEFORE_FIRST))
            start = sql.select(sql.func.max(events.c.number)).where(before).scalar_subquery()
            wanted = sql.select(events.c.data).where(of_response & (events.c.number >= start))
            return list(connection.execute(wanted.order_by(events.c.number)).scalars())

        rows = await self.database.run(read)
        return [event for row in rows for event in unpacked(row)] if rows else None

    async def end(self, response: Json) -> bool:
        """The response as it ended; False where somebody cancelled or deleted it before. Raises StoreError."""

        def put(connection: sql.Connection) -> bool:
            changes = {"status": response["status"], "body": _body(response)}
            running = (responses.c.id == response["id"]) & responses.c.status.in_(RUNNING)
            if not connection.execute(responses.update().where(running).values(changes)).rowcount:
                return False
            num = sql.select(sql.func.count()).where(items.c.response_id == response["id"])
            position = connection.execute(num).scalar_one()
            _put_items(connection, response["id"], position, response["output"], is_output=True)
            return True

        return await self.database.run(put)

    async def get(self, owner: str, response_id: str) -> Json:
        """The response as it is now. Raises NotStored and StoreError."""

        def read(connection: sql.Connection) -> Json:
            row = _row(connection, owner, response_id)
            written = (items.c.response_id == response_id) & items.c.is_output
            found = connection.execute(sql.select(items.c.data).where(written).order_by(items.c.position)).scalars()
            return _response(row) | {"output": [msgspec.json.decode(each) for each in found]}

        return await self.database.run(read)

    async def history(self, owner: str, response_id: str, *, with_output: bool, max_bytes: int) -> list[Json]:
        """Items of the conversation up to this response, whose own output may be left out. Raises NotStored,
        StoreError, and OverflowError above `max_bytes` of JSON."""

        def read(connection: sql.Connection) -> list[Json]:
            chain = _chain(connection, owner, response_id)
            if chain[0].previous_id is not None:
                raise NotStored(chain[0].previous_id)
            num, found = 0, []
            for turn in chain:
                wanted = items.c.response_id == turn.id
                if turn.id == response_id and not with_output:
                    wanted &= sql.not_(items.c.is_output)
                for data in connection.execute(sql.select(items.c.data).where(wanted).order_by(items.c.position)):
                    num += len(data[0])
                    if num > max_bytes:
                        raise OverflowError
                    found.append(data[0])
            return [msgspec.json.decode(each) for each in found]

        return await self.database.run(read)

    async def referenced(self, owner: str, ids: Collection[str]) -> dict[str, Json]:
        """Items by id, as far as they are stored. Raises StoreError."""

        def read(connection: sql.Connection) -> dict[str, Json]:
            of_owner = items.join(responses, responses.c.id == items.c.response_id)
            wanted = items.c.id.in_(list(ids)) & (responses.c.owner == owner)
            rows = connection.execute(sql.select(items.c.id, items.c.data).select_from(of_owner).where(wanted))
            return {row.id: msgspec.json.decode(row.data) for row in rows}

        return await self.database.run(read)

    async def delete(self, owner: str, response_id: str) -> None:
        """With all that belongs to it. Raises NotStored and StoreError."""

        def drop(connection: sql.Connection) -> None:
            _row(connection, owner, response_id)
            _drop(connection, [response_id])

        await self.database.run(drop)

    async def cancel(self, owner: str, response_id: str) -> Json:
        """The response, cancelled where it still ran. Raises NotStored and StoreError."""

        def mark(connection: sql.Connection) -> None:
            response = _response(_row(connection, owner, response_id))
            if response["status"] in RUNNING:
                changes = {"status": "cancelled", "body": _body(response | {"status": "cancelled"})}
                running = (responses.c.id == response_id) & responses.c.status.in_(RUNNING)
                connection.execute(responses.update().where(running).values(changes))

        await self.database.run(mark)
        return await self.get(owner, response_id)

    async def touch(self, ids: Collection[str]) -> set[str]:
        """Says that these are still worked on; returns those that no longer run. Raises StoreError."""

        def mark(connection: sql.Connection) -> set[str]:
            running = responses.c.id.in_(list(ids)) & responses.c.status.in_(RUNNING)
            connection.execute(responses.update().where(running).values(touched_at=time.time()))
            return set(ids) - set(connection.execute(sql.select(responses.c.id).where(running)).scalars())

        return await self.database.run(mark)

    async def expire(self) -> int:
        """Deletes what is older than the retention; the number of responses. Raises StoreError."""

        def drop(connection: sql.Connection) -> int:
            old = sql.select(responses.c.id).where(responses.c.expires_at < time.time()).limit(500)
            ids = list(connection.execute(old).scalars())
            _drop(connection, ids)
            return len(ids)

        return await self.database.run(drop)


def _row(connection: sql.Connection, owner: str, response_id: str) -> Any:
    wanted = (responses.c.id == response_id) & (responses.c.owner == owner)
    row = connection.execute(sql.select(responses).where(wanted)).one_or_none()
    if row is None:
        raise NotStored(response_id)
    return row


def _chain(connection: sql.Connection, owner: str, response_id: str) -> list[Any]:
    """Rows (id, previous_id) of a conversation, the first turn first. Raises NotStored."""
    turn = sql.select(responses.c.id, responses.c.previous_id, sql.literal(0).label("depth")).where(
        (responses.c.id == response_id) & (responses.c.owner == owner)
    )
    chain = turn.cte("chain", recursive=True)
    before = sql.select(responses.c.id, responses.c.previous_id, chain.c.depth + 1).join(
        chain, (responses.c.id == chain.c.previous_id) & (responses.c.owner == owner) & (chain.c.depth < MAX_TURNS)
    )
    chain = chain.union_all(before)
    rows = list(connection.execute(sql.select(chain).order_by(chain.c.depth.desc())))
    if not rows:
        raise NotStored(response_id)
    return rows


def _response(row: Any) -> Json:
    """Without items. What was lost with its gateway has failed."""
    response: Json = msgspec.json.decode(row.body) | {"status": row.status}
    if row.status in RUNNING and row.touched_at < time.time() - LOST_SECONDS:
        error = {"code": "server_error", "message": "The gateway that made this response has ended."}
        response |= {"status": "failed", "error": error}
    return response


def _body(response: Mapping[str, Any]) -> str:
    return msgspec.json.encode({**response, "output": []}).decode()


def _put_items(
    connection: sql.Connection, response_id: str, position: int, given: Sequence[Json], *, is_output: bool
) -> None:
    rows = [
        {
            "response_id": response_id, "position": position + index, "id": item["id"], "is_output": is_output,
            "data": msgspec.json.encode(item).decode(),
        }
        for index, item in enumerate(given)
    ]  # fmt: skip
    if rows:
        connection.execute(items.insert(), rows)


def _drop(connection: sql.Connection, ids: Sequence[str]) -> None:
    if ids:
        connection.execute(items.delete().where(items.c.response_id.in_(ids)))
        connection.execute(events.delete().where(events.c.response_id.in_(ids)))
        connection.execute(responses.delete().where(responses.c.id.in_(ids)))
