"""Families with one feed-forward per layer: defaults, and fields of `config.json` for dense families alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import (
    ModelConfig,
    QueryGrowth,
    QueryNorm,
    parse_shape,
    windows_alternating,
    windows_by_layer,
    windows_everywhere,
)
from fairlead_common.models.quantized_checkpoints import GgufFormat
from fairlead_common.models.rope_config import UNTURNED, RopeConfig, RopeKind, parse_rope
from fairlead_common.models.siglip_config import parse_siglip
from fairlead_common.models.weight_formats import WeightPart, share, vector

Config = TypeVar("Config", bound=ModelConfig)
QWEN3_HEAD_DIM = 128
"""Whatever hidden size and number of heads are."""
_MISTRAL_WINDOW = 4096
"""Of a file that does not name one; later models name null."""
_MINISTRAL3_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
BOTH_WAYS = "use_bidirectional_attention"
"""Field of Gemma 3's: whether tokens see those behind them."""
_CWM_ROPE = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
GEMMA3_DEFAULTS = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "max_position_embeddings": 131_072,
}  # fmt: skip
"""Values of transformers' class for Gemma 3, which files with a tower leave out of `text_config`."""
_GEMMA3_BASE, _GEMMA3_LOCAL_BASE = 1_000_000.0, 10_000.0
_OLMO3_BASE = 500_000.0
_APERTUS_BASE = 12_000_000.0
_APERTUS_ROPE = {
    "rope_type": "llama3", "rope_theta": _APERTUS_BASE, "factor": 8.0, "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


def parse_llama(fields: JsonFields) -> ModelConfig:
    return ModelConfig(
        **parse_shape(fields), **attention_bias(fields, False), mlp_bias=fields.boolean("mlp_bias", False)
    )


def parse_cwm(fields: JsonFields) -> ModelConfig:
    """The first of every four layers sees all; positions are stretched unless the file says otherwise."""
    if not (fields.has("rope_parameters") or fields.has("rope_scaling")):
        fields = fields.with_changes({"rope_parameters": _CWM_ROPE})
    if not fields.texts("layer_types"):
        layers = range(fields.positive_int("num_hidden_layers"))
        kinds = ["sliding_attention" if layer % 4 else "full_attention" for layer in layers]
        fields = fields.with_changes({"layer_types": kinds})
    windows = partial(windows_alternating, default=8192, every=4)
    shape = parse_shape(fields, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, windows=windows)
    return ModelConfig(**shape, mlp_bias=fields.boolean("mlp_bias", False))


def parse_helium(fields: JsonFields) -> ModelConfig:
    shape = paired(fields, head_dim=128, rms_norm_eps=1e-8, rope_theta=100_000.0)
    return ModelConfig(
        **shape, qkv_bias=fields.boolean("attention_bias", False), mlp_bias=fields.boolean("mlp_bias", False)
    )


def parse_iquestcoder(fields: JsonFields) -> ModelConfig:
    if fields.has("clip_qkv") or fields.boolean("use_sliding_window", False):
        raise refuse("clip_qkv or use_sliding_window in this family", "use a model without them")
    shape = parse_shape(fields, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5)
    return ModelConfig(**shape, **attention_bias(fields, False), mlp_bias=fields.boolean("mlp_bias", False))


def parse_internlm3(fields: JsonFields) -> ModelConfig:
    """Published files have other names of the biases than transformers."""
    bias = fields.boolean("bias", fields.boolean("mlp_bias", False))
    qkv_bias = fields.boolean("qkv_bias", fields.boolean("attention_bias", False))
    shape = parse_shape(fields, num_kv_heads=2, head_dim=128, rms_norm_eps=1e-5)
    return ModelConfig(**shape, qkv_bias=qkv_bias, output_bias=bias, mlp_bias=bias)


def parse_granite(fields: JsonFields) -> ModelConfig:
    return with_factors(fields, parse_llama(fields))


def with_factors(fields: JsonFields, config: Config) -> Config:
    """Every summand of the stream has a factor, by which the stream is kept divided: normalisations do not see
    that, with an epsilon divided by its square."""
    added = fields.positive_number("residual_multiplier", 1.0)
    return replace(
        config,
        rms_norm_eps=config.rms_norm_eps / added**2,
        embedding_scale=fields.positive_number("embedding_multiplier", 1.0) / added,
        query_scale=fields.positive_number("attention_multiplier", 1.0) * config.head_dim**0.5,
        logit_scale=1.0 / fields.positive_number("logits_scaling", 1.0),
    )


def parse_ernie4_5(fields: JsonFields) -> ModelConfig:
    bias = fields.boolean("use_bias", False)
    shape = paired(fields, num_kv_heads=2, head_dim=128, rope_theta=500_000.0, tie_word_embeddings=True)
    return ModelConfig(**shape, qkv_bias=bias, output_bias=bias, mlp_bias=bias)


def parse_glm4(fields: JsonFields) -> ModelConfig:
    """Half of each head is turned, and what both parts of a layer add is normalised, too."""
    shape = paired(fields, num_kv_heads=2, head_dim=128, rms_norm_eps=1.5625e-7, turned_share=0.5)
    return ModelConfig(**shape, qkv_bias=fields.boolean("attention_bias", True), norms_per_layer=4)


def paired(fields: JsonFields, **defaults: Any) -> dict[str, Any]:
    """Of families whose heads are turned by adjacent pairs; rows of quantised weights are parted in GGUF alone."""
    shape = parse_shape(fields, **defaults)
    if not isinstance(shape["quantization"], GgufFormat | None):
        raise refuse("quantization_config in this family", "use unquantised weights, which --quantization rounds")
    return {**shape, "are_pairs_adjacent": True}


def parse_seed_oss(fields: JsonFields) -> ModelConfig:
    """Biases of queries, keys and values, but not of the output."""
    return ModelConfig(
        **parse_shape(fields, num_kv_heads=8, head_dim=128),
        qkv_bias=fields.boolean("attention_bias", True),
        output_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def parse_smollm3(fields: JsonFields) -> ModelConfig:
    """Llama whose every fourth layer has no positions."""
    shape = parse_shape(fields, num_kv_heads=4, rope_theta=2e6, tie_word_embeddings=True)
    config = ModelConfig(**shape, **attention_bias(fields, False), mlp_bias=fields.boolean("mlp_bias", False))
    return replace(config, **unturned_layers(fields))


def unturned_layers(fields: JsonFields) -> dict[str, Any]:
    """Layers without positions: 0 in `no_rope_layers`, or the last of every few."""
    num_layers, every = fields.positive_int("num_hidden_layers"), fields.positive_int("no_rope_layer_interval", 4)
    turned = fields.whole_numbers("no_rope_layers") or [(index + 1) % every for index in range(num_layers)]
    if len(turned) != num_layers:
        raise fields.invalid("no_rope_layers", f"must have as many as num_hidden_layers ({num_layers})")
    unturned = frozenset(index for index, is_turned in enumerate(turned) if not is_turned)
    return {"unturned": unturned, "local_rope": UNTURNED} if unturned else {}


def parse_exaone4(fields: JsonFields) -> ModelConfig:
    shape = parse_shape(fields, rms_norm_eps=1e-5, windows=windows_or_none(fields))
    return ModelConfig(**shape, **whole_unturned(fields, shape), query_norm=QueryNorm.HEADS)


def parse_cohere(fields: JsonFields) -> ModelConfig:
    """Both parts of a layer see the same."""
    if fields.boolean("use_qk_norm", False):
        raise refuse("use_qk_norm in this family", "use a model whose heads are not normalised")
    shape = paired(fields, rope_theta=500_000.0, tie_word_embeddings=True)
    shape["rms_norm_eps"] = fields.positive_number("layer_norm_eps", 1e-5)
    return ModelConfig(
        **shape, **attention_bias(fields, False), are_norms_centred=True, norms_per_layer=1,
        logit_scale=fields.positive_number("logit_scale", 0.0625),
    )  # fmt: skip


def parse_cohere2(fields: JsonFields) -> ModelConfig:
    """Both parts of a layer see the same."""
    shape = paired(fields, windows=windows_or_none(fields), tie_word_embeddings=True)
    shape["rms_norm_eps"] = fields.positive_number("layer_norm_eps", 1e-5)
    return ModelConfig(
        **shape, **whole_unturned(fields, shape), **attention_bias(fields, False), are_norms_centred=True,
        norms_per_layer=1, logit_scale=fields.positive_number("logit_scale", 0.0625),
    )  # fmt: skip


def windows_or_none(fields: JsonFields) -> Callable[[JsonFields], tuple[int, ...]]:
    """Every fourth layer sees all, or each does where `sliding_window` is null."""
    if fields.names("sliding_window") and not fields.has("sliding_window"):
        return windows_everywhere
    return partial(windows_alternating, default=4096, every=_window_period(fields))


def _window_period(fields: JsonFields) -> int:
    """The number of layers from one that sees all to the next; EXAONE 4 writes a letter for each of them (LLLG)."""
    if not fields.is_text("sliding_window_pattern"):
        return fields.positive_int("sliding_window_pattern", 4)
    letters = fields.text("sliding_window_pattern") or ""
    if letters.strip("L") != "G" or not letters.endswith("G"):
        raise fields.invalid("sliding_window_pattern", "must be an integer, or letters L that end with a G")
    return len(letters)


def whole_unturned(fields: JsonFields, shape: dict[str, Any]) -> dict[str, Any]:
    """Of a model with windows, layers that see all have no positions."""
    if fields.names("sliding_window") and not fields.has("sliding_window"):
        return {}
    whole = frozenset(index for index, window in enumerate(shape["windows"]) if not window)
    return {"unturned": whole, "local_rope": UNTURNED} if whole else {}


def attention_bias(fields: JsonFields, default: bool) -> dict[str, Any]:
    """Whether the four attention projections of a family add a bias."""
    bias = fields.boolean("attention_bias", default)
    return {"qkv_bias": bias, "output_bias": bias}


def parse_mistral(fields: JsonFields) -> ModelConfig:
    windows = partial(windows_everywhere, default=_MISTRAL_WINDOW)
    return ModelConfig(**parse_shape(fields, num_kv_heads=8, windows=windows))


def parse_ministral(fields: JsonFields) -> ModelConfig:
    """Layers without a window are named; a file without names has a window in each, or none where it is null."""
    windows = windows_everywhere
    if fields.texts("layer_types") and (fields.has("sliding_window") or not fields.names("sliding_window")):
        windows = partial(windows_alternating, every=1)
    return ModelConfig(**parse_shape(fields, num_kv_heads=8, windows=partial(windows, default=_MISTRAL_WINDOW)))


def parse_ministral3(fields: JsonFields) -> ModelConfig:
    """Mistral whose queries grow with every so many positions as pre-training had."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    if scaling is None:
        return parse_ministral3(fields.with_section("", changes={"rope_parameters": _MINISTRAL3_ROPE}))
    shape = parse_shape(fields, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, windows=windows_everywhere)
    return ModelConfig(**shape, query_growth=query_growth(scaling))


def query_growth(scaling: JsonFields) -> QueryGrowth | None:
    """As Mistral's files have it among the fields of positions; None = they do not."""
    if not scaling.has("llama_4_scaling_beta"):
        return None
    original = scaling.positive_int("original_max_position_embeddings")
    return QueryGrowth(original, scaling.positive_number("llama_4_scaling_beta"), 0)


def parse_phi3(fields: JsonFields) -> ModelConfig:
    """Long contexts are longrope's, which older files call otherwise; Phi-4-mini turns a part of each head."""
    return ModelConfig(
        **parse_shape(
            fields,
            rms_norm_eps=1e-5,
            windows=windows_everywhere,
            rope_names={"su": RopeKind.LONGROPE, "yarn": RopeKind.LONGROPE},
            turned_share=1.0,
        )
    )


def parse_qwen2(fields: JsonFields) -> ModelConfig:
    return ModelConfig(**parse_shape(fields, windows=windows_by_layer), qkv_bias=True)


def parse_qwen3(fields: JsonFields) -> ModelConfig:
    shape = parse_shape(fields, head_dim=QWEN3_HEAD_DIM, windows=windows_by_layer)
    return ModelConfig(**shape, **attention_bias(fields, False), query_norm=QueryNorm.HEADS)


def _gemma_shape(fields: JsonFields, *, every: int, caps: tuple[float, float]) -> dict[str, Any]:
    """What Gemma 2 and 3 have in common; one in `every` layers sees all. `caps`: defaults for scores and logits."""
    shape = parse_shape(
        fields,
        num_kv_heads=4,
        head_dim=256,
        windows=partial(windows_alternating, default=4096, every=every),
        activation="gelu_pytorch_tanh",
        tie_word_embeddings=True,
    )
    scale = fields.positive_number("query_pre_attn_scalar", 256.0)
    return {
        **shape,
        **attention_bias(fields, False),
        "norm_offset": 1.0,
        "norms_per_layer": 4,
        "query_scale": (shape["head_dim"] / scale) ** 0.5,
        "embedding_scale": shape["hidden_size"] ** 0.5,
        "soft_cap": soft_cap(fields, "attn_logit_softcapping", caps[0]),
        "logit_soft_cap": soft_cap(fields, "final_logit_softcapping", caps[1]),
    }


def soft_cap(fields: JsonFields, name: str, default: float) -> float:
    """0 where the file says null."""
    if not fields.names(name):
        return default
    return fields.positive_number(name) if fields.has(name) else 0.0


def parse_gemma2(fields: JsonFields) -> ModelConfig:
    return ModelConfig(**_gemma_shape(fields, every=2, caps=(50.0, 30.0)))


def parse_gemma3(fields: JsonFields) -> ModelConfig:
    if fields.boolean(BOTH_WAYS, False):
        raise refuse(BOTH_WAYS, "use a model that generates text")
    return parse_gemma3_layers(fields)


def parse_gemma3_layers(fields: JsonFields) -> ModelConfig:
    """Whichever way tokens look. Older files name the base of layers with a window beside the main base, newer files
    have a section for each kind of layer."""
    shape = _gemma_shape(fields, every=fields.positive_int("sliding_window_pattern", 6), caps=(0.0, 0.0))
    local = sliding_rope(fields, _GEMMA3_LOCAL_BASE)
    if local is None:
        local = RopeConfig(theta=fields.positive_number("rope_local_base_freq", _GEMMA3_LOCAL_BASE))
    rope = parse_rope(fields, _GEMMA3_BASE, "full_attention")
    return replace(ModelConfig(**shape, query_norm=QueryNorm.HEADS), rope=rope, local_rope=local)


def parse_gemma3_seeing(fields: JsonFields) -> ModelConfig:
    """With its vision tower (arXiv 2503.19786)."""
    text = fields.with_section("text_config", GEMMA3_DEFAULTS)
    config = parse_gemma3(text)
    vision = parse_siglip(fields, config.hidden_size)
    for name, token_id in (
        ("image_token_index", vision.image_token_id),
        ("boi_token_index", vision.begin_token_id),
        ("eoi_token_index", vision.end_token_id),
    ):
        if token_id >= config.vocab_size:
            raise fields.invalid(name, f"must be below vocab_size ({config.vocab_size})")
    return replace(config, vision=vision)


def sliding_rope(fields: JsonFields, default_theta: float) -> RopeConfig | None:
    """The base of layers with a window, in files with a section for each kind of layer; None = no sections."""
    newer = fields.section("rope_parameters")
    if newer is None or newer.section("sliding_attention") is None:
        return None
    return parse_rope(fields, default_theta, "sliding_attention")


def parse_olmo2(fields: JsonFields) -> ModelConfig:
    return _olmo(fields, parse_shape(fields, rms_norm_eps=1e-5))


def _olmo(fields: JsonFields, shape: dict[str, Any]) -> ModelConfig:
    return ModelConfig(**shape, **attention_bias(fields, False), query_norm=QueryNorm.PROJECTIONS)


def parse_olmo3(fields: JsonFields) -> ModelConfig:
    """Only positions of layers without a window are stretched."""
    windows = partial(windows_alternating, default=4096, every=4)
    shape = parse_shape(fields, rms_norm_eps=1e-5, rope_theta=_OLMO3_BASE, windows=windows)
    config, rope = _olmo(fields, shape), parse_rope(fields, _OLMO3_BASE, "full_attention")
    return replace(config, rope=rope, local_rope=sliding_rope(fields, _OLMO3_BASE) or RopeConfig(theta=rope.theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class UngatedConfig(ModelConfig):
    """Feed-forwards have no gates."""

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        num, hidden, inner = self.num_layers, self.hidden_size, share(self.intermediate_size, ranks)
        return [
            WeightPart("mlp.up_proj", num, inner, hidden, bias=inner if self.mlp_bias else 0),
            WeightPart("mlp.down_proj", num, hidden, inner, bias=hidden if self.mlp_bias else 0),
        ]


def parse_arcee(fields: JsonFields) -> UngatedConfig:
    shape = parse_shape(fields, rms_norm_eps=1e-5, activation="relu2")
    return UngatedConfig(**shape, **attention_bias(fields, False), mlp_bias=fields.boolean("mlp_bias", False))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApertusConfig(UngatedConfig):
    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        numbers = vector("mlp.act_fn", self.num_layers, 4)
        return [*UngatedConfig.feed_forward_parts(self, ranks), numbers]


def parse_apertus(fields: JsonFields) -> ApertusConfig:
    """Activations have numbers of their own; without a section of positions these are stretched."""
    if not (fields.has("rope_parameters") or fields.has("rope_scaling")):
        fields = fields.with_changes({"rope_parameters": _APERTUS_ROPE})
    shape = parse_shape(fields, rms_norm_eps=1e-5, rope_theta=_APERTUS_BASE, activation="xielu")
    return ApertusConfig(**shape, **attention_bias(fields, False), query_norm=QueryNorm.HEADS)


FAMILIES = (
    Family("ApertusForCausalLM", "apertus", parse_apertus, "Apertus 8B and 70B"),
    Family("ArceeForCausalLM", "arcee", parse_arcee, "AFM 4.5B, unquantised or in GGUF"),
    Family(
        "CohereForCausalLM",
        "cohere",
        parse_cohere,
        "Command R, Aya 23 and Aya Expanse, unquantised or in GGUF",
        built_as="Cohere2ForCausalLM",
        gguf="command-r",
    ),
    Family("Cohere2ForCausalLM", "cohere2", parse_cohere2, "Command A, Command R7B, unquantised or in GGUF"),
    Family("CwmForCausalLM", "cwm", parse_cwm, "Code World Model 32B", built_as="LlamaForCausalLM"),
    Family(
        "Ernie4_5ForCausalLM",
        "ernie4_5",
        parse_ernie4_5,
        "ERNIE 4.5, dense (0.3B), unquantised or in GGUF",
        built_as="LlamaForCausalLM",
    ),
    Family(
        "Exaone4ForCausalLM",
        "exaone4",
        parse_exaone4,
        "EXAONE 4.0: layers that see all have no positions",
        built_as="Olmo2ForCausalLM",
    ),
    Family("Gemma2ForCausalLM", "gemma2", parse_gemma2, "Gemma 2"),
    Family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        parse_gemma3,
        "Gemma 3, the text models (270M, 1B), and what is built like them",
        built_as="Gemma2ForCausalLM",
    ),
    Family(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        parse_gemma3_seeing,
        "Gemma 3 from 4B on: chats with [images]",
    ),
    Family("Glm4ForCausalLM", "glm4", parse_glm4, "GLM-4 0414 and GLM-Z1, dense, unquantised or in GGUF"),
    Family("GraniteForCausalLM", "granite", parse_granite, "Granite 3, dense", built_as="LlamaForCausalLM"),
    Family("HeliumForCausalLM", "helium", parse_helium, "Helium 1 2B", built_as="LlamaForCausalLM"),
    Family("InternLM3ForCausalLM", "internlm3", parse_internlm3, "InternLM3 8B", built_as="LlamaForCausalLM"),
    Family("IQuestCoderForCausalLM", "iquestcoder", parse_iquestcoder, "IQuest-Coder-V1", built_as="LlamaForCausalLM"),
    Family("LlamaForCausalLM", "llama", parse_llama, "Llama 2, 3, 3.1, 3.2 (text), 3.3, and what is built like them"),
    Family("MinistralForCausalLM", "ministral", parse_ministral, "Ministral 8B (2410)", built_as="LlamaForCausalLM"),
    Family(
        "Ministral3ForCausalLM",
        "ministral3",
        parse_ministral3,
        "Ministral 3 (3B, 8B, 14B)",
        built_as="LlamaForCausalLM",
        gguf="mistral3",
    ),
    Family(
        "MistralForCausalLM",
        "mistral",
        parse_mistral,
        "Mistral 7B, Nemo, Small (text), and what is built like them",
        built_as="LlamaForCausalLM",
    ),
    Family("Olmo2ForCausalLM", "olmo2", parse_olmo2, "OLMo 2"),
    Family("Olmo3ForCausalLM", "olmo3", parse_olmo3, "OLMo 3", built_as="Olmo2ForCausalLM"),
    Family(
        "Phi3ForCausalLM", "phi3", parse_phi3, "Phi-3, Phi-3.5 and Phi-4, their mini models and 128k contexts included"
    ),
    Family(
        "Qwen2ForCausalLM",
        "qwen2",
        parse_qwen2,
        "Qwen2, Qwen2.5, and distillations into them",
        built_as="LlamaForCausalLM",
    ),
    Family("Qwen3ForCausalLM", "qwen3", parse_qwen3, "Qwen3, dense", built_as="LlamaForCausalLM"),
    Family("SeedOssForCausalLM", "seed_oss", parse_seed_oss, "Seed-OSS 36B", built_as="LlamaForCausalLM"),
    Family(
        "SmolLM3ForCausalLM",
        "smollm3",
        parse_smollm3,
        "SmolLM3: every fourth layer has no positions",
        built_as="LlamaForCausalLM",
        gguf="smollm3",
    ),
)
