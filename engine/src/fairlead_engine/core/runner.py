"""What the engine needs of a runner: `ModelRunner` in the product, `FakeRunner` in tests."""

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.host_blocks import BlockMover
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.model.tokenizer_files import check_same_tokens
from fairlead_engine.types import ModelTask
from fairlead_engine.types.adapters import AdapterFacts
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import SampledToken

Launched = TypeVar("Launched")
"""A batch under way, from a runner's `launch` to its `collect`."""


class RunnerModel(Protocol):
    """Facts about a model for scheduling."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def vector_size(self) -> int:
        """Elements of the vector of a text."""

    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def task(self) -> ModelTask: ...


class Runner(BlockMover, Protocol[Launched]):
    """Computes batches. Never decides what runs; reads sequences without changing them."""

    @property
    def model_config(self) -> RunnerModel: ...
    @property
    def device(self) -> Any:
        """Prints as cpu, cuda or cuda:INDEX."""

    @property
    def dtype(self) -> Any:
        """Prints as the number format's name, with or without `torch.` in front."""

    @property
    def quantization(self) -> str | None:
        """Format of the weights of linear layers; None = they are floats."""

    @property
    def attention_backend(self) -> str:
        """Name of what computes attention."""

    @property
    def kv_cache_dtype(self) -> str:
        """Format of keys and values in the cache, as `EngineConfig` spells it."""

    @property
    def num_parameters(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

    def kv_bytes_per_block(self) -> int:
        """Bytes of cache that one block takes; 0 = the model keeps nothing."""

    def memory_for_cache(
        self, utilization: float, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> int | None:
        """Bytes for a cache: the share `utilization` of the device's memory, less what steps of at most these sizes
        need; None = the device has no memory of its own. Call before `allocate_kv_cache`, or never."""

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        """Makes room for blocks 0 to `num_blocks - 1` and for `num_slots` block tables; once, before `launch`."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's state in a recurrent model; 0 = the model has none."""

    def allocate_snapshots(self, num_slots: int, num_snapshots: int) -> None:
        """Makes room for snapshots of states beside those of the slots; after `allocate_kv_cache`, where there are
        states."""

    def allocate_places(self, num_places: int) -> None:
        """Makes room for copies of blocks in the host's memory; called at most once, after `allocate_kv_cache`."""

    def compile_steps(self, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        """Compiles for all possible steps; after `allocate_kv_cache`, before `launch`. Raises ConfigError."""

    def block_allocator(self, num_blocks: int) -> BlockAllocator:
        """Chooses free blocks as suits the attention backend; all blocks are empty."""

    @property
    def num_adapter_slots(self) -> int:
        """Adapters on the device at once, at most."""

    def read_adapter(self, key: int, folder: Path) -> Future[AdapterFacts]:
        """Begins to read an adapter into the host's memory, beside the steps. The result may be an AdapterError."""

    def place_adapter(self, key: int, slot: int) -> None:
        """Places a read adapter for later launches."""

    def forget_adapter(self, key: int) -> None:
        """Drops an adapter from the host's memory; a placed one stays in its slot."""

    def launch(self, batch: Batch) -> Launched:
        """Begins to compute a non-empty batch, and returns at once. Another batch may be under way; where a sequence
        lacks that batch's tokens, this batch begins with them."""

    def is_over(self, launched: Launched) -> bool:
        """Whether `collect` would wait for nothing."""

    def collect(self, launched: Launched) -> list[SampledToken | None]:
        """Waits for a batch, in the order of launches. One entry per item: a token where the item `samples`, else None.

        `NO_TOKEN` or `RULED_OUT` where no token can be chosen. Fills `prompt_logprobs` of items with `scores`,
        `embedding` of items that embed, and `chosen` of items with drafts (`drafting.verified`), whose first token is
        returned. The sequences may have moved on.
        """

    def forget(self, request_ids: Collection[str]) -> None:
        """Drops what is kept of ended requests; unknown ids are ignored."""


def load_runner(config: EngineConfig) -> Runner[Any]:
    """The model of `config`, loaded. Raises ModelLoadError and ConfigError."""
    # Both imports pull in torch, which only the process that computes may load.
    from fairlead_engine.demo import resolve_model
    from fairlead_engine.runner.encoder_runner import EncoderRunner, is_encoder
    from fairlead_engine.runner.model_runner import ModelRunner

    folder = resolve_model(config.model)
    if is_encoder(folder):
        return EncoderRunner(folder, config)
    config = replace(config, model=str(folder))
    if (method := config.drafting_method) is not None and method.is_model and config.speculative_model:
        draft_folder = resolve_model(config.speculative_model)
        check_same_tokens(folder, draft_folder)
        config = replace(config, speculative_model=str(draft_folder))
    return ModelRunner(config)
