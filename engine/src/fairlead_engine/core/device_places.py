"""The device's slots for adapters: who has each, and who gives a slot up."""

from itertools import count

from fairlead_engine.types.adapters import NOT_PLACED, Adapter


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
