"""A profile as one SVG of three panels: measurements as dots, the fitted step cost as a line."""

import math
from collections.abc import Callable, Sequence
from html import escape

from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.profiles import EngineProfile, Measured
from fairlead_engine.core.profile import step_seconds
from fairlead_engine.core.step_cost import StepWork

_WIDTH, _HEIGHT = 300, 220
"""Of a panel, in pixels."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 28, 36
"""Margins within it."""
_LINE_POINTS = 40
_NUM_TICKS = 4

Points = Sequence[tuple[float, float]]


def draw(profile: EngineProfile) -> str:
    """Time per output token over batch, time to first token over prompt length, and throughput over batch."""
    batches = most_common(profile.measured)
    alone = [each for each in profile.measured if each.batch == 1]
    context = batches[0].prompt_tokens + batches[0].output_tokens / 2 if batches else 0.0
    cost, budget = profile.step_cost, profile.max_num_batched_tokens
    panels = [
        _panel(
            "time per output token, ms", "requests at once",
            [(each.batch, 1e3 * each.tpot_seconds) for each in batches if each.output_tokens > 1],
            lambda batch: 1e3 * decode_seconds(cost, batch, context),
        ),
        _panel(
            "time to first token, ms", "tokens of a single prompt",
            [(each.prompt_tokens, 1e3 * each.ttft_seconds) for each in alone],
            lambda tokens: 1e3 * prompt_seconds(cost, tokens, budget),
        ),
        _panel("output tokens per second", "requests at once",
               [(each.batch, each.tokens_per_second) for each in batches], None),
    ]  # fmt: skip
    threads = "1 thread" if profile.num_threads == 1 else f"{profile.num_threads} threads"
    title = f"{profile.model}, {profile.dtype}, {profile.device_name}, {threads}"
    body = "".join(f'<g transform="translate({_WIDTH * i},20)">{panel}</g>' for i, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH * len(panels)}" height="{_HEIGHT + 20}" '
        f'font-family="sans-serif" font-size="10"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="10" y="15" font-size="12">{escape(title)}</text>{body}</svg>\n'
    )


def decode_seconds(cost: StepCost, num_seqs: float, context: float) -> float:
    """Time of a step with `num_seqs` sequences, each with `context` tokens in the cache."""
    return step_seconds(cost, StepWork(1, 0, 0, 0, num_seqs, num_seqs * context))


def prompt_seconds(cost: StepCost, num_tokens: float, budget: int) -> float:
    """Time of one prompt alone, in as many steps as the token budget requires."""
    num_steps = math.ceil(num_tokens / budget)
    return step_seconds(cost, StepWork(num_steps, num_steps, num_tokens, num_tokens * (num_tokens - 1) / 2, 0, 0))


def most_common(measured: Sequence[Measured]) -> list[Measured]:
    """Measurements with the most common prompt and output length, by batch."""
    lengths = [(each.prompt_tokens, each.output_tokens) for each in measured]
    most = max(lengths, key=lengths.count, default=None)
    found = (each for each, length in zip(measured, lengths, strict=True) if length == most)
    return sorted(found, key=lambda each: each.batch)


def _panel(title: str, below: str, points: Points, line: Callable[[float], float] | None) -> str:
    if not points:
        return f'<text x="{_LEFT}" y="16">{escape(title)}: not measured</text>'
    right = max(x for x, _ in points)
    curve = (
        [(right * i / _LINE_POINTS, line(right * i / _LINE_POINTS)) for i in range(1, _LINE_POINTS + 1)] if line else []
    )
    top = max(y for _, y in (*points, *curve)) or 1.0

    def at(x: float, y: float) -> str:
        across = _LEFT + x / right * (_WIDTH - _LEFT - _RIGHT)
        return f"{across:.1f},{_HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    parts = [f'<text x="{_LEFT}" y="16">{escape(title)}</text>',
             f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{escape(below)}</text>']  # fmt: skip
    for tick in _ticks(top):
        x, y = at(0, tick).split(",")
        parts.append(f'<path d="M{x},{y}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{float(y) + 3:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(right):
        x, y = at(tick, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 14:.1f}" text-anchor="middle">{tick:g}</text>')
    if curve:
        path = "M" + "L".join(at(x, y) for x, y in curve)
        parts.append(f'<path d="{path}" fill="none" stroke="#c0504d"/>')
    parts += ['<circle cx="{}" cy="{}" r="2.5" fill="#1f6f8b"/>'.format(*at(x, y).split(",")) for x, y in points]
    return "".join(parts)


def _ticks(most: float) -> list[float]:
    """0 and round numbers up to `most`."""
    step = 10.0 ** math.floor(math.log10(most / _NUM_TICKS))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step * _NUM_TICKS >= most)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]
