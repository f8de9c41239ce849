"""Makes and caches the grammars of requests, in processes that are ended at a time limit.

Quick jobs never wait for slow jobs: a job that exceeds a slice of time starts again among slower jobs, with more time.
Called from the event loop.
"""

import asyncio
import pickle
import sys
from collections import OrderedDict
from contextlib import suppress

import msgspec

from fairlead_common.workers.branch import WorkerError, WorkerExceeded, WorkerTooSlow
from fairlead_common.workers.limits import WorkerLimits
from fairlead_common.workers.pool import GivenUp, Workers
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api.grammar_job import GrammarJob, Made
from fairlead_engine.errors import RequestError
from fairlead_engine.host.workers import Turns, tried
from fairlead_engine.types import Grammar

_SLICES = (0.02, 0.1, 0.5)
"""Processor seconds of a job's successive tries, while quicker jobs may wait. A schema of ten kilobytes takes half of
the first."""
_LONG_BYTES = 256 * 1024
"""Jobs of this size are slow for certain."""
_BYTE_SECONDS = 1e-3
"""Head start of an earlier job, per byte of additional length."""
_MEMORY_BYTES = 160 * 2**20
"""Memory for making one grammar."""
_MOST_KEPT_BYTES = 32 * 2**20
"""Size of all cached grammars."""
_ENTRY_BYTES = 400
"""Size of a cached grammar besides the text."""
_MOST_KNOWN_SLOW = 1000
_PROGRAM = "fairlead_engine.api.grammar_job:make"


class GrammarCompiler:
    """Grammars of one model. Close when done."""

    def __init__(self, root: WorkerRoot, timeout_seconds: float) -> None:
        """`timeout_seconds`: of a processor, for one grammar."""
        self._root = root
        self._slices = (*(each for each in _SLICES if each < timeout_seconds), timeout_seconds)
        self._turns = [Turns([0]) for _ in ("the first slice", "the others", "all of the time")]
        self._workers: Workers | None = None
        self._slow: OrderedDict[bytes, int] = OrderedDict()
        """By key of a job: number of slices that were too short."""
        self.kept = KeptGrammars(_MOST_KEPT_BYTES)

    async def grammar(self, job: GrammarJob) -> Grammar | None:
        """`job` is bare. Raises RequestError, naming the field and its problem."""
        key = job.key
        if (found := self.kept.get(key)) is not None:
            return found
        if (made := await self._made(job, key)) is not None:
            self.kept.put(key, made)
        return made

    async def _made(self, job: GrammarJob, key: bytes) -> Grammar | None:
        try:
            return await self._within_time(job, key)
        except (WorkerError, WorkerExceeded, GivenUp) as error:
            failure = error
        if (wider := job.widest()) is not None:
            with suppress(WorkerError, WorkerExceeded, GivenUp):
                return await self._within_time(wider, wider.key)
        if isinstance(failure, WorkerTooSlow):
            most = self._slices[-1]
            told = f"no grammar could be made of it within {most:g} s, which is this server's grammar-timeout"
        else:
            told = f"the process that makes grammars did not survive it ({failure})"
        advice = "ask for fewer properties, alternatives or repetitions"
        raise RequestError(job.field, f"{job.field} cannot be kept to: {told}; {advice}", "unsupported_value")

    async def _within_time(self, job: GrammarJob, key: bytes) -> Grammar | None:
        """Raises RequestError, WorkerError, WorkerExceeded, or GivenUp."""
        last = len(self._slices) - 1
        first = last if job.size >= _LONG_BYTES else min(self._slow.get(key, 0), last)
        rank = asyncio.get_running_loop().time() + job.size * _BYTE_SECONDS
        message = pickle.dumps(job)
        for index in range(first, last):
            with suppress(WorkerExceeded):
                return await self._asked(job, message, index, rank)
            self._slow[key] = index + 1
            if len(self._slow) > _MOST_KNOWN_SLOW:
                self._slow.popitem(last=False)
        return await self._asked(job, message, last, rank)

    async def _asked(self, job: GrammarJob, message: bytes, index: int, rank: float) -> Grammar | None:
        """Within the slice `index`. Raises the same errors."""
        workers = self._workers_for(job.vocab_size)
        is_last = index == len(self._slices) - 1
        seconds = self._slices[index]
        async with self._turns[2 if is_last else min(index, 1)].turn(rank):
            if index == 0:
                answer = await tried(workers, lambda: workers.ask_briefly(message, seconds))
            else:
                answer = await tried(workers, lambda: workers.ask_beside(message, seconds=seconds))
        found: Made = msgspec.msgpack.decode(answer, type=Made)
        refusal, made = found
        if refusal is not None:
            raise RequestError(*refusal)
        return made

    def _workers_for(self, vocab_size: int) -> Workers:
        if self._workers is None:
            limits = WorkerLimits(memory_bytes=_MEMORY_BYTES)
            payload = b"%d" % vocab_size
            self._workers = Workers(self._root, "grammars", _PROGRAM, payload, limits, gives_up=False)
        return self._workers

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


class KeptGrammars:
    """The most recently used grammars, within a number of bytes."""

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
