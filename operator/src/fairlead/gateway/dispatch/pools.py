"""Pools: one ModelPool per LLMDeployment, kept in step with the fleet and the engines' streams; finds a request's
pool."""

from collections.abc import Callable, Iterator

from fairlead.fleet.directory import Directory, Fleet, Pool, answers_to
from fairlead.gateway.dispatch.admission import ModelPool, Shared
from fairlead.gateway.openai.errors import bad_request, model_not_found, not_synced
from fairlead.gateway.prompts.reader import Tokenizers
from fairlead.routing.datastore import Datastore
from fairlead.routing.replica import Load
from fairlead_common.http.client import HttpClient
from fairlead_common.http.origin import Origin

MakeFleet = Callable[[Datastore, Tokenizers], Fleet]
"""Makes the fleet to follow, which feeds the engines' streams into the datastore and adds their tokenizers."""


class Pools:
    """Follows a fleet. A changed load goes to the pool of its replica. Queues and in-flight counts are kept by the
    LLMDeployment's uid and survive changes of the object."""

    def __init__(self, make_fleet: MakeFleet, shared: Shared, upstream: HttpClient) -> None:
        self.fleet = make_fleet(shared.datastore, shared.tokenizers)
        shared.datastore.on_load = self._load_changed
        self._shared = shared
        self._upstream = upstream
        self._by_uid: dict[str, ModelPool] = {}
        self._by_replica: dict[str, ModelPool] = {}
        """By the uid of each of its replicas."""
        self.on_urgent: Callable[[], None] = lambda: None
        """Called when the autoscaler should hear of a model at once."""
        self.fleet.subscribe(self._follow)

    def __iter__(self) -> Iterator[ModelPool]:
        return iter(self._by_uid.values())

    def __len__(self) -> int:
        return len(self._by_uid)

    def find(self, model: str, chosen: Pool | None) -> ModelPool:
        """The request's pool. `chosen`: by the path or Host; None = by the body's `model`. Raises OpenAIError: 400
        without a name, 404 for an unknown name, 503 before the models are known."""
        if chosen is not None:
            if model and not answers_to(chosen, model):
                raise model_not_found(model, chosen.model.names, here=chosen.model.key)
            return self._by_uid[chosen.model.uid]
        if not model:
            raise bad_request("The field 'model' is missing.", param="model")
        pool = self.fleet.directory.find(model)
        if pool is None:
            raise model_not_found(model, self.fleet.directory.served_names) if self.fleet.synced else not_synced()
        return self._by_uid[pool.model.uid]

    def _load_changed(self, uid: str, load: Load | None) -> None:
        if (pool := self._by_replica.get(uid)) is not None:
            pool.load_changed(uid, load)

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
