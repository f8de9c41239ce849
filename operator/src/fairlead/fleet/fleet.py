"""Fleet: what the gateway follows. `StaticFleet` is told; `KubernetesFleet` (kubernetes.py) finds out."""

from collections.abc import Callable, Iterable
from typing import Protocol

from fairlead.fleet.directory import Directory
from fairlead.fleet.pool import Pool

OnChange = Callable[[Directory], None]
"""Called with each new directory, on the event loop; must not block."""


class Fleet(Protocol):
    """The newest directory, and a word whenever there is a newer one."""

    @property
    def directory(self) -> Directory:
        """What is known now. Immutable: a change makes a new one."""
        ...

    @property
    def synced(self) -> bool:
        """Whether everything that exists has been seen once; before that, absence means nothing."""
        ...

    def subscribe(self, on_change: OnChange) -> None:
        """`on_change` is called at once with the present directory, and with every later one."""
        ...

    async def run(self) -> None:
        """Follows the world until cancelled."""
        ...


class Published:
    """The subscriber side of a fleet: keeps the newest directory and tells who asked."""

    def __init__(self) -> None:
        self._directory = Directory()
        self._followers: list[OnChange] = []

    @property
    def directory(self) -> Directory:
        return self._directory

    def subscribe(self, on_change: OnChange) -> None:
        self._followers.append(on_change)
        on_change(self._directory)

    def publish(self, pools: Iterable[Pool]) -> None:
        """Makes a directory of `pools` the newest one."""
        self._directory = Directory(pools)
        for on_change in self._followers:
            on_change(self._directory)


class StaticFleet(Published):
    """A fleet that is what it was told to be: for tests, and for engines that no Kubernetes looks after."""

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        super().__init__()
        self.publish(pools)

    @property
    def synced(self) -> bool:
        return True

    async def run(self) -> None:
        """Nothing to follow."""
