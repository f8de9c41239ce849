"""Teacher-forced exactness: how many answers the network would give to the letter, without generating."""

from collections import Counter
from collections.abc import Sequence

import torch

from training.network import Network
from training.packing import IGNORED, ROW_LENGTHS, Example, pack

TOKENS_AT_ONCE = 4096


def score(network: Network, held_out: Sequence[Example]) -> str:
    """Shares of conversations in which every answer token is the likeliest, per kind and over all, as one line."""
    right, total = Counter[str](), Counter[str]()
    for row_length in ROW_LENGTHS:
        fitting = [example for example in held_out if row_length_of(example) == row_length]
        rows_at_once = TOKENS_AT_ONCE // row_length
        for start in range(0, len(fitting), rows_at_once):
            group = fitting[start : start + rows_at_once]
            total.update(example.kind for example in group)
            right.update(
                example.kind for example, exact in zip(group, _exact(network, group, row_length), strict=True) if exact
            )
    shares = "  ".join(f"{kind} {right[kind] / total[kind]:.0%}" for kind in sorted(total))
    return f"{right.total() / total.total():.1%}  ({shares})"


def row_length_of(example: Example) -> int:
    """The row an example goes into."""
    return next(length for length in ROW_LENGTHS if len(example.token_ids) <= length)


@torch.no_grad()
def _exact(network: Network, group: Sequence[Example], row_length: int) -> list[bool]:
    batch = pack([[example] for example in group], row_length)
    targets = batch.targets.flatten()
    chosen = (targets != IGNORED).nonzero().squeeze(1)
    with torch.autocast("cpu", torch.bfloat16):
        likeliest = network(batch.token_ids, batch.positions, batch.segments, chosen).argmax(dim=-1)
    wrong = chosen[likeliest != targets[chosen]] // row_length
    return [row not in set(wrong.tolist()) for row in range(len(group))]
