"""Medusa: heads beside the model, each of which drafts one token further on from the model's last hidden state.

Source: Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (2024), and the
layout of its checkpoints: head i has `i.j.linear.weight` and `.bias` of residual blocks j, and `i.n.weight` behind
them.
"""

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.checkpoint import read_tensors, refused
from fairlead_engine.runner.drafter import (
    Frontier,
    check_width,
    draft_places,
    fill_dynamic,
    fill_static,
    fitted,
    next_tokens,
    put_drafts,
)
from fairlead_engine.runner.model_part import Computed, ModelPart
from fairlead_engine.runner.sampler import Sampler
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import StepPlan
from fairlead_engine.speculative.tree_shape import StaticTree, TreeShape
from fairlead_engine.types.batch import Batch, Numbers
from fairlead_engine.types.sequences import ScheduledSequence

_WHAT = "Medusa heads"
_FILES = ("medusa_lm_head.safetensors", "model.safetensors", "medusa_lm_head.pt")


class MedusaHeads:
    """Drafts for one model, as a chain: each head's likeliest token (or the drawn one, with the random number of its
    position); or as a tree of each head's likeliest tokens. No cache; one hidden state per slot."""

    bytes_per_block = num_ahead = 0
    host = None

    @classmethod
    def load(cls, config: EngineConfig, part: ModelPart) -> Self:
        return cls(
            Path(config.speculative_model or ""),
            hidden_size=part.config.hidden_size, vocab_size=part.config.vocab_size, most_drafts=config.most_drafts,
            tree=config.tree, dtype=part.dtype, device=part.device,
        )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        *,
        hidden_size: int,
        vocab_size: int,
        most_drafts: int,
        dtype: torch.dtype,
        device: Any,
        tree: TreeShape | None = None,
    ) -> None:
        """Raises ModelLoadError for a folder without heads of these sizes, and ConfigError for fewer heads than
        `most_drafts` or the depth of `tree`, or a vocabulary smaller than its width."""
        num_places, self._tree = most_drafts if tree is None else tree.depth, tree
        check_width(tree, vocab_size)
        tensors = {
            name.removeprefix("medusa_head."): tensor.to(device, dtype)
            for name, tensor in read_tensors(folder, _FILES, _WHAT).items()
        }
        self._vocab_size = vocab_size
        self._device = device
        self._blocks: list[list[tuple[Tensor, Tensor]]] = []
        self._outputs: list[Tensor] = []
        while any(name.startswith(f"{len(self._outputs)}.") for name in tensors):
            self._add_head(folder, tensors, hidden_size)
        if not self._outputs or tensors:
            found = f"{next(iter(tensors))} is of no head" if tensors else "there is no head 0"
            raise _refused(folder, f"{found}; a head i has i.0.linear.weight, i.0.linear.bias, … and i.1.weight")

        if len(self._outputs) < num_places:
            problem = f"is {num_places}, and {folder} has {len(self._outputs)} heads, each of which guesses one token"
            raise ConfigError("num_speculative_tokens", problem, "set as many as there are heads, or fewer")

    def allocate(self, num_blocks: int, num_slots: int, blocks_per_slot: int, tokens: SlotTokens) -> None:
        output = self._outputs[0]
        self._hidden = torch.zeros((num_slots, output.shape[1]), dtype=output.dtype, device=self._device)
        """By slot, the hidden state behind the last chosen token."""
        self._tokens = tokens

    def allocate_places(self, num_places: int) -> None:
        """No cache."""

    def follow(self, plan: StepPlan, computed: Computed) -> Tensor | None:
        return computed.hidden

    def note(self, slots: Numbers, hidden: Tensor) -> None:
        self._hidden[to_device(slots, self._device)] = hidden

    def draft(self, batch: Batch, plan: StepPlan, sampler: Sampler) -> Tensor | None:
        items = [item for item in batch.chunks if item.drafts]
        if not items:
            return None
        self._tokens.add(plan.new_tokens)
        if self._tree is not None:
            return self._draft_trees(items, self._tree, sampler)
        for place in range(max(len(item.drafts) for item in items)):
            following = next_tokens(items, place)
            numbers = [(share.sequence.slot, share.end) for share in following.chunks]
            slots, positions = to_device(np.array(numbers, np.int64).T.copy(), self._device)
            logits = fitted(self.logits(place, self._hidden[slots]), self._vocab_size)
            self._tokens.put(slots, positions, sampler.sample(logits, following, self._tokens.rows).token_ids)
        return self._tokens.rows[draft_places(items, self._device)]

    def _draft_trees(self, items: list[ScheduledSequence], tree: TreeShape, sampler: Sampler) -> Tensor:
        """A head ignores the drafts before its own, with the same guesses behind all of them."""
        hidden = self._hidden[to_device(np.array([item.sequence.slot for item in items]), self._device)]

        def logits(place: int, some: list[ScheduledSequence], rows: Tensor) -> Tensor:
            shares = Batch([ScheduledSequence(item.sequence, 1, item.known_end) for item in some])
            found = fitted(self.logits(place, hidden[rows]), self._vocab_size)
            return sampler.changed(found, shares, self._tokens.rows)

        if isinstance(tree, StaticTree):
            every = torch.arange(len(items), device=self._device)
            num_places = max(item.depth for item in items)
            likeliest = [logits(place, items, every).topk(tree.width).indices for place in range(num_places)]
            drafts = fill_static(items, tree, likeliest)
        else:
            drafts = fill_dynamic(
                items, tree, lambda front: _repeated(logits(front.place, front.items, front.rows), front)
            )
        put_drafts(items, drafts, self._tokens)
        return drafts

    def logits(self, head: int, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] → [rows, vocab], of the token `head` + 1 behind the next one."""
        for weight, bias in self._blocks[head]:
            hidden = hidden + silu(linear(hidden, weight, bias))
        return linear(hidden, self._outputs[head])

    def _add_head(self, folder: Path, tensors: dict[str, Tensor], hidden_size: int) -> None:
        """Takes the next head's tensors out."""
        head, blocks = len(self._outputs), list[tuple[Tensor, Tensor]]()
        while (weight := tensors.pop(name := f"{head}.{len(blocks)}.linear.weight", None)) is not None:
            bias = tensors.pop(f"{head}.{len(blocks)}.linear.bias", None)
            if bias is None or weight.shape != (hidden_size, hidden_size) or bias.shape != (hidden_size,):
                raise _refused(folder, f"{name} and its bias do not fit a model of hidden size {hidden_size}")
            blocks.append((weight, bias))
        output = tensors.pop(name := f"{head}.{len(blocks)}.weight", None)
        if output is None or output.ndim != 2 or output.shape[1] != hidden_size:
            raise _refused(folder, f"{name} is missing, or does not fit a model of hidden size {hidden_size}")
        self._blocks.append(blocks)
        self._outputs.append(output)


def _repeated(logits: Tensor, front: Frontier) -> Tensor:
    """[items, vocab] behind all nodes of a frontier."""
    return logits.unsqueeze(1).expand(-1, max(1, front.token_ids.shape[1]), -1)


def _refused(folder: Path, problem: str) -> ModelLoadError:
    return refused(folder, _WHAT, problem)
