"""What an engine begins with, made of its configuration: room for keys and values, who guesses, and what it tells of
itself."""

from typing import Any

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.cache_size import CacheSize, choose_cache_size, size_without_cache
from fairlead_engine.core.host_blocks import HostTier
from fairlead_engine.core.runner import Runner
from fairlead_engine.core.scheduler import Limits
from fairlead_engine.errors import ConfigError, KVCacheTooSmall
from fairlead_engine.machine.memory import format_bytes
from fairlead_engine.speculative.drafting import Drafting
from fairlead_engine.types import EngineInfo, ModelTask
from fairlead_protocol.profiles import EngineProfile


def cache_size_of(config: EngineConfig, runner: Runner[Any]) -> CacheSize:
    """Blocks of the cache, and the longest context. Raises ConfigError and KVCacheTooSmall."""
    model = runner.model_config
    if model.task.sees_all:
        return size_without_cache(config, model.max_position_embeddings)
    return choose_cache_size(
        config,
        device_memory=None if config.kv_cache_memory else _device_memory(runner, config),
        bytes_per_block=runner.kv_bytes_per_block(),
        max_position_embeddings=model.max_position_embeddings,
    )


def limits_of(config: EngineConfig, task: ModelTask, size: CacheSize, profile: EngineProfile | None) -> Limits:
    """What the scheduler keeps to; `config` is for the device."""
    assert config.max_num_seqs and config.max_num_batched_tokens and config.max_num_queued_tokens
    return Limits(
        max_model_len=size.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_queued_tokens=config.max_num_queued_tokens,
        max_batch_weight=profile.max_batch_weight.most if profile else None,
        whole_prompts=task.sees_all,
    )


def allocated_blocks(config: EngineConfig, runner: Runner[Any], size: CacheSize) -> BlockManager:
    """The blocks of the cache, for which the runner has made room on the device and in the host's memory. Raises
    ConfigError and KVCacheTooSmall."""
    bytes_per_block, host = runner.kv_bytes_per_block(), None
    num_places = _num_places(config, bytes_per_block)
    memory, setting = size.num_blocks * bytes_per_block, "kv-cache-memory"
    try:
        runner.allocate_kv_cache(size.num_blocks, config.max_num_seqs or 0, -(-size.max_model_len // config.block_size))
        if num_places:
            memory, setting = num_places * bytes_per_block, "host-kv-cache-memory"
            runner.allocate_places(num_places)
            host = HostTier(num_places, runner)
    except (MemoryError, RuntimeError) as error:  # the latter is torch's
        raise KVCacheTooSmall(f"no {format_bytes(memory)} can be had for the KV cache; lower {setting}") from error
    return BlockManager(
        size.num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching and not runner.model_config.task.sees_all,
        make_allocator=runner.block_allocator,
        host=host,
    )


def _num_places(config: EngineConfig, bytes_per_block: int) -> int:
    """Blocks that the host's memory is to keep. Raises ConfigError."""
    if config.host_kv_cache_memory is None:
        return 0
    if not bytes_per_block:
        raise ConfigError("host_kv_cache_memory", "is set, and this model keeps no keys and values", "leave it out")
    if config.host_kv_cache_memory < bytes_per_block:
        problem = f"{config.host_kv_cache_memory} is less than the {bytes_per_block} bytes of one block"
        raise ConfigError("host_kv_cache_memory", problem, "raise it, or leave it out")
    return config.host_kv_cache_memory // bytes_per_block


def drafting_of(config: EngineConfig) -> Drafting | None:
    """Who guesses what comes next, where anybody does."""
    if (method := config.drafting_method) is None:
        return None
    return Drafting(method.proposer(*config.lookup_lengths), config.most_places, config.tree)


def info_of(
    runner: Runner[Any],
    limits: Limits,
    blocks: BlockManager,
    adapters: tuple[str, ...],
    start_seconds: dict[str, float],
) -> EngineInfo:
    """What the engine tells of itself once it has started."""
    return EngineInfo(
        architecture=runner.model_config.architecture,
        dtype=str(runner.dtype).removeprefix("torch."),
        device=str(runner.device),
        attention_backend=runner.attention_backend,
        kv_cache_dtype=runner.kv_cache_dtype,
        vocab_size=runner.model_config.vocab_size,
        max_model_len=limits.max_model_len,
        max_position_embeddings=runner.model_config.max_position_embeddings,
        block_size=blocks.block_size,
        num_kv_blocks=blocks.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_queued_tokens=limits.max_num_queued_tokens,
        eos_token_ids=runner.model_config.eos_token_ids,
        num_parameters=runner.num_parameters,
        weight_bytes=runner.weight_bytes,
        kv_cache_bytes=blocks.num_blocks * runner.kv_bytes_per_block(),
        adapters=adapters,
        task=runner.model_config.task,
        shares_prefixes=blocks.enable_prefix_caching,
        start_seconds=start_seconds,
    )


def _device_memory(runner: Runner[Any], config: EngineConfig) -> int | None:
    """What the device has left for a cache. Raises KVCacheTooSmall where not even one step fits."""
    num_seqs, num_tokens = config.max_num_seqs or 0, config.max_num_batched_tokens or 0
    max_model_len = config.max_model_len or runner.model_config.max_position_embeddings
    try:
        return runner.memory_for_cache(config.gpu_memory_utilization, num_seqs, num_tokens, max_model_len)
    except (MemoryError, RuntimeError) as error:  # the latter is torch's
        step = f"a step of {num_tokens} tokens and {num_seqs} sequences"
        raise KVCacheTooSmall(f"{step} cannot be computed ({error}); lower max-num-batched-tokens") from error
