"""Adapters in the memory of the host, read in a thread, and on their way from there into the slots of the device."""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fairlead_engine.adapters import AdapterFacts
from fairlead_engine.model.lora.adapter_slots import AdapterSlots, HostAdapter
from fairlead_engine.model.lora.peft_folder import read_adapter
from fairlead_engine.runner.adapter_agreement import AdapterAgreement
from fairlead_engine.runner.pinning import given_cores


class HostAdapters:
    """One rank's part of each, by the key that the core gave it; who may be here is the core's business."""

    def __init__(self, slots: AdapterSlots) -> None:
        cores = given_cores() if hasattr(os, "sched_getaffinity") else set()  # not the one the caller is bound to
        self._slots = slots
        begin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
        self._reader = ThreadPoolExecutor(1, "adapter-reader", begin)
        self._read: dict[int, Future[HostAdapter]] = {}
        self.agreement: AdapterAgreement | None = None
        """Of the ranks, where there are others."""

    def read(self, key: int, folder: Path) -> Future[AdapterFacts]:
        """Begins to read it; the result may be an AdapterError, of this rank or, on rank 0, of another."""
        facts: Future[AdapterFacts] = Future()
        self._read[key] = self._reader.submit(_read, key, folder, self._slots, facts, self.agreement)
        return facts

    def place(self, key: int, slot: int) -> None:
        """Into a slot of the device. All ranks have read it (`AdapterAgreement`)."""
        self._slots.put(slot, self._read[key].result())

    def forget(self, key: int) -> None:
        """Drops it; one that was placed stays where it is."""
        del self._read[key]


def _read(
    key: int, folder: Path, slots: AdapterSlots, facts: "Future[AdapterFacts]", agreement: AdapterAgreement | None
) -> HostAdapter:
    """Reads one, and tells what it is: on rank 0, when all have read it."""
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
