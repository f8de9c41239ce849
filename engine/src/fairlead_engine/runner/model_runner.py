"""The model runner: owns the model, the KV cache's memory and the sampler, and runs batches.

The core's engine calls it. It never decides what runs, and only reads the sequences it is given.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import CacheLayout, LayerCache
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model import load_model, read_config
from fairlead_engine.runner.batch import prepare
from fairlead_engine.runner.placement import choose_device, choose_dtype, set_num_threads
from fairlead_engine.runner.pooler import Pooler
from fairlead_engine.runner.readback import Readback
from fairlead_engine.runner.sampler import Chosen, Logprobs, Sampler, rank_tokens
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.types import Batch, SampledToken, ScheduledSequence

_MAX_SCORED_LOGITS = 2**23
"""Of prompts, computed at a time: 32 MiB in float32, and as much again for each step of the softmax."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch that was begun; its tensors are on their way from the device to the host."""

    batch: Batch
    chosen: Chosen
    """For the items that sample, in order."""
    scores: list[tuple[ScheduledSequence, Logprobs]]
    """Of prompts' tokens, an item's in order."""
    vectors: list[tuple[ScheduledSequence, Tensor]]
    """float32 [hidden] of the items that embed."""
    readback: Readback


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
        stored = self.model_config.quantization
        self.quantization = quantization if stored is None else ", ".join(sorted(stored.names))
        self.attention_backend = choose_backend_name(attention_backend, self.device)
        self._backend = BACKENDS[self.attention_backend]()
        self._model = load_model(model_folder, self.model_config, self.dtype, self.device, quantization)
        self._caches: list[LayerCache] = []
        self._tables: Any = None
        self._tokens: SlotTokens = None  # type: ignore[assignment]  # made with the cache, before the first launch
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
        self._tokens = SlotTokens(num_slots, blocks_per_slot * self.layout.block_size, self.device)

    def block_allocator(self, num_blocks: int) -> BlockAllocator:
        """Places tables as suits the attention backend."""
        return self._backend.allocator(num_blocks)

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Launched:
        """Begins a batch's forward pass, and the choice of a token for each item that reaches its sequence's last one.

        After it the items' keys and values will be in the cache, and the next batch may begin with what was chosen.
        """
        step, sample_slots, sample_ends = prepare(batch, self._backend, self._tables, self._tokens, self.device)
        hidden, readback = self._model(step, self._caches), Readback()
        sampling = [item for item in batch.items if item.samples]
        scored = [item for item in batch.items if item.scores]
        pooled = [item for item in batch.items if item.pools]
        num_told = len(sampling) + sum(len(item.scores) for item in scored)
        chosen = self._sampler.sample(self._model.logits(hidden[: len(sampling)]), sampling, self._tokens.rows)
        self._tokens.put(sample_slots, sample_ends, chosen.token_ids)
        scores = self._scores(scored, hidden[len(sampling) : num_told])
        vectors = self._pooler.pool(pooled, hidden[num_told:])
        return Launched(
            batch,
            chosen.to(readback),
            [(item, logprobs.to(readback)) for item, logprobs in scores],
            [(item, readback(vector)) for item, vector in vectors],
            readback,
        )

    def collect(self, launched: Launched) -> list[SampledToken | None]:
        """Waits for the batch, and not for what was launched after it. A token for each item that samples, None for
        others; writes the log-probabilities and vectors of prompts into their items, but a vector that is not finite.
        """
        launched.readback.wait()
        for item, logprobs in launched.scores:
            item.prompt_logprobs += logprobs.read()
        for item, vector in launched.vectors:
            if bool(vector.isfinite().all()):
                item.embedding = vector.numpy().astype("<f4").tobytes()
        sampled = iter(launched.chosen.read())
        return [next(sampled) if item.samples else None for item in launched.batch.items]

    def _scores(
        self, items: Iterable[ScheduledSequence], hidden: Tensor
    ) -> Iterator[tuple[ScheduledSequence, Logprobs]]:
        """Log-probabilities of prompts' tokens, from their rows' hidden states [rows, hidden] in order.

        A few rows at a time: the logits of all would take gigabytes.
        """
        first, most = 0, max(1, _MAX_SCORED_LOGITS // self.model_config.vocab_size)
        for item in items:
            num_top, token_ids = item.sequence.sampling.prompt_logprobs, item.sequence.token_ids
            for position in item.scores[::most]:
                part = token_ids[position : min(position + most, item.scores.stop)]
                logits = self._model.logits(hidden[first : first + len(part)]).float()
                yield item, rank_tokens(logits, to_device(np.array(part), self.device), num_top or 0)
                first += len(part)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops what is remembered about requests that will not run again; unknown ids are ignored."""
        request_ids = tuple(request_ids)
        self._sampler.forget(request_ids)
        self._pooler.forget(request_ids)
