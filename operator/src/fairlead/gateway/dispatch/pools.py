"""Pools: one ModelPool per LLMDeployment, kept in step with the fleet and with what its engines stream; finds the one
that a request means."""

from collections.abc import Callable, Iterable, Iterator

from fairlead.fleet.directory import Directory, Fleet, Pool, answers_to
from fairlead.fleet.engine_stream import EngineListener
from fairlead.gateway.dispatch.admission import ModelPool, Shared
from fairlead.gateway.openai.errors import bad_request, model_not_found, not_synced
from fairlead.gateway.prompts.tokenizers import Tokenizers
from fairlead.routing.replica import Load
from fairlead_protocol.blocks import BlockHash
from fairlead_protocol.http.client import HttpClient
from fairlead_protocol.http.origin import Origin

MakeFleet = Callable[[EngineListener, Tokenizers], Fleet]
"""Makes the fleet to follow. It tells the listener what engines stream, and adds their tokenizers."""


class Pools:
    """Follows a fleet and is its EngineListener: what engines tell goes to the Datastore, and to the pool whose line
    may move. Queues and in-flight counts are kept by the LLMDeployment's uid, so they survive its changes."""

    def __init__(self, make_fleet: MakeFleet, shared: Shared, upstream: HttpClient) -> None:
        self.fleet = make_fleet(self, shared.tokenizers)
        self._shared = shared
        self._upstream = upstream
        self._by_uid: dict[str, ModelPool] = {}
        self._by_replica: dict[str, ModelPool] = {}
        """By the uid of each of its replicas."""
        self.on_urgent: Callable[[], None] = lambda: None
        """Called when the autoscaler should hear of a model at once."""
        self.max_blocks = shared.settings.max_kv_blocks
        self.fleet.subscribe(self._follow)

    def __iter__(self) -> Iterator[ModelPool]:
        return iter(self._by_uid.values())

    def find(self, model: str, chosen: Pool | None) -> ModelPool:
        """The pool for a request. `chosen`: the one its path or Host says; None = only the body's `model` does.

        Raises OpenAIError: 400 where no model is named, 404 for an unknown name, 503 while models are still being
        learnt.
        """
        if chosen is not None:
            if model and not answers_to(chosen, model):
                raise model_not_found(model, here=chosen.model.key)
            return self._by_uid[chosen.model.uid]
        if not model:
            raise bad_request("The field 'model' is missing.", param="model")
        pool = self.fleet.directory.find(model)
        if pool is None:
            raise model_not_found(model) if self.fleet.synced else not_synced()
        return self._by_uid[pool.model.uid]

    def blocks_listed(self, uid: str, seq: int, hashes: Iterable[BlockHash]) -> None:
        self._shared.datastore.listed(uid, seq, hashes)

    def blocks_changed(self, uid: str, seq: int, stored: Iterable[BlockHash], removed: Iterable[BlockHash]) -> None:
        self._shared.datastore.changed(uid, seq, stored, removed)

    def num_blocks(self, uid: str) -> int:
        return self._shared.datastore.index.num_blocks(uid)

    def load_changed(self, uid: str, load: Load) -> None:
        self._shared.datastore.loaded(uid, load)
        if (pool := self._by_replica.get(uid)) is not None:
            pool.load_changed(uid, load)

    def lost(self, uid: str) -> None:
        self._shared.datastore.lost(uid)
        if (pool := self._by_replica.get(uid)) is not None:
            pool.load_changed(uid, None)

    def distrusted(self, uid: str, max_blocks: int) -> None:
        self._shared.datastore.distrusted(uid, max_blocks)
        if (pool := self._by_replica.get(uid)) is not None:
            pool.load_changed(uid, None)

    def left(self, uid: str) -> None:
        self._shared.datastore.forget(uid)
        if (pool := self._by_replica.get(uid)) is not None:
            pool.load_changed(uid, None)

    def _follow(self, directory: Directory) -> None:
        present = {pool.model.uid for pool in directory.pools}
        for uid in self._by_uid.keys() - present:
            self._by_uid.pop(uid).remove()
        for pool in directory.pools:
            known = self._by_uid.get(pool.model.uid)
            if known is None:
                self._by_uid[pool.model.uid] = ModelPool(pool, self._shared, lambda: self.on_urgent())
            elif known.pool != pool:
                known.update(pool)
        self._by_replica = {replica.uid: pool for pool in self for replica in pool.pool.replicas}
        self._shared.tokenizers.keep(digest for pool in self for digest in pool.prompts.digests)
        replicas = (replica for pool in directory.pools for replica in pool.replicas)
        self._upstream.keep_only(frozenset(Origin(replica.host, replica.port) for replica in replicas))
