"""A small model that drafts for a large one: computes the same tokens, and then continues by itself.

The runner asks for drafts before a step with drafts. Both models use the same block tables, block by block, and the
tokens of all slots, where drafts stand before the host knows them. The small model has its own keys and values. A draft
is drawn with the same random number as the token: two models that nearly agree mostly draw the same token.
"""

from dataclasses import replace
from typing import Self

import numpy as np
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError
from fairlead_engine.model.shard import ALONE
from fairlead_engine.runner.drafter import draft_places, fitted, next_tokens
from fairlead_engine.runner.host_cache import HostCache
from fairlead_engine.runner.model_part import Computed, ModelPart, check_generates
from fairlead_engine.runner.sampler import Sampler
from fairlead_engine.runner.slot_tokens import NewTokens, SlotTokens
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.types.batch import Batch, Numbers
from fairlead_engine.types.sequences import ScheduledSequence

_MOST_MADE_UP = 512
"""Tokens of missing KV computed at a time. After a pause, hundreds of sequences lack more than fits memory."""


class _WithinVocabulary(SlotTokens):
    """The large model's tokens, for an embedding with fewer rows behind the tokenizer's last token."""

    def __init__(self, tokens: SlotTokens, vocab_size: int) -> None:
        self._tokens = tokens
        self._last = vocab_size - 1

    @property
    def rows(self) -> Tensor:  # type: ignore[override]  # the other's, which grow
        return self._tokens.rows

    def add(self, new: NewTokens) -> None:
        self._tokens.add(new)

    def at(self, slots: Tensor, positions: Tensor) -> Tensor:
        return self._tokens.at(slots, positions).clamp(max=self._last)

    def put(self, slots: Tensor, positions: Tensor, token_ids: Tensor) -> None:
        self._tokens.put(slots, positions, token_ids)


class DraftModel:
    """Drafts for one model; of one rank, and launched operation by operation. KV of steps without drafts is computed
    before the next drafts. KV of an answer's last tokens may be missing in shared blocks: slightly worse drafts."""

    num_ahead = 0

    @classmethod
    def load(cls, config: EngineConfig, part: ModelPart) -> Self:
        return cls(config, part.config.vocab_size)

    def __init__(self, config: EngineConfig, vocab_size: int) -> None:
        """`config`, `vocab_size`: of the large model. Raises ModelLoadError and ConfigError."""
        assert config.speculative_model is not None
        own = replace(
            config, model=config.speculative_model, quantization=None, enforce_eager=True,
            speculative_method=None, speculative_model=None, num_speculative_tokens=None,
            lora_modules=None, adapter_folder=None, max_loras=None, merged_adapter=None,
            max_image_pixels=None,
        )  # fmt: skip
        self._part = ModelPart(own, ALONE)
        check_generates(self._part.config, "speculative_model")
        if self._part.config.recurrent:
            problem = f"names a {self._part.config.architecture}, whose recurrent layers cannot go back behind a draft"
            raise ConfigError("speculative_model", problem, "name a model without them")
        self._vocab_size = vocab_size

    @property
    def bytes_per_block(self) -> int:
        return self._part.layout.bytes_per_block

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int, tokens: SlotTokens) -> None:
        self._part.allocate(num_blocks, num_slots, blocks_per_slot)
        self._part.clear()
        self._part.tokens = _WithinVocabulary(tokens, self._part.config.vocab_size)
        self._ends = np.zeros(num_slots, np.int64)
        """By slot, the tokens with keys and values in the cache."""
        self._block_tables: list[list[int] | None] = [None] * num_slots
        """By slot, the block table behind `_ends`: a sequence has a new list with each admission."""

    @property
    def host(self) -> HostCache | None:
        return self._part.host

    def allocate_places(self, num_places: int) -> None:
        self._part.allocate_places(num_places)

    def draft(self, batch: Batch, plan: StepPlan, sampler: Sampler) -> Tensor | None:
        """Computes missing KV of the batch, then its drafts one after the other: int32 [drafts], item by item, also
        written behind the known tokens of their slots. None = no drafts."""
        decodes, guessed = batch.decodes, [item for item in batch.chunks if item.drafts]
        # What it holds behind the last known token of these were guesses that did not stand.
        self._ends[decodes.slots] = np.minimum(self._ends[decodes.slots], decodes.ends - 1)
        self._part.learn(plan.new_blocks)
        if not batch.chunks:
            return None
        self._part.tokens.add(plan.new_tokens)
        num_drafts = np.array([len(item.drafts) for item in batch.chunks], np.int64)
        slots, ends, num_queries = (each[len(decodes) :] for each in (plan.slots, plan.context_lens, plan.num_queries))
        known = ends - num_drafts
        goes_on = np.array([self._goes_on(item) for item in batch.chunks])
        own = np.where(num_drafts > 0, known - 1, known - num_queries)
        starts = self._made_up(slots, np.where(goes_on, np.minimum(self._ends[slots], own), own), own)
        self._ends[slots] = known + np.maximum(num_drafts - 1, 0)
        self._compute(StepPlan(slots, known - starts, known, (num_drafts > 0).astype(np.int64)), guessed, 0, sampler)
        for place in range(1, int(num_drafts.max(initial=0))):
            left = [item for item in guessed if len(item.drafts) > place]
            slots = np.array([item.sequence.slot for item in left], np.int64)
            ones, ends = np.ones(len(left), np.int64), np.array([item.known_end + place for item in left], np.int64)
            self._compute(StepPlan(slots, ones, ends, ones), left, place, sampler)
        return self._part.tokens.rows[draft_places(guessed, self._part.device)] if guessed else None

    def follow(self, plan: StepPlan, computed: Computed) -> Tensor | None:
        """Nothing: it has hidden states of its own."""
        return None

    def note(self, slots: Numbers, hidden: Tensor) -> None:
        """Never called."""

    def _goes_on(self, item: ScheduledSequence) -> bool:
        """Whether the cache holds exactly the tokens before this share. Notes the slot's block table."""
        slot, table = item.sequence.slot, item.block_table
        is_same = self._block_tables[slot] is table
        self._block_tables[slot] = table
        return is_same

    def _made_up(self, slots: Numbers, starts: Numbers, ends: Numbers) -> Numbers:
        """Computes missing KV between `starts` and `ends` in bounded steps; returns the starts of a last small part."""
        while (lacking := ends - starts).sum() > _MOST_MADE_UP:
            taken = np.clip(_MOST_MADE_UP - (lacking.cumsum() - lacking), 0, lacking)
            some = taken > 0
            self._part.compute(StepPlan(slots[some], taken[some], (starts + taken)[some], np.zeros_like(taken[some])))
            starts = starts + taken
        return starts

    def _compute(self, plan: StepPlan, guessed: list[ScheduledSequence], place: int, sampler: Sampler) -> None:
        """Computes a step, and the next draft of each item."""
        computed = self._part.compute(plan)
        if not guessed:
            return
        following = next_tokens(guessed, place)
        chosen = sampler.sample(fitted(computed.logits, self._vocab_size), following, self._part.tokens.rows)
        self._part.settle(computed, chosen.token_ids)
