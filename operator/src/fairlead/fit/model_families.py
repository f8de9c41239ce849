"""The families of models that the engine computes, by the architecture that `config.json` names: what each is made of.

The engine has the same names in its own registry; a test compares both, and their sizes with what it loads.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from fairlead.fit.checkpoint_fields import CheckpointFields, ConfigUnreadable
from fairlead.fit.latent_models import deepseek_v2, deepseek_v3
from fairlead.fit.model_shape import Dense, ModelShape, vector
from fairlead.fit.weight_parts import Part, Role

ENCODERS = ("BertModel", "RobertaModel", "XLMRobertaModel", "DistilBertModel")
"""What the engine computes without a cache."""
_CLASSIFIES = "ForSequenceClassification"


class FamilyUnknown(ConfigUnreadable):
    """An architecture that the engine has no code of its own for, so that nothing can be reckoned."""


def _llama(fields: CheckpointFields) -> ModelShape:
    dense, bias, mlp_bias = Dense.read(fields), fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return dense.shape(
        lambda ranks: [
            *dense.attention(ranks, qkv_bias=bias, output_bias=bias),
            *dense.feed_forward(ranks, bias=mlp_bias),
            *dense.norms(),
        ]
    )


def _plain(fields: CheckpointFields, *, kv_heads: int | None = None) -> ModelShape:
    """Mistral and Phi-3."""
    dense = Dense.read(fields, kv_heads=kv_heads)
    return dense.shape(lambda ranks: [*dense.attention(ranks), *dense.feed_forward(ranks), *dense.norms()])


def _qwen2(fields: CheckpointFields) -> ModelShape:
    dense = Dense.read(fields)
    return dense.shape(
        lambda ranks: [*dense.attention(ranks, qkv_bias=True), *dense.feed_forward(ranks), *dense.norms()]
    )


def _qwen3(fields: CheckpointFields) -> ModelShape:
    dense, bias = Dense.read(fields, head_dim=128), fields.flag("attention_bias", False)
    return dense.shape(
        lambda ranks: [
            *dense.attention(ranks, qkv_bias=bias, output_bias=bias, norm="heads"),
            *dense.feed_forward(ranks),
            *dense.norms(),
        ]
    )


def _gemma(fields: CheckpointFields, *, norm: str) -> ModelShape:
    """The window of most layers changes nothing: the engine's cache holds whole contexts of all."""
    dense = Dense.read(fields, kv_heads=4, head_dim=256)
    return dense.shape(
        lambda ranks: [*dense.attention(ranks, norm=norm), *dense.feed_forward(ranks), *dense.norms(4)], is_tied=True
    )


def _olmo(fields: CheckpointFields) -> ModelShape:
    dense, bias = Dense.read(fields), fields.flag("attention_bias", False)
    return dense.shape(
        lambda ranks: [
            *dense.attention(ranks, qkv_bias=bias, output_bias=bias, norm="projections"),
            *dense.feed_forward(ranks),
            *dense.norms(),
        ]
    )


def _mixtral(fields: CheckpointFields) -> ModelShape:
    dense, num = Dense.read(fields, kv_heads=8), fields.positive("num_local_experts", 8)
    chosen = fields.positive("num_experts_per_tok", 2)
    return dense.shape(
        lambda ranks: [
            *dense.attention(ranks),
            *dense.experts(ranks, layers=dense.num_layers, num=num, inner=dense.inner),
            *dense.norms(),
        ],
        widest=chosen * dense.inner,
    )


def _gpt_oss(fields: CheckpointFields) -> ModelShape:
    dense, bias = Dense.read(fields, kv_heads=8, head_dim=64), fields.flag("attention_bias", True)
    num = fields.positive("num_local_experts", fields.positive("num_experts", 128))
    chosen = fields.positive("num_experts_per_tok", 4)
    return dense.shape(
        lambda ranks: [
            *dense.attention(ranks, qkv_bias=bias, output_bias=bias, sinks=True),
            *dense.experts(
                ranks, layers=dense.num_layers, num=num, inner=dense.inner, bias=True, router_bias=True
            ),
            *dense.norms(),
        ],
        widest=chosen * dense.inner,
    )  # fmt: skip


