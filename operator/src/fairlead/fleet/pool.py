"""A pool: one LLMDeployment as the gateway needs to see it, frozen at one moment."""

from dataclasses import dataclass, field

from fairlead.api.llmdeployment import Routing
from fairlead.routing.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The part of an LLMDeployment that requests are served by."""

    uid: str
    namespace: str
    name: str
    served_name: str
    """What the engines call it, and the name clients normally use."""
    aliases: tuple[str, ...] = ()
    created: float = 0.0
    """Seconds since the epoch."""
    engine: str = ""
    """Stands for all that decides what its engines take: the same text, the same limits."""
    max_model_len: int | None = None
    """Tokens of prompt and answer that its spec sets as its engines' limit; None where it leaves that to them."""
    routing: Routing = field(default_factory=Routing)
    """How a replica is picked, and how long requests may wait."""

    @property
    def key(self) -> str:
        """`namespace/name`: the label of its metrics and the beginning of its canonical path."""
        return f"{self.namespace}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it claims: the served name, aliases, `namespace/servedName` and `namespace/name`. A name with
        another namespace's beginning, which API servers refuse, would be that namespace's."""
        claimed = (self.served_name, *self.aliases, f"{self.namespace}/{self.served_name}", self.key)
        own = f"{self.namespace}/"
        return tuple(dict.fromkeys(name for name in claimed if "/" not in name or name.startswith(own)))


@dataclass(frozen=True, slots=True)
class Outlook:
    """Whether a pool without ready replicas is going to have one, and what the LLMDeployment says about it."""

    starting: bool
    """True: requests are held. False: nothing is on its way, and waiting would be in vain."""
    message: str
    """A sentence for the client."""
    asleep: bool = False
    """It is scaled to zero. If `starting`, the next request wakes it."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A model, its ready replicas, and the outlook while there are none."""

    model: ServedModel
    replicas: tuple[Replica, ...]
    outlook: Outlook

    @property
    def adapters(self) -> tuple[str, ...]:
        """What any of its replicas holds, sorted."""
        return tuple(sorted({adapter for replica in self.replicas for adapter in replica.adapters}))

    @property
    def state(self) -> str:
        """In a word, for lists: ready, starting, asleep (the next request wakes it), stopped (somebody has to scale it
        up), or failed."""
        if self.replicas:
            return "ready"
        if self.outlook.asleep:
            return "asleep" if self.outlook.starting else "stopped"
        return "starting" if self.outlook.starting else "failed"
