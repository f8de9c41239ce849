"""The model runner: owns the model, the KV cache's memory and the sampler, and runs batches.

The core's engine calls it. It never decides what runs, and only reads the sequences it is given.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import CacheLayout, LayerCache
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name
from fairlead_engine.model import load_model, read_config
from fairlead_engine.runner.batch import prepare
from fairlead_engine.runner.placement import choose_device, choose_dtype, set_num_threads
from fairlead_engine.runner.pooler import Pooler
from fairlead_engine.runner.sampler import Sampler, token_logprobs
from fairlead_engine.types import Batch, SampledToken, ScheduledSequence

_MAX_SCORED_LOGITS = 2**23
"""Of prompts, computed at a time: 32 MiB in float32, and as much again for each step of the softmax."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch whose forward pass was begun; its tensors may still be computed by the device."""

    batch: Batch
    logits: Tensor
    """[items that sample, vocab]."""
    scored: Tensor
    """[rows, hidden]: the hidden states that tell of prompts, item by item."""
    pooled: Tensor
    """[rows, hidden]: those that go into vectors, item by item."""


class ModelRunner:
    """A loaded model with its cache. Raises ModelLoadError when the folder cannot be served."""

    def __init__(
        self,
        model_folder: Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        block_size: int = 16,
        num_threads: int | None = None,
        seed: int = 0,
        attention_backend: str = "auto",
        quantization: str | None = None,
    ) -> None:
        """Loads the model; settings as in `EngineConfig`. The cache comes separately."""
        set_num_threads(num_threads)
        self.model_config = read_config(model_folder)
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.model_config.dtype, self.device)
        self.layout = CacheLayout(
            num_layers=self.model_config.num_layers,
            num_heads=self.model_config.num_heads,
            num_kv_heads=self.model_config.num_kv_heads,
            head_dim=self.model_config.head_dim,
            block_size=block_size,
            dtype=self.dtype,
            device=self.device,
        )
        self.attention_backend = choose_backend_name(attention_backend, self.device)
        self._backend = BACKENDS[self.attention_backend]()
        self._model = load_model(model_folder, self.model_config, self.dtype, self.device, quantization)
        self._caches: list[LayerCache] = []
        self._tables: Any = None
        self._sampler = Sampler(self.model_config.vocab_size, self.model_config.eos_token_ids, seed)
        self._pooler = Pooler()

    @property
    def num_parameters(self) -> int:
        return self._model.num_parameters

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    def kv_bytes_per_block(self) -> int:
        """Bytes that one block takes, keys and values of all layers."""
        return self.layout.bytes_per_block

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        """Makes room for blocks 0 to `num_blocks - 1` and for the tables of sequences in slots 0 to `num_slots - 1`, of
        at most `blocks_per_slot` blocks each; forgets what an earlier cache held."""
        self._caches = []  # frees the earlier one first
        self._caches = self._backend.allocate(self.layout, num_blocks)
        self._tables = self._backend.tables(self.layout, num_slots, blocks_per_slot)

    def block_allocator(self, num_blocks: int) -> BlockAllocator:
        """Places tables as suits the attention backend."""
        return self._backend.allocator(num_blocks)

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Launched:
        """Begins a batch's forward pass; the items' keys and values will be in the cache after it."""
        if not batch:
            return Launched(batch, torch.empty(0), torch.empty(0), torch.empty(0))
        hidden = self._model(prepare(batch, self._backend, self._tables, self.device), self._caches)
        num_sampled = sum(item.samples for item in batch.items)
        num_told = num_sampled + sum(len(item.scores) for item in batch.items)
        logits = self._model.logits(hidden[:num_sampled])
        return Launched(batch, logits, hidden[num_sampled:num_told], hidden[num_told:])

    @torch.inference_mode()
    def collect(self, launched: Launched) -> list[SampledToken | None]:
        """Chooses a token for each item that reaches its sequence's last token; None for others."""
        if not launched.batch:
            return []
        sequences = [item.sequence for item in launched.batch.items if item.samples]
        sampled = iter(self._sampler.sample(launched.logits, sequences))
        self._score([item for item in launched.batch.items if item.scores], launched.scored)
        self._pooler.pool([item for item in launched.batch.items if item.pools], launched.pooled)
        return [next(sampled) if item.samples else None for item in launched.batch.items]

    def _score(self, items: Iterable[ScheduledSequence], hidden: Tensor) -> None:
        """Log-probabilities of prompts' tokens, from their rows' hidden states [rows, hidden] in order.

        A few rows at a time: the logits of all would take gigabytes.
        """
        first, most = 0, max(1, _MAX_SCORED_LOGITS // self.model_config.vocab_size)
        for item in items:
            num_top, token_ids = item.sequence.sampling.prompt_logprobs, item.sequence.token_ids
            for position in item.scores[::most]:
                part = token_ids[position : min(position + most, item.scores.stop)]
                logits = self._model.logits(hidden[first : first + len(part)]).float()
                item.prompt_logprobs += token_logprobs(logits, part, num_top or 0)
                first += len(part)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops what is remembered about requests that will not run again; unknown ids are ignored."""
        request_ids = tuple(request_ids)
        self._sampler.forget(request_ids)
        self._pooler.forget(request_ids)
