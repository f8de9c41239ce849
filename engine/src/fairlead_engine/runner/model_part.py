"""One rank's part of the model with its part of the cache, and every rank's work in each step."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from fairlead_common.models.model_config import DecoderShape, ModelConfig
from fairlead_common.models.rope_config import RopeKind
from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.backend import CacheLayout, CapturableBackend, LayerCache, NewBlocks
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name, choose_kv_dtype
from fairlead_engine.kernels.dispatch import triton_lacks
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.decoder import Decoder, Taps
from fairlead_engine.model.fallback.foreign_config import ForeignConfig
from fairlead_engine.model.fallback.foreign_decoder import ForeignDecoder, load_foreign
from fairlead_engine.model.loading import load_model, read_any_config
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.model.shard import Shard
from fairlead_engine.runner.cuda_device import choose_meter, choose_recorder
from fairlead_engine.runner.dummy_steps import StepLimits
from fairlead_engine.runner.foreign_trial import check_settings, try_out
from fairlead_engine.runner.host_adapters import AdapterAgreement, HostAdapters
from fairlead_engine.runner.host_cache import HostCache
from fairlead_engine.runner.image_vectors import ImageVectors
from fairlead_engine.runner.placement import choose_device, choose_dtype, pin_threads, set_num_threads
from fairlead_engine.runner.prepared_batch import prepare
from fairlead_engine.runner.slot_states import SlotStates, layer_caches
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_graphs import ADAPTED, ADAPTED_EXPERTS, StepGraphs, foreseen_bytes
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.runner.tree_step import Standing, TreeStep, tree_step

logger = logging.getLogger(__name__)


class Computed(NamedTuple):
    """A step's results, on the device; the same on every rank."""

    logits: Tensor
    """[tokens that are chosen, vocab]."""
    scored: Tensor
    """[rows, hidden]: hidden states for prompts' log-probabilities, item by item."""
    pooled: Tensor
    """[rows, hidden]: hidden states for vectors, item by item."""
    sample_slots: Tensor
    sample_ends: Tensor
    hidden: Tensor
    """[tokens that are chosen, hidden]: inputs of the logits."""
    tapped: Tensor | None
    """[tokens, layers x hidden]: inputs of `ModelPart.tapped_layers`, valid until the next step; None without."""
    attention: Any = None
    """The attention backend's metadata; None = a captured step."""


