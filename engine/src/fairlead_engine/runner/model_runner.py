"""The model runner: owns the model, the KV cache's memory and the sampler, and runs batches.

Called by the core's engine. Never decides what runs; reads the sequences without changing them.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.kernels.attention.block_allocator import BlockAllocator
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner import dummy_steps
from fairlead_engine.runner.cuda_device import Readback
from fairlead_engine.runner.drafter import Drafter
from fairlead_engine.runner.host_cache import HostCache
from fairlead_engine.runner.model_part import ModelPart
from fairlead_engine.runner.pooler import Pooler, write_vectors
from fairlead_engine.runner.progress import Progress
from fairlead_engine.runner.rank_messages import Call, PartMethod, Step
from fairlead_engine.runner.ranks import Ranks
from fairlead_engine.runner.sampler import Chosen, Logprobs, Sampler, rank_tokens
from fairlead_engine.runner.step_plan import SentSlots, StepPlan, plan_step
from fairlead_engine.runner.tree_step import find_standing, planned_trees
from fairlead_engine.speculative.drafting import verified
from fairlead_engine.types.adapters import AdapterFacts
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import UNKNOWN, SampledToken, ScheduledSequence

_LOADED_AT_ONCE = 2**20
"""Bytes copied at once from the host's memory to a CPU's cache, without other work meanwhile: some 0.2 ms."""
_MAX_SCORED_LOGITS = 2**23
"""Logits of prompts computed at a time: 32 MiB in float32, and as much again for each step of the softmax."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch under way; its tensors are being copied from the device to the host."""

    batch: Batch
    chosen: Chosen
    """For the batch's `choices`, in order."""
    scores: list[tuple[ScheduledSequence, Logprobs]]
    """Log-probabilities of prompt tokens, in order within an item."""
    vectors: list[tuple[ScheduledSequence, Tensor]]
    """float32 [hidden] of the items that embed."""
    drafts: Tensor | None
    """int32 [drafts] made by a model, of all items in order."""
    order: Tensor | None
    """int64 [choices]: index into `chosen` for each place once trees are chains; None = in order."""
    followed: Tensor | None
    """[choices, hidden], on the device: result of `Drafter.follow`."""
    readback: Readback


