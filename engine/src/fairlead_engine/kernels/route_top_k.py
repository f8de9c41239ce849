"""Which experts a token goes to, and what each counts."""

import torch
from torch import Tensor


def route_top_k(logits: Tensor, k: int, *, normalised: bool = True) -> tuple[Tensor, Tensor]:
    """The k likeliest experts per row of logits [rows, experts]: float32 weights, and int64 indices.

    Both are [rows, k], best first. The softmax goes over all experts, in float32 (arXiv 2401.04088); `normalised`
    weights sum to 1, others are the shares that the softmax gave.
    """
    probabilities, experts = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(k, dim=-1)
    return probabilities / probabilities.sum(dim=-1, keepdim=True) if normalised else probabilities, experts
