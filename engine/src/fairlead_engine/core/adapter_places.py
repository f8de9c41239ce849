"""Adapters and their places: on the device, in the host's memory, or in their folders.

The engine loads and unloads adapters; the scheduler asks whether a sequence may begin with its adapter. Device and host
memory are kept in order of last use. Names and numbers only; tensors are the runner's.
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from fairlead_engine.core.clock import Clock
from fairlead_engine.core.runner import Runner
from fairlead_engine.errors import AdapterError
from fairlead_engine.types.adapters import CONFIG_FILE, NOT_PLACED, WEIGHTS_FILE, Adapter, AdapterFacts
from fairlead_engine.types.sequences import Sequence

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 0.005
"""Seconds that an idle step waits for an adapter to be read; commands may come meanwhile."""
_MOST_NAME = 256
_RETRY_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Delays before an adapter is read again after a failure: a remounted volume, or a file being replaced, is back soon.
"""


@dataclass(slots=True)
class _AdapterReading:
    """An adapter that is being read into the host's memory."""

    adapter: Adapter
    facts: Future[AdapterFacts]
    began: float
    done: list[Callable[[AdapterError | None], None]]
    """Called after the first reading, when requests may ask for the adapter; empty for later readings."""


@dataclass(frozen=True, slots=True)
class _Retry:
    """A failed reading of an adapter for which sequences wait."""

    num_failures: int
    due: float
    """By the monotonic clock."""


