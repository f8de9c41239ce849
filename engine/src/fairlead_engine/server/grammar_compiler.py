"""Makes the grammars of requests in processes that can be ended, within a time, and keeps those that were made.

What is made at once never waits for what takes long: a job that is not done within a slice of time begins anew in the
lane of those that take long, where there is one at a time. Called from the event loop.
"""

import asyncio
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

from fairlead_engine.errors import RequestError
from fairlead_engine.server.grammar_job import GrammarJob
from fairlead_engine.server.grammar_worker import HEAD_BYTES, READY, framed
from fairlead_engine.types import Grammar

_SLICE_SECONDS = 0.3
"""For which a job may stand before others that may take less."""
_LONG_BYTES = 256 * 1024
"""From this size on, a job is sure to take longer."""
_MOST_KEPT_BYTES = 32 * 2**20
"""Of grammars, for the next request."""
_ENTRY_BYTES = 400
"""Of one, besides its text."""
_MOST_KNOWN_SLOW = 1000

Worker = subprocess.Popen[bytes]


class _TookTooLongError(Exception):
    """A process was ended, or has ended itself, before it had made a grammar."""


class GrammarCompiler:
    """Close it when done."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._quick, self._long = _Lane(), _Lane()
        self._slow: OrderedDict[bytes, None] = OrderedDict()
        self.kept = KeptGrammars(_MOST_KEPT_BYTES)

    async def grammar(self, job: GrammarJob) -> Grammar | None:
        """`job` is bare. Raises RequestError, naming the field and what cannot be kept to."""
        key = job.key
        if (found := self.kept.get(key)) is not None:
            return found
        if (made := await self._made(job, key)) is not None:
            self.kept.put(key, made)
        return made

    async def _made(self, job: GrammarJob, key: bytes) -> Grammar | None:
        with suppress(_TookTooLongError):
            return await self._within_time(job, key)
        if (wider := job.widest()) is not None:
            with suppress(_TookTooLongError):
                return await self._within_time(wider, wider.key)
        told = f"no grammar could be made of it within {self._timeout:g} s, which is this server's grammar-timeout"
        advice = "ask for fewer properties, alternatives or repetitions"
        raise RequestError(job.field, f"{job.field} cannot be kept to: {told}; {advice}", "unsupported_value")

    async def _within_time(self, job: GrammarJob, key: bytes) -> Grammar | None:
        message = framed(job)
        if len(message) < _LONG_BYTES and key not in self._slow:
            with suppress(_TookTooLongError):
                return await self._quick.made(message, min(_SLICE_SECONDS, self._timeout))
            self._slow[key] = None
            if len(self._slow) > _MOST_KNOWN_SLOW:
                self._slow.popitem(last=False)
        return await self._long.made(message, self._timeout)

    def close(self) -> None:
        for lane in (self._quick, self._long):
            lane.close()


class KeptGrammars:
    """The latest used that were made, within so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._found: OrderedDict[bytes, Grammar] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: bytes) -> Grammar | None:
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def put(self, key: bytes, grammar: Grammar) -> None:
        self._drop(key)
        self._found[key] = grammar
        self.num_bytes += _size(grammar)
        while self.num_bytes > self._most_bytes:
            self._drop(next(iter(self._found)))

    def _drop(self, key: bytes) -> None:
        if (grammar := self._found.pop(key, None)) is not None:
            self.num_bytes -= _size(grammar)


def _size(grammar: Grammar) -> int:
    return sys.getsizeof(grammar.text) + _ENTRY_BYTES


class _Lane:
    """A process that makes one grammar after the other, and the thread that talks to it. It starts when the first job
    comes."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "grammar-lane")
        self._process: Worker | None = None

    async def made(self, message: bytes, timeout_seconds: float) -> Grammar | None:
        """Raises RequestError, or `_TookTooLongError`. Whoever is cancelled ends what was made for it."""
        run = asyncio.get_running_loop().run_in_executor
        async with self._turn:
            try:
                process = await run(self._thread, self._started)
                made, is_spent = await asyncio.wait_for(run(self._thread, _asked, process, message), timeout_seconds)
            except (TimeoutError, OSError, EOFError):
                self.end()
                raise _TookTooLongError from None
            except BaseException:
                self.end()
                raise
            if is_spent:
                self.end()
        if isinstance(made, tuple):
            raise RequestError(*made)
        return cast("Grammar | None", made)

    def _started(self) -> Worker:
        if self._process is None:
            command = [sys.executable, "-m", "fairlead_engine.server.grammar_worker", str(os.getpid())]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            _read(self._process, len(READY))
        return self._process

    def end(self) -> None:
        """Ends the process; the next job starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._thread.submit(_buried, process)

    def close(self) -> None:
        self.end()
        self._thread.shutdown()


def _asked(process: Worker, message: bytes) -> tuple[Any, bool]:
    """A grammar, or what a RequestError is made of; and whether the process should be ended."""
    assert process.stdin is not None
    process.stdin.write(message)
    process.stdin.flush()
    size = int.from_bytes(_read(process, HEAD_BYTES), "little")
    return pickle.loads(_read(process, size))  # type: ignore[no-any-return]


def _read(process: Worker, num_bytes: int) -> bytes:
    assert process.stdout is not None
    found = process.stdout.read(num_bytes)
    if len(found) < num_bytes:
        raise EOFError
    return found


def _buried(process: Worker) -> None:
    """Its pipes are closed and its number given back, once it has been killed."""
    with suppress(OSError):
        process.communicate()
