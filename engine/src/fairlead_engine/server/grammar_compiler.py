"""Makes the grammars of requests in processes that can be ended, within a time, and keeps those that were made.

What is made at once never waits for what takes long: a job that is not done within a slice of time begins anew in the
lane of those that take long, where there is one at a time. Called from the event loop.
"""

import sys
from collections import OrderedDict
from contextlib import suppress
from typing import cast

from fairlead_engine.errors import RequestError
from fairlead_engine.server.child_lane import ChildFailure, ChildLane, TookTooLong
from fairlead_engine.server.grammar_job import GrammarJob
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

_WORKER = "fairlead_engine.server.grammar_worker"


class GrammarCompiler:
    """Close it when done."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._quick, self._long = ChildLane(_WORKER), ChildLane(_WORKER)
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
        try:
            return await self._within_time(job, key)
        except ChildFailure as error:
            failure = error
        if (wider := job.widest()) is not None:
            with suppress(ChildFailure):
                return await self._within_time(wider, wider.key)
        if isinstance(failure, TookTooLong):
            told = f"no grammar could be made of it within {self._timeout:g} s, which is this server's grammar-timeout"
        else:
            told = f"the process that makes grammars did not survive it ({failure})"
        advice = "ask for fewer properties, alternatives or repetitions"
        raise RequestError(job.field, f"{job.field} cannot be kept to: {told}; {advice}", "unsupported_value")

    async def _within_time(self, job: GrammarJob, key: bytes) -> Grammar | None:
        """Raises RequestError, or ChildFailure."""
        if job.size < _LONG_BYTES and key not in self._slow:
            with suppress(ChildFailure):
                return await _done(self._quick, job, min(_SLICE_SECONDS, self._timeout))
            self._slow[key] = None
            if len(self._slow) > _MOST_KNOWN_SLOW:
                self._slow.popitem(last=False)
        return await _done(self._long, job, self._timeout)

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


async def _done(lane: ChildLane, job: GrammarJob, timeout_seconds: float) -> Grammar | None:
    """Raises RequestError, or ChildFailure."""
    made, _ = await lane.done(job, timeout_seconds=timeout_seconds)
    if isinstance(made, tuple):
        raise RequestError(*made)
    return cast("Grammar | None", made)