class Adapters:
    """All adapters of an engine.

    A sequence begins where its adapter is placed or can be: in an empty slot, or in the slot of the adapter unused for
    longest. Where all slots are in use the sequence *claims* a slot, by rank: for each claim the adapter in use for
    longest takes no more sequences from behind the claim, while running sequences go on. Sequences behind a claim may
    pass, and a claim waits no longer than running sequences take to end.
    """

    def __init__(
        self, runner: Runner[Any], *, most_in_host: int, clock: Clock, most_virtual_tokens: int | None = None
    ) -> None:
        """`most_virtual_tokens`: limit of one soft prompt, beside a prompt and an answer; None = no limit."""
        self._runner = runner
        self._most_in_host = most_in_host
        self._most_virtual_tokens = most_virtual_tokens
        self._clock = clock
        self._places = DevicePlaces(runner.num_adapter_slots)
        self._by_name: dict[str, Adapter] = {}
        self._in_host: dict[int, Adapter] = {}
        """By key, the last used last."""
        self._reading: dict[int, _AdapterReading] = {}
        self._retries: dict[int, _Retry] = {}
        """By key."""
        self._keys = count(1)
        self._wanted: set[int] = set()
        self._seconds: dict[str, float] | None = None
        self._virtual_tokens: dict[str, int] | None = None
        self._holds: dict[str, Adapter] = {}
        self._read_pace = self._place_pace = 0.0
        self.broken: dict[int, str] = {}
        """Key of each adapter that can no longer be read → the reason; its sequences end."""
        self.num_placed = 0
        """Copies of an adapter to the device since the start."""
        self.num_read = 0
        """Readings of an adapter into the host's memory since the start."""
        self.read_seconds = 0.0
        """Duration of all readings."""

    # -- they come and go ------------------------------------------------------------------------------------------

    def load(self, name: str, folder: Path, done: Callable[[AdapterError | None], None]) -> None:
        """Begins to read an adapter; `settle` calls `done` when requests may ask for the adapter, or with the error. A
        second request for the same folder waits for the same reading. Raises AdapterError."""
        if not self._places.slots:
            raise AdapterError("this engine has no room for adapters; start it with --max-loras")
        if not name or len(name) > _MOST_NAME or not name.isprintable():
            raise AdapterError(f"the adapter's name must have 1 to {_MOST_NAME} printable characters")
        under_way = [each for each in self._reading.values() if each.done and each.adapter.name == name]
        if under_way and under_way[0].adapter.folder == folder:
            under_way[0].done.append(done)
            return
        if under_way:
            raise AdapterError(
                f"an adapter {name!r} is being read from another folder; unload that first, once it is there"
            )
        if name in self._by_name:
            raise AdapterError(f"the adapter {name!r} is there already; unload it first")
        self._read(Adapter(next(self._keys), name, folder), [done])

    def unload(self, name: str) -> Adapter:
        """Refuses new requests for an adapter; accepted requests are served. Raises AdapterError."""
        adapter = self._by_name.pop(name, None)
        if adapter is None:
            there = f"there are {', '.join(map(repr, sorted(self._by_name)))}" if self._by_name else "there is none"
            raise AdapterError(f"no adapter {name!r} is loaded; {there}")
        adapter.is_leaving = True
        self._seconds = self._virtual_tokens = None
        self._drop_left(adapter)
        return adapter

    def find(self, name: str) -> Adapter | None:
        return self._by_name.get(name)

    def hold(self, hold: str, name: str) -> None:
        """Keeps the adapter named `name` for requests with this hold, even after an unload; ignores unknown names."""
        if (adapter := self._by_name.get(name)) is not None and hold not in self._holds:
            self._holds[hold] = adapter
            adapter.num_holds += 1

    def held(self, hold: str) -> Adapter | None:
        return self._holds.get(hold)

    def release(self, hold: str) -> None:
        """Ends a hold; an unknown hold is ignored."""
        if (adapter := self._holds.pop(hold, None)) is not None:
            adapter.num_holds -= 1
            self._drop_left(adapter)

    def settle(self) -> None:
        """Takes in the readings that are done."""
        for key, reading in [(key, each) for key, each in self._reading.items() if each.facts.done()]:
            del self._reading[key]
            self._read_is_over(reading)

    @property
    def is_reading(self) -> bool:
        return bool(self._reading)

    @property
    def is_awaited(self) -> bool:
        """Whether an adapter is being read or will be read again."""
        return bool(self._reading or self._retries)

    def wait(self, seconds: float = _PATIENCE_SECONDS) -> None:
        """Waits until a reading is done, or for `seconds`."""
        if self._reading:
            wait([each.facts for each in self._reading.values()], seconds, FIRST_COMPLETED)
        elif self._retries:
            time.sleep(seconds)

    # -- sequences -------------------------------------------------------------------------------------------------

    def added(self, sequence: Sequence) -> None:
        if sequence.adapter is not None:
            sequence.adapter.num_sequences += 1

    def ended(self, sequence: Sequence) -> None:
        if sequence.adapter is not None:
            sequence.adapter.num_sequences -= 1
            if not sequence.adapter.num_sequences:
                self._retries.pop(sequence.adapter.key, None)
            self._drop_left(sequence.adapter)

    def look(self) -> None:
        """Begins a round of `may_begin`, asked by rank."""
        if self._reading:
            self.settle()
        self._places.num_claims = 0
        self._wanted.clear()

    def may_begin(self, adapter: Adapter) -> bool:
        """Whether a waiting sequence may begin with this adapter; if not, a reading, copy or claim is under way."""
        self._wanted.add(adapter.key)
        if adapter.slot != NOT_PLACED:
            return not adapter.num_running or not self._places.gives_way(adapter)
        retry = self._retries.get(adapter.key)
        is_put_off = retry is not None and self._clock.monotonic() < retry.due
        if adapter.key in self.broken or adapter.key in self._reading or is_put_off:
            return False
        # The host's memory can take another one in place of one that nobody before it waits for, too.
        num_kept = len(self._in_host.keys() & (self._wanted | self._pinned())) + len(self._reading)
        if not adapter.is_in_host and num_kept < self._most_in_host:
            self._read(adapter)
            return False
        if adapter.is_in_host and self._places.free_slot() is not None:
            return True
        self._places.num_claims += 1
        return False

    def begin(self, adapter: Adapter) -> None:
        if adapter.slot == NOT_PLACED:
            self._seconds = None
        self._places.begin(adapter)
        if adapter.is_in_host:  # as the one that was used last
            self._in_host[adapter.key] = self._in_host.pop(adapter.key)

    def end(self, adapter: Adapter) -> None:
        self._places.end(adapter)
        if not adapter.num_running:
            self._seconds = None

    def place(self) -> None:
        """Copies adapters to the device for the next step."""
        for adapter in self._places.to_place:
            began = self._clock.monotonic()
            self._runner.place_adapter(adapter.key, adapter.slot)
            self.num_placed += 1
            pace = (self._clock.monotonic() - began) / max(1, adapter.num_bytes)
            self._place_pace += (pace - self._place_pace) / 4 if self._place_pace else pace
        self._places.to_place.clear()

    # -- what is told ----------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> dict[str, float]:
        """By name, the time until a new request could begin with the adapter (`LoadFigures.adapters`)."""
        if self._seconds is None:
            self._seconds = {name: self._wait_for(adapter) for name, adapter in self._by_name.items()}
        return self._seconds

    @property
    def virtual_tokens(self) -> dict[str, int]:
        if self._virtual_tokens is None:
            found = self._by_name.items()
            self._virtual_tokens = {name: each.num_virtual_tokens for name, each in found if each.num_virtual_tokens}
        return self._virtual_tokens

    @property
    def figures(self) -> dict[str, Any]:
        """The adapters' fields of `EngineLoad`."""
        return {
            "adapters": self.seconds,
            "virtual_tokens": self.virtual_tokens,
            "num_adapters_on_device": sum(each is not None for each in self._places.slots),
            "num_adapters_placed": self.num_placed,
            "num_adapters_read": self.num_read,
            "adapter_read_seconds": self.read_seconds,
        }

    def check(self, running: list[Sequence], sequences: Any) -> None:
        for slot, adapter in enumerate(self._places.slots):
            assert adapter is None or adapter.slot == slot, "an adapter is in another's slot"
        of_sequences = (each.adapter for each in sequences)
        known = {
            each
            for each in (*self._by_name.values(), *self._places.slots, *self._holds.values(), *of_sequences)
            if each
        }
        for adapter in known:
            assert adapter.num_holds == sum(each is adapter for each in self._holds.values())
            assert adapter.num_running == sum(each.adapter is adapter for each in running)
            assert adapter.num_sequences == sum(each.adapter is adapter for each in sequences)
            assert not adapter.num_running or self._places.slots[adapter.slot] is adapter, (
                "one is in use and not placed"
            )
        waited_for = {adapter.key for adapter in known if adapter.num_sequences}
        assert self._retries.keys() <= waited_for, "one is to be read that nobody waits for"
        assert len(self._in_host) <= self._most_in_host
        assert all(each.is_in_host for each in self._in_host.values())

    # -- the rest is private ---------------------------------------------------------------------------------------

    def _wait_for(self, adapter: Adapter) -> float:
        if adapter.slot != NOT_PLACED:
            return 0.0
        placing = self._place_pace * adapter.num_bytes
        return placing if adapter.is_in_host else placing + (adapter.read_seconds or self._read_pace)

    def _read(self, adapter: Adapter, done: Iterable[Callable[[AdapterError | None], None]] = ()) -> None:
        facts = self._runner.read_adapter(adapter.key, adapter.folder)
        self._reading[adapter.key] = _AdapterReading(adapter, facts, self._clock.monotonic(), list(done))

    def _read_is_over(self, reading: _AdapterReading) -> None:
        adapter = reading.adapter
        self._seconds = self._virtual_tokens = None
        error = self._error_of(reading)
        if error is not None:
            self._runner.forget_adapter(adapter.key)
            if not reading.done:
                self._put_off(adapter, error)
        else:
            self._retries.pop(adapter.key, None)
            facts = reading.facts.result()
            adapter.num_bytes, adapter.num_virtual_tokens = facts.num_bytes, facts.num_virtual_tokens
            adapter.digest = facts.digest
            adapter.is_in_host = True
            adapter.read_seconds = self._clock.monotonic() - reading.began
            self.num_read += 1
            self.read_seconds += adapter.read_seconds
            self._in_host[adapter.key] = adapter
            while len(self._in_host) > self._most_in_host:  # what was not used for longest goes, if nobody waits for it
                pinned = self._pinned()
                others = [
                    key
                    for key, each in self._in_host.items()
                    if key != adapter.key and each not in self._places.to_place and key not in pinned
                ]
                unwanted = [key for key in others if key not in self._wanted]
                self._forget(self._in_host[(unwanted or others or [adapter.key])[0]])
            if reading.done:
                self._by_name[adapter.name] = adapter
                if adapter.is_in_host and None in self._places.slots:  # the first request need not wait
                    self._places.put(adapter)
            self._drop_left(adapter)
        for done in reading.done:
            done(error)

    def _error_of(self, reading: _AdapterReading) -> AdapterError | None:
        """The error of a reading; nothing in a folder may end the engine. An adapter that is read again must have the
        digest of the first reading: sequences and cached blocks depend on the weights."""
        error = reading.facts.exception()
        if error is None:
            facts, most = reading.facts.result(), self._most_virtual_tokens
            if most is not None and (found := facts.num_virtual_tokens) > most:
                return AdapterError(f"its {found} virtual tokens leave no room in the context; at most {most} do")
            if not reading.done and facts.digest != reading.adapter.digest:
                return AdapterError("its files are others than when it was loaded: unload it and load it again")
            return None
        if isinstance(error, AdapterError):
            return error
        logger.error("an adapter could not be read", exc_info=error)
        return AdapterError(f"it cannot be read ({type(error).__name__}: {error})")

    def _put_off(self, adapter: Adapter, error: AdapterError) -> None:
        """Schedules another reading for waiting sequences, or gives the adapter up after too many failures."""
        if not adapter.num_sequences:
            logger.warning("the adapter %s could not be read: %s", adapter.name, error.message)
            self._drop_left(adapter)
            return
        retry = self._retries.pop(adapter.key, None)
        num_failures = 1 if retry is None else retry.num_failures + 1
        if num_failures <= len(_RETRY_SECONDS):
            seconds = _RETRY_SECONDS[num_failures - 1]
            logger.warning(
                "the adapter %s could not be read and will be again in %g s: %s", adapter.name, seconds, error.message
            )
            self._retries[adapter.key] = _Retry(num_failures, self._clock.monotonic() + seconds)
            return
        logger.error("the adapter %s can be read no more: %s", adapter.name, error.message)
        self.broken[adapter.key] = error.message
        if self._by_name.get(adapter.name) is adapter:
            del self._by_name[adapter.name]
        adapter.is_leaving = True
        self._drop_left(adapter)

    def _pinned(self) -> set[int]:
        """Keys of held adapters, which stay in the host's memory: folders may be gone. Leaves one place to others."""
        return {each.key for each in list(dict.fromkeys(self._holds.values()))[: self._most_in_host - 1]}

    def _forget(self, adapter: Adapter) -> None:
        del self._in_host[adapter.key]
        adapter.is_in_host = False
        self._runner.forget_adapter(adapter.key)
        self._seconds = None

    def _drop_left(self, adapter: Adapter) -> None:
        """Drops an unloaded adapter once nothing needs it."""
        if not adapter.is_leaving or adapter.num_sequences or adapter.num_holds or adapter.key in self._reading:
            return
        if adapter.slot != NOT_PLACED:
            self._places.leave(adapter)
        if adapter.is_in_host:
            self._forget(adapter)
        self.broken.pop(adapter.key, None)


