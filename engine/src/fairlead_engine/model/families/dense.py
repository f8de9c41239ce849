"""Families whose layers have one feed-forward each: Llama (arXiv 2302.13971, 2407.21783) and its relatives.

`Weights.attention` follows the configuration for all. Gemma (arXiv 2408.00118, 2503.19786) also normalises before and
after both parts of a layer, OLMo 2 and 3 (arXiv 2501.00656) the update of both parts, and Phi-3 (arXiv 2404.14219)
stores projections of one input as one. Feed-forwards of Arcee, with squared rectifiers (arXiv 2109.08668), and of
Apertus (arXiv 2509.14233) have no gates.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import softplus

from fairlead_common.models.model_config import ModelConfig
from fairlead_engine.kernels.gates import gelu_mul, squared_relu, xielu
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import ParallelLayer, UngatedFeedForward
from fairlead_engine.model.weights import BEFORE_BOTH, NormNames, Weights

GEMMA_NORMS = NormNames(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)
_GLM4_NORMS = NormNames("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
_APERTUS_NORMS = NormNames("attention_layernorm", None, "feedforward_layernorm", None)
_OLMO_NORMS = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


def build(
    weights: Weights,
    config: ModelConfig,
    norms: NormNames = BEFORE_BOTH,
    combine: Callable[[Tensor], Tensor] | None = None,
    fused: str | None = None,
) -> Decoder:
    """`combine`, `fused`: as in `Weights.feed_forward`; with `fused` attention's projections are one, too."""
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, is_fused=fused is not None),
        feed_forward=lambda prefix: weights.feed_forward(
            f"{prefix}.mlp", bias=config.mlp_bias, combine=combine, fused=fused
        ),
        norms=norms,
    )


def ungated(
    weights: Weights,
    config: ModelConfig,
    prefix: str,
    inner: int,
    activation: Callable[[Tensor], Tensor] = squared_relu,
) -> UngatedFeedForward:
    """The feed-forward below `prefix`, `inner` wide."""
    hidden, part, bias = config.hidden_size, weights.shard.part(inner), config.mlp_bias
    return UngatedFeedForward(
        up=weights.linear({f"{prefix}.up_proj": inner}, hidden, bias=bias, row_parts=[part]),
        down=weights.linear({f"{prefix}.down_proj": hidden}, inner, bias=bias, column_part=part),
        activation=activation,
    )


def build_apertus(weights: Weights, config: ModelConfig) -> Decoder:
    def feed_forward(prefix: str) -> UngatedFeedForward:
        names = (f"{prefix}.mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps"))
        above, below, slope, limit = (weights.offsets(name, is_rounded=True).float() for name in names)
        activation = partial(
            xielu, above=float(softplus(above)), below=float(slope + softplus(below)), slope=float(slope),
            limit=float(limit),
        )  # fmt: skip
        return ungated(weights, config, f"{prefix}.mlp", config.intermediate_size, activation)

    return weights.decoder(feed_forward=feed_forward, norms=_APERTUS_NORMS)


def build_arcee(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        feed_forward=lambda prefix: ungated(weights, config, f"{prefix}.mlp", config.intermediate_size)
    )


def build_cohere2(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(norms=NormNames("input_layernorm", None, None, None), kind=ParallelLayer)


def build_gemma(weights: Weights, config: ModelConfig) -> Decoder:
    return build(weights, config, GEMMA_NORMS, gelu_mul)


def build_glm4(weights: Weights, config: ModelConfig) -> Decoder:
    return weights.decoder(
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp", fused="gate_up_proj"), norms=_GLM4_NORMS
    )


def build_olmo(weights: Weights, config: ModelConfig) -> Decoder:
    return build(weights, config, _OLMO_NORMS)


def build_phi3(weights: Weights, config: ModelConfig) -> Decoder:
    return build(weights, config, fused="gate_up_proj")
