"""The difference between a model with quantised weights and its original on the same prompts.

`quantization_commands` calls it. Compares the predictions at every position of a prompt.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.model.shard import ALONE
from fairlead_engine.runner.model_part import ModelPart, check_generates
from fairlead_engine.runner.step_plan import plan_prompt


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two models, over all positions of all prompts."""

    mean_logit_error: float
    """Mean magnitude of the difference, over the vocabulary too."""
    max_logit_error: float
    logit_deviation: float
    """Standard deviation of the reference's logits at a position, mean: what errors are to be held against."""
    mean_kl_divergence: float
    """Of the distributions, in nats: the mean loss of log-likelihood on the reference's own continuation."""
    max_kl_divergence: float
    top1_agreement_ratio: float
    """Share of positions where both find the same token likeliest."""
    num_positions: int
    weight_bytes: int
    reference_weight_bytes: int


class LogitModel:
    """A model for logits of all positions of a prompt. Raises ModelLoadError or ConfigError."""

    def __init__(self, settings: EngineConfig) -> None:
        self._part = ModelPart(settings, ALONE)
        check_generates(self._part.config, "model")
        self.config = self._part.config
        self.weight_bytes = self._part.model.weight_bytes

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [tokens, vocab]: row i says what comes after token i."""
        num_blocks = -(-len(token_ids) // self._part.layout.block_size)
        self._part.allocate(num_blocks, num_slots=1, blocks_per_slot=num_blocks)
        plan = plan_prompt(np.array(token_ids), num_blocks, is_scored=True)
        computed = self._part.compute(plan)
        return next(self._part.scored_logits(plan, computed))


def random_prompts(vocab_size: int, num_prompts: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Token ids, each as likely as any other."""
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(num_tokens)] for _ in range(num_prompts)]


def compare(model: LogitModel, reference: LogitModel, prompts: list[list[int]]) -> Comparison:
    """Compares two models' predictions of the prompts' tokens; both models have the same vocabulary."""
    errors, largest, deviations, divergences, agreed = [], [], [], [], []
    for prompt in prompts:
        found, wanted = model.logits(prompt), reference.logits(prompt)
        error = (found - wanted).abs()
        errors.append(error.mean(-1))
        largest.append(error.amax(-1))
        deviations.append(wanted.std(-1))
        agreed.append((found.argmax(-1) == wanted.argmax(-1)).float())
        likely = wanted.log_softmax(-1)
        divergences.append((likely.exp() * (likely - found.log_softmax(-1))).sum(-1).clamp_min_(0.0))
    return Comparison(
        mean_logit_error=float(torch.cat(errors).mean()),
        max_logit_error=float(torch.cat(largest).max()),
        logit_deviation=float(torch.cat(deviations).mean()),
        mean_kl_divergence=float(torch.cat(divergences).mean()),
        max_kl_divergence=float(torch.cat(divergences).max()),
        top1_agreement_ratio=float(torch.cat(agreed).mean()),
        num_positions=sum(map(len, prompts)),
        weight_bytes=model.weight_bytes,
        reference_weight_bytes=reference.weight_bytes,
    )
