"""Draft trees in a step: their rows, the rows' visibility, and the accepted drafts after the choice of tokens.

A tree's rows are the last known token (the root) and one row for each draft, in the cache in this order. The keys and
values of an accepted path are moved to their places in a chain: from there on a tree is a chain of drafts, all accepted
up to its end. The host looks at nothing meanwhile: later operations can be launched.
"""

from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.scoring import TreeRows, ancestor_bits
from fairlead_engine.kernels.staging import is_on_host, to_device
from fairlead_engine.runner.step_plan import PlannedTree, StepPlan
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import ScheduledSequence

_NO_TOKEN = -9
"""In place of a rejected draft; equals no token and no absent choice."""


class TreeStep(NamedTuple):
    """Additional input of the rows of a step with trees, or with images whose tokens see each other."""

    places: Tensor
    """int64 [tokens]: position of each row in its sequence if accepted, for rope."""
    seen: TreeRows


class Standing(NamedTuple):
    """The accepted drafts of a step's trees, on the device."""

    order: Tensor
    """int64 [tokens that are chosen]: index of the choice at each place once trees are chains."""
    row_order: Tensor
    """int64 [tokens]: the same for all rows."""
    sources: Tensor
    """int64 [moves]: rows whose keys and values move."""
    targets: Tensor
    """int64 [moves]: rows whose places they move to."""
    drafts: Tensor
    """int32 [drafts]: accepted drafts, item by item, padded with `_NO_TOKEN`."""


def planned_trees(batch: Batch) -> list[PlannedTree]:
    """Trees of the items whose drafts were made."""
    found, row = [], len(batch.decodes)
    for item in batch.chunks:
        if item.parents:
            found.append(PlannedTree(row, item.parents))
        row += item.num_tokens
    return found


def depths_of(parents: list[int]) -> list[int]:
    """Depth of every node, the root first."""
    found = [0]
    for parent in parents:
        found.append(found[parent] + 1)
    return found


def tree_step(plan: StepPlan, device: torch.device, *, see_each_other: bool = False) -> TreeStep:
    """The trees of a plan, on the device in one copy. `see_each_other`: whether tokens of an image do."""
    row_ends = plan.num_queries.cumsum()
    num_rows = int(row_ends[-1])
    # An even number of columns, so that each line begins where kernels compiled for aligned addresses may read.
    numbers = np.zeros((3, num_rows + num_rows % 2), np.int64)
    places, limits, bits = numbers[:, :num_rows]
    places += np.arange(num_rows) + (plan.context_lens - row_ends).repeat(plan.num_queries)
    limits += places + 1
    for first, parents in plan.trees:
        rows = slice(first, first + 1 + len(parents))
        limits[rows] = places[first]
        bits[rows] = ancestor_bits(parents)
        places[rows] = places[first] + depths_of(parents)
    for each in plan.images if see_each_other else ():
        limits[each.row : each.row + each.end - each.start] = each.image.end
    on_device = to_device(numbers, device)[:, :num_rows]
    return TreeStep(on_device[0], TreeRows(on_device[1], on_device[2]))


