"""What ranks tell one another of the adapters that they have read: one is there when it is there on all.

Threads that read adapters ask; each process has a connection of its own to the ranks' store, which steps do not wait
for.
"""

from dataclasses import replace
from hashlib import blake2b

import msgspec

from fairlead_engine.adapters import AdapterFacts
from fairlead_engine.errors import AdapterError
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.process_group import reach_store


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """What came of a rank's reading."""

    digest: bytes
    problem: str | None


class AdapterAgreement:
    """One rank's part in it: rank 0 hears all others, who tell it."""

    def __init__(self, shard: Shard, port: int) -> None:
        """`port`: of the ranks' store."""
        self._shard = shard
        self._store = reach_store(port)

    def reached(self, key: int, facts: AdapterFacts) -> AdapterFacts:
        """This rank has read it. Rank 0 waits until all others have, too, for the facts of all of it; raises
        AdapterError where one could not."""
        if self._shard.rank:
            self._tell(key, facts.digest, None)
            return facts
        digest, problems = blake2b(facts.digest, digest_size=16), []
        for rank in range(1, self._shard.size):
            name = _name(key, rank)
            word = msgspec.msgpack.decode(bytes.fromhex(self._store.get(name).decode()), type=_Word)
            self._store.delete_key(name)
            digest.update(word.digest)
            if word.problem is not None:
                problems.append(f"rank {rank} could not read it: {word.problem}")
        if problems:
            raise AdapterError("; ".join(problems))
        return replace(facts, digest=digest.digest())

    def missed(self, key: int, error: BaseException) -> None:
        """This rank could not read it; where that is rank 0, nobody asks the others."""
        if self._shard.rank:
            self._tell(key, b"", getattr(error, "message", None) or f"{type(error).__name__}: {error}")

    def _tell(self, key: int, digest: bytes, problem: str | None) -> None:
        word = msgspec.msgpack.encode(_Word(digest, problem))
        self._store.set(_name(key, self._shard.rank), word.hex())


def _name(key: int, rank: int) -> str:
    return f"adapter/{key}/{rank}"
