"""One rank's part of the model with its part of the cache: what every rank has, and does in every step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.backend import CacheLayout, LayerCache
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name
from fairlead_engine.model import load_model, read_config
from fairlead_engine.model.model_config import ModelConfig
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.batch import prepare
from fairlead_engine.runner.pinning import pin_threads
from fairlead_engine.runner.placement import choose_device, choose_dtype, set_num_threads
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import StepPlan


class PartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to load the model; as in `EngineConfig`."""

    folder: str
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    num_threads: int | None = None
    pin_threads: bool | None = None
    attention_backend: str = "auto"
    quantization: str | None = None


class Computed(NamedTuple):
    """What a step computed, on the device; the same on every rank."""

    logits: Tensor
    """[items that sample, vocab]."""
    scored: Tensor
    """[rows, hidden]: the hidden states that tell of prompts, item by item."""
    pooled: Tensor
    """[rows, hidden]: those that go into vectors, item by item."""
    sample_slots: Tensor
    sample_ends: Tensor


class ModelPart:
    """Raises ModelLoadError when the folder cannot be served, and ConfigError when the model cannot be divided so."""

    def __init__(self, settings: PartSettings, shard: Shard) -> None:
        set_num_threads(settings.num_threads, shard.size)
        folder = Path(settings.folder)
        self.shard = shard
        self.config = read_config(folder)
        _check_divisible(self.config, shard.size)
        self.device = choose_device(settings.device, shard)
        if self.device.type == "cpu":
            pin_threads(settings.pin_threads, shard)
        self.dtype = choose_dtype(settings.dtype, self.config.dtype, self.device)
        heads, kv_heads = shard.part(self.config.num_heads), shard.key_heads(self.config.num_kv_heads)
        self.layout = CacheLayout(
            num_layers=self.config.num_layers,
            num_heads=heads.stop - heads.start,
            num_kv_heads=kv_heads.stop - kv_heads.start,
            head_dim=self.config.head_dim,
            block_size=settings.block_size,
            dtype=self.dtype,
            device=self.device,
        )
        self.attention_backend = choose_backend_name(settings.attention_backend, self.device)
        self.backend = BACKENDS[self.attention_backend]()
        self.model = load_model(folder, self.config, self.dtype, self.device, settings.quantization, shard)
        self.tokens: SlotTokens = None  # type: ignore[assignment]  # made with the cache, before the first step
        self._caches: list[LayerCache] = []
        self._tables: Any = None

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        """Makes room for so many blocks and slots; forgets what an earlier cache held."""
        self._caches = []  # frees the earlier one first
        self._caches = self.backend.allocate(self.layout, num_blocks)
        self._tables = self.backend.tables(self.layout, num_slots, blocks_per_slot)
        self.tokens = SlotTokens(num_slots, blocks_per_slot * self.layout.block_size, self.device)

    def compute(self, plan: StepPlan, block_tables: list[list[int]]) -> Computed:
        """Begins a step's forward pass; its keys and values will be in the cache after it."""
        step, sample_slots, sample_ends = prepare(
            plan, block_tables, self.backend, self._tables, self.tokens, self.device
        )
        hidden = self.model(step, self._caches)
        sizes = [len(sample_slots), len(plan.score_rows), len(plan.pool_rows)]
        sampled, scored, pooled = torch.split(hidden, sizes)
        return Computed(self.model.logits(sampled), scored, pooled, sample_slots, sample_ends)

    def settle(self, computed: Computed, token_ids: Tensor) -> None:
        """Writes what rank 0 has chosen, int64 [items that sample], where the next step begins with it."""
        self.tokens.put(computed.sample_slots, computed.sample_ends, self.shard.tell(token_ids))

    def scored_logits(self, plan: StepPlan, computed: Computed) -> Iterator[Tensor]:
        """float32 [rows, vocab] for each of the plan's `score_sizes`, one at a time: all would take gigabytes."""
        first = 0
        for size in plan.score_sizes:
            yield self.model.logits(computed.scored[first : first + size]).float()
            first += size


def _check_divisible(config: ModelConfig, size: int) -> None:
    """Raises ConfigError, naming the setting, for a model that cannot be divided among so many ranks."""
    kv_heads = config.num_kv_heads
    if config.num_heads % size:
        problem = f"does not divide the model's {config.num_heads} attention heads"
    elif kv_heads % size and size % kv_heads:
        problem = f"neither divides the model's {kv_heads} heads of keys and values nor is a multiple of them"
    elif config.intermediate_size % size:
        problem = f"does not divide the model's intermediate_size, {config.intermediate_size}"
    else:
        return
    raise ConfigError("tensor_parallel_size", f"{size} {problem}", "use a power of two that divides all of them")