class ModelRunner:
    """A loaded model with its cache: rank 0's part here, other ranks' parts in their own processes. Raises
    ModelLoadError for an unsupported folder, and ConfigError for a setting that does not fit."""

    def __init__(self, config: EngineConfig) -> None:
        """Loads the model in the folder `config.model`, and its drafter. The cache comes separately."""
        self._loader = ThreadPoolExecutor(1, "load-blocks")
        self._ranks = Ranks(config) if config.tensor_parallel_size > 1 else None
        try:  # the others load theirs meanwhile
            self._part = part = ModelPart(config, Shard(0, config.tensor_parallel_size))
            if self._ranks is not None:
                self._ranks.wait_ready()
                part.agree_on_adapters(self._ranks.port)
        except BaseException:
            self.close()
            raise
        self.model_config, self.device, self.dtype = part.config, part.device, part.dtype
        self.attention_backend, self.kv_cache_dtype = part.attention_backend, config.kv_cache_dtype
        self.num_parameters, self.weight_bytes = part.model.num_parameters, part.model.weight_bytes
        stored = self.model_config.quantization
        self.quantization = config.quantization if stored is None else ", ".join(sorted(stored.names))
        if config.head_quantization is not None:
            self.quantization = f"{self.quantization or 'none'}, head {config.head_quantization}"
        self._sampler = Sampler(self.model_config.vocab_size, self.model_config.eos_token_ids, config.seed)
        self._pooler = Pooler(part.model.classifier)
        self._most_drafts = config.most_drafts if self.model_config.task.generates else 0
        self._tree = config.tree
        self._drafter = self._load_drafter(config)
        self._most_scored = max(1, _MAX_SCORED_LOGITS // self.model_config.vocab_size)

    def _load_drafter(self, config: EngineConfig) -> Drafter | None:
        """What makes `UNKNOWN` drafts; None without such a method."""
        if (method := config.drafting_method) is None or method.drafter is None:
            return None
        drafter: type[Drafter] = resolve_name(f"{__package__}.{method.drafter}")
        return drafter.load(config, self._part)

    def kv_bytes_per_block(self) -> int:
        """Bytes of one block on each rank: keys and values of all layers, and of a draft model."""
        of_drafts = 0 if self._drafter is None else self._drafter.bytes_per_block
        return self._part.layout.bytes_per_block + of_drafts

    def allocate_kv_cache(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        """Makes room for blocks and for `num_slots` block tables; forgets what an earlier cache held."""
        self._everywhere("allocate", num_blocks, num_slots, blocks_per_slot)
        if self._drafter is not None:
            self._drafter.allocate(num_blocks, num_slots, blocks_per_slot, self._part.tokens)
        num_ahead = 0 if self._drafter is None else self._drafter.num_ahead
        self._sent = SentSlots(num_slots, num_ahead, has_places=self._part.turns_by_place)

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state on each rank; 0 = the model is not recurrent."""
        return self._part.config.state_bytes(self.dtype.itemsize, self._part.shard.size)

    def allocate_snapshots(self, num_slots: int, num_snapshots: int) -> None:
        self._everywhere("allocate_snapshots", num_slots, num_snapshots)

    def allocate_places(self, num_places: int) -> None:
        self._everywhere("allocate_places", num_places)
        if self._drafter is not None:
            self._drafter.allocate_places(num_places)

    def save_blocks(self, blocks: list[int], places: list[int]) -> None:
        """Copies blocks to the host's memory. Raises RankLost."""
        if self._ranks is not None:
            self._ranks.call("host.save", blocks, places)
        for copies in self._host_caches:
            copies.save(blocks, places)

    def load_blocks(self, places: list[int], blocks: list[int]) -> Callable[[], bool]:
        """Copies blocks back, large amounts on a CPU beside the steps. Raises RankLost."""
        if self._ranks is not None:
            self._ranks.call("host.load", places, blocks)

        def load() -> None:
            for copies in self._host_caches:
                copies.load(places, blocks)

        if self.device.type != "cpu" or len(blocks) * self.kv_bytes_per_block() <= _LOADED_AT_ONCE:
            load()
            return lambda: True
        loading = self._loader.submit(load)
        return lambda: loading.done() and loading.result() is None

    @property
    def _host_caches(self) -> list[HostCache]:
        of_drafts = None if self._drafter is None else self._drafter.host
        return [copies for copies in (self._part.host, of_drafts) if copies is not None]

    def memory_for_cache(
        self, utilization: float, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> int | None:
        """Bytes per rank for a cache, of the share `utilization` of the device's memory, measured by computing the
        largest steps; None = the device's memory is the machine's. Comes before `allocate_kv_cache`."""
        if self._part.meter is None:
            return None
        limits = dummy_steps.StepLimits(max_num_seqs, max_num_batched_tokens, max_model_len)
        block_size = self._part.layout.block_size
        self.allocate_kv_cache(1, max_num_seqs, dummy_steps.blocks_of_largest(limits, block_size))
        seen = None if self._part.images is None else self._part.images.largest()  # stays while steps are computed
        self._try(dummy_steps.largest_step(limits, block_size, self.model_config.task))
        if self._most_drafts:
            self._try(dummy_steps.largest_drafted_step(limits, block_size, *self._drafted))
        del seen
        found: int = self._everywhere(
            "memory_for_cache", utilization, max_num_seqs, max_num_batched_tokens, max_model_len
        )
        return found

    def compile_steps(self, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        """Compiles kernels and captures graphs for all possible steps; no request then waits for compilation. After
        `allocate_kv_cache`, before the first step, with the same numbers. Writes to block 0. Raises ConfigError where a
        step cannot be captured, and RankLost where another rank cannot."""
        capture = Call("capture", (max_num_batched_tokens,))
        with nullcontext() if self._ranks is None else self._ranks.together("the capture of steps", capture):
            capture.on(self._part)
        if self.device.type == "cuda" or self.attention_backend == "triton":  # or nothing is compiled
            limits = dummy_steps.StepLimits(max_num_seqs, max_num_batched_tokens, max_model_len)
            steps = list(dummy_steps.every_kind_of_step(limits, self._part.layout.block_size, self.model_config.task))
            if self._most_drafts:
                steps += dummy_steps.every_drafted_step(limits, self._part.layout.block_size, *self._drafted)
            progress = Progress("compiled the kernels of %d of %d kinds of steps", len(steps))
            for batch in steps:
                self._try(batch)
                progress.advance()

    @property
    def _drafted(self) -> tuple[int, int, int]:
        """Most drafts of a sequence in a step, their token, and a tree's depth."""
        draft = 0 if self._drafter is None else UNKNOWN
        return self._most_drafts, draft, 0 if self._tree is None else self._tree.depth

    def _try(self, batch: Batch) -> None:
        """Computes a step that belongs to no request."""
        self.collect(self.launch(batch))
        self.forget([item.sequence.request_id for item in batch.items])

    def _everywhere(self, method: PartMethod, *arguments: Any) -> Any:
        """Calls a method of every rank's part; returns rank 0's result. Raises RankLost."""
        if self._ranks is not None:
            self._ranks.call(method, *arguments)
        return Call(method, arguments).on(self._part)

    def block_allocator(self, num_blocks: int) -> BlockAllocator:
        return self._part.backend.allocator(num_blocks)

    @property
    def num_adapter_slots(self) -> int:
        slots = self._part.model.slots
        return 0 if slots is None else slots.num_slots

    def read_adapter(self, key: int, folder: Path) -> Future[AdapterFacts]:
        facts: Future[AdapterFacts] = self._everywhere("host_adapters.read", key, str(folder))
        return facts

    def place_adapter(self, key: int, slot: int) -> None:
        self._everywhere("host_adapters.place", key, slot)

    def forget_adapter(self, key: int) -> None:
        self._everywhere("host_adapters.forget", key)

    def launch(self, batch: Batch) -> Launched:
        """Begins a batch's forward pass, and the choice of a token for each item that reaches its sequence's last one.
        Afterwards the items' keys and values are in the cache, and the next batch may begin with the choices. Raises
        RankLost after the end of another rank's process or a batch that was given up."""
        plan = plan_step(batch, self._sent, self._most_scored)
        if self._ranks is None:
            return self._compute(batch, plan)
        with self._ranks.together("a step", Step(plan)):
            return self._compute(batch, plan)

    @torch.inference_mode()
    def _compute(self, batch: Batch, plan: StepPlan) -> Launched:
        part, readback, drafts = self._part, Readback(), None
        if self._drafter is not None:
            drafts = self._drafter.draft(batch, plan, self._sampler)
            if drafts is not None and batch.masks is not None:
                _tell(batch, drafts)
            if trees := planned_trees(batch):
                plan = msgspec.structs.replace(plan, trees=trees)
        computed = part.compute(plan)
        chosen = self._sampler.sample(computed.logits, batch, part.tokens.rows)
        token_ids, order = chosen.token_ids, None
        if plan.trees and drafts is not None:
            standing = find_standing(plan, drafts, token_ids)
            drafts, order = standing.drafts, standing.order
            computed, token_ids = part.straighten(computed, standing), token_ids[order]
        part.settle(computed, token_ids)
        followed = None if self._drafter is None else self._drafter.follow(plan, computed)
        scores = self._scores(batch, part.scored_logits(plan, computed))
        vectors = self._pooler.pool([item for item in batch.chunks if item.pools], computed.pooled)
        return Launched(
            batch,
            chosen.to(readback),
            [(item, logprobs.to(readback)) for item, logprobs in scores],
            [(item, readback(vector)) for item, vector in vectors],
            None if drafts is None else readback(drafts),
            None if order is None else readback(order),
            followed,
            readback,
        )

    def is_over(self, launched: Launched) -> bool:
        return launched.readback.is_over()

    def collect(self, launched: Launched) -> list[SampledToken | None]:
        """Waits for the batch, but not for later launches. Returns a token for each item that samples, else None;
        writes log-probabilities, finite vectors and choices behind drafts into the items."""
        launched.readback.wait()
        for item, logprobs in launched.scores:
            item.prompt_logprobs += logprobs.read()
        write_vectors(launched.vectors)
        sampled, batch = launched.chosen.read(), launched.batch
        if launched.order is not None:
            sampled = [sampled[place] for place in launched.order.tolist()]
        if launched.drafts is not None:
            _tell(batch, launched.drafts)
        num_decodes = len(batch.decodes)
        of_chunks = iter(sampled[num_decodes:])
        found: list[SampledToken | None] = [*sampled[:num_decodes]]
        for item in batch.chunks:
            chosen = list(islice(of_chunks, item.num_choices))
            if item.drafts:
                item.chosen = verified(item.drafts, chosen)
            found.append(chosen[0] if chosen else None)
        if self._drafter is not None and launched.followed is not None:
            self._note_last(self._drafter, batch, launched.followed)
        return found

    def _note_last(self, drafter: Drafter, batch: Batch, followed: Tensor) -> None:
        """Passes the last accepted token's row of `followed` for each sequence to the drafter."""
        rows, slots, row = [*range(len(batch.decodes))], batch.decodes.slots.tolist(), len(batch.decodes)
        for item in batch.chunks:
            if item.samples:
                rows.append(row + max(0, len(item.chosen) - 1))
                slots.append(item.sequence.slot)
            row += item.num_choices
        if rows:
            drafter.note(np.array(slots, np.int64), followed[to_device(np.array(rows, np.int64), self.device)])

    def _scores(self, batch: Batch, logits: Iterator[Tensor]) -> Iterator[tuple[ScheduledSequence, Logprobs]]:
        """Log-probabilities of prompt tokens, in the portions of the step's plan."""
        for item in batch.chunks:
            num_top, token_ids = item.sequence.sampling.prompt_logprobs, item.sequence.token_ids
            for position in item.scores[:: self._most_scored]:
                part = token_ids[position : min(position + self._most_scored, item.scores.stop)]
                yield item, rank_tokens(next(logits), to_device(np.array(part), self.device), num_top or 0)

    def forget(self, request_ids: Iterable[str]) -> None:
        request_ids = tuple(request_ids)
        self._sampler.forget(request_ids)
        self._pooler.forget(request_ids)
        if self._part.images is not None:
            self._part.images.forget(request_ids)

    def close(self) -> None:
        """Ends the processes of other ranks; nothing can be launched any more."""
        self._loader.shutdown()
        if self._ranks is not None:
            self._ranks.close()


def _tell(batch: Batch, drafts: Tensor) -> None:
    """Writes drafts, int32 [drafts], into the items; waits for the device."""
    token_ids = iter(drafts.tolist())
    for item in batch.chunks:
        item.drafts = list(islice(token_ids, len(item.drafts)))
