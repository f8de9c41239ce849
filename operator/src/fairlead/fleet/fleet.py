"""Fleet: what the gateway follows. `StaticFleet` is told; `KubernetesFleet` (kubernetes.py) finds out."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from fairlead.fleet.directory import Directory
from fairlead.fleet.listener import EngineListener
from fairlead.fleet.model_info import ModelInfoClient, TokenizerBook
from fairlead.fleet.pool import Pool
from fairlead.fleet.replica_tasks import ReplicaTasks
from fairlead.routing.replica import Replica

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
    """A fleet that is what it was told to be: for tests, and for engines that no Kubernetes looks after.

    With a `listener` its replicas are asked what they are, and their streams are followed, as long as `run` does.
    """

    def __init__(
        self,
        pools: Iterable[Pool] = (),
        *,
        listener: EngineListener | None = None,
        tokenizers: TokenizerBook | None = None,
    ) -> None:
        """`tokenizers` gets the tokenizers of the replicas that are asked."""
        super().__init__()
        self._listener = listener
        self._model_info = ModelInfoClient(tokenizers=tokenizers)
        self._tasks: ReplicaTasks | None = None
        """While `run` follows."""
        self._told: dict[str, Replica] = {}
        """By uid, the replicas that have joined, as they were told."""
        self._known: dict[str, Replica] = {}
        """The same as their engines have completed them."""
        self._pools: tuple[Pool, ...] = ()
        self.publish(pools)

    @property
    def synced(self) -> bool:
        return True

    def publish(self, pools: Iterable[Pool]) -> None:
        """Makes `pools` the newest directory."""
        self._pools = tuple(pools)
        if self._tasks is not None:
            self._join_and_leave(self._tasks)
        super().publish(self._completed(pool) for pool in self._pools)

    async def run(self) -> None:
        """Follows the replicas, where somebody listens; else there is nothing to do."""
        if self._listener is None:
            return
        self._tasks = ReplicaTasks(self._model_info, self._listener)
        try:
            self._join_and_leave(self._tasks)
            await asyncio.Event().wait()
        finally:
            await self._tasks.close()
            await self._model_info.close()

    def _join_and_leave(self, tasks: ReplicaTasks) -> None:
        replicas = {replica.uid: replica for pool in self._pools for replica in pool.replicas}
        for uid, told in list(self._told.items()):
            if replicas.get(uid) != told:
                tasks.leave(uid)
                del self._told[uid]
                self._known.pop(uid, None)
        for uid in replicas.keys() - self._told.keys():
            self._told[uid] = replicas[uid]
            tasks.join(replicas[uid], self._on_known)

    def _on_known(self, replica: Replica) -> None:
        self._known[replica.uid] = replica
        super().publish(self._completed(pool) for pool in self._pools)

    def _completed(self, pool: Pool) -> Pool:
        return replace(pool, replicas=tuple(self._known.get(replica.uid, replica) for replica in pool.replicas))