def _qwen_experts(
    fields: CheckpointFields, *, size: int, num: int, chosen: int, shared: int | None, qwen3: bool
) -> ModelShape:
    """Qwen2-MoE and Qwen3-MoE; the others are the family's defaults. `shared`: of the expert that all tokens take."""
    dense = Dense.read(fields, kv_heads=4, head_dim=128) if qwen3 else Dense.read(fields)
    num = fields.positive("num_experts", fields.positive("num_local_experts", num))
    size, each = fields.positive("moe_intermediate_size", size), fields.positive("decoder_sparse_step", 1)
    layers = range(dense.num_layers)
    without = {*fields.wholes("mlp_only_layers")} | {index for index in layers if (index + 1) % each}
    num_with = len(set(layers) - without)
    sizes = {"intermediate_size": dense.inner, "moe_intermediate_size": size}
    common = fields.positive("shared_expert_intermediate_size", shared) if shared else 0
    if common:
        sizes["shared_expert_intermediate_size"] = common
    bias = fields.flag("attention_bias", False) if qwen3 else fields.flag("qkv_bias", True)

    def parts(ranks: int) -> list[Part]:
        found = [
            *dense.attention(ranks, qkv_bias=bias, output_bias=qwen3 and bias, norm="heads" if qwen3 else ""),
            *dense.experts(ranks, layers=num_with, num=num, inner=size),
            *dense.feed_forward(ranks, num=dense.num_layers - num_with),
            *dense.norms(),
        ]
        if common:
            found += dense.feed_forward(ranks, num=num_with, inner=common, name="mlp.shared_expert")
            found.append(Part("mlp.shared_expert_gate", num_with, 1, dense.hidden, Role.PRECISE))
        return found

    widest = fields.positive("num_experts_per_tok", chosen) * size + common
    return dense.shape(parts, inner_sizes=sizes, widest=widest)


def _qwen2_5_vl(fields: CheckpointFields) -> ModelShape:
    """The decoder's fields are in `text_config`, or in older files beside `vision_config`."""
    dense, vision = Dense.read(fields.with_section("text_config")), fields.section("vision_config")
    if vision is None:
        raise fields.wrong("vision_config", "must say what the vision tower is made of")
    tower = _tower(vision, dense.hidden)
    return dense.shape(
        lambda ranks: [*dense.attention(ranks, qkv_bias=True), *dense.feed_forward(ranks), *dense.norms(), *tower],
        sees_images=True,
    )


def _tower(vision: CheckpointFields, hidden: int) -> list[Part]:
    size, inner, num = (
        vision.positive("hidden_size"),
        vision.positive("intermediate_size"),
        vision.positive("depth", 32),
    )
    merged = size * vision.positive("spatial_merge_size", 2) ** 2
    patch = 3 * vision.positive("temporal_patch_size", 2) * vision.positive("patch_size", 14) ** 2
    out, keep = vision.positive("out_hidden_size", hidden), Role.PRECISE
    return [
        Part("visual.patch_embed", 1, size, patch, keep),
        Part("visual.attn.qkv", num, 3 * size, size, keep, 3 * size),
        Part("visual.attn.proj", num, size, size, keep, size),
        Part("visual.mlp.gate_up_proj", num, 2 * inner, size, keep, 2 * inner),
        Part("visual.mlp.down_proj", num, size, inner, keep, size),
        vector("visual.norms", 2 * num + 1, size),
        Part("visual.merger.mlp.0", 1, merged, merged, keep, merged),
        Part("visual.merger.mlp.2", 1, out, merged, keep, out),
    ]


FAMILIES: Mapping[str, Callable[[CheckpointFields], ModelShape]] = {
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "Gemma2ForCausalLM": partial(_gemma, norm=""),
    "Gemma3ForCausalLM": partial(_gemma, norm="heads"),
    "GptOssForCausalLM": _gpt_oss,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": partial(_plain, kv_heads=8),
    "MixtralForCausalLM": _mixtral,
    "Olmo2ForCausalLM": _olmo,
    "Olmo3ForCausalLM": _olmo,
    "Phi3ForCausalLM": _plain,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen2_5_VLForConditionalGeneration": _qwen2_5_vl,
    "Qwen2MoeForCausalLM": partial(_qwen_experts, size=1408, num=60, chosen=4, shared=5632, qwen3=False),
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": partial(_qwen_experts, size=768, num=128, chosen=8, shared=None, qwen3=True),
}
"""As `architectures` in `config.json` spells them."""
_MODEL_TYPES = {
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""What decides where `architectures` names none."""


def read_shape(config: object) -> ModelShape:
    """The shape of the model that a parsed `config.json` describes. Raises ConfigUnreadable, naming the field, and
    FamilyUnknown for an architecture that is not reckoned."""
    fields = CheckpointFields(config)
    named = fields.texts("architectures")
    found = [each for each in FAMILIES if each in named]
    if not named and (name := _MODEL_TYPES.get(fields.text("model_type"))):
        found = [name]
    if not found:
        raise FamilyUnknown("architectures", _why_unknown(named, fields.text("model_type")))
    return replace(FAMILIES[found[0]](fields), architecture=found[0])


def _why_unknown(named: list[str], model_type: str) -> str:
    told = ", ".join(named) or model_type or "nothing"
    if any(_CLASSIFIES in each for each in named) or any(each in ENCODERS for each in named):
        return f"names {told}, which is an encoder or a classifier: those are not reckoned, only what generates is"
    known = ", ".join(FAMILIES)
    return (
        f"names {told}, which is none of the families that the engine computes itself ({known}); it may run through "
        "transformers' code, and what that takes is not reckoned"
    )
