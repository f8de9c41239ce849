"""The model runner: owns the model, the KV cache's memory and the sampler, and runs one batch at a time.

The core's engine calls it. It never decides what runs, and only reads the sequences it is given.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fairlead_engine.model import ModelConfig, load_model
from fairlead_engine.model.layers import LayerCache
from fairlead_engine.runner.batch import prepare
from fairlead_engine.runner.placement import choose_device, choose_dtype, set_num_threads
from fairlead_engine.runner.sampler import Sampler, token_logprobs
from fairlead_engine.types import Batch, SampledToken, ScheduledSequence

_MAX_SCORED_LOGITS = 2**23
"""Of prompts, computed at a time: 32 MiB in float32, and as much again for each step of the softmax."""


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
    ) -> None:
        """Loads the model; `dtype`, `device` and `num_threads` as in `EngineConfig`. The cache comes separately."""
        set_num_threads(num_threads)
        self.model_config = ModelConfig.from_folder(model_folder)
        self.device = choose_device(device)
        self.dtype = choose_dtype(dtype, self.model_config.dtype, self.device)
        self.block_size = block_size
        self._model = load_model(model_folder, self.model_config, self.dtype, self.device)
        self._caches: list[LayerCache] = []
        self._sampler = Sampler(self.model_config.vocab_size, self.model_config.eos_token_ids, seed)

    @property
    def num_parameters(self) -> int:
        return self._model.num_parameters

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    def kv_bytes_per_block(self) -> int:
        """Bytes that one block takes, keys and values of all layers."""
        config = self.model_config
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * self.block_size * self.dtype.itemsize

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Makes room for blocks 0 to `num_blocks - 1`, and forgets what an earlier cache held.

        The memory is left as it is, since only slots that were written are ever read: so on a CPU the operating system
        hands it out block by block, as it is first used.
        """
        config = self.model_config
        shape = (config.num_kv_heads, num_blocks * self.block_size, config.head_dim)
        self._caches = []
        self._caches = [
            LayerCache(
                keys=torch.empty(shape, dtype=self.dtype, device=self.device),
                values=torch.empty(shape, dtype=self.dtype, device=self.device),
            )
            for _ in range(config.num_layers)
        ]

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[SampledToken | None]:
        """Computes a batch and chooses a token for each item that reaches its sequence's last token; None for others.

        The items' keys and values are in the cache afterwards.
        """
        if not batch:
            return []
        step = prepare(batch, self.block_size, self.dtype, self.device)
        hidden = self._model(step, self._caches)
        sequences = [item.sequence for item in batch.items if item.samples]
        sampled = iter(self._sampler.sample(self._model.logits(hidden[: len(sequences)]), sequences))
        self._score([item for item in batch.items if item.scores], hidden[len(sequences) :])
        return [next(sampled) if item.samples else None for item in batch.items]

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
        self._sampler.forget(request_ids)
