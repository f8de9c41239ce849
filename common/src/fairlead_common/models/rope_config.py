"""Rotary position embeddings of `config.json`: base, and the scaling to longer contexts. Reads both spellings:
`rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse


class RopeKind(StrEnum):
    """How the frequencies are stretched beyond the context of pre-training."""

    DEFAULT = "default"
    """Not at all."""
    LINEAR = "linear"
    """All by the same factor (position interpolation, arXiv 2306.15595)."""
    YARN = "yarn"
    """As llama3, by dimension; cosines and sines are scaled, too (arXiv 2309.00071)."""
    LLAMA3 = "llama3"
    """Long wavelengths by the factor, short ones not, a smooth passage between (Llama 3.1)."""
    LONGROPE = "longrope"
    """Each dimension by two factors, for contexts up to the length of pre-training and for longer contexts; cosines and
    sines are scaled, too (arXiv 2402.13753)."""
    DYNAMIC = "dynamic"
    """Not at all up to `max_position_embeddings`, the longest context that is served (NTK-aware)."""
    PROPORTIONAL = "proportional"
    """All by the same factor, of the first pairs of dimensions; the other pairs are not turned (Gemma 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Base and stretch of the rotary frequencies; fields that `kind` does not need keep the default."""

    theta: float
    """Base: dimension pair i turns by theta^(-2i / head_dim) radians per position."""
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    """By how much frequencies are divided."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths above the original context over this are divided by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths below the original context over this value stay unchanged."""
    share: float = 1.0
    """Share of the elements of a head that are turned, from the first on."""
    pair_share: float = 1.0
    """proportional: share of the dimension pairs that are turned."""
    original_max_position_embeddings: int = 0
    """llama3, yarn, longrope: context length of pre-training, in tokens."""
    beta_fast: float = 32.0
    """yarn: dimensions with more turns within the original context stay unchanged."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often are divided by `factor`."""
    truncate: bool = True
    """yarn: whether the passage between begins and ends at a whole dimension."""
    scale: float = 1.0
    """yarn, longrope: of cosines and sines."""
    short_scale: float | None = None
    """longrope: the same for contexts up to the length of pre-training; None = `scale`."""
    score_weight: float = 0.0
    """yarn: weight of the stretch in the scale of attention scores (`yarn_scale`); 0 = scores are not scaled."""
    short_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency for contexts up to the length of pre-training."""
    long_factors: tuple[float, ...] = ()
    """longrope: divisor of each frequency for longer contexts."""
    sections: tuple[int, ...] = ()
    """Vision models: numbers of dimension pairs that turn by time, by row and by column of a token (multimodal rope,
    arXiv 2409.12191); empty = all pairs turn by one position."""
    are_sections_mixed: bool = False
    """Whether pairs of time, row and column take turns, as long as rows and columns have any left, and the rest is of
    time; else all of time come first, then all of rows."""
    is_long: bool = True
    """longrope: whether `long_factors` apply. Keys stay in the cache while a sequence grows, so all sequences use the
    same factors."""

    def for_context(self, longest: int) -> "RopeConfig":
        """The config for an engine with sequences of at most `longest` tokens."""
        return replace(self, is_long=longest > self.original_max_position_embeddings)

    @property
    def own_scale(self) -> float:
        """Of cosines and sines for the contexts that are served."""
        return self.scale if self.is_long or self.short_scale is None else self.short_scale

    @property
    def axes(self) -> list[int]:
        """The place (0 = time, 1 = row, 2 = column) by which each dimension pair turns; empty without sections."""
        if not self.are_sections_mixed:
            return [axis for axis, size in enumerate(self.sections) for _ in range(size)]
        return [pair % 3 if pair < 3 * self.sections[pair % 3] else 0 for pair in range(sum(self.sections))]

    def num_turned(self, head_dim: int) -> int:
        """Elements of a head that are turned."""
        return int(head_dim * self.share)


UNTURNED = RopeConfig(theta=1.0, kind=RopeKind.LINEAR, factor=math.inf)
"""Of layers without positions: all frequencies are 0."""


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Scale of cosines and sines in yarn."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def parse_rope(
    fields: JsonFields,
    default_theta: float,
    kind_of_layer: str | None = None,
    *,
    names: Mapping[str, str] = {},
    turned_share: float | None = None,
) -> RopeConfig:
    """Newer checkpoints keep the base in `rope_parameters`, older checkpoints beside `rope_scaling`. `kind_of_layer`:
    the section to read where kinds of layers have sections. `names`: other names of kinds in the family → our names.
    `turned_share`: share of a head that is turned where the file does not say; None = heads are turned whole."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling") or JsonFields.empty(fields.path)
    if kind_of_layer is not None:
        scaling = scaling.section(kind_of_layer) or scaling
    partial = fields.positive_number("partial_rotary_factor", 1.0 if turned_share is None else turned_share)
    partial = scaling.positive_number("partial_rotary_factor", partial)
    if partial > 1.0 or (partial != 1.0 and turned_share is None):
        raise refuse(f"partial_rotary_factor {partial:g}", "use a model whose heads are rotated whole")
    theta = scaling.positive_number("rope_theta", fields.positive_number("rope_theta", default_theta))
    name = scaling.text("rope_type") or scaling.text("type") or RopeKind.DEFAULT
    name = names.get(name, name)
    if name not in set(RopeKind):
        known = ", ".join(RopeKind)
        raise refuse(f"rotary scaling {name}", f"supported are {known}")
    kind = RopeKind(name)
    if kind in (RopeKind.DEFAULT, RopeKind.DYNAMIC):
        return RopeConfig(theta=theta, kind=kind, share=partial)
    if kind is RopeKind.LONGROPE:
        return _longrope(fields, scaling, theta, partial)
    if kind is RopeKind.PROPORTIONAL:
        factor = scaling.positive_number("factor", 1.0)
        return RopeConfig(theta=theta, kind=kind, factor=factor, pair_share=partial)
    if kind is RopeKind.LINEAR:
        return RopeConfig(theta=theta, kind=kind, share=partial, factor=scaling.positive_number("factor"))
    if kind is RopeKind.YARN:
        return _yarn(fields, scaling, theta, partial)
    low, high = scaling.positive_number("low_freq_factor"), scaling.positive_number("high_freq_factor")
    if low > high:
        raise scaling.invalid("low_freq_factor", f"must not be above high_freq_factor ({high})")
    return RopeConfig(
        theta=theta,
        kind=kind,
        share=partial,
        factor=scaling.positive_number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=scaling.positive_int("original_max_position_embeddings"),
    )


