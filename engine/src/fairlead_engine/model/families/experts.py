"""Families with several experts in place of one feed-forward layer; each token takes a few.

Mixtral (arXiv 2401.04088), and Phi-3.5-MoE, whose experts are weighted apart (arXiv 2409.12136). Qwen1.5-MoE, Qwen2-MoE
(arXiv 2407.10671) and Qwen3-MoE (arXiv 2505.09388): Qwen2 and Qwen3 with many narrow experts, and in the older ones an
expert for all tokens. gpt-oss (arXiv 2508.10925): experts with clamped gates, stored in one tensor; every other layer
has a window, and heads have sinks. Cohere 2, dots.llm1 (arXiv 2506.05767), ERNIE 4.5, Granite, Hunyuan, K-EXAONE,
MiniMax-M2 and Solar Open differ in names, in scores and in experts for all tokens.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fairlead_common.models.families.cohere2_moe import Cohere2ExpertsConfig
from fairlead_common.models.families.experts import ExpertsConfig, GptOssConfig, PhimoeConfig, RoutedExpertsConfig
from fairlead_common.models.families.llama4 import Llama4Config
from fairlead_engine.kernels.gates import Gate
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import Experts, FeedForward, ParallelLayer, ScaledInputs, SharedExpert
from fairlead_engine.model.shard import scaled
from fairlead_engine.model.weight_stack import ExpertProjections
from fairlead_engine.model.weights import NormNames, Weights, layer_index


def build_mixtral(weights: Weights, config: ExpertsConfig) -> Decoder:
    jitter = config.jitter if isinstance(config, PhimoeConfig) else None

    def experts(prefix: str) -> Experts:
        chosen = config.num_experts, ExpertRouting(config.num_experts_per_token, jitter=jitter)
        return weights.experts(f"{prefix}.block_sparse_moe", *chosen, gate="w1", up="w3", down="w2")

    return weights.decoder(feed_forward=experts)


def routed_experts(
    weights: Weights,
    config: RoutedExpertsConfig,
    prefix: str,
    *,
    router: str = "gate",
    bias: str = "gate.e_score_correction_bias",
    shared: str = "shared_experts",
    offsets: Tensor | None = None,
) -> FeedForward:
    """The `mlp` of a layer: a single feed-forward, or experts and those for all tokens; by their names in it.
    `offsets`: of scores where the checkpoint has none; None = those scores are a softmax."""
    prefix, is_dense = f"{prefix}.mlp", layer_index(prefix) in config.dense_layers
    if is_dense:
        return weights.feed_forward(prefix)
    routing = ExpertRouting(
        config.num_experts_per_token, config.is_normalised, num_groups=config.num_groups,
        num_chosen_groups=config.num_chosen_groups, scale=config.routed_scale, bias=offsets,
        is_softmax=config.is_softmax,
    )  # fmt: skip
    if config.has_score_bias:
        stored = weights.offsets(f"{prefix}.{bias}", config.num_experts)
        routing = routing._replace(bias=stored)
    weights.unstack_experts(prefix, config.num_experts, config.expert_size)
    chosen = weights.experts(prefix, config.num_experts, routing, inner=config.expert_size, router=router)
    if not config.num_shared_experts:
        return chosen
    inner = config.num_shared_experts * config.expert_size
    return SharedExpert(chosen, weights.feed_forward(f"{prefix}.{shared}", inner=inner))


def build_cohere2(weights: Weights, config: Cohere2ExpertsConfig) -> Decoder:
    offsets = torch.zeros(config.num_experts, device=weights.device) if config.is_sigmoid else None

    def feed_forward(prefix: str) -> FeedForward:
        layer = routed_experts(weights, config, prefix, offsets=offsets)
        return replace(layer, factor=0.5) if config.is_averaged and isinstance(layer, SharedExpert) else layer

    norms = NormNames("input_layernorm", None, None, None)
    return weights.decoder(feed_forward=feed_forward, norms=norms, kind=ParallelLayer)


def build_routed(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    return weights.decoder(feed_forward=lambda prefix: routed_experts(weights, config, prefix))


def build_ernie4_5(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    weights.skip("model.mtp_")
    bias = "moe_statics.e_score_correction_bias"
    return weights.decoder(feed_forward=lambda prefix: routed_experts(weights, config, prefix, bias=bias))


def build_exaone_moe(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    """The layer for multi-token prediction is left."""
    weights.skip("mtp.")
    bias = "e_score_correction_bias"
    return weights.decoder(feed_forward=lambda prefix: routed_experts(weights, config, prefix, bias=bias))


def build_granite(weights: Weights, config: ExpertsConfig) -> Decoder:
    def experts(prefix: str) -> Experts:
        layer, num, inner = f"{prefix}.block_sparse_moe", config.num_experts, config.expert_size
        weights.unstack_experts(layer, num, inner, gate_up="input_linear.weight", down="output_linear.weight")
        return weights.experts(layer, num, ExpertRouting(config.num_experts_per_token), router="router.layer")

    return weights.decoder(feed_forward=experts)


def build_hunyuan(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    return weights.decoder(
        feed_forward=lambda prefix: routed_experts(weights, config, prefix, router="gate.wg", shared="shared_mlp")
    )


def build_hunyuan_3(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    """The layer for multi-token prediction, behind the others, is left."""
    weights.skip(f"model.layers.{config.num_layers}.")
    return weights.decoder(
        feed_forward=lambda prefix: routed_experts(
            weights, config, prefix, router="router.gate", bias="expert_bias", shared="shared_mlp"
        )
    )


def build_minimax_m2(weights: Weights, config: RoutedExpertsConfig) -> Decoder:
    """Mixtral's experts, chosen by sigmoids and a bias, behind projections that are normalised whole."""

    def experts(prefix: str) -> Experts:
        layer = f"{prefix}.block_sparse_moe"
        bias = weights.offsets(f"{layer}.e_score_correction_bias", config.num_experts)
        routing = ExpertRouting(config.num_experts_per_token, bias=bias)
        return weights.experts(layer, config.num_experts, routing, gate="w1", up="w3", down="w2")

    return weights.decoder(feed_forward=experts)


