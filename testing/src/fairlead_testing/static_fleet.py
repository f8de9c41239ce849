"""A fleet that a test makes."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from fairlead.fleet.directory import Fleet, Pool
from fairlead.fleet.engine_stream import EngineListener
from fairlead.fleet.replica_tasks import ModelInfoClient, ReplicaTasks, TokenizerBook
from fairlead.routing.replica import Replica

UNKNOWN = "unknown"
"""Digest of replicas that nobody asks for theirs: for one without a digest gateways wait two seconds."""


class StaticFleet(Fleet):
    """A fleet that is what it was told to be: for engines that no Kubernetes looks after.

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
        if self._listener is None:
            return replace(pool, replicas=tuple(replace(each, digest=each.digest or UNKNOWN) for each in pool.replicas))
        return replace(pool, replicas=tuple(self._known.get(replica.uid, replica) for replica in pool.replicas))
