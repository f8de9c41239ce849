"""The parts of an engine at its start: context length and KV blocks, limits, drafts, and the first steps.

A default context is lowered to the memory's size; anything else that does not fit ends the start with the name of the
setting to change.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairlead_common.models.choices import CPU_CACHE_BYTES, CPU_CACHE_SHARE, LEAST_LOWERED, LOWERED_MULTIPLE
from fairlead_common.models.image_settings import ImageSettings
from fairlead_common.wire.profiles import EngineProfile
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.block_manager import BlockManager
from fairlead_engine.core.clock import Clock
from fairlead_engine.core.host_blocks import HostTier
from fairlead_engine.core.runner import Runner, RunnerModel
from fairlead_engine.core.scheduler import SchedulerLimits
from fairlead_engine.core.state_snapshots import StateSnapshots
from fairlead_engine.core.step_cost import StepWork
from fairlead_engine.errors import ConfigError, KVCacheTooSmall
from fairlead_engine.machine.memory import format_bytes, free_memory
from fairlead_engine.speculative.drafting import Drafting
from fairlead_engine.types import EngineInfo, ModelTask, SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence, Sequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheSize:
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    num_blocks: int
    num_snapshots: int = 0
    """Of a recurrent model's states, beside those of the slots."""


def choose_cache_size(
    config: EngineConfig, *, device_memory: int | None, bytes_per_block: int, max_position_embeddings: int,
    state_bytes: int = 0,
) -> CacheSize:  # fmt: skip
    """Context and KV blocks for the configured memory, or for `device_memory` bytes; None = the device has no memory of
    its own. `state_bytes`: of a sequence of a recurrent model. Without `max_model_len` the context is the model's, or
    as much of it as the blocks hold. Raises ConfigError for a context beyond the model's, and KVCacheTooSmall when one
    sequence does not fit."""
    max_model_len = _wanted_length(config, max_position_embeddings)
    if config.kv_cache_memory is not None:
        memory = config.kv_cache_memory
    elif device_memory is not None:
        memory = device_memory
    else:
        memory = min(CPU_CACHE_BYTES, int(CPU_CACHE_SHARE * free_memory()))
    memory = max(0, memory - state_bytes * ((config.max_num_seqs or 0) + 1))
    num_blocks = memory // bytes_per_block
    longest = num_blocks * config.block_size
    if max_model_len <= longest:
        num_needed = -(-max_model_len // config.block_size)
        for_states = min(memory // 2, memory - num_needed * bytes_per_block)
        num_snapshots = for_states // state_bytes if state_bytes and config.enable_prefix_caching else 0
        return CacheSize(max_model_len, (memory - num_snapshots * state_bytes) // bytes_per_block, num_snapshots)
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
    """Sizes for a model that sees prompts whole and caches nothing: a prompt has to fit a step. Blocks are counted as
    for a cache, for all slots. The longest context is a prompt and one position for its result. Raises ConfigError."""
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
        state_bytes=runner.state_bytes,
    )


def limits_of(config: EngineConfig, task: ModelTask, size: CacheSize, profile: EngineProfile | None) -> SchedulerLimits:
    """Limits of the scheduler; `config` is for the device."""
    assert config.max_num_seqs and config.max_num_batched_tokens and config.max_num_queued_tokens
    return SchedulerLimits(
        max_model_len=size.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_queued_tokens=config.max_num_queued_tokens,
        max_batch_weight=profile.max_batch_weight.most if profile else None,
        whole_prompts=task.sees_all,
        whole_images=_whole_images(config.max_num_seqs, config.max_num_batched_tokens, task.images),
    )


def _whole_images(max_num_seqs: int, max_num_batched_tokens: int, images: ImageSettings | None) -> bool:
    """`SchedulerLimits.whole_images`. Raises ConfigError for a step without room for an image."""
    if images is None or not images.see_each_other:
        return False
    least = images.most_tokens + max_num_seqs - 1
    if max_num_batched_tokens < least:
        problem = f"is {max_num_batched_tokens}, and an image's {images.most_tokens} tokens are computed in one step"
        remedy = f"raise it to {least} at least, which leaves a token for each other sequence, or lower max-num-seqs"
        raise ConfigError("max_num_batched_tokens", problem, remedy)
    return True


def allocated_blocks(config: EngineConfig, runner: Runner[Any], size: CacheSize, clock: Clock) -> BlockManager:
    """The cache's blocks, with room on the device and in the host's memory. Raises ConfigError and KVCacheTooSmall."""
    bytes_per_block, host = runner.kv_bytes_per_block(), None
    num_places = _num_places(config, bytes_per_block)
    memory, setting = size.num_blocks * bytes_per_block, "kv-cache-memory"
    try:
        runner.allocate_kv_cache(size.num_blocks, config.max_num_seqs or 0, -(-size.max_model_len // config.block_size))
        if size.num_snapshots:
            runner.allocate_snapshots(config.max_num_seqs or 0, size.num_snapshots)
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
        states=StateSnapshots(size.num_snapshots) if runner.state_bytes else None,
        now=clock.monotonic,
    )


def _num_places(config: EngineConfig, bytes_per_block: int) -> int:
    """Blocks for the host's memory. Raises ConfigError."""
    if config.host_kv_cache_memory is None:
        return 0
    if not bytes_per_block:
        raise ConfigError("host_kv_cache_memory", "is set, and this model keeps no keys and values", "leave it out")
    if config.host_kv_cache_memory < bytes_per_block:
        problem = f"{config.host_kv_cache_memory} is less than the {bytes_per_block} bytes of one block"
        raise ConfigError("host_kv_cache_memory", problem, "raise it, or leave it out")
    return config.host_kv_cache_memory // bytes_per_block


def drafting_of(config: EngineConfig) -> Drafting | None:
    """The core's drafting; None without a method."""
    if (method := config.drafting_method) is None:
        return None
    return Drafting(method.proposer(*config.lookup_lengths), config.most_places, config.tree)


def info_of(
    runner: Runner[Any],
    limits: SchedulerLimits,
    blocks: BlockManager,
    adapters: tuple[str, ...],
    start_seconds: dict[str, float],
) -> EngineInfo:
    return EngineInfo(
        architecture=runner.model_config.architecture,
        dtype=str(runner.dtype).removeprefix("torch."),
        device=str(runner.device),
        attention_backend=runner.attention_backend,
        kv_cache_dtype=runner.kv_cache_dtype,
        vocab_size=runner.model_config.vocab_size,
        hidden_size=runner.model_config.vector_size,
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
        keeps_states=blocks.states is not None,
        start_seconds=start_seconds,
    )


def _device_memory(runner: Runner[Any], config: EngineConfig) -> int | None:
    """Bytes left on the device for a cache. Raises KVCacheTooSmall where not even one step fits."""
    num_seqs, num_tokens = config.max_num_seqs or 0, config.max_num_batched_tokens or 0
    max_model_len = config.max_model_len or runner.model_config.max_position_embeddings
    try:
        return runner.memory_for_cache(config.gpu_memory_utilization, num_seqs, num_tokens, max_model_len)
    except (MemoryError, RuntimeError) as error:  # the latter is torch's
        step = f"a step of {num_tokens} tokens and {num_seqs} sequences"
        raise KVCacheTooSmall(f"{step} cannot be computed ({error}); lower max-num-batched-tokens") from error


_NUM_SHORT = 3
_SHORT_TOKENS = 16
"""Tokens of the short sequences, and of the second chunk of the long one."""


def warm_up(
    runner: Runner[Any], limits: SchedulerLimits, block_size: int, num_blocks: int, clock: Clock
) -> list[tuple[StepWork, float]]:
    """Prefills and decodes sequences of no client; returns the work and the seconds of each measured step. Writes to
    blocks from 0 on, all still unused. Raises the runner's errors."""
    sequences = list(_sequences(limits, block_size, num_blocks, runner.model_config))
    long, short = sequences[:1], sequences[1:]
    _run(runner, short or long, clock)  # the first pass pays for lazy initialisation: not measured
    measured = []
    if limits.whole_prompts:
        measured += [_run(runner, group, clock) for group in (long, short, long) if group]
        runner.forget([sequence.request_id for sequence in sequences])
        return measured
    for group in (long, short) if short else (long,):
        measured.append(_run(runner, group, clock))
        for sequence in group:
            sequence.num_computed_tokens = max(0, sequence.num_tokens - _SHORT_TOKENS)
    measured.append(_run(runner, long, clock))  # tells what context costs from what tokens cost
    for sequence in sequences:
        sequence.num_computed_tokens = sequence.num_tokens
        sequence.token_ids.append(0)
    measured += [_run(runner, group, clock) for group in ((long, sequences) if short else (long,))]
    runner.forget([sequence.request_id for sequence in sequences])
    return measured


def _sequences(limits: SchedulerLimits, block_size: int, num_blocks: int, model: RunnerModel) -> Iterator[Sequence]:
    """A sequence as long as a step may compute, and a few short sequences, as far as the cache has room."""
    longest = min(limits.max_num_batched_tokens, limits.max_model_len - 1)
    lengths = [longest] + [min(_SHORT_TOKENS, longest)] * min(_NUM_SHORT, limits.max_num_seqs - 1)
    end, generates = 0, model.task.generates
    for index, length in enumerate(lengths):
        start, end = end, end + -(-(length + 1) // block_size)  # the decode writes one more token
        if end > num_blocks:
            return
        yield Sequence(
            request_id=f"warm-up-{index}",
            token_ids=[token % model.vocab_size for token in range(length)],
            num_prompt_tokens=length,
            sampling=SamplingParams(temperature=float(index % 2), ignore_eos=True, max_tokens=None if generates else 0),
            pooling=None if generates else model.task.pooling,
            slot=index,
            block_table=list(range(start, end)),
        )


def _run(runner: Runner[Any], sequences: list[Sequence], clock: Clock) -> tuple[StepWork, float]:
    batch = Batch([ScheduledSequence(sequence, sequence.num_uncomputed_tokens) for sequence in sequences])
    clock.start()
    runner.collect(runner.launch(batch))
    return StepWork.of(batch), clock.elapsed()
