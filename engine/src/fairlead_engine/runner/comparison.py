"""How far a model with quantised weights is from the one that it was made of: both compute the same prompts.

`compare_command` calls it. Every position of a prompt is compared: what both would say comes next.
"""

import random
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import CacheLayout, DeviceBatch
from fairlead_engine.kernels.attention.choice import BACKENDS, choose_backend_name
from fairlead_engine.model import load_model, read_config
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.runner.placement import choose_device, choose_dtype

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one model with another, over all positions of all prompts."""

    mean_logit_error: float
    """Mean magnitude of the difference, over the vocabulary too."""
    max_logit_error: float
    logit_deviation: float
    """Standard deviation of the reference's logits at a position, mean: what errors are to be held against."""
    mean_kl_divergence: float
    """Of the distributions, in nats: what the reference's own continuation loses in likelihood per token."""
    max_kl_divergence: float
    top1_agreement_ratio: float
    """Share of positions where both find the same token likeliest."""
    num_positions: int
    weight_bytes: int
    reference_weight_bytes: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class LogitModel:
    """A model that tells the logits of every position of a prompt. Raises ModelLoadError or ConfigError."""

    def __init__(
        self, folder: Path, *, dtype: str = "auto", device: str = "auto", quantization: str | None = None
    ) -> None:
        """Loads the model; settings as in `EngineConfig`."""
        self.config = config = read_config(folder)
        self._device = choose_device(device)
        self._layout = CacheLayout(
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=_BLOCK_SIZE,
            dtype=choose_dtype(dtype, config.dtype, self._device),
            device=self._device,
        )
        self._backend = BACKENDS[choose_backend_name("auto", self._device)]()
        self._model = load_model(folder, config, self._layout.dtype, self._device, quantization)
        self.weight_bytes = self._model.weight_bytes

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """float32 [tokens, vocab]: row i says what comes after token i."""
        num_tokens = len(token_ids)
        num_blocks = -(-num_tokens // _BLOCK_SIZE)
        batch = DeviceBatch(
            slots=[0], num_queries=[num_tokens], context_lens=[num_tokens], block_tables=[list(range(num_blocks))]
        )
        rows = torch.arange(num_tokens, device=self._device)
        step = ForwardInput(
            token_ids=torch.tensor(token_ids, device=self._device),
            positions=rows,
            logit_rows=rows,
            backend=self._backend,
            attention=self._backend.prepare(batch, self._backend.tables(self._layout, 1, num_blocks)),
        )
        return self._model.logits(self._model(step, self._backend.allocate(self._layout, num_blocks))).float()


def random_prompts(vocab_size: int, num_prompts: int, num_tokens: int, seed: int) -> list[list[int]]:
    """Token ids, each as likely as any other."""
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(num_tokens)] for _ in range(num_prompts)]


def compare(model: LogitModel, reference: LogitModel, prompts: list[list[int]]) -> Comparison:
    """What `model` says of the prompts' tokens beside what `reference` says; both have the same vocabulary."""
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
