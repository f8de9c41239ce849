"""What makes drafts on the device: a smaller model, or heads beside the model."""

from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.runner.host_cache import HostCache
from fairlead_engine.runner.model_part import Computed, ModelPart
from fairlead_engine.runner.sampler import Sampler
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.types.batch import Batch, Numbers
from fairlead_engine.types.sequences import ScheduledSequence


class Guesser(Protocol):
    """Belongs to one model runner. Guesses stand in the slots' tokens before the step with them is computed.

    Each class is named by the `drafter` of an entry in `speculative.methods.METHODS`.
    """

    @classmethod
    def load(cls, config: EngineConfig, part: ModelPart) -> Self:
        """From `config.speculative_model`, to guess for the model of `part`. Raises ModelLoadError and ConfigError."""
        ...

    @property
    def num_ahead(self) -> int:
        """Tokens behind those that a step computes which must be sent to the device with it."""
        ...

    @property
    def bytes_per_block(self) -> int:
        """Of its own cache."""
        ...

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int, tokens: SlotTokens) -> None:
        """Makes room for as many blocks and slots as the model has, whose `tokens` it reads and adds to."""
        ...

    host: HostCache | None
    """Copies of its own cache's blocks in the host's memory; None = it has no cache, or there are none."""

    def allocate_places(self, num_places: int) -> None:
        """Makes room in the host's memory for copies of so many of its blocks."""
        ...

    def guess(self, batch: Batch, plan: StepPlan, sampler: Sampler) -> Tensor | None:
        """The batch's drafts, int32 [drafts], item by item; None where there are none. Of items whose drafts are a tree
        `parents` and `depth` are written."""
        ...

    def follow(self, plan: StepPlan, computed: Computed) -> Tensor | None:
        """A step was computed, and what it chose stands in the slots' tokens: what is to be known of each token that
        was chosen [tokens that are chosen, hidden]; None = nothing is."""
        ...

    def note(self, slots: Numbers, hidden: Tensor) -> None:
        """A step has ended; of each of these the last token that stands has this of what `follow` returned, [slots,
        hidden]."""
        ...


def fitted(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits [rows, any] for as many tokens as the model has that is guessed for."""
    num_missing = vocab_size - logits.shape[1]
    if num_missing <= 0:
        return logits[:, :vocab_size]
    return torch.nn.functional.pad(logits, (0, num_missing), value=float("-inf"))


def next_tokens(items: list[ScheduledSequence], place: int) -> Batch:
    """Who has another draft than the first `place`, each up to where that one comes."""
    left = [item for item in items if len(item.drafts) > place]
    return Batch([ScheduledSequence(item.sequence, 1, item.known_end + place) for item in left])


def draft_places(items: list[ScheduledSequence], device: torch.device) -> tuple[Tensor, ...]:
    """Slots and positions of all drafts, item by item: int64 [drafts] each."""
    places = [(item.sequence.slot, position) for item in items for position in range(item.known_end, item.end)]
    return to_device(np.array(places, np.int64).T.copy(), device).unbind()
