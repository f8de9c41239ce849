"""How every model stands, as this gateway knows it: what its pages show. Pure; asks nobody.

The application answers `PATH_STATES` with it. A gateway follows LLMDeployments and pods anyway, so a state costs what
its JSON does.
"""

import msgspec

from fairlead.gateway.dispatch.admission import ModelPool
from fairlead.gateway.dispatch.pools import Pools

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


def model_states(pools: Pools) -> ModelStates:
    """Of all pools."""
    return ModelStates([_state(pool, pools) for pool in sorted(pools, key=lambda pool: pool.model.key)])


def _state(live: ModelPool, pools: Pools) -> ModelState:
    pool = live.pool
    num_leaving = len(live.router.replicas) - live.num_ready
    return ModelState(
        key=pool.model.key,
        names=pools.fleet.directory.public_names(pool),
        state=pool.state,
        message=pool.trouble if pool.replicas else pool.outlook.message,
        replicas=ReplicaStages(
            ready=len(pool.replicas) - num_leaving,
            starting=pool.num_starting,
            draining=len(pool.departing) + num_leaving,
        ),
        waiting=len(live.queue),
        capabilities=list(pool.capabilities),
    )
