"""SGLang's server behind the door: what it says of itself, its one model, its metrics, its KV events."""

import msgspec

from fairlead_engine.front.foreign_engine import MOST_TOKENS, ForeignModel, Gauges, NotServing
from fairlead_engine.front.prometheus_lines import total, values
from fairlead_engine.front.told_server import ToldServer

_ROOM, _WAITING, _USAGE = "sglang:max_total_num_tokens", "sglang:num_queue_reqs", "sglang:token_usage"
_TOKENS = ("sglang:realtime_tokens_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
"""The first grows with every step, the others when requests end."""


class _Information(msgspec.Struct):
    version: str
    page_size: int
    max_total_num_tokens: int


class SglangServer(ToldServer):
    """A `ForeignEngine`."""

    name = "SGLang"

    async def describe(self) -> ForeignModel:
        """It answers before it has warmed up: until then `/health` says that it does not serve."""
        await self._questions.health()
        said = await self._questions.document("/server_info", _Information)
        length = await self.max_model_len()
        read_gauges(await self._questions.metrics())
        if not 0 < said.page_size <= said.max_total_num_tokens <= MOST_TOKENS:
            raise NotServing(f"it says pages of {said.page_size} tokens, and room for {said.max_total_num_tokens}")
        return ForeignModel(
            version=said.version,
            max_model_len=length,
            block_size=said.page_size,
            num_kv_blocks=said.max_total_num_tokens // said.page_size,
        )

    def read_gauges(self, text: str) -> Gauges:
        return read_gauges(text)


def read_gauges(text: str) -> Gauges:
    """Of `/metrics`. How many wait is told once for all and once more for each priority; before the first step it is
    not told. Raises NotServing."""
    if not values(text, _ROOM):
        raise NotServing(f"its metrics have no {_ROOM}: it needs --enable-metrics")
    return Gauges.told(
        waiting=max(values(text, _WAITING), default=0.0),
        kv_usage_ratio=max(values(text, _USAGE), default=0.0),
        num_tokens=total(text, *_TOKENS),
    )
