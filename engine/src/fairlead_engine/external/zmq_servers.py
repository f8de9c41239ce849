"""The servers of vLLM and SGLang: version, model and metrics over HTTP, KV events over ZMQ."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import msgspec

from fairlead_engine.external.event_subscription import EventSubscription
from fairlead_engine.external.foreign_engine import MOST_TOKENS, BlockEvent, ForeignModel, Gauges, NotServing
from fairlead_engine.external.front_config import FrontConfig
from fairlead_engine.external.server_questions import ServerQuestions, labels, total, values


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class ZmqServer(ABC):
    """A `ForeignEngine` with KV events over ZMQ."""

    name: str
    keeps_connections = True

    def __init__(self, config: FrontConfig) -> None:
        self._served_name = config.name
        self._questions = ServerQuestions(config.origin, self.name)
        self.tells_blocks = config.events is not None
        self._subscription = EventSubscription(config.events or "", config.replay)

    @abstractmethod
    async def describe(self) -> ForeignModel: ...

    @staticmethod
    @abstractmethod
    def read_gauges(text: str) -> Gauges:
        """Of `/metrics`. Raises NotServing."""

    async def gauges(self) -> Gauges:
        return self.read_gauges(await self._questions.metrics())

    def block_events(self) -> AsyncIterator[BlockEvent]:
        return self._subscription.events()

    async def max_model_len(self) -> int:
        """Longest prompt plus answer of the served model, in tokens. Raises NotServing for a model that is not listed
        at `/v1/models`."""
        cards = (await self._questions.document("/v1/models", _Cards)).data
        lengths = [length for card in cards if card.id == self._served_name and (length := card.max_model_len or 0) > 0]
        if not lengths:
            names = ", ".join(card.id for card in cards)
            raise NotServing(f"it serves no model {self._served_name!r}, but {names or 'none'}")
        return lengths[0]


class _Version(msgspec.Struct):
    version: str


class VllmServer(ZmqServer):
    name = "vLLM"
    _waiting, _usage, _old_usage = "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
    _cache = "vllm:cache_config_info"

    async def describe(self) -> ForeignModel:
        version = (await self._questions.document("/version", _Version)).version
        length = await self.max_model_len()
        block_size, num_blocks = self.read_cache(await self._questions.metrics())
        return ForeignModel(version=version, max_model_len=length, block_size=block_size, num_kv_blocks=num_blocks)

    @staticmethod
    def read_gauges(text: str) -> Gauges:
        """Of `/metrics`. Raises NotServing for metrics without these lines, as before the model is loaded."""
        waiting = values(text, VllmServer._waiting)
        usage = values(text, VllmServer._usage) or values(text, VllmServer._old_usage)
        if not waiting or not usage:
            raise NotServing(f"its metrics have no {VllmServer._waiting} or no {VllmServer._usage}")
        return Gauges.told(
            waiting=sum(waiting),
            kv_usage_ratio=max(usage),
            num_tokens=total(text, "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        )

    @staticmethod
    def read_cache(text: str) -> tuple[int, int]:
        """Tokens per block and number of blocks, of `/metrics`. Raises NotServing."""
        said = labels(text, VllmServer._cache)
        try:
            block_size, num_blocks = int(said["block_size"]), int(said["num_gpu_blocks"])
        except (KeyError, ValueError) as error:
            problem = f"its metrics do not say block_size and num_gpu_blocks in {VllmServer._cache}"
            raise NotServing(problem) from error
        if not 0 < block_size <= MOST_TOKENS or not 0 < num_blocks <= MOST_TOKENS:
            raise NotServing(f"its metrics say {num_blocks} blocks of {block_size} tokens")
        return block_size, num_blocks


class _Information(msgspec.Struct):
    version: str
    page_size: int
    max_total_num_tokens: int


class SglangServer(ZmqServer):
    name = "SGLang"
    _room, _waiting, _usage = "sglang:max_total_num_tokens", "sglang:num_queue_reqs", "sglang:token_usage"
    _tokens = ("sglang:realtime_tokens_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
    """The first grows with every step, the others when requests end."""

    async def describe(self) -> ForeignModel:
        """SGLang answers before the warm-up; until the end of the warm-up `/health` fails."""
        await self._questions.health()
        said = await self._questions.document("/server_info", _Information)
        length = await self.max_model_len()
        self.read_gauges(await self._questions.metrics())
        if not 0 < said.page_size <= said.max_total_num_tokens <= MOST_TOKENS:
            raise NotServing(f"it says pages of {said.page_size} tokens, and room for {said.max_total_num_tokens}")
        return ForeignModel(
            version=said.version,
            max_model_len=length,
            block_size=said.page_size,
            num_kv_blocks=said.max_total_num_tokens // said.page_size,
        )

    @staticmethod
    def read_gauges(text: str) -> Gauges:
        """Of `/metrics`, with a line for all waiting requests and a line per priority, from the first step on. Raises
        NotServing."""
        if not values(text, SglangServer._room):
            raise NotServing(f"its metrics have no {SglangServer._room}: it needs --enable-metrics")
        return Gauges.told(
            waiting=max(values(text, SglangServer._waiting), default=0.0),
            kv_usage_ratio=max(values(text, SglangServer._usage), default=0.0),
            num_tokens=total(text, *SglangServer._tokens),
        )
