"""The runner of encoders: a step's whole prompts become vectors, without a cache and without sampling.

Takes `ModelRunner`'s place for models in which each token sees all others. The core puts every prompt into one step
(`SchedulerLimits.whole_prompts`).
"""

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairlead_common.models.families.registry import find_encoder
from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import AdapterError, ConfigError
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator, LRUBlocks
from fairlead_engine.kernels.attention.whole_prompts import group_by_reach
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.encoders import load_encoder, read_encoder_config
from fairlead_engine.model.encoders.encoder import EncoderStep
from fairlead_engine.model.shard import ALONE
from fairlead_engine.runner.cuda_device import Readback
from fairlead_engine.runner.placement import choose_device, choose_dtype, pin_threads, set_num_threads
from fairlead_engine.runner.pooler import Pooler, write_vectors
from fairlead_engine.types.adapters import AdapterFacts
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import SampledToken, ScheduledSequence

_NEEDLESS = {
    "quantization": "an encoder's weights are computed as they are stored",
    "kv_cache_memory": "an encoder keeps no keys and values",
    "head_quantization": "an encoder has no output projection",
    "speculative_method": "an encoder generates nothing",
    "merged_adapter": "an encoder takes no adapters",
    "profile": "an encoder's costs are learnt from its steps",
}
"""Settings without effect, with the reason."""


def is_encoder(folder: Path) -> bool:
    """Whether the folder has a model for this runner. Raises ModelLoadError for an invalid `config.json`."""
    path = folder / "config.json"
    return path.exists() and find_encoder(JsonFields.read(path)) is not None


@dataclass(frozen=True, slots=True)
class LaunchedPrompts:
    """A batch under way; its vectors are being copied from the device to the host."""

    batch: Batch
    vectors: list[tuple[ScheduledSequence, Tensor]]
    readback: Readback


class EncoderRunner:
    """A loaded encoder. Raises ModelLoadError for an unsupported folder, and ConfigError for an unfit setting."""

    quantization: str | None = None
    attention_backend = "whole_prompts"
    kv_cache_dtype = "auto"

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        _check(config)
        set_num_threads(config.num_threads)
        self.model_config = read_encoder_config(folder)
        self.device = choose_device(config.device)
        if self.device.type == "cpu":
            pin_threads(config.pin_threads, ALONE)
        self.dtype = choose_dtype(config.dtype, self.model_config.dtype, self.device)
        self._model = load_encoder(folder, self.model_config, self.dtype, self.device)
        self.num_parameters, self.weight_bytes = self._model.num_parameters, self._model.weight_bytes
        self._pooler = Pooler(self._model.classifier, self._model.projection)

    def kv_bytes_per_block(self) -> int:
        return 0

    def memory_for_cache(
        self, utilization: float, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> int | None:
        return None

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        """No cache."""

    def allocate_places(self, num_places: int) -> None:
        raise NotImplementedError

    def save_blocks(self, blocks: list[int], places: list[int]) -> None:
        raise NotImplementedError

    def load_blocks(self, places: list[int], blocks: list[int]) -> Callable[[], bool]:
        raise NotImplementedError

    def compile_steps(self, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        """Everything is torch's."""

    def block_allocator(self, num_blocks: int) -> BlockAllocator:
        """Blocks are only counted."""
        return LRUBlocks(num_blocks)

    num_adapter_slots, state_bytes = 0, 0

    def allocate_snapshots(self, num_slots: int, num_snapshots: int) -> None:
        """Never called, as there are no states."""

    def read_adapter(self, key: int, folder: Path) -> "Future[AdapterFacts]":
        """Never called, as there is no slot."""
        raise AdapterError("an encoder takes no adapters")

    def place_adapter(self, key: int, slot: int) -> None:
        """Never called."""

    def forget_adapter(self, key: int) -> None:
        """Never called."""

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedPrompts:
        """Begins to compute a batch of whole prompts."""
        items = batch.chunks
        lengths = np.array([item.num_tokens for item in items], np.int64)
        columns = np.concatenate([self._columns(item) for item in items], axis=1)
        starts = (np.cumsum(lengths) - lengths).tolist()
        rows = [np.arange(item.pools.start, item.pools.stop) + start for item, start in zip(items, starts, strict=True)]
        token_ids, positions, types = to_device(columns, self.device)
        groups = group_by_reach(lengths, self.device, self.model_config.reaches)
        hidden = self._model(EncoderStep(token_ids, positions, types, groups))
        found = self._pooler.pool(items, hidden[to_device(np.concatenate(rows), self.device)])
        readback = Readback()
        return LaunchedPrompts(batch, [(item, readback(vector)) for item, vector in found], readback)

    def is_over(self, launched: LaunchedPrompts) -> bool:
        return launched.readback.is_over()

    def collect(self, launched: LaunchedPrompts) -> list[SampledToken | None]:
        """Waits for the batch and writes the finite vectors into its items. No tokens."""
        launched.readback.wait()
        write_vectors(launched.vectors)
        return [None] * len(launched.batch)

    def forget(self, request_ids: Collection[str]) -> None:
        self._pooler.forget(request_ids)

    def _columns(self, item: ScheduledSequence) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        """int64 [3, tokens]: token, position and text type of each."""
        config, sequence = self.model_config, item.sequence
        assert item.start == 0 and item.end == sequence.num_prompt_tokens, "an encoder sees a prompt whole"
        token_ids = np.array(sequence.token_ids, np.int64)
        positions = np.arange(item.num_tokens) + config.first_position
        if config.padding is not None and (is_padding := token_ids == config.padding).any():
            positions = np.where(is_padding, config.padding, np.cumsum(~is_padding) + config.padding)
        types = np.zeros_like(token_ids)
        if sequence.second_start is not None and config.num_types > 1:
            types[sequence.second_start :] = 1
        return np.stack((token_ids, positions, types))


def _check(config: EngineConfig) -> None:
    """Raises ConfigError for a setting without effect."""
    for name, reason in _NEEDLESS.items():
        if getattr(config, name) is not None:
            raise ConfigError(name, f"is set, and {reason}", "leave it out")
    for name in ("attention_backend", "kv_cache_dtype"):
        if getattr(config, name) != "auto":
            raise ConfigError(
                name, f"is {getattr(config, name)}, and an encoder keeps no keys and values", "leave it out"
            )
    if config.num_adapter_slots:
        raise ConfigError("max_loras", "or adapters are set, and an encoder takes none", "leave them out")
    if config.tensor_parallel_size > 1:
        raise ConfigError(
            "tensor_parallel_size", f"is {config.tensor_parallel_size}, and an encoder is not divided", "leave it out"
        )