def _longrope(fields: JsonFields, scaling: JsonFields, theta: float, share: float) -> RopeConfig:
    """Phi-3 has the context of pre-training beside `rope_scaling`."""
    longest = fields.positive_int("max_position_embeddings")
    original = fields.positive_int(
        "original_max_position_embeddings", scaling.positive_int("original_max_position_embeddings", longest)
    )
    factor = scaling.positive_number("factor", longest / original)
    stretch = 1.0 if factor <= 1.0 or original == 1 else math.sqrt(1.0 + math.log(factor) / math.log(original))
    return RopeConfig(
        theta=theta,
        kind=RopeKind.LONGROPE,
        share=share,
        factor=factor,
        original_max_position_embeddings=original,
        scale=scaling.positive_number("attention_factor", stretch),
        short_factors=scaling.positive_numbers("short_factor"),
        long_factors=scaling.positive_numbers("long_factor"),
    )


def _yarn(fields: JsonFields, scaling: JsonFields, theta: float, share: float) -> RopeConfig:
    longest = fields.positive_int("max_position_embeddings")
    original = scaling.positive_int("original_max_position_embeddings", longest)
    factor = scaling.positive_number("factor", longest / original)
    if scaling.has("attention_factor"):
        scale = scaling.positive_number("attention_factor")
    elif scaling.has("mscale") and scaling.has("mscale_all_dim"):
        scale = yarn_scale(factor, scaling.positive_number("mscale"))
        scale /= yarn_scale(factor, scaling.positive_number("mscale_all_dim"))
    else:
        scale = yarn_scale(factor)
    return RopeConfig(
        theta=theta,
        kind=RopeKind.YARN,
        share=share,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=scaling.positive_number("beta_fast", 32.0),
        beta_slow=scaling.positive_number("beta_slow", 1.0),
        truncate=scaling.boolean("truncate", True),
        scale=scale,
        score_weight=scaling.positive_number("mscale_all_dim", 0.0) if scaling.has("mscale_all_dim") else 0.0,
    )
