"""What vLLM's server and SGLang's have in common: metrics, and events over ZMQ that tell of their blocks."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import msgspec

from fairlead_engine.front.event_subscription import EventSubscription
from fairlead_engine.front.foreign_engine import BlockEvent, ForeignModel, Gauges, NotServing
from fairlead_engine.front.front_config import FrontConfig
from fairlead_engine.front.server_questions import ServerQuestions


class ListedModel(msgspec.Struct):
    """A model, as vLLM and SGLang list it at `/v1/models`."""

    id: str
    max_model_len: int | None = None


class ListedModels(msgspec.Struct):
    """All of them."""

    data: list[ListedModel]

    def length_of(self, name: str) -> int:
        """Longest prompt plus answer of the model, in tokens. Raises NotServing where it is not served."""
        lengths = [length for card in self.data if card.id == name and (length := card.max_model_len or 0) > 0]
        if not lengths:
            names = ", ".join(card.id for card in self.data)
            raise NotServing(f"it serves no model {name!r}, but {names or 'none'}")
        return lengths[0]


class ToldServer(ABC):
    """A `ForeignEngine`."""

    name: str
    keeps_connections = True

    def __init__(self, config: FrontConfig) -> None:
        self._served_name = config.name
        self._questions = ServerQuestions(config.origin, self.name)
        self.tells_blocks = config.events is not None
        self._subscription = EventSubscription(config.events or "", config.replay)

    @abstractmethod
    async def describe(self) -> ForeignModel: ...

    @abstractmethod
    def read_gauges(self, text: str) -> Gauges:
        """Of `/metrics`. Raises NotServing."""

    async def gauges(self) -> Gauges:
        return self.read_gauges(await self._questions.metrics())

    def block_events(self) -> AsyncIterator[BlockEvent]:
        return self._subscription.events()

    async def max_model_len(self) -> int:
        """Of the model that is to be served. Raises NotServing where it is not."""
        return (await self._questions.document("/v1/models", ListedModels)).length_of(self._served_name)
