"""vLLM behind the door: its version, its one model, its metrics, its KV events."""

import msgspec

from fairlead_engine.front.foreign_engine import MOST_TOKENS, ForeignModel, Gauges, NotServing
from fairlead_engine.front.prometheus_lines import labels, total, values
from fairlead_engine.front.told_server import ToldServer

_WAITING, _USAGE, _OLD_USAGE = "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
_CACHE = "vllm:cache_config_info"


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


def read_gauges(text: str) -> Gauges:
    """Of `/metrics`. Raises NotServing where they are not there, as before the model is loaded."""
    waiting, usage = values(text, _WAITING), values(text, _USAGE) or values(text, _OLD_USAGE)
    if not waiting or not usage:
        raise NotServing(f"its metrics have no {_WAITING} or no {_USAGE}")
    return Gauges.told(
        waiting=sum(waiting),
        kv_usage_ratio=max(usage),
        num_tokens=total(text, "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    )


def read_cache(text: str) -> tuple[int, int]:
    """Of `/metrics`: tokens per block, and blocks. Raises NotServing."""
    said = labels(text, _CACHE)
    try:
        block_size, num_blocks = int(said["block_size"]), int(said["num_gpu_blocks"])
    except (KeyError, ValueError) as error:
        raise NotServing(f"its metrics do not say block_size and num_gpu_blocks in {_CACHE}") from error
    if not 0 < block_size <= MOST_TOKENS or not 0 < num_blocks <= MOST_TOKENS:
        raise NotServing(f"its metrics say {num_blocks} blocks of {block_size} tokens")
    return block_size, num_blocks
