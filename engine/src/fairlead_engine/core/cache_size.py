"""How long a sequence may become and how many KV blocks there are: configuration against model and memory.

The engine asks once, at start. What does not fit ends here, by the name of the setting that would make it fit.
"""

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.memory import format_bytes, free_cuda_memory, free_memory
from fairlead_engine.errors import ConfigError, KVCacheTooSmall

_CPU_CACHE_BYTES = 2**30
_CPU_CACHE_SHARE = 0.4
"""A CPU's memory is shared with weights, page cache and neighbours; a GPU's is not."""


def choose_max_model_len(config: EngineConfig, max_position_embeddings: int) -> int:
    """The context limit in tokens. Raises ConfigError when the model was not made for what is asked."""
    chosen = config.max_model_len or max_position_embeddings
    if chosen > max_position_embeddings:
        raise ConfigError(
            "max_model_len",
            f"{chosen} is more than the {max_position_embeddings} tokens this model was made for",
            f"set it to at most {max_position_embeddings}, or leave it out",
        )
    if chosen < 2:
        raise ConfigError("max_model_len", f"{chosen} leaves no room for a prompt and an output", "set it to 2 or more")
    return chosen


def choose_num_blocks(config: EngineConfig, *, device: str, bytes_per_block: int, max_model_len: int) -> int:
    """KV blocks that fit the configured memory, or what the device has left.

    Raises KVCacheTooSmall when they do not hold one sequence of `max_model_len` tokens.
    """
    memory = config.kv_cache_memory or _memory_left(config, device)
    num_blocks = memory // bytes_per_block
    num_needed = -(-max_model_len // config.block_size)
    if num_blocks < num_needed:
        raise KVCacheTooSmall(_too_small(config, memory, num_blocks, num_needed * bytes_per_block, max_model_len))
    return num_blocks


def _memory_left(config: EngineConfig, device: str) -> int:
    if device.startswith("cuda"):
        return free_cuda_memory(config.gpu_memory_utilization)
    return min(_CPU_CACHE_BYTES, int(_CPU_CACHE_SHARE * free_memory()))


def _too_small(config: EngineConfig, memory: int, num_blocks: int, bytes_needed: int, max_model_len: int) -> str:
    longest = num_blocks * config.block_size
    source = "kv-cache-memory allows" if config.kv_cache_memory else "there is room for"
    shorter = f"set max-model-len to at most {longest}, or " if longest >= 2 else ""
    return (
        f"the KV cache for one sequence of {max_model_len} tokens needs {format_bytes(bytes_needed)}, "
        f"but {source} {format_bytes(memory)}, which holds {longest} tokens; "
        f"{shorter}raise kv-cache-memory to at least {bytes_needed} (and the container's memory with it)"
    )