class DevicePlaces:
    """Slots in the order of last use. A sequence whose adapter finds no slot *claims* a slot: for each claim the
    adapter in use for longest gives way, i.e. the caller begins no more sequences with that adapter."""

    def __init__(self, num_slots: int) -> None:
        self.slots: list[Adapter | None] = [None] * num_slots
        self.num_claims = 0
        """Claims since `Adapters.look`."""
        self.to_place: list[Adapter] = []
        """Adapters with a slot, not yet copied to the device."""
        self._ticks = count(1)

    def begin(self, adapter: Adapter) -> None:
        if adapter.slot == NOT_PLACED:
            self.put(adapter)
        if not adapter.num_running:
            adapter.begun_at = next(self._ticks)
        adapter.num_running += 1

    def end(self, adapter: Adapter) -> None:
        adapter.num_running -= 1
        if not adapter.num_running:
            adapter.begun_at = next(self._ticks)

    def put(self, adapter: Adapter) -> None:
        """Gives the adapter a free slot; `free_slot` must not be None."""
        slot = self.free_slot()
        assert slot is not None and adapter.is_in_host
        if (before := self.slots[slot]) is not None:
            self.leave(before)
        self.slots[slot], adapter.slot = adapter, slot
        self.to_place.append(adapter)

    def leave(self, adapter: Adapter) -> None:
        self.slots[adapter.slot] = None
        adapter.slot = NOT_PLACED
        if adapter in self.to_place:
            self.to_place.remove(adapter)

    def free_slot(self) -> int | None:
        """An empty slot, or the slot of the adapter unused for longest."""
        unused = [adapter for adapter in self.slots if adapter is not None and not adapter.num_running]
        if None in self.slots:
            return self.slots.index(None)
        return min(unused, key=lambda each: each.begun_at).slot if unused else None

    def gives_way(self, adapter: Adapter) -> bool:
        """Whether the adapter is among the `num_claims` adapters in use for longest."""
        if not self.num_claims:
            return False
        in_use = (each for each in self.slots if each is not None and each.num_running)
        return adapter in sorted(in_use, key=lambda each: each.begun_at)[: self.num_claims]


def folder_below(root: str | None, folder: str) -> Path:
    """The folder below `root` that a client named. Raises AdapterError for a folder or file outside, links resolved."""
    if root is None:
        raise AdapterError("adapters cannot be loaded while this engine runs; start it with --adapter-folder")
    try:
        top = Path(root).resolve()
        path = (top / folder).resolve()
        files = [(path / name).resolve() for name in (CONFIG_FILE, WEIGHTS_FILE)]
    except (OSError, ValueError, RuntimeError) as error:  # such as a null character, or links in a circle
        raise AdapterError(f"lora_path is no folder: {error}") from error
    if top not in path.parents:
        raise AdapterError("lora_path must be a folder below that of --adapter-folder, or relative to it")
    if any(top not in file.parents for file in files):
        raise AdapterError("files of lora_path must be below --adapter-folder, too: links in it lead to others")
    return path
