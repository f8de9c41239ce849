"""A small engine on the CPU, and what it answers to prompts when it always takes the likeliest token."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.runner import Runner, load_runner
from fairlead_engine.types import FinishReason
from fairlead_engine_testing.requests import make_request

_SMALL: dict[str, Any] = {
    "dtype": "float32", "device": "cpu", "num_threads": 1, "block_size": 8, "kv_cache_memory": 2**21,
    "max_num_batched_tokens": 256, "max_num_seqs": 4, "max_num_queued_tokens": 1000,
}  # fmt: skip


def small_config(model: Path, **settings: Any) -> EngineConfig:
    """With settings in place of those of a small one."""
    return EngineConfig(model=str(model), **{**_SMALL, **settings})


def small_engine(model: Path, **settings: Any) -> Engine:
    """With settings of `EngineConfig` in place of those of a small one."""
    return Engine(small_config(model, **settings))


def engine_of_blocks(config: EngineConfig, num_blocks: int) -> Engine:
    """With a cache of so many blocks."""
    runner = load_runner(config)
    return Engine(replace(config, kv_cache_memory=cache_bytes(config, runner, num_blocks)), runner)


def cache_bytes(config: EngineConfig, runner: Runner[Any], num_blocks: int) -> int:
    """Memory for so many blocks, and of a recurrent model for the states of the slots and a snapshot."""
    num_states = (config.max_num_seqs or 0) + 1 + config.enable_prefix_caching
    return num_blocks * runner.kv_bytes_per_block() + num_states * runner.state_bytes


def greedy_answers(
    engine: Engine, prompts: Sequence[list[int]], num_new: int, *, per_step: int = 100
) -> list[list[int]]:
    """The tokens that follow each prompt, `num_new` of each whatever they are; `per_step` requests come before each
    step. The books of blocks are checked all along."""
    waiting = [
        make_request(str(index), prompt, max_tokens=num_new, ignore_eos=True, arrival_time=float(index))
        for index, prompt in enumerate(prompts)
    ]
    tokens: list[list[int]] = [[] for _ in prompts]
    while waiting or engine.has_work():
        arrived, waiting = waiting[:per_step], waiting[per_step:]
        for request in arrived:
            assert engine.add(request) is None
        for output in engine.step():
            tokens[int(output.request_id)] += output.new_token_ids
            assert output.finish_reason in (None, FinishReason.LENGTH), output.message
        engine.check()
    return tokens
