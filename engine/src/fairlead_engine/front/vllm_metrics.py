"""vLLM's `/metrics` → the few figures that count here. Pure."""

from fairlead_engine.front.foreign_engine import MOST_TOKENS, Gauges, NotServing
from fairlead_engine.front.prometheus_lines import labels, total, values

_WAITING, _USAGE, _OLD_USAGE = "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"
_CACHE = "vllm:cache_config_info"


def read_gauges(text: str) -> Gauges:
    """Raises NotServing where they are not there, as before the model is loaded."""
    waiting, usage = values(text, _WAITING), values(text, _USAGE) or values(text, _OLD_USAGE)
    if not waiting or not usage:
        raise NotServing(f"its metrics have no {_WAITING} or no {_USAGE}")
    return Gauges.told(
        waiting=sum(waiting),
        kv_usage_ratio=max(usage),
        num_tokens=total(text, "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    )


def read_cache(text: str) -> tuple[int, int]:
    """Tokens per block, and blocks. Raises NotServing."""
    said = labels(text, _CACHE)
    try:
        block_size, num_blocks = int(said["block_size"]), int(said["num_gpu_blocks"])
    except (KeyError, ValueError) as error:
        raise NotServing(f"its metrics do not say block_size and num_gpu_blocks in {_CACHE}") from error
    if not 0 < block_size <= MOST_TOKENS or not 0 < num_blocks <= MOST_TOKENS:
        raise NotServing(f"its metrics say {num_blocks} blocks of {block_size} tokens")
    return block_size, num_blocks
