"""The shape of a model, as its `config.json` has it: what decides how much memory it takes, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.fit.checkpoint_fields import MOST, CheckpointFields
from fairlead.fit.quantized_checkpoints import stored_format
from fairlead.fit.stored_formats import FLOAT_BYTES, WeightFormat
from fairlead.fit.weight_parts import Part, Role, num_parameters

_MOST_LAYERS = 10_000
"""They are counted one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model. Sizes count elements."""

    architecture: str = ""
    """As `architectures` spells it; filled in by who found the family by it."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Of queries and keys as they are in the cache."""
    has_values: bool = True
    """Whether values have room of their own in the cache; those of latent attention are a part of keys."""
    max_position_embeddings: int
    """Longest context, in tokens, that the model was made for."""
    dtype: str
    """The number format of the checkpoint's floats."""
    is_tied: bool
    """Whether the output projection is the embedding."""
    stored: WeightFormat | None
    """How the checkpoint's weights are quantised; None = they are floats."""
    inner_sizes: dict[str, int] = field(default_factory=dict)
    """Widths of feed-forward layers, by the field that says them: ranks divide each."""
    widest: int
    """The widest of what feed-forward layers make of a token, experts together."""
    sees_images: bool = False
    layers: Callable[[int], list[Part]]
    """What one of so many ranks has of the layers."""
    unserved: list[Part] = field(default_factory=list)
    """What a checkpoint holds beside, and the engine does not load."""

    def parts(self, ranks: int = 1) -> list[Part]:
        """What one of so many ranks has of the model."""
        words = -(-self.vocab_size // ranks)
        parts = [Part("embed_tokens", 1, words, self.hidden_size, Role.EMBEDDING), *self.layers(ranks)]
        if not self.is_tied:
            parts.append(Part("lm_head", 1, words, self.hidden_size, Role.HEAD))
        return [*parts, vector("norm", 1, self.hidden_size)]

    @property
    def num_parameters(self) -> int:
        return num_parameters(self.parts())

    @property
    def stored_bytes(self) -> int:
        """Of the checkpoint's files, without their headers."""
        each = FLOAT_BYTES[self.dtype]
        total = 0
        for part in (*self.parts(), *self.unserved):
            quantised = self.stored is not None and self.stored.takes(part)
            total += self.stored.stored_bytes(part) if quantised and self.stored else part.weights * each
            total += part.biases * each
        return total

    def num_kv_heads_of(self, ranks: int) -> int:
        """What one of so many ranks has of the heads of keys and values; ranks share one where there are fewer."""
        return -(-self.num_kv_heads // ranks) if self.num_kv_heads >= ranks else 1

    def undivided(self, ranks: int) -> str:
        """Why the model cannot be divided among so many ranks; empty = it can."""
        if ranks > 1 and self.sees_images:
            return "and a model that sees images is not divided"
        if self.num_heads % ranks:
            return f"which does not divide the model's {self.num_heads} attention heads (num_attention_heads)"
        if self.num_kv_heads % ranks and ranks % self.num_kv_heads:
            heads = f"{self.num_kv_heads} heads of keys and values (num_key_value_heads)"
            return f"which neither divides the model's {heads} nor is a multiple of them"
        for name, size in self.inner_sizes.items():
            if size % ranks:
                return f"which does not divide the model's {name}, {size}"
        return ""


def vector(name: str, num: int, size: int) -> Part:
    """`num` vectors of that size."""
    return Part(name, num, size, 1, Role.PRECISE)


@dataclass(frozen=True, slots=True)
class Dense:
    """Fields that all decoders have, read once, and the parts that most of them are made of."""

    fields: CheckpointFields
    hidden: int
    inner: int
    num_layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def read(cls, fields: CheckpointFields, *, kv_heads: int | None = None, head_dim: int | None = None) -> "Dense":
        """`kv_heads` and `head_dim`: the family's defaults; None = as many as query heads, and hidden size over heads.
        Raises ConfigUnreadable."""
        hidden, heads = fields.positive("hidden_size"), fields.positive("num_attention_heads")
        kv_heads = fields.positive("num_key_value_heads", kv_heads or heads)
        if heads % kv_heads:
            raise fields.wrong("num_key_value_heads", f"must divide num_attention_heads ({heads})")
        if not fields.has("head_dim") and head_dim is None and hidden % heads:
            raise fields.wrong("num_attention_heads", f"must divide hidden_size ({hidden}) where head_dim is left out")
        head_dim = fields.positive("head_dim", head_dim or hidden // heads)
        if head_dim % 2:
            raise fields.wrong("head_dim", f"is {head_dim}, and must be even: positions turn pairs of elements")
        inner, layers = fields.positive("intermediate_size"), fields.positive("num_hidden_layers", most=_MOST_LAYERS)
        return cls(fields, hidden, inner, layers, heads, kv_heads, head_dim)

    def attention(
        self, ranks: int, *, qkv_bias: bool = False, output_bias: bool = False, norm: str = "", sinks: bool = False
    ) -> list[Part]:
        """Of all layers. `norm`: "heads" where each query and key head is normalised, "projections" where all at once
        are."""
        heads, dim, num = -(-self.heads // ranks), self.head_dim, self.num_layers
        kv_heads = -(-self.kv_heads // ranks) if self.kv_heads >= ranks else 1
        rows = (heads + 2 * kv_heads) * dim
        parts = [
            Part("self_attn.qkv_proj", num, rows, self.hidden, bias=rows if qkv_bias else 0, projections=3),
            Part("self_attn.o_proj", num, self.hidden, heads * dim, bias=self.hidden if output_bias else 0),
        ]
        if norm:
            parts.append(vector("self_attn.norms", num, 2 * dim if norm == "heads" else (heads + kv_heads) * dim))
        if sinks:
            parts.append(vector("self_attn.sinks", num, heads))
        return parts

    def norms(self, each: int = 2) -> list[Part]:
        """So many of each layer."""
        return [vector("layernorms", each * self.num_layers, self.hidden)]

    def feed_forward(
        self, ranks: int, *, num: int | None = None, inner: int | None = None, bias: bool = False,
        role: Role = Role.LINEAR, name: str = "mlp",
    ) -> list[Part]:  # fmt: skip
        """`num` gated ones; None = one of each layer."""
        num, inner = self.num_layers if num is None else num, -(-(inner or self.inner) // ranks)
        return [
            Part(f"{name}.gate_up_proj", num, 2 * inner, self.hidden, role, 2 * inner if bias else 0, projections=2),
            Part(f"{name}.down_proj", num, self.hidden, inner, role, self.hidden if bias else 0),
        ] if num else []  # fmt: skip

    def experts(
        self, ranks: int, *, layers: int, num: int, inner: int, bias: bool = False, router_bias: bool = False
    ) -> list[Part]:
        """`num` in each of so many layers, and their routers."""
        router = Part("mlp.gate", layers, num, self.hidden, Role.PRECISE, num if router_bias else 0)
        return [router, *self.feed_forward(
            ranks, num=layers * num, inner=inner, bias=bias, role=Role.EXPERT, name="mlp.experts"
        )] if layers else []  # fmt: skip

    def shape(
        self,
        layers: Callable[[int], list[Part]],
        *,
        is_tied: bool = False,
        inner_sizes: dict[str, int] | None = None,
        widest: int | None = None,
        sees_images: bool = False,
    ) -> ModelShape:
        """The model with these layers. `is_tied`: the family's default. Raises ConfigUnreadable."""
        fields = self.fields
        dtype = fields.text("dtype") or fields.text("torch_dtype") or "float32"
        if dtype not in FLOAT_BYTES:
            raise fields.wrong("torch_dtype", f"is {dtype}, and the engine reads {', '.join(FLOAT_BYTES)}")
        return ModelShape(
            vocab_size=fields.positive("vocab_size"),
            hidden_size=self.hidden,
            num_layers=self.num_layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=longest_context(fields),
            dtype=dtype,
            is_tied=fields.flag("tie_word_embeddings", is_tied),
            stored=stored_format(fields),
            inner_sizes={"intermediate_size": self.inner} if inner_sizes is None else inner_sizes,
            widest=self.inner if widest is None else widest,
            sees_images=sees_images,
            layers=layers,
        )


def longest_context(fields: CheckpointFields) -> int:
    """In tokens. Some files say what the model was made for first, some what it is made for now (YaRN)."""
    longest = fields.positive("max_position_embeddings")
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling")
    if scaling is None or (scaling.text("rope_type") or scaling.text("type")) != "yarn":
        return longest
    original = scaling.positive("original_max_position_embeddings", longest)
    factor = scaling.number("factor", longest / original)
    if not 0 < original * factor <= MOST:
        raise scaling.wrong("factor", f"is {factor}, and makes no context of {original} tokens")
    return max(longest, int(original * factor))
