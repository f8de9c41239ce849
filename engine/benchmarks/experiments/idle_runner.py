"""A runner that prepares batches as a real one does and computes nothing."""

import random
from typing import Any

import numpy as np
import torch

from fairlead_engine.kernels.attention.backend import CacheLayout
from fairlead_engine.kernels.attention.choice import BACKENDS
from fairlead_engine.kernels.staging import stage
from fairlead_engine.runner.prepared_batch import prepare
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import SentSlots, plan_step
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import SampledToken
from fairlead_engine_testing.fake_runner import FakeModelConfig, FakeRunner

BYTES_PER_SLOT = 4
"""Of the cache for each token: two bfloat16 numbers."""


class IdleRunner(FakeRunner):
    """Tokens are drawn from `ids` by a seeded generator. With `graphs`, decodes are staged as for a graph on CUDA."""

    def __init__(self, backend: str, block_size: int, seed: int, ids: range, *, graphs: bool = False) -> None:
        self._backend = BACKENDS[backend]()
        config = FakeModelConfig(vocab_size=ids.stop, max_position_embeddings=32_768, eos_token_ids=(ids.stop - 1,))
        super().__init__(config, block_size=block_size, block_allocator=self._backend.allocator)
        self.attention_backend = backend
        self.num_chunks = 0
        """Of the last batch."""
        self._graphs, self._ids, self._random = graphs, ids[:-1], random.Random(seed)
        self._layout = CacheLayout(
            num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1, block_size=block_size,
            dtype=torch.bfloat16, device=torch.device("cpu"),
        )  # fmt: skip

    def kv_bytes_per_block(self) -> int:
        return BYTES_PER_SLOT * self.block_size

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        self._tables = self._backend.tables(self._layout, num_slots, blocks_per_slot)
        self._sent = SentSlots(num_slots)
        self._tokens = SlotTokens(num_slots, blocks_per_slot * self.block_size, self._layout.device)

    def launch(self, batch: Batch) -> Any:
        plan = plan_step(batch, self._sent, most_scored=1)
        self.num_chunks = len(batch.chunks)
        if self._graphs and not batch.chunks:  # as `ModelPart` does where it has captured them
            self._tokens.add(plan.new_tokens)
            self._tables.update(plan.new_blocks)
            stage(np.stack((plan.slots, plan.context_lens)), torch.empty((2, len(batch)), dtype=torch.int64))
        else:
            prepare(plan, self._backend, self._tables, self._tokens, self._layout.device)
        return batch

    def collect(self, launched: Any) -> list[SampledToken | None]:
        samples = [True] * len(launched.decodes) + [item.samples for item in launched.chunks]
        return [SampledToken(self._random.choice(self._ids)) if each else None for each in samples]