def find_standing(plan: StepPlan, drafts: Tensor, chosen: Tensor) -> Standing:
    """`drafts` int32 [drafts], all in trees; `chosen` int64 [tokens that are chosen]. A draft is accepted if its parent
    is accepted and chose the draft. Siblings differ: accepted drafts are one path from the root."""
    trees, device = plan.trees, chosen.device
    first_rows, first_choices = (each.cumsum() - each for each in (plan.num_queries, plan.samples))
    first_choice = dict(zip(first_rows.tolist(), first_choices.tolist(), strict=True))
    width = 1 + max(len(tree.parents) for tree in trees)
    # Beyond a tree's nodes its root is repeated, which never stands there.
    parents = np.zeros((len(trees), width), np.int64)
    depths, is_node, choice, row, draft = (np.zeros_like(parents) for _ in range(5))
    num_before = 0
    for index, tree in enumerate(trees):
        size = 1 + len(tree.parents)
        parents[index, 1:size], depths[index, :size] = tree.parents, depths_of(tree.parents)
        is_node[index, 1:size] = 1
        nodes = np.minimum(np.arange(width), size - 1)
        choice[index], row[index] = first_choice[tree.first_row] + nodes, tree.first_row + nodes
        draft[index] = num_before + np.maximum(nodes - 1, 0)
        num_before += size - 1
    deepest = int(depths.max())
    numbers = to_device(np.array((parents, depths, is_node, choice, row, draft)), device)
    of_parent, depth, node, choice_rows, rows, draft_rows = numbers.unbind()
    guesses = drafts.long()[draft_rows]
    is_right = (guesses == chosen[choice_rows].gather(1, of_parent)) & (node == 1)
    is_right[:, 0] = True
    stands = is_right
    for _ in range(deepest):
        stands = is_right & stands.gather(1, of_parent)
    # By depth the node that stands there, or the one that lies there.
    places = torch.where(stands, depth, width)
    own = torch.arange(width, device=device).expand(len(trees), -1)
    way = torch.cat((own, own[:, :1]), 1).scatter(1, places, own)[:, :width]
    is_standing = torch.zeros(len(trees), width + 1, dtype=torch.bool, device=device).scatter(1, places, True)[
        :, :width
    ]
    order = _reordered(len(chosen), choice_rows, choice_rows.gather(1, way), node)
    row_order = _reordered(int(plan.num_queries.sum()), rows, rows.gather(1, way), node)
    sources, targets = rows.gather(1, way)[:, 1 : deepest + 1], rows[:, 1 : deepest + 1]
    if is_on_host(chosen):
        is_moved = sources != targets
        sources, targets = sources[is_moved], targets[is_moved]
    else:  # a guess that lies where it stands is copied onto itself
        is_there = torch.from_numpy(is_node[:, 1 : deepest + 1] == 1)
        places_of_nodes = to_device(np.flatnonzero(is_there.numpy()), device)
        sources, targets = sources.flatten()[places_of_nodes], targets.flatten()[places_of_nodes]
    standing = torch.where(is_standing, guesses.gather(1, way), _NO_TOKEN)
    own_drafts = to_device(np.flatnonzero(is_node.ravel()), device)
    return Standing(order, row_order, sources, targets, standing.flatten()[own_drafts].int())


def _reordered(size: int, places: Tensor, values: Tensor, is_node: Tensor) -> Tensor:
    """0 to `size` - 1, with `values` at the `places` of nodes."""
    found = torch.arange(size + 1, device=places.device)
    return found.scatter(0, torch.where(is_node == 1, places, size).flatten(), values.flatten())[:size]


def with_ways(items: Many[ScheduledSequence], slot_tokens: Tensor) -> Tensor:
    """The tokens before each draft of a tree, for items whose logits depend on them.

    On the device a slot's row has drafts in the order of the step. The tokens before a draft are its path, with a
    separate row during the choice of a step's tokens.

    Returns `slot_tokens` int32 [slots, columns] with a row for each item whose path needs one, to which its `token_row`
    then points; a copy has only as many columns as the items have tokens.
    """
    bent = [item for item in items if item.way and item.way[-1] != len(item.way)]
    if not bent:
        return slot_tokens
    before, places = slot_tokens[:, : max(item.end for item in items)], []
    for index, item in enumerate(bent):
        known = item.end - len(item.way)
        item.token_row = len(slot_tokens) + index
        places += [(index, known + place, item.sequence.slot, known + node - 1) for place, node in enumerate(item.way)]
    slots = to_device(np.array([item.sequence.slot for item in bent]), slot_tokens.device)
    row, column, slot, source = to_device(np.array(places), slot_tokens.device).unbind(1)
    ways = before[slots]
    ways[row, column] = slot_tokens[slot, source]
    return torch.cat((before, ways))
