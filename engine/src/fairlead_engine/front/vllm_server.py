"""vLLM behind the door: its version, its one model, its metrics, its KV events."""

import msgspec

from fairlead_engine.front.foreign_engine import ForeignModel, Gauges
from fairlead_engine.front.told_server import ToldServer
from fairlead_engine.front.vllm_metrics import read_cache, read_gauges


class _Version(msgspec.Struct):
    version: str


class VllmServer(ToldServer):
    """A `ForeignEngine`."""

    name = "vLLM"

    async def describe(self) -> ForeignModel:
        version = (await self._questions.document("/version", _Version)).version
        length = await self.max_model_len()
        block_size, num_blocks = read_cache(await self._questions.metrics())
        return ForeignModel(version=version, max_model_len=length, block_size=block_size, num_kv_blocks=num_blocks)

    def read_gauges(self, text: str) -> Gauges:
        return read_gauges(text)