class ModelPart:
    """A part of the model in the folder `EngineConfig.model`. Raises ModelLoadError for an unsupported folder, and
    ConfigError for a setting that does not fit the model or the machine."""

    def __init__(self, settings: EngineConfig, shard: Shard) -> None:
        set_num_threads(settings.num_threads, shard.size)
        folder = Path(settings.model)
        self.shard = shard
        found = read_any_config(folder)
        self.device = choose_device(settings.device, shard)
        if self.device.type == "cpu":
            pin_threads(settings.pin_threads, shard)
        if self.device.type == "cuda" and triton_lacks() is None:
            from fairlead_engine.kernels.compile_cache import use_compile_cache  # Triton is needed on CUDA alone

            use_compile_cache(settings.compile_cache)  # before the first kernel is compiled
        self.dtype = choose_dtype(settings.dtype, found.dtype, self.device)
        self.attention_backend = choose_backend_name(settings.attention_backend, self.device)
        kv_dtype = choose_kv_dtype(settings.kv_cache_dtype, self.attention_backend, self.device)
        self.backend = BACKENDS[self.attention_backend]()
        self.model = self._load(settings, found)
        self.config = self.model.config
        heads, kv_heads = shard.part(self.config.num_heads), shard.key_heads(self.config.num_kv_heads)
        self.layout = CacheLayout(
            num_layers=self.config.num_attention_layers,
            num_heads=heads.stop - heads.start,
            num_kv_heads=kv_heads.stop - kv_heads.start,
            head_dim=self.config.head_dim,
            block_size=settings.block_size,
            dtype=self.dtype,
            device=self.device,
            kv_dtype=kv_dtype,
            shared_value_dim=self.config.shared_value_dim,
            index_dim=self.config.index_dim,
            indexed=self.config.indexed,
            kv_shapes=self.config.stored_kv(shard.size) if self.config.kv_shapes else (),
        )
        if isinstance(self.model, ForeignDecoder):
            try_out(self.model, self.backend, self.layout)
        self._adapters = None if self.model.slots is None else HostAdapters(self.model.slots)
        self.images: ImageVectors | None = None
        """None = the model sees no images."""
        if isinstance(self.model, Decoder) and self.model.vision is not None and self.config.task.images is not None:
            self.images = ImageVectors(self.model.vision, self.config.task.images)
        self._recorder = choose_recorder(self.device, self.model, self.backend, enforce_eager=settings.enforce_eager)
        self._graphs: StepGraphs | None = None
        self.tapped_layers: tuple[int, ...] = ()
        """Layers whose inputs each step returns, of which the output projection is the last; set before `allocate`."""
        self.meter = choose_meter(self.device)
        """None = the device's memory is the machine's."""
        self.tokens: SlotTokens = None  # type: ignore[assignment]  # made with the cache, before the first step
        self._caches: list[Any] = []
        """Of each layer, as `layer_caches` has them."""
        self._attended: list[LayerCache] = []
        """Of the layers with keys and values."""
        self._states: SlotStates | None = None
        """Of a recurrent model, made with the cache."""
        self.host: HostCache | None = None
        """Copies of blocks in the host's memory; None without."""
        self._tables: Any = None

    def _load(self, settings: EngineConfig, found: ModelConfig | ForeignConfig) -> Decoder | ForeignDecoder:
        folder = Path(settings.model)
        if settings.max_image_pixels is not None and found.task.images is None:
            raise ConfigError("max_image_pixels", "is set, and this model sees no images", "leave it out")
        if not isinstance(found, ForeignConfig) and found.recurrent:
            _check_recurrent(settings, found)
        guesses = _asks_for_layer(settings, 0 if isinstance(found, ForeignConfig) else found.num_guessing_layers)
        if isinstance(found, ForeignConfig):
            check_settings(settings, self.shard.size)
            merged = None if settings.merged_adapter is None else Path(settings.merged_adapter)
            return load_foreign(folder, found, self.dtype, self.device, merged)
        if settings.merged_adapter is not None:
            problem = "is set, and this model takes adapters while it runs"
            raise ConfigError("merged_adapter", problem, "name its folder in lora-modules")
        config = _for_images(found, settings.max_image_pixels).for_context(settings.max_model_len)
        _tell_of_positions(config)
        slots = None
        if settings.num_adapter_slots:
            slots = AdapterSlots(
                settings.num_adapter_slots, settings.max_lora_rank, self.dtype, self.device,
                hidden_size=config.hidden_size, expert_rank=settings.expert_rank,
            )  # fmt: skip
        return load_model(
            folder, config, self.dtype, self.device, settings.quantization, self.shard,
            slots=slots, head_quantization=settings.head_quantization, guesses=guesses,
        )  # fmt: skip

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int) -> None:
        """Makes room for blocks and slots; forgets what an earlier cache held."""
        self._caches, self._attended = [], []  # frees the earlier one first
        self._graphs, self.host, self._states = None, None, None
        stays = self._recorder is not None  # what graphs read must stay where it is, and they need a slot to spare
        self._attended = [*self.backend.allocate(self.layout, num_blocks + stays)]
        if self.config.state is not None:
            self._states = SlotStates(self.config, num_slots + stays, 0, self.dtype, self.device, self.shard.size)
        self._caches = layer_caches(self.config, self._attended, self._states)
        self._tables = self.backend.tables(self.layout, num_slots + stays, blocks_per_slot)
        self.tokens = SlotTokens(num_slots + stays, blocks_per_slot * self.layout.block_size, self.device, stays=stays)
        if stays:
            self._tables.rows[num_slots] = num_blocks
        if self.meter is not None:
            self.meter.begin()

    def allocate_snapshots(self, num_slots: int, num_snapshots: int) -> None:
        """Makes room for snapshots of a recurrent model's states; forgets all states."""
        self._states, self._caches = None, []  # frees the earlier ones first
        num_rows = num_slots + (self._recorder is not None)  # as `allocate` has it
        self._states = SlotStates(self.config, num_rows, num_snapshots, self.dtype, self.device, self.shard.size)
        self._caches = layer_caches(self.config, self._attended, self._states)

    def allocate_places(self, num_places: int) -> None:
        self.host = HostCache(self.backend, self.layout, self._attended, num_places)

    def clear(self) -> None:
        """Fills the cache with zeros, for readers of blocks never stored."""
        for heads in (heads for cache in self._attended for heads in cache.stored):
            heads.numbers.view(torch.uint8).zero_()
            if heads.scales is not None:
                heads.scales.zero_()

    def learn(self, new_blocks: list[NewBlocks]) -> None:
        """Takes in new blocks of a step that is not computed here."""
        self._tables.update(new_blocks)

    def agree_on_adapters(self, port: int) -> None:
        """From here on an adapter counts as read when all ranks have it; ranks meet in the store of this port."""
        if self._adapters is not None:
            self._adapters.agreement = AdapterAgreement(self.shard, port)

    @property
    def host_adapters(self) -> HostAdapters:
        """Of a model with slots for adapters."""
        assert self._adapters is not None, "this model was loaded without slots for adapters"
        return self._adapters

    def memory_for_cache(
        self, utilization: float, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> int:
        """Bytes left on the rank with the least, of the share `utilization` of its device, after the steps since
        `allocate`, and less such steps' needs beside a cache: rows of tokens and blocks for each slot, and graphs."""
        assert self.meter is not None
        memory = self.meter.read()
        to_come = max_num_seqs * (4 * max_model_len + 8 * -(-max_model_len // self.layout.block_size))
        if self._recorder is not None:
            limits = StepLimits(max_num_seqs, max_num_batched_tokens, max_model_len)
            assert isinstance(self.model, Decoder)
            size = self.config.num_layers, self.model.config.num_parameters
            num_recurrent = len(self.config.recurrent)
            to_come += foreseen_bytes(*size, limits, memory.work_space, self._adapted_launches, num_recurrent)
        of_state = self.config.state_bytes(self.dtype.itemsize, self.shard.size)
        to_come -= (max_num_seqs + 1) * of_state  # there already, for the cache
        return self.shard.least(memory.left(utilization, to_come), self.device)

    @property
    def _adapted_launches(self) -> int:
        """For `foreseen_bytes`."""
        if (slots := self.model.slots) is None:
            return 0
        return ADAPTED_EXPERTS if slots.experts.modules else ADAPTED

    def capture(self, most_tokens: int) -> None:
        """Captures steps of up to `most_tokens` tokens, if graphs are used. Raises ConfigError where one cannot be."""
        if self._recorder is None:
            return
        assert isinstance(self.backend, CapturableBackend) and isinstance(self.model, Decoder)
        try:
            self._graphs = StepGraphs(
                self._recorder, self.model, self.backend, self._caches, self._tables, self.tokens,
                most_tokens=most_tokens, tapped_layers=self.tapped_layers,
            )  # fmt: skip
        except RuntimeError as error:
            hint = "set it to launch every step, or lower gpu-memory-utilization if memory is what was missing"
            raise ConfigError("enforce_eager", f"is off, and steps cannot be captured ({error})", hint) from error

    def compute(self, plan: StepPlan) -> Computed:
        """Begins a step's forward pass, after which its keys and values are in the cache."""
        if self._states is not None:
            self._states.begin(plan)
        computed = None if self._graphs is None else self._decode(self._graphs, plan)
        if computed is not None:
            return computed
        images = None if self.images is None else self.images.rows(plan.images)
        step, sample_slots, sample_ends = prepare(
            plan, self.backend, self._tables, self.tokens, self.device, self.model.slots, images,
            self._tree_step(plan), self._states,
        )  # fmt: skip
        between = None
        if self._graphs is not None and step.adapted is None and step.given is None:
            between = self._graphs.between_attentions(len(step.positions))
        tapped = None
        if self.tapped_layers and isinstance(self.model, Decoder):  # others hand out nothing
            shape = len(step.positions), len(self.tapped_layers) * self.config.hidden_size
            tapped = torch.empty(shape, dtype=self.dtype, device=self.device)
            hidden = self.model(step, self._caches, between, Taps(self.tapped_layers, tapped))
        else:
            hidden = self.model(step, self._caches, between)
        if self._states is not None:
            self._states.keep(plan)
        return self._read(plan, hidden, sample_slots, sample_ends, tapped)._replace(attention=step.attention)

    def _tree_step(self, plan: StepPlan) -> TreeStep | None:
        """What rows see in a step where some see less or more than everything up to themselves; None = no such step."""
        settings = self.config.task.images
        see_each_other = settings is not None and settings.see_each_other
        if not (plan.trees or (plan.images and see_each_other)):
            return None
        return tree_step(plan, self.device, see_each_other=see_each_other)

    @property
    def turns_by_place(self) -> bool:
        """Whether rope turns tokens of prompts with images by places that are not their positions."""
        return isinstance(self.config, ModelConfig) and bool(self.config.rope.sections)

    def _decode(self, graphs: StepGraphs, plan: StepPlan) -> Computed | None:
        """A step of one token per sequence by its graph; None = no graph fits."""
        is_of_decodes = len(plan.slots) == plan.num_queries.sum() and not (plan.soft_rows or plan.images)
        if not is_of_decodes or not graphs.fits_decodes(len(plan.slots)):
            return None
        self.tokens.add(plan.new_tokens)
        self._tables.update(plan.new_blocks)
        shifts = plan.places
        if len(shifts):  # of text, which has one place: also of a chunk's only token, before images of its prompt
            shifts = shifts[: len(plan.slots)] - (plan.context_lens - 1)
        hidden, slots, ends, tapped = graphs.decode(plan.slots, plan.context_lens, plan.adapters, shifts)
        if self._states is not None:
            self._states.keep(plan)
        if plan.samples.all() and not plan.score_rows and not plan.pool_rows:
            return self._read(plan, hidden, slots, ends, tapped)
        sampling = np.flatnonzero(plan.samples)
        rows = to_device(np.concatenate((sampling, plan.score_rows, plan.pool_rows)).astype(np.int64), self.device)
        sampling_rows = rows[: len(sampling)]
        return self._read(plan, hidden[rows], slots[sampling_rows], ends[sampling_rows], tapped)

    def _read(
        self, plan: StepPlan, hidden: Tensor, sample_slots: Tensor, sample_ends: Tensor, tapped: Tensor | None
    ) -> Computed:
        """`hidden` [rows, hidden]: rows that sample, then rows that score, then rows that pool."""
        sampled, scored, pooled = torch.split(hidden, [len(sample_slots), len(plan.score_rows), len(plan.pool_rows)])
        return Computed(self.model.logits(sampled), scored, pooled, sample_slots, sample_ends, sampled, tapped)

    def straighten(self, computed: Computed, standing: Standing) -> Computed:
        """Turns trees into chains: moves keys and values of accepted drafts, and reorders all results but logits."""
        if len(standing.sources):
            for cache in self._attended:
                self.backend.move(cache, computed.attention, standing.sources, standing.targets)
        tapped = None if computed.tapped is None else computed.tapped[standing.row_order]
        return computed._replace(hidden=computed.hidden[standing.order], tapped=tapped)

    def settle(self, computed: Computed, token_ids: Tensor) -> None:
        """Writes rank 0's choices, int64 [items that sample], to the slots' tokens for the next step."""
        self.tokens.put(computed.sample_slots, computed.sample_ends, self.shard.tell(token_ids))

    def scored_logits(self, plan: StepPlan, computed: Computed) -> Iterator[Tensor]:
        """float32 [rows, vocab] for each of the plan's `score_sizes`, one at a time: all would take gigabytes."""
        first = 0
        for size in plan.score_sizes:
            yield self.model.logits(computed.scored[first : first + size]).float()
            first += size


def check_generates(config: DecoderShape, setting: str) -> None:
    """Raises ConfigError, naming the setting, for a model without logits of tokens."""
    if not config.task.generates and config.task.labels:
        raise ConfigError(setting, f"names a {config.architecture}, which generates nothing", "name one that generates")


def _check_recurrent(settings: EngineConfig, config: DecoderShape) -> None:
    """Raises ConfigError for a setting that a model with recurrent layers does not take."""
    name = config.architecture
    if settings.host_kv_cache_memory is not None:
        problem = f"is set, and the states of {name} are kept on the device alone"
        raise ConfigError("host_kv_cache_memory", problem, "leave it out")
    if settings.speculative_tree is not None:
        problem = f"is set, and the recurrent layers of {name} follow one path of drafts"
        raise ConfigError("speculative_tree", problem, "leave it out: drafts are then a chain")


def _asks_for_layer(settings: EngineConfig, num_layers: int) -> bool:
    """Whether a layer of the checkpoint is to guess. Raises ConfigError where it brings none."""
    method = settings.drafting_method
    if method is None or not method.is_in_checkpoint:
        return False
    if not num_layers:
        problem = f"is {settings.speculative_method}, and the model brings no layer for it that is read here"
        hint = "use a checkpoint with one, or another method"
        raise ConfigError("speculative_method", f"{problem} (num_nextn_predict_layers)", hint)
    return True


def _for_images(config: ModelConfig, most: int | None) -> ModelConfig:
    """The configuration with a bound on pixels. Raises ConfigError for a bound that does not fit the model."""
    if most is None or config.task.images is None:
        return config
    try:
        return replace(config, task=msgspec.structs.replace(config.task, images=config.task.images.bounded(most)))
    except ValueError as error:
        raise ConfigError("max_image_pixels", f"{most} {error}", "raise it") from error


def _tell_of_positions(config: ModelConfig) -> None:
    """Logs the choice, which changes answers to short prompts too."""
    if (rope := config.rope).kind is RopeKind.LONGROPE:
        logger.info(
            "positions are stretched for contexts %s %d tokens; max-model-len decides",
            "beyond" if rope.is_long else "of at most",
            rope.original_max_position_embeddings,
        )


def check_divisible(config: ModelConfig, size: int) -> None:
    """Raises ConfigError, naming the setting, for a model that cannot be divided among `size` ranks."""
    undivided_heads = [heads for heads, _ in config.stored_kv() if heads % size and size % heads]
    if config.num_heads % size:
        problem = f"does not divide the model's {config.num_heads} attention heads"
    elif undivided_heads:
        kv_heads = undivided_heads[0]
        problem = f"neither divides the model's {kv_heads} heads of keys and values nor is a multiple of them"
    elif undivided := config.undivided_sizes(size):
        problem = "does not divide the model's " + " and ".join(f"{name}, {each}" for name, each in undivided.items())
    else:
        return
    raise ConfigError("tensor_parallel_size", f"{size} {problem}", "use a power of two that divides all of them")
