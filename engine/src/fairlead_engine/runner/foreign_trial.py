"""Whether a model computed by transformers can be served: its settings, and a trial before the first request.

The trial compares logits through our path with the logits of the model's own eager attention. Two random prompts are
computed as in steps: in chunks, beside each other, over block tables with gaps, a token at a time at the end. State of
a model beside keys, values and positions shows in its logits.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.config import EngineConfig
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.kernels.attention.backend import AttentionBackend, CacheLayout, NewBlocks
from fairlead_engine.model.fallback.foreign_config import refused_where_it_fails
from fairlead_engine.model.fallback.foreign_decoder import ForeignDecoder
from fairlead_engine.runner.prepared_batch import prepare
from fairlead_engine.runner.slot_tokens import NewTokens, SlotTokens
from fairlead_engine.runner.step_plan import StepPlan

_WHY = "this model is computed by transformers' code, as this engine has none of its own for it"


def check_settings(settings: EngineConfig, num_ranks: int) -> None:
    """Raises ConfigError."""
    if num_ranks > 1:
        raise ConfigError("tensor_parallel_size", f"is {num_ranks}, and {_WHY}: it is not divided", "leave it out")
    for name in ("quantization", "head_quantization"):
        if (value := getattr(settings, name)) is not None:
            raise ConfigError(name, f"is {value}, and {_WHY}: its weights are floats", "leave it out")
    if settings.num_adapter_slots:
        hint = "merge one while the model is loaded, with merged-adapter"
        raise ConfigError("max_loras", f"or adapters are set, and {_WHY}: it takes none while it runs", hint)


logger = logging.getLogger(__name__)

_LENGTHS = 29, 19
_STEPS = ((13, 0), (9, 7), (0, 11), (6, 0), (1, 1))
"""Tokens of each prompt in each step."""
_LEAST_ALLOWED = {torch.float32: 1e-3}
_LEAST_ALLOWED_IN_HALF = 0.05
_ALLOWED = 2.0
"""Bound of a difference beside the logits' own spread, root mean square: a multiple of the model's own reaction to
differently rounded vectors of tokens, which reach other experts, too;"""
_MOST_ALLOWED = 0.4
"""and never nearly half of the spread between tokens."""


@torch.inference_mode()
def try_out(model: ForeignDecoder, backend: AttentionBackend[Any, Any], layout: CacheLayout) -> None:
    """Raises ModelLoadError with the figure where logits differ."""
    longest = model.config.max_position_embeddings
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(model.config.vocab_size, (min(length, longest),), generator=draw) for length in _LENGTHS]
    on_device = [prompt.to(layout.device) for prompt in prompts]
    with refused_where_it_fails(model.config.architecture, "it is tried, whole and in steps over a paged cache"):
        wanted = torch.cat([model.eager_logits(prompt).float() for prompt in on_device])
        shaken = torch.cat([model.eager_logits(prompt, is_shaken=True).float() for prompt in on_device])
        found = torch.cat(_through_cache(model, backend, replace(layout, kv_dtype=None), prompts))
        difference, shift = relative_difference(found, wanted), relative_difference(shaken, wanted)
    least = _LEAST_ALLOWED.get(layout.dtype, _LEAST_ALLOWED_IN_HALF)
    allowed = min(_MOST_ALLOWED, max(least, _ALLOWED * shift))
    if not difference <= allowed:  # nor may it be no number
        raise ModelLoadError(
            ModelLoadReason.UNSUPPORTED_ARCHITECTURE,
            f"{model.config.architecture} cannot be served: computed in steps over a paged cache, its logits differ "
            f"from its own by {difference:.2g} of their spread, and at most {allowed:.2g} may be rounding; it keeps or "
            "sees something beside keys, values and positions. Choose another model.",
        )
    logger.info(
        "a trial of %d tokens in steps differs from transformers' own attention by %.1e of the logits' spread",
        sum(map(len, prompts)),
        difference,
    )


def relative_difference(found: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference over the reference's deviation from its mean; both [rows, vocab]."""
    spread = (wanted - wanted.mean(-1, keepdim=True)).square().mean().sqrt()
    return float((found - wanted).square().mean().sqrt() / spread)


def _through_cache(
    model: ForeignDecoder, backend: AttentionBackend[Any, Any], layout: CacheLayout, prompts: list[Tensor]
) -> list[Tensor]:
    """float32 [tokens, vocab] of each prompt."""
    per_slot = -(-max(map(len, prompts)) // layout.block_size)
    caches = backend.allocate(layout, per_slot * len(prompts))
    tables = backend.tables(layout, len(prompts), per_slot)
    tokens = SlotTokens(len(prompts), per_slot * layout.block_size, layout.device)
    found: list[list[Tensor]] = [[] for _ in prompts]
    for plan in _plans(prompts, per_slot):
        step = prepare(plan, backend, tables, tokens, layout.device).forward
        logits = model.logits(model(step, caches)).float()
        for slot, rows in zip(plan.slots, torch.split(logits, plan.num_queries.tolist()), strict=True):
            found[slot].append(rows)
    return [torch.cat(rows) for rows in found]


def _plans(prompts: list[Tensor], per_slot: int) -> Iterator[StepPlan]:
    """Plans with blocks in reverse order: none follows its predecessor."""
    ends, known = [0] * len(prompts), [False] * len(prompts)
    for sizes in _STEPS:
        parts = [
            (slot, ends[slot], min(ends[slot] + size, len(prompts[slot])))
            for slot, size in enumerate(sizes)
            if min(ends[slot] + size, len(prompts[slot])) > ends[slot]
        ]
        if not parts:
            continue
        slots, starts, stops = np.array(parts, np.int64).T
        blocks = [
            NewBlocks(slot, 0, [*range(slot * per_slot, (slot + 1) * per_slot)][::-1])
            for slot, _, _ in parts
            if not known[slot]
        ]
        yield StepPlan(
            slots=slots,
            num_queries=stops - starts,
            context_lens=stops,
            samples=np.zeros(len(parts), np.int64),
            score_rows=list(range(int((stops - starts).sum()))),
            score_sizes=(stops - starts).tolist(),
            new_tokens=NewTokens(
                parts,
                torch.cat([prompts[slot][start:stop] for slot, start, stop in parts]).numpy(),
                int(stops.max()) + 1,
            ),
            new_blocks=blocks,
        )
        for slot, _, stop in parts:
            ends[slot], known[slot] = stop, True
