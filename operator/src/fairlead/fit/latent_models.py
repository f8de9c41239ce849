"""DeepSeek-V2 and V3: latent attention, whose cache is one narrow head for all heads, and many narrow experts."""

from dataclasses import replace

from fairlead.fit.checkpoint_fields import CheckpointFields
from fairlead.fit.model_shape import Dense, ModelShape, vector
from fairlead.fit.weight_parts import Part, Role


def deepseek_v2(fields: CheckpointFields) -> ModelShape:
    """Raises ConfigUnreadable."""
    return _deepseek(fields, num=64, shared=2, size=1407, first=0, has_score_bias=False)


def deepseek_v3(fields: CheckpointFields) -> ModelShape:
    """Raises ConfigUnreadable."""
    return _deepseek(fields, num=256, shared=1, size=2048, first=3, has_score_bias=True)


def _deepseek(
    fields: CheckpointFields, *, num: int, shared: int, size: int, first: int, has_score_bias: bool
) -> ModelShape:
    """The arguments are the version's defaults: experts, those that all tokens take, their width, and how many layers
    at the beginning have none."""
    turned, latent = fields.positive("qk_rope_head_dim", 64), fields.positive("kv_lora_rank", 512)
    dense = Dense.read(fields, head_dim=turned)
    num, size = fields.positive("n_routed_experts", num), fields.positive("moe_intermediate_size", size)
    shared = _from_zero(fields, "n_shared_experts", shared)
    first, every = _from_zero(fields, "first_k_dense_replace", first), fields.positive("moe_layer_freq", 1)
    num_dense = sum(1 for index in range(dense.num_layers) if index < first or index % every)
    num_with = dense.num_layers - num_dense

    def experts(ranks: int, layers: int) -> list[Part]:
        parts = dense.experts(ranks, layers=layers, num=num, inner=size)
        if has_score_bias:
            parts.append(vector("mlp.gate.e_score_correction_bias", layers, num))
        if shared:
            parts += dense.feed_forward(ranks, num=layers, inner=shared * size, name="mlp.shared_experts")
        return parts

    def layers(ranks: int) -> list[Part]:
        return [
            *_attention(dense, ranks, dense.num_layers, latent, turned),
            *experts(ranks, num_with),
            *dense.feed_forward(ranks, num=num_dense),
            *dense.norms(),
        ]

    sizes = {"intermediate_size": dense.inner} if num_dense else {}
    if num_with:
        sizes["moe_intermediate_size"] = size
    chosen = fields.positive("num_experts_per_tok", 8)
    shape = dense.shape(layers, inner_sizes=sizes, widest=max(dense.inner, (chosen + shared) * size))
    num_guessing = _from_zero(fields, "num_nextn_predict_layers", 0) if has_score_bias else 0
    guessing = [
        *_attention(dense, 1, num_guessing, latent, turned),
        *experts(1, num_guessing),
        Part("eh_proj", num_guessing, dense.hidden, 2 * dense.hidden, Role.PRECISE),
        Part("embed_tokens", 2 * num_guessing, shape.vocab_size, dense.hidden, Role.EMBEDDING),
        vector("layernorms", 5 * num_guessing, dense.hidden),
    ]
    return replace(
        shape, num_kv_heads=1, head_dim=latent + turned, has_values=False,
        unserved=guessing if num_guessing else [],
    )  # fmt: skip


def _attention(dense: Dense, ranks: int, num: int, latent: int, turned: int) -> list[Part]:
    """Ranks have heads of their own, and all of them the latent."""
    fields, hidden, heads = dense.fields, dense.hidden, -(-dense.heads // ranks)
    plain, value = fields.positive("qk_nope_head_dim", 128), fields.positive("v_head_dim", 128)
    query = heads * (plain + turned)
    down, parts = latent + turned, [vector("self_attn.kv_a_layernorm", num, latent)]
    if fields.has("q_lora_rank") or not fields.names("q_lora_rank"):
        rank = fields.positive("q_lora_rank", 1536)
        parts += [Part("self_attn.q_b_proj", num, query, rank), vector("self_attn.q_a_layernorm", num, rank)]
        parts.append(Part("self_attn.q_a_proj", num, rank, hidden))
    else:
        parts.append(Part("self_attn.q_proj", num, query, hidden))
    bias = hidden if fields.flag("attention_bias", False) else 0
    return [
        *parts,
        Part("self_attn.kv_a_proj_with_mqa", num, down, hidden),
        Part("self_attn.kv_b_proj", num, heads * (plain + value), latent, Role.RESTORED),
        Part("self_attn.o_proj", num, hidden, heads * value, bias=bias),
    ]


def _from_zero(fields: CheckpointFields, name: str, default: int) -> int:
    """A whole number, where null stands for 0."""
    return fields.whole(name, 0) if fields.names(name) else default
