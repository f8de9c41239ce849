"""Gemma 4, its text part: layers with a window and layers that see all differ in heads, the last layers read what
earlier layers stored, and each layer may have an input of its own for each token, or experts beside its feed-forward.
"""

from dataclasses import dataclass, replace
from typing import Any

from fairlead_common.models.families.dense import attention_bias, soft_cap
from fairlead_common.models.families.experts import from_zero
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import KvShape, ModelConfig, QueryNorm, parse_shape, windows_alternating
from fairlead_common.models.rope_config import RopeConfig, RopeKind, parse_rope
from fairlead_common.models.weight_formats import WeightPart, WeightRole, gated_feed_forward, share, vector

_WINDOW, _EVERY = 512, 6
_WHOLE_ROPE = RopeConfig(theta=1e6, kind=RopeKind.PROPORTIONAL, pair_share=0.25)
_LOCAL_ROPE = RopeConfig(theta=1e4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(ModelConfig):
    """`head_dim` and `num_kv_heads` belong to layers with a window."""

    are_keys_values: bool = False
    """Whether layers that see all have no values but their keys."""
    layer_input_size: int = 0
    """Elements of a token's input of each layer; 0 = layers have none."""
    layer_input_words: int = 0
    """Tokens with such inputs."""
    has_wide_readers: bool = False
    """Whether layers without keys and values of their own have a feed-forward of twice the width."""
    num_experts: int = 0
    """Beside the feed-forward of each layer; 0 = there are none."""
    num_experts_per_token: int = 0
    expert_size: int = 0
    """Width of each expert."""

    @property
    def rotary_dim(self) -> int:
        return self.kv_of(self.num_layers - 1).head_dim

    @property
    def local_rotary_dim(self) -> int:
        return self.head_dim

    @property
    def stream_size(self) -> int:
        return self.hidden_size + self.num_layers * self.layer_input_size

    def is_reader(self, layer: int) -> bool:
        """Whether the layer has no keys and values of its own."""
        return self.kv_source(layer) != layer

    def inner_size(self, layer: int) -> int:
        """Width of a layer's feed-forward."""
        return self.intermediate_size * (2 if self.has_wide_readers and self.is_reader(layer) else 1)

    def num_projections(self, layer: int) -> int:
        """Projections of a layer's attention, besides its output's."""
        if self.is_reader(layer):
            return 1
        return 2 if self.are_keys_values and not self.windows[layer] else 3

    @property
    def inner_sizes(self) -> dict[str, int]:
        experts = {"moe_intermediate_size": self.expert_size} if self.num_experts else {}
        return {"intermediate_size": self.intermediate_size} | experts

    @property
    def widest(self) -> int:
        widest = max(self.inner_size(layer) for layer in range(self.num_layers))
        return widest + self.num_experts_per_token * self.expert_size

    def attention_parts(self, ranks: int) -> list[WeightPart]:
        parts = []
        for layer in range(self.num_layers):
            kv_heads, head_dim = self.kv_of(layer)
            heads, num = share(self.num_heads, ranks), self.num_projections(layer)
            rows = (heads + (num - 1) * share(kv_heads, ranks)) * head_dim
            bias, output_bias = (rows, self.hidden_size) if self.qkv_bias else (0, 0)
            inputs = heads * head_dim
            parts += [
                WeightPart("self_attn.qkv_proj", 1, rows, self.hidden_size, bias=bias, projections=num),
                WeightPart("self_attn.o_proj", 1, self.hidden_size, inputs, bias=output_bias),
                vector("self_attn.norms", 1 if num == 1 else 2, head_dim),
            ]
        return parts

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        hidden, num, size = self.hidden_size, self.num_layers, self.layer_input_size
        parts = [vector("layer_scalar", num, 1)]
        for layer in range(num):
            parts += gated_feed_forward("mlp", 1, hidden, share(self.inner_size(layer), ranks))
        if size:
            words = share(self.layer_input_words, ranks)
            parts += [
                WeightPart("embed_tokens_per_layer", 1, words, num * size, WeightRole.PRECISE),
                WeightPart("per_layer_model_projection", 1, num * size, hidden, WeightRole.PRECISE),
                vector("per_layer_projection_norm", 1, size),
                WeightPart("per_layer_input_gate", num, size, hidden),
                WeightPart("per_layer_projection", num, hidden, size),
                vector("post_per_layer_input_norm", num, hidden),
            ]
        if self.num_experts:
            inner, count = share(self.expert_size, ranks), num * self.num_experts
            parts += [
                *gated_feed_forward("experts", count, hidden, inner, role=WeightRole.EXPERT),
                WeightPart("router.proj", num, self.num_experts, hidden, WeightRole.NARROW),
                vector("router.scales", num, hidden + self.num_experts),
                vector("feedforward_layernorms", 3 * num, hidden),
            ]
        return parts


def parse_gemma4(fields: JsonFields) -> Gemma4Config:
    """Layers with a window, and layers that see all, have sections of their own in `rope_parameters`."""
    if fields.has("use_bidirectional_attention") and fields.text("use_bidirectional_attention") == "all":
        raise refuse("use_bidirectional_attention all", "use a model that generates text")
    windows = _windows(fields)
    layer_kv = _layer_kv(fields, windows)
    local, whole = layer_kv[windows.index(max(windows))], layer_kv[-1]
    named = {"head_dim": local.head_dim, "num_key_value_heads": local.num_heads}
    shape = parse_shape(
        fields.with_section("", changes=named), windows=lambda _: windows, activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )  # fmt: skip
    if shape["num_heads"] % whole.num_heads:
        raise fields.invalid("num_global_key_value_heads", f"must divide num_attention_heads ({shape['num_heads']})")
    if whole.head_dim % 2:
        raise fields.invalid("global_head_dim", "must be even: rotary positions turn pairs of elements")
    readers = _cache_layers(fields, windows)
    shape |= {
        "embedding_scale": shape["hidden_size"] ** 0.5,
        "logit_soft_cap": soft_cap(fields, "final_logit_softcapping", 0.0),
        "norms_per_layer": 4,
        "query_norm": QueryNorm.HEADS,
        "are_values_normalised": True,
        "rope": _rope(fields, "full_attention", _WHOLE_ROPE),
        "local_rope": _rope(fields, "sliding_attention", _LOCAL_ROPE),
        "cache_layers": readers,
        "kv_shapes": tuple(each for index, each in enumerate(layer_kv) if not readers or readers[index] == index),
    }
    return Gemma4Config(
        **shape, **attention_bias(fields, False), **_layer_inputs(fields, shape["vocab_size"]), **_experts(fields),
        are_keys_values=fields.boolean("attention_k_eq_v", False),
        has_wide_readers=fields.boolean("use_double_wide_mlp", False),
    )  # fmt: skip


def _windows(fields: JsonFields) -> tuple[int, ...]:
    """The last layer sees all, whatever the file calls the layer."""
    return (*windows_alternating(fields, default=_WINDOW, every=_EVERY)[:-1], 0)


def _layer_kv(fields: JsonFields, windows: tuple[int, ...]) -> tuple[KvShape, ...]:
    """Newer files have an object for each layer that differs, older files name what layers that see all have."""
    local = KvShape(fields.positive_int("num_key_value_heads", 4), fields.positive_int("head_dim", 256))
    if not fields.has("per_layer_config"):
        heads = local.num_heads
        if fields.boolean("attention_k_eq_v", False):
            heads = fields.positive_int("num_global_key_value_heads", heads)
        whole = KvShape(heads, fields.positive_int("global_head_dim", 512))
        return tuple(local if window else whole for window in windows)
    of_layers, found = fields.section("per_layer_config") or JsonFields.empty(fields.path), []
    for index in range(len(windows)):
        own = of_layers.section(str(index)) or JsonFields.empty(fields.path)
        if own.num_fields > own.names("head_dim") + own.names("num_key_value_heads"):
            raise fields.unsupported("per_layer_config", "layers may differ in head_dim and num_key_value_heads")
        heads = own.positive_int("num_key_value_heads", local.num_heads)
        found.append(KvShape(heads, own.positive_int("head_dim", local.head_dim)))
    if len({*zip(windows, found, strict=True)}) != len({*windows}):
        raise fields.invalid("per_layer_config", "must say the same of all layers with one of layer_types")
    return tuple(found)


def _rope(fields: JsonFields, kind_of_layer: str, default: RopeConfig) -> RopeConfig:
    """A share of a head's pairs is turned, unless positions are not stretched."""
    sections = fields.section("rope_parameters")
    if sections is None or sections.section(kind_of_layer) is None:
        return default
    found = parse_rope(fields, default.theta, kind_of_layer, turned_share=1.0)
    if found.kind is RopeKind.DEFAULT:
        return replace(found, share=1.0)
    if found.share != 1.0:
        raise refuse(f"partial_rotary_factor {found.share:g} with {found.kind}", "of a Gemma 4 use proportional")
    return found


def _cache_layers(fields: JsonFields, windows: tuple[int, ...]) -> tuple[int, ...]:
    """The last layers read the keys and values of the last layer before them that sees as much."""
    num_layers, num_readers = len(windows), from_zero(fields, "num_kv_shared_layers", 0)
    if not num_readers:
        return ()
    first = num_layers - num_readers
    sources = {window: index for index, window in enumerate(windows[: max(first, 0)])}
    if first < 1 or {*sources} != {*windows}:
        raise fields.invalid(
            "num_kv_shared_layers", "must leave a layer of each of layer_types with keys and values of its own"
        )
    return (*range(first), *(sources[window] for window in windows[first:]))


def _layer_inputs(fields: JsonFields, vocab_size: int) -> dict[str, Any]:
    size = from_zero(fields, "hidden_size_per_layer_input", 256)
    if not size:
        return {}
    words = fields.positive_int("vocab_size_per_layer_input", 262_144)
    if words < vocab_size:
        raise fields.invalid("vocab_size_per_layer_input", f"must be at least vocab_size ({vocab_size})")
    return {"layer_input_size": size, "layer_input_words": words}


def _experts(fields: JsonFields) -> dict[str, Any]:
    if not fields.boolean("enable_moe_block", False):
        return {}
    num, chosen = fields.positive_int("num_experts"), fields.positive_int("top_k_experts")
    if chosen > num:
        raise fields.invalid("top_k_experts", f"must be at most num_experts ({num})")
    size = fields.positive_int("moe_intermediate_size")
    return {"num_experts": num, "num_experts_per_token": chosen, "expert_size": size}


FAMILIES = (
    Family(
        "Gemma4ForCausalLM",
        "gemma4_text",
        parse_gemma4,
        "Gemma 4, all sizes, by their text part: layers that share keys and values or have inputs of their own "
        "(E2B, E4B), sparse experts (26B-A4B)",
    ),
)
