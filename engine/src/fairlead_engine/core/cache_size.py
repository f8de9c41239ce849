"""How long a sequence may become and how many KV blocks there are: configuration against model and memory.

The engine asks once, at start. A context that nobody asked for is lowered to what the memory holds; what does not fit
otherwise ends here, by the name of the setting that would make it fit.
"""

import logging
from dataclasses import dataclass

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError, KVCacheTooSmall
from fairlead_engine.machine.memory import format_bytes, free_memory
from fairlead_protocol.models.choices import CPU_CACHE_BYTES, CPU_CACHE_SHARE, LEAST_LOWERED, LOWERED_MULTIPLE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What was chosen."""

    max_model_len: int
    """Longest prompt plus output, in tokens."""
    num_blocks: int


def choose_cache_size(
    config: EngineConfig, *, device_memory: int | None, bytes_per_block: int, max_position_embeddings: int
) -> CacheSize:
    """The context in tokens, and the KV blocks that fit the configured memory, or what the device has left: bytes, or
    None where it has no memory of its own.

    Without `max_model_len` the context is the model's, or as much of it as the blocks hold. Raises ConfigError when the
    model was not made for what is asked, and KVCacheTooSmall when one sequence of that length does not fit.
    """
    max_model_len = _wanted_length(config, max_position_embeddings)
    if config.kv_cache_memory is not None:
        memory = config.kv_cache_memory
    elif device_memory is not None:
        memory = device_memory
    else:
        memory = min(CPU_CACHE_BYTES, int(CPU_CACHE_SHARE * free_memory()))
    num_blocks = memory // bytes_per_block
    longest = num_blocks * config.block_size
    if max_model_len <= longest:
        return CacheSize(max_model_len, num_blocks)
    bytes_needed = -(-max_model_len // config.block_size) * bytes_per_block
    if config.max_model_len is not None or longest < min(LEAST_LOWERED, max_model_len):
        raise KVCacheTooSmall(
            _too_small(config, memory, longest, bytes_needed, max_model_len, device_memory is not None)
        )
    lowered = longest // LOWERED_MULTIPLE * LOWERED_MULTIPLE
    logger.warning(
        "the context is lowered from the %d tokens this model was made for to %d: its KV cache may take %s and would "
        "need %s; raise kv-cache-memory to %d for all of it, or set max-model-len",
        max_model_len,
        lowered,
        format_bytes(memory),
        format_bytes(bytes_needed),
        bytes_needed,
    )
    return CacheSize(lowered, num_blocks)


def size_without_cache(config: EngineConfig, max_position_embeddings: int) -> CacheSize:
    """The same for a model that sees prompts whole and keeps nothing of them: a prompt has to fit a step.

    Blocks are counted as if it had a cache, so that all else is as of other models: as many as all slots may want. What
    is longest is a prompt and a place for what is read off it. Raises ConfigError.
    """
    assert config.max_num_seqs and config.max_num_batched_tokens
    max_model_len = _wanted_length(config, max_position_embeddings)
    longest = config.max_num_batched_tokens + 1
    if max_model_len > longest:
        if config.max_model_len is not None:
            raise ConfigError(
                "max_num_batched_tokens",
                f"is {config.max_num_batched_tokens}, and prompts of up to {max_model_len - 1} tokens are to be "
                "computed in one step each, as this model sees them whole",
                f"raise it to at least {max_model_len - 1}, or lower max-model-len to {longest}",
            )
        logger.warning(
            "prompts may have %d tokens, of the %d that this model was made for: it sees each of them whole, in one "
            "step; raise max-num-batched-tokens for longer ones",
            longest - 1,
            max_model_len - 1,
        )
        max_model_len = longest
    blocks_per_slot = -(-max_model_len // config.block_size) + 1
    return CacheSize(max_model_len, config.max_num_seqs * blocks_per_slot)


def _wanted_length(config: EngineConfig, max_position_embeddings: int) -> int:
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


def _too_small(
    config: EngineConfig, memory: int, longest: int, bytes_needed: int, max_model_len: int, on_device: bool
) -> str:
    source = "kv-cache-memory allows" if config.kv_cache_memory else "there is room for"
    shorter = f"set max-model-len to at most {longest}, or " if longest >= 2 else ""
    if config.kv_cache_memory is None and on_device:
        more = "raise gpu-memory-utilization, or take a device with more memory"
    else:
        more = f"raise kv-cache-memory to at least {bytes_needed} (and the container's memory with it)"
    return (
        f"the KV cache for one sequence of {max_model_len} tokens needs {format_bytes(bytes_needed)}, "
        f"but {source} {format_bytes(memory)}, which holds {longest} tokens; "
        f"{shorter}{more}"
    )
