"""Adapters in the host's memory: read in a thread, and copied from there into the slots of the device."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import msgspec

from fairlead_engine.errors import AdapterError
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, HostAdapter
from fairlead_engine.model.lora.peft_folder import read_adapter
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.placement import given_cores
from fairlead_engine.runner.rank_messages import reach_store
from fairlead_engine.types.adapters import AdapterFacts


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """A rank's result of reading an adapter."""

    digest: bytes
    problem: str | None


class AdapterAgreement:
    """Makes an adapter available when all ranks have read it. Other ranks report to rank 0 from their reading threads;
    each process has a separate connection to the ranks' store, and steps do not wait for it."""

    def __init__(self, shard: Shard, port: int) -> None:
        """`port`: of the ranks' store."""
        self._shard = shard
        self._store = reach_store(port)

    def reached(self, key: int, facts: AdapterFacts) -> AdapterFacts:
        """Reports this rank's adapter. Rank 0 waits for all, and returns the facts of the whole or raises
        AdapterError."""
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
        """Reports that this rank could not read an adapter; unnecessary on rank 0."""
        if self._shard.rank:
            self._tell(key, b"", getattr(error, "message", None) or f"{type(error).__name__}: {error}")

    def _tell(self, key: int, digest: bytes, problem: str | None) -> None:
        word = msgspec.msgpack.encode(_Word(digest, problem))
        self._store.set(_name(key, self._shard.rank), word.hex())


def _name(key: int, rank: int) -> str:
    return f"adapter/{key}/{rank}"


class HostAdapters:
    """One rank's parts of adapters, by the core's keys; the core decides which stay."""

    def __init__(self, slots: AdapterSlots) -> None:
        cores = given_cores() if hasattr(os, "sched_getaffinity") else set()  # not the one the caller is bound to
        self._slots = slots
        begin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
        self._reader = ThreadPoolExecutor(1, "adapter-reader", begin)
        self._read: dict[int, Future[HostAdapter]] = {}
        self.agreement: AdapterAgreement | None = None
        """None with a single rank."""

    def read(self, key: int, folder: str) -> Future[AdapterFacts]:
        """Begins to read an adapter; the result may be an AdapterError, of this rank or, on rank 0, of another."""
        facts: Future[AdapterFacts] = Future()
        self._read[key] = self._reader.submit(_read, key, Path(folder), self._slots, facts, self.agreement)
        return facts

    def place(self, key: int, slot: int) -> None:
        """Copies an adapter into a slot of the device, after all ranks have read it."""
        self._slots.put(slot, self._read[key].result())

    def forget(self, key: int) -> None:
        """Drops an adapter; a placed one stays in its slot."""
        del self._read[key]


def _read(
    key: int, folder: Path, slots: AdapterSlots, facts: "Future[AdapterFacts]", agreement: AdapterAgreement | None
) -> HostAdapter:
    """Reads an adapter and sets its facts: on rank 0, when all ranks have read it."""
    try:
        adapter = read_adapter(folder, slots)
        num_virtual_tokens = 0 if adapter.prompt is None else len(adapter.prompt)
        told = AdapterFacts(adapter.num_bytes, num_virtual_tokens, adapter.digest())
        if agreement is not None:
            told = agreement.reached(key, told)
    except BaseException as error:
        if agreement is not None:
            agreement.missed(key, error)
        facts.set_exception(error)
        raise
    facts.set_result(told)
    return adapter
