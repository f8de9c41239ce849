"""A planned step as the tensors of one forward pass."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fairlead_engine.kernels.attention.backend import AttentionBackend, DeviceBatch
from fairlead_engine.kernels.staging import to_device
from fairlead_engine.model.layers import ForwardInput, GivenEmbeddings
from fairlead_engine.model.lora.adapted_layers import AdaptedRows
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.runner.slot_states import SlotStates
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import SoftRows, StepPlan
from fairlead_engine.runner.tree_step import TreeStep
from fairlead_engine.types.adapters import NOT_PLACED
from fairlead_engine.types.batch import Numbers


class PreparedBatch(NamedTuple):
    """A batch on the device."""

    forward: ForwardInput
    sample_slots: Tensor
    """int64 [tokens that are chosen]: the slot of each,"""
    sample_ends: Tensor
    """and the position that its token will have."""


def prepare(
    plan: StepPlan,
    backend: AttentionBackend[Any, Any],
    tables: Any,
    tokens: SlotTokens,
    device: torch.device,
    adapter_slots: AdapterSlots | None = None,
    images: GivenEmbeddings | None = None,
    trees: TreeStep | None = None,
    states: SlotStates | None = None,
) -> PreparedBatch:
    """Flattens a batch's tokens in item order; updates `tables`, the backend's, and `tokens`. All numbers but the
    backend's go to the device in one copy. `images`: vectors in place of tokens. `trees`: places and visibility of
    rows, for a step with trees. `states`: of a recurrent model.

    Hidden states are wanted of the rows that choose a token, in item order, then of rows that score prompts, then of
    rows for vectors.
    """
    tokens.add(plan.new_tokens)
    slots, num_queries, ends = plan.slots, plan.num_queries, plan.context_lens
    row_ends = num_queries.cumsum()
    num_rows = int(row_ends[-1])
    if num_rows == len(slots):
        row_slots, positions = slots, ends - 1
    else:
        row_slots = slots.repeat(num_queries)
        positions = np.arange(num_rows) + (ends - row_ends).repeat(num_queries)
    reads, sample_slots, sample_ends = _read_rows(plan, row_ends)
    columns = [row_slots, positions, reads, sample_slots, sample_ends]
    if is_adapted := adapter_slots is not None and len(plan.adapters) > 0:
        of_rows = plan.adapters.repeat(num_queries)
        columns += [*_adapted(of_rows), *_adapted(of_rows[reads])]
    if len(plan.places):
        columns.append(plan.places)
    numbers = to_device(np.concatenate(columns), device)
    row_slots_on_device, positions_on_device, logit_rows, slots_on_device, ends_on_device, *others = torch.split(
        numbers, [len(column) for column in columns]
    )
    places = None
    if len(plan.places):
        places = others[-1].view(3, num_rows)
        if trees is not None:  # behind all images, where the three are alike
            places = places + (trees.places - positions_on_device)
    device_batch = DeviceBatch(
        slots, num_queries, ends, row_slots_on_device, positions_on_device, plan.new_blocks,
        None if trees is None else trees.seen,
    )  # fmt: skip
    forward = ForwardInput(
        token_ids=tokens.at(row_slots_on_device, positions_on_device),
        positions=positions_on_device if trees is None else trees.places,
        logit_rows=logit_rows,
        backend=backend,
        attention=backend.prepare(device_batch, tables),
        adapted=_rows_on_device(adapter_slots, others[:2], num_rows) if is_adapted else None,
        adapted_reads=_rows_on_device(adapter_slots, others[2:4], len(reads)) if is_adapted else None,
        given=_with_soft_prompts(adapter_slots, plan.soft_rows, images, device) if plan.soft_rows else images,
        states=None if states is None else states.rows_of(plan, row_slots_on_device),
        places=places,
    )
    return PreparedBatch(forward, slots_on_device, ends_on_device)


def _read_rows(plan: StepPlan, row_ends: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Rows whose hidden states are wanted; for rows that choose a token the slots, and the positions of the tokens."""
    reads, slots, ends = row_ends - 1, plan.slots, plan.context_lens
    if plan.samples.max() > 1:  # there are drafts
        item = np.arange(len(slots)).repeat(plan.samples)
        back = plan.samples.cumsum()[item] - 1 - np.arange(len(item))  # rows before the item's last
        reads, slots, ends = reads[item] - back, slots[item], ends[item] - back
    elif not plan.samples.all():  # else every item chooses a token
        chooses = plan.samples.astype(bool)
        reads, slots, ends = reads[chooses], slots[chooses], ends[chooses]
    if plan.score_rows or plan.pool_rows:
        reads = np.concatenate((reads, np.array(plan.score_rows + plan.pool_rows, np.int64)))
    return reads, slots, ends


def _adapted(adapters: Numbers) -> tuple[Numbers, Numbers]:
    """The rows that have one, and whose slot."""
    rows = np.flatnonzero(adapters != NOT_PLACED)
    return rows, adapters[rows]


def _with_soft_prompts(
    slots: AdapterSlots | None, soft_rows: list[SoftRows], images: GivenEmbeddings | None, device: torch.device
) -> GivenEmbeddings:
    """Everything in place of tokens' own embeddings: the virtual tokens of a step, and its images."""
    assert slots is not None, "this model was loaded without slots for adapters"
    rows = np.concatenate([np.arange(each.first_row, each.first_row + each.end - each.first) for each in soft_rows])
    embeddings = torch.cat([slots.prompt(each.slot)[each.first : each.end] for each in soft_rows])
    prompts = GivenEmbeddings(to_device(rows, device), embeddings)
    if images is None:
        return prompts
    nothing_later = 0, images.embeddings.shape[1] - embeddings.shape[1]
    both = functional.pad(embeddings, nothing_later), images.embeddings
    return GivenEmbeddings(torch.cat((prompts.rows, images.rows)), torch.cat(both))


def _rows_on_device(slots: AdapterSlots | None, adapted: list[Tensor], num_rows: int) -> AdaptedRows | None:
    rows, of_rows = adapted
    if slots is None or not len(rows):
        return None
    return slots.of_rows(None if len(rows) == num_rows else rows, of_rows)
