"""How every model stands, as this gateway knows it: what its pages show. Pure; asks nobody.

The application answers `PATH_STATES` with it. A gateway follows LLMDeployments and pods anyway, so a state costs what
its JSON does.
"""

import msgspec

from fairlead.gateway.dispatch.admission import ModelPool
from fairlead.gateway.dispatch.pools import Pools
from fairlead.routing.replica import Replica

PATH_STATES = "/fairlead/v1/models"


class ReplicaStages(msgspec.Struct):
    """Numbers of a model's replicas."""

    ready: int
    """Take requests."""
    starting: int
    """Exist, and do not yet take requests."""
    draining: int
    """Finish what they have, and go."""


class ModelState(msgspec.Struct, kw_only=True):
    """One LLMDeployment."""

    key: str
    """`namespace/name`."""
    names: list[str]
    """What to write in `model`; the first is the usual one."""
    state: str
    """ready, starting, asleep (the next request wakes it), stopped (a person must scale it up) or failed."""
    message: str
    """Why it is not ready, or what is wrong although it is, in the operator's words; empty = nothing is."""
    replicas: ReplicaStages
    waiting: int
    """Requests that wait in this gateway."""
    capabilities: list[str]
    """As in `/v1/models`; empty where no engine has told."""


class ModelStates(msgspec.Struct):
    """All that this gateway serves, those at zero too."""

    models: list[ModelState]
    """By `key`."""


class ReplicaFigures(msgspec.Struct, kw_only=True):
    """One replica that requests are or were sent to. None = its engine has not told lately."""

    name: str
    """The pod's name."""
    state: str
    """ready, or draining."""
    node: str
    """Empty = not known."""
    since: str
    """When the pod was created (RFC 3339); empty = not known."""
    running: int | None
    """Requests that it computes."""
    waiting: int | None
    """Requests that wait in the engine."""
    slots: int | None
    """Requests that it computes at once."""
    kv_used_ratio: float | None
    """Share of its KV cache that running requests hold."""
    num_cached_blocks: int
    """Blocks of prefixes that this gateway knows there; 0 where the engine does not tell them."""


def model_states(pools: Pools) -> ModelStates:
    """Of all pools."""
    return ModelStates([model_state(pool, pools) for pool in sorted(pools, key=lambda pool: pool.model.key)])


def replica_stages(live: ModelPool) -> ReplicaStages:
    """Of one pool."""
    pool = live.pool
    num_leaving = len(live.router.replicas) - live.num_ready
    return ReplicaStages(
        ready=len(pool.replicas) - num_leaving,
        starting=pool.num_starting,
        draining=len(pool.departing) + num_leaving,
    )


def replica_figures(live: ModelPool) -> list[ReplicaFigures]:
    """Of the replicas of one pool, those that take requests first."""
    ready = [_replica(each, live) for each in live.pool.replicas]
    return sorted([*ready, *(_replica(each, live, is_departing=True) for each in live.pool.departing)], key=_rank)


def _rank(seen: ReplicaFigures) -> tuple[bool, str]:
    return seen.state != "ready", seen.name


def _replica(replica: Replica, live: ModelPool, *, is_departing: bool = False) -> ReplicaFigures:
    load = live.datastore.load(replica.uid, live.now())
    blocks = load.kv_blocks_total if load else 0
    return ReplicaFigures(
        name=replica.name,
        state="draining" if is_departing or (load is not None and load.draining) else "ready",
        node=replica.node,
        since=replica.since,
        running=load.running if load else None,
        waiting=load.waiting if load else None,
        slots=load.max_num_seqs if load else None,
        kv_used_ratio=1 - load.kv_blocks_free / blocks if load and blocks else None,
        num_cached_blocks=live.datastore.index.num_blocks(replica.uid),
    )


def model_state(live: ModelPool, pools: Pools) -> ModelState:
    """Of one pool."""
    pool = live.pool
    return ModelState(
        key=pool.model.key,
        names=pools.fleet.directory.public_names(pool),
        state=pool.state,
        message=pool.trouble if pool.replicas else pool.outlook.message,
        replicas=replica_stages(live),
        waiting=live.num_waiting,
        capabilities=list(pool.capabilities),
    )
