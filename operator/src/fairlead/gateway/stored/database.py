"""The gateway's database: SQLAlchemy over SQLite or PostgreSQL, in threads of its own, with Alembic's migrations.

Statements are short; a database that stands still keeps `NUM_THREADS` threads, and everybody else waits for theirs.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sql
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import SQLAlchemyError

from fairlead.gateway.stored.errors import StoreError

NUM_THREADS = 4
_TIMEOUT_SECONDS = 10
_MIGRATION_LOCK = 0x666C_7374

T = TypeVar("T")


def store_url(written: str) -> str:
    """A URL, or what the file after `@` holds. Raises StoreError."""
    if not written.startswith("@"):
        return written
    try:
        return Path(written[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the file {written[1:]} with its URL cannot be read: {error}") from None


class Database:
    """One database, shared by everything that a gateway stores."""

    def __init__(self, url: str) -> None:
        """`url`: as SQLAlchemy reads it. Raises StoreError for a URL that is none."""
        try:
            parsed = sql.make_url(url)
            if parsed.drivername == "postgresql":
                parsed = parsed.set(drivername="postgresql+psycopg")
            is_sqlite = parsed.get_backend_name() == "sqlite"
            if is_sqlite and not parsed.database:
                raise StoreError("a SQLite database needs a file, as in sqlite:////var/lib/fairlead/responses.db")
            timeout = {"timeout": _TIMEOUT_SECONDS} if is_sqlite else {"connect_timeout": _TIMEOUT_SECONDS}
            self.engine = sql.create_engine(
                parsed, connect_args=timeout, pool_pre_ping=True, pool_timeout=_TIMEOUT_SECONDS
            )
        except (SQLAlchemyError, ImportError) as error:
            raise StoreError(str(error)) from None
        sql.event.listen(self.engine, "connect", _prepared_sqlite if is_sqlite else _prepared_postgres)
        self._is_sqlite = is_sqlite
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="store")
        self._starting = asyncio.Lock()
        self._is_started = False

    async def start(self) -> None:
        """Brings the tables to this version; does nothing the second time. Raises StoreError."""
        async with self._starting:
            if not self._is_started:
                await self.run(self._migrate)
                self._is_started = True

    def close(self) -> None:
        """No more calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.engine.dispose()

    async def run(self, work: Callable[[sql.Connection], T]) -> T:
        """In a thread and a transaction. Raises StoreError, and what `work` raises."""

        def done() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, done)
        except SQLAlchemyError as error:
            raise StoreError(" ".join(str(getattr(error, "orig", None) or error).split())) from error

    def _migrate(self, connection: sql.Connection) -> None:
        if not self._is_sqlite:  # of several gateways that start together, one changes the tables
            connection.execute(sql.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        config = Config()
        config.set_main_option("script_location", "fairlead.gateway.stored:migrations")
        config.attributes["connection"] = connection
        with _migrating:
            command.upgrade(config, "head")


_migrating = threading.Lock()
"""Alembic's context is one per process."""


def _prepared_sqlite(connection: Any, _: object) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000"):
        connection.execute(f"PRAGMA {pragma}")


def _prepared_postgres(connection: Any, _: object) -> None:
    connection.execute(f"SET statement_timeout = '{_TIMEOUT_SECONDS}s'")
    connection.commit()