def build_qwen(weights: Weights, config: ExpertsConfig) -> Decoder:
    return weights.decoder(feed_forward=qwen_feed_forward(weights, config))


def qwen_feed_forward(weights: Weights, config: ExpertsConfig) -> Callable[[str], FeedForward]:
    """What makes the feed-forward part of a layer, given its name."""
    routing = ExpertRouting(config.num_experts_per_token, config.is_normalised)

    def feed_forward(prefix: str) -> FeedForward:
        mlp = f"{prefix}.mlp"
        if layer_index(prefix) in config.dense_layers:
            return weights.feed_forward(mlp)
        weights.unstack_experts(mlp, config.num_experts, config.expert_size)
        chosen = weights.experts(mlp, config.num_experts, routing, inner=config.expert_size)
        if not config.shared_expert_size:
            return chosen
        shared = weights.feed_forward(f"{mlp}.shared_expert", inner=config.shared_expert_size)
        gate = weights.linear({f"{mlp}.shared_expert_gate": 1}, config.hidden_size, is_sensitive=True, adapts=True)
        return SharedExpert(chosen, shared, gate)

    return feed_forward


def build_gpt_oss(weights: Weights, config: GptOssConfig) -> Decoder:
    hidden, inner = config.hidden_size, config.intermediate_size
    part = weights.shard.part(inner)
    gate = Gate(config.gate_alpha, config.gate_limit)

    def experts(prefix: str) -> Experts:
        each = [f"{prefix}.mlp.experts.{index}" for index in range(config.num_experts)]
        for name in ("gate_up_proj", "down_proj"):
            layers = [f"{one}.{name}" for one in each]
            weights.unstack(f"{prefix}.mlp.experts.{name}", layers, is_transposed=True)
        router = weights.linear(
            {f"{prefix}.mlp.router": config.num_experts}, hidden, bias=True, is_sensitive=True, adapts=True
        )
        routing = ExpertRouting(config.num_experts_per_token)
        projections = [ExpertProjections({f"{one}.gate_up_proj": 2 * inner}, f"{one}.down_proj") for one in each]
        return weights.expert_layer(  # rows of gate and up lie by turns
            router, routing, projections, inner, row_parts=[scaled(part, 2)], bias=True, gate=gate
        )

    return weights.decoder(feed_forward=experts)


def build_llama4(weights: Weights, config: Llama4Config) -> Decoder:
    """Inputs of experts are scaled by sigmoid scores, beside an expert for all tokens, in all layers or in some.
    `Weights.attention` follows the configuration: chunks with positions, and whole contexts without."""

    def feed_forward(prefix: str) -> FeedForward:
        layer, inner = f"{prefix}.feed_forward", config.expert_size
        if layer_index(prefix) in config.dense_layers:
            return weights.feed_forward(layer)
        weights.unstack_experts(layer, config.num_experts, inner, is_transposed=True)
        experts = weights.experts(
            layer, config.num_experts, ExpertRouting(1), inner=inner, router="router", are_sides_swapped=True
        )
        bias = torch.zeros(config.num_experts, device=weights.device)
        scores = ExpertRouting(config.num_experts_per_token, normalised=False, bias=bias)
        shared = weights.feed_forward(f"{layer}.shared_expert", inner=inner)
        return SharedExpert(ScaledInputs(experts, scores), shared)

    return weights.decoder(feed_forward=feed_forward)
