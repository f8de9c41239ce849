"""The optimisers and their schedule: Muon for the matrices inside the layers, AdamW for everything else.

Muon (Keller Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/) orthogonalises each matrix's
momentum, so that every direction of a layer learns at the same pace.
"""

from dataclasses import dataclass

import torch
from torch import nn

MUON_LEARNING_RATE = 0.015
ADAM_LEARNING_RATE = 0.003
WEIGHT_DECAY = 0.01
WARM_UP_SHARE = 0.02
DECAY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Optimisation:
    """Both optimisers and their shared schedule; call `step` once per batch, after `backward`."""

    optimisers: tuple[torch.optim.Optimizer, ...]
    schedules: tuple[torch.optim.lr_scheduler.LRScheduler, ...]

    @classmethod
    def of(cls, network: nn.Module, num_steps: int, pace: float = 1.0) -> "Optimisation":
        """`pace`: share of the learning rates, for going on with a network that has learnt most of it."""
        matrices = [p for name, p in network.named_parameters() if p.dim() == 2 and name.startswith("layers.")]
        others = [p for name, p in network.named_parameters() if p.dim() != 2 or not name.startswith("layers.")]
        optimisers = (
            torch.optim.Muon(matrices, lr=MUON_LEARNING_RATE, momentum=0.95, weight_decay=WEIGHT_DECAY),
            torch.optim.AdamW(others, lr=ADAM_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
        )
        schedules = tuple(
            torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: pace * learning_rate_share(step, num_steps))
            for optimiser in optimisers
        )
        return cls(optimisers, schedules)

    def step(self) -> None:
        for optimiser, schedule in zip(self.optimisers, self.schedules, strict=True):
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            schedule.step()


def learning_rate_share(step: int, num_steps: int) -> float:
    """Linear warm-up, a plateau, then linear decay to zero; in [0, 1]."""
    warm_up = min(1.0, (step + 1) / max(1.0, WARM_UP_SHARE * num_steps))
    return min(warm_up, (num_steps - step) / (DECAY_SHARE * num_steps))
