"""OLMo 3: OLMo 2 whose layers see a window, but for one in four; only that one's positions are stretched."""

from dataclasses import replace
from functools import partial

from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.families.olmo2 import Olmo2Config, build
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import parse_rope, parse_shape
from fairlead_engine.model.rope import RopeConfig
from fairlead_engine.model.windows import windows_alternating

_BASE = 500_000.0


def parse(fields: JsonFields) -> Olmo2Config:
    windows = partial(windows_alternating, default=4096, every=4)
    shape = parse_shape(fields, rms_norm_eps=1e-5, rope_theta=_BASE, windows=windows)
    config = Olmo2Config(**shape, attention_bias=fields.boolean("attention_bias", False))
    rope = parse_rope(fields, _BASE, "full_attention")
    return replace(config, rope=rope, local_rope=_local_rope(fields, rope))


def _local_rope(fields: JsonFields, rope: RopeConfig) -> RopeConfig:
    newer = fields.section("rope_parameters")
    if newer is not None and newer.section("sliding_attention") is not None:
        return parse_rope(fields, _BASE, "sliding_attention")
    return RopeConfig(theta=rope.theta)


OLMO3 = ModelFamily("olmo3", parse, build)
