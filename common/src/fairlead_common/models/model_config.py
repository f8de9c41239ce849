"""`config.json` of any model, checked, with one name per fact; families add fields.

Values that would change the computation from the trained model are refused before the weights are read.
The parts of a model (`ModelConfig.parts`) decide how much memory it takes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from fairlead_common.models.json_fields import MOST, JsonFields
from fairlead_common.models.load_errors import ModelLoadError, refuse
from fairlead_common.models.model_task import GENERATES, LabelOutcome, ModelTask
from fairlead_common.models.quantized_checkpoints import StoredFormat, parse_quantization
from fairlead_common.models.rope_config import RopeConfig, RopeKind, parse_rope
from fairlead_common.models.vision_config import VisionConfig
from fairlead_common.models.weight_formats import (
    FLOAT_BYTES,
    WeightLayout,
    WeightPart,
    WeightRole,
    gated_feed_forward,
    num_parameters,
    pieces,
    share,
    vector,
)

_WHOLE, _SLIDING = "full_attention", "sliding_attention"


def no_windows(fields: JsonFields, other: str = _WHOLE) -> tuple[int, ...]:
    """0 for each layer: the whole context. Raises ModelLoadError where the file asks for something else. `other`: a
    further name of such layers."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    if kinds:
        check_kinds(fields, kinds, num_layers, other)
    if fields.boolean("use_sliding_window", False):
        raise _refused("use_sliding_window")
    return (0,) * num_layers


def windows_everywhere(fields: JsonFields, default: int = 0) -> tuple[int, ...]:
    """The same window in all layers: `sliding_window`, which may be null; `default` where the field is absent."""
    window = default if not fields.names("sliding_window") else 0
    if fields.has("sliding_window"):
        window = fields.positive_int("sliding_window")
    return (window,) * fields.positive_int("num_hidden_layers")


def windows_by_layer(fields: JsonFields) -> tuple[int, ...]:
    """Windows of Qwen: only with `use_sliding_window`; in layers named by `layer_types`, or in layers from
    `max_window_layers` on."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    is_used = fields.boolean("use_sliding_window", False) and (fields.has("sliding_window") or not kinds)
    window = fields.positive_int("sliding_window", 4096) if is_used else 0
    if not kinds:
        first = fields.whole_number("max_window_layers") if fields.has("max_window_layers") else 28
        return tuple(window if index >= first else 0 for index in range(num_layers))
    check_kinds(fields, kinds, num_layers)
    if _SLIDING in kinds and not window:
        raise fields.invalid("layer_types", "must not name sliding_attention without use_sliding_window")
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def windows_alternating(fields: JsonFields, default: int, every: int) -> tuple[int, ...]:
    """The last of every `every` layers, or each layer that `layer_types` names, sees the whole context; the rest sees
    `sliding_window`."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    window = fields.positive_int("sliding_window", default)
    if not kinds:
        return tuple(window if (index + 1) % every else 0 for index in range(num_layers))
    check_kinds(fields, kinds, num_layers)
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def check_kinds(fields: JsonFields, kinds: list[str], num_layers: int, local: str = _SLIDING) -> None:
    """Raises ModelLoadError unless `layer_types` names each layer full_attention or `local`."""
    if unknown := sorted({*kinds} - {_WHOLE, local}):
        raise _refused(f"layer_types {', '.join(unknown)}")
    if len(kinds) != num_layers:
        raise fields.invalid("layer_types", f"must name as many as num_hidden_layers ({num_layers})")


def _refused(what: str) -> ModelLoadError:
    return refuse(what, "use a model whose layers all attend to the whole context")


class QueryNorm(Enum):
    """Which vectors of queries and keys are normalised before attention."""

    NONE = auto()
    HEADS = auto()
    """Each head by itself, all with the same weights."""
    TURNED_HEADS = auto()
    """The same behind the rotation."""
    LENGTHS = auto()
    """Each head behind the rotation, without weights; none in layers without positions."""
    PROJECTIONS = auto()
    """All heads of a token at once."""


class StateNorm(Enum):
    """Where outputs of Mamba-2's heads with the same key are normalised."""

    BEHIND_GATE = auto()
    BEFORE_GATE = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class StateShape:
    """State of a sequence in one recurrent layer: a matrix for each head, and the last inputs of a convolution. A layer
    that only convolves has no matrices: `key_dim` is 0, and each channel is a head."""

    num_key_heads: int
    """Heads of queries and keys; several heads of values share one."""
    num_heads: int
    """Heads of values."""
    key_dim: int
    value_dim: int
    kernel_size: int
    """Tokens that the convolution sees, including the present one."""
    num_projections: int
    """Tensors in which the checkpoint has the projections of queries, keys, values and gates; 0 = one, with decays."""
    norm_eps: float
    """Of the normalisation of outputs."""
    fields: tuple[str, str]
    """Of `config.json`, with `num_key_heads` and `num_heads`."""
    has_bias: bool = False
    """Whether the convolution adds a bias."""
    input_bias: bool = False
    """Mamba-2: whether the projection of a layer's input adds a bias."""
    output_bias: bool = False
    """Mamba-2: whether the projection to a layer's output adds a bias."""
    norm: StateNorm = StateNorm.BEHIND_GATE
    """Of Mamba-2."""
    least_step: float = 0.0
    """Mamba-2: shorter steps count as this long."""

    @property
    def is_mamba(self) -> bool:
        """Whether a state adds what is new (Mamba-2), instead of correcting what it knows (the delta rule)."""
        return not self.num_projections

    @property
    def channels(self) -> int:
        """Inputs of the convolution: queries, keys and values side by side, or what is convolved."""
        return 2 * self.num_key_heads * self.key_dim + self.num_heads * self.value_dim

    def of_ranks(self, ranks: int) -> "StateShape":
        """The state on one of `ranks` ranks, which share a head of keys where there are fewer."""
        return replace(self, num_key_heads=share(self.num_key_heads, ranks), num_heads=share(self.num_heads, ranks))

    def undivided(self, ranks: int) -> dict[str, int]:
        """Numbers of heads, by the field of `config.json`, that so many ranks do not divide. Heads of values of the
        delta rule lie by their heads of keys, which ranks then do not share."""
        key_field, field = self.fields
        found = {field: self.num_heads} if self.num_heads % ranks else {}
        is_shared = self.is_mamba and ranks % self.num_key_heads == 0
        return found if is_shared or self.num_key_heads % ranks == 0 else {key_field: self.num_key_heads, **found}

    def num_bytes(self, number_bytes: int) -> int:
        """`number_bytes`: of an element of activations; matrices are float32."""
        matrices = 4 * self.num_heads * self.key_dim * self.value_dim
        return matrices + self.channels * (self.kernel_size - 1) * number_bytes


class QueryGrowth(NamedTuple):
    """Growth of queries with their position p: 1 + weight x ln(1 + floor((p + first) / every)) (arXiv 2501.19399)."""

    every: int
    weight: float
    first: int
    """Of the position 0."""


class KvShape(NamedTuple):
    """A layer's keys and values in the cache."""

    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Facts of a decoder that any runner needs. Sizes count elements; nothing here depends on the runner."""

    architecture: str = ""
    """Name of the architecture, such as LlamaForCausalLM; filled in after the family was found by name."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key and value heads; `num_heads / num_kv_heads` query heads share one."""
    head_dim: int
    """Elements per head, as queries and keys have them in the cache; not always `hidden_size / num_heads`."""
    shared_value_dim: int | None = None
    """Number of last elements of a key with the value; None = values are stored beside keys, with equal length."""
    index_dim: int = 0
    """Elements of a token's index key, by which `indexed` layers choose the tokens that a query attends to."""
    indexed: frozenset[int] = frozenset()
    """Layers that store an index key beside each key."""
    kv_shapes: tuple[KvShape, ...] = ()
    """Keys and values of each layer that stores some, where layers differ; empty = all have `num_kv_heads` of
    `head_dim`."""
    cache_layers: tuple[int, ...] = ()
    """The layer whose keys and values each layer reads; empty = each its own."""
    num_chosen: int = 0
    """Most tokens that a query attends to where layers choose them; 0 = all earlier tokens."""
    recurrent: frozenset[int] = frozenset()
    """Layers that keep `state` of a sequence."""
    attending: frozenset[int] | None = None
    """Layers that keep keys and values; None = all but `recurrent`."""
    state: StateShape | None = None
    """None = all layers attend."""
    num_guessing_layers: int = 0
    """Layers beside the model in the checkpoint, each of which guesses one token further; the first can be served."""
    max_position_embeddings: int
    """Longest context, in tokens, that the model was made for."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an output; empty when neither checkpoint nor tokenizer names any."""
    quantization: StoredFormat | None = None
    """Quantisation of the weights in the checkpoint; None = floats."""
    task: ModelTask = GENERATES
    """What it was made for; filled in with `architecture`."""

    @property
    def num_attention_layers(self) -> int:
        """Layers with keys and values in the cache."""
        return len(self.attending_layers)

    @property
    def attending_layers(self) -> tuple[int, ...]:
        """The same in order, without layers that read the keys and values of another layer."""
        if self.cache_layers:
            return tuple(sorted({*self.cache_layers}))
        if self.attending is not None:
            return tuple(sorted(self.attending))
        return tuple(index for index in range(self.num_layers) if index not in self.recurrent)

    def stored_kv(self, ranks: int = 1) -> tuple[KvShape, ...]:
        """Keys and values of each layer that stores some, on one of `ranks` ranks, which may share a head."""
        whole = self.kv_shapes or (KvShape(self.num_kv_heads, self.head_dim),) * self.num_attention_layers
        return tuple(KvShape(share(each.num_heads, ranks), each.head_dim) for each in whole)

    def kv_source(self, layer: int) -> int:
        """The layer whose keys and values a layer reads."""
        return self.cache_layers[layer] if self.cache_layers else layer

    def kv_of(self, layer: int) -> KvShape:
        """Keys and values that an attending layer reads."""
        if not self.kv_shapes:
            return KvShape(self.num_kv_heads, self.head_dim)
        return self.kv_shapes[self.attending_layers.index(self.kv_source(layer))]

    def state_bytes(self, number_bytes: int, ranks: int) -> int:
        """Bytes of a sequence's state in all recurrent layers, on one of `ranks` ranks."""
        return 0 if self.state is None else len(self.recurrent) * self.state.of_ranks(ranks).num_bytes(number_bytes)

    @property
    def vector_size(self) -> int:
        """Elements of the vector of a text."""
        return self.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(DecoderShape):
    """The shape of a model with a family here, and all parameters of the layers."""

    is_text_part: bool = False
    """Whether the checkpoint has further parts, for images or sounds, which are not read."""
    intermediate_size: int
    """Width of the feed-forward layer, or of each expert."""
    windows: tuple[int, ...]
    """Tokens that a token sees in each layer, including itself; 0 = all earlier tokens."""
    are_windows_aligned: bool = False
    """Whether windows begin at multiples of their width; else they end with the token."""
    rms_norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    """Rotary embedding of local layers; None = `rope`."""
    unturned: frozenset[int] = frozenset()
    """Layers without positions, which are the local layers then; else layers with a window are."""
    are_norms_centred: bool = False
    """Whether normalisations of the stream subtract a vector's mean first, as LayerNorm does."""
    have_norms_bias: bool = False
    """Whether these add a bias then."""
    norm_offset: float = 0.0
    """Added to the weights of normalisations; some checkpoints store the difference."""
    embedding_scale: float = 1.0
    """Factor of embeddings, rounded to the number format first."""
    query_scale: float = 1.0
    """Factor of queries besides the scale by the size of a head."""
    query_growth: QueryGrowth | None = None
    """Of queries in layers without positions, or in all where each layer has some; None = none."""
    soft_cap: float = 0.0
    """Bound of attention scores, by tanh; 0 = unbounded."""
    logit_soft_cap: float = 0.0
    """Bound of logits, by tanh; 0 = unbounded."""
    logit_scale: float = 1.0
    """Factor of logits, which the weights of the last normalisation take in when they are loaded."""
    are_pairs_adjacent: bool = False
    """Whether elements of a head that are turned together lie side by side in the checkpoint; else half a head apart,
    as they are once loaded."""
    tie_word_embeddings: bool
    """Whether the output projection is the embedding table."""
    head_bias: bool = False
    """Whether the output projection adds a bias."""
    vision: VisionConfig | None = None
    """The vision tower; None = the model sees no images."""
    outcome: LabelOutcome = LabelOutcome.PLAIN
    """How a classifier turns logits into results; filled in with `architecture`."""
    qkv_bias: bool = False
    """Whether the projections of query, key and value add a bias."""
    output_bias: bool = False
    """Whether attention's output projection adds a bias."""
    mlp_bias: bool = False
    """Whether projections of feed-forward layers add a bias."""
    query_norm: QueryNorm = QueryNorm.NONE
    norms_per_layer: int = 2
    """Normalisations of the stream in each layer."""
    gates_attention: bool = False
    """Whether each head's output is multiplied with the sigmoid of a projection beside the query's."""
    gates_heads: bool = False
    """Whether each head's output is multiplied with the sigmoid of one number, by a projection of its own."""
    are_values_normalised: bool = False
    """Whether each head of values is normalised, without weights."""
    has_sinks: bool = False
    """Whether each head has a score for attending to nothing."""

    def for_context(self, longest: int | None) -> "ModelConfig":
        """The config for an engine with sequences of at most `longest` tokens; None = `max_position_embeddings`."""
        longest = self.max_position_embeddings if longest is None else longest
        local = None if self.local_rope is None else self.local_rope.for_context(longest)
        return replace(self, rope=self.rope.for_context(longest), local_rope=local)

    def window(self, layer: int) -> int:
        """Of a layer, as in `windows`; a guessing layer behind the model's sees all earlier tokens."""
        return self.windows[layer] if layer < self.num_layers else 0

    def is_local(self, layer: int) -> bool:
        """Whether the layer's rotary embedding is `local_rope`."""
        found = layer in self.unturned if self.unturned else bool(self.window(layer))
        return found and self.local_rope is not None

    @property
    def rotary_dim(self) -> int:
        """Elements of a head among which positions turn a share."""
        return self.head_dim

    @property
    def local_rotary_dim(self) -> int:
        """The same of local layers."""
        return self.rotary_dim

    @property
    def stream_size(self) -> int:
        """Elements of a token between layers: the hidden state, and what later layers add."""
        return self.hidden_size

    @property
    def inner_sizes(self) -> dict[str, int]:
        """Widths of all feed-forward layers, by the field of `config.json`."""
        return {"intermediate_size": self.intermediate_size}

    def undivided_sizes(self, ranks: int) -> dict[str, int]:
        """Widths of feed-forward layers and heads of recurrent layers, by the field of `config.json`, that so many
        ranks do not divide."""
        found = {name: size for name, size in self.inner_sizes.items() if size % ranks}
        return found if self.state is None else found | self.state.undivided(ranks)

    @property
    def widest(self) -> int:
        """Elements of the widest inner vector of a token in feed-forward layers, all experts of the token together."""
        return self.intermediate_size

    @property
    def stored(self) -> WeightLayout | None:
        """Layout of the quantised weights in the checkpoint; None = floats."""
        return None if self.quantization is None else self.quantization.layout

    def kv_heads_of(self, ranks: int) -> int:
        """Key and value heads of one of `ranks` ranks; ranks share one where there are fewer heads."""
        return share(self.num_kv_heads, ranks)

    def parts(self, ranks: int = 1) -> list[WeightPart]:
        """Parts of the model on one of `ranks` ranks."""
        words = share(self.vocab_size, ranks)
        parts = [WeightPart("embed_tokens", 1, words, self.hidden_size, WeightRole.EMBEDDING)]
        parts += [*self.attention_parts(ranks), *self.feed_forward_parts(ranks)]
        each = 2 if self.have_norms_bias else 1
        parts.append(vector("layernorms", each * self.norms_per_layer * self.num_layers, self.hidden_size))
        if self.vision is not None:
            parts += self.vision.parts()
        if not self.tie_word_embeddings:
            parts.append(WeightPart("lm_head", 1, words, self.hidden_size, WeightRole.HEAD))
        if self.head_bias:
            parts.append(vector("lm_head.bias", 1, words))
        return [*parts, vector("norm", each, self.hidden_size)]

    def attention_parts(self, ranks: int) -> list[WeightPart]:
        """Of all layers, what one rank has."""
        heads, kv_heads, num = share(self.num_heads, ranks), self.kv_heads_of(ranks), self.num_attention_layers
        hidden, rows = self.hidden_size, ((1 + self.gates_attention) * heads + 2 * kv_heads) * self.head_dim
        parts = [
            WeightPart("self_attn.qkv_proj", num, rows, hidden, bias=rows if self.qkv_bias else 0, projections=3),
            WeightPart("self_attn.o_proj", num, hidden, heads * self.head_dim, bias=hidden if self.output_bias else 0),
        ]
        if self.query_norm not in (QueryNorm.NONE, QueryNorm.LENGTHS):
            normed = heads + kv_heads if self.query_norm is QueryNorm.PROJECTIONS else 2
            parts.append(vector("self_attn.norms", num, normed * self.head_dim))
        if self.has_sinks:
            parts.append(vector("self_attn.sinks", num, heads))
        if self.gates_heads:
            parts.append(WeightPart("self_attn.g_proj", num, heads, hidden, WeightRole.NARROW))
        return parts if self.state is None else [*parts, *self._recurrent_parts(self.state.of_ranks(ranks), ranks)]

    def _recurrent_parts(self, state: StateShape, ranks: int) -> list[WeightPart]:
        """A rank's part of all recurrent layers with this state."""
        num, hidden, values = len(self.recurrent), self.hidden_size, state.num_heads * state.value_dim
        if not state.key_dim:
            rows = 3 * values
            return [
                WeightPart(
                    "conv.in_proj", num, rows, hidden, bias=rows * state.input_bias, projections=pieces(3, ranks)
                ),
                WeightPart("conv.out_proj", num, hidden, values, bias=hidden * state.output_bias),
                vector("conv.conv", num, values * (state.kernel_size + state.has_bias)),
            ]
        if state.is_mamba:
            rows = state.channels + values + state.num_heads
            return [
                WeightPart(
                    "mamba.in_proj", num, rows, hidden, bias=rows if state.input_bias else 0,
                    projections=pieces(5, ranks),
                ),
                WeightPart("mamba.out_proj", num, hidden, values, bias=hidden if state.output_bias else 0),
                vector("mamba.conv1d", num, state.channels * (state.kernel_size + state.has_bias)),
                vector("mamba.rates", num, 3 * state.num_heads),
                vector("mamba.norm", num, 0 if state.norm is StateNorm.NOWHERE else values),
            ]  # fmt: skip
        rows, projections = state.channels + values, state.num_projections
        return [
            WeightPart(
                "linear_attn.in_proj", num, rows, hidden,
                projections=1 if projections == 1 else pieces(3, ranks) + 1,
            ),
            WeightPart(
                "linear_attn.in_proj_ba", num, 2 * state.num_heads, hidden, WeightRole.NARROW,
                projections=projections,
            ),
            WeightPart("linear_attn.out_proj", num, hidden, values),
            vector("linear_attn.conv1d", num, state.channels * state.kernel_size),
            vector("linear_attn.rates", num, 2 * state.num_heads),
            vector("linear_attn.norm", num, state.value_dim),
        ]  # fmt: skip

    def feed_forward_parts(self, ranks: int) -> list[WeightPart]:
        """Of all layers, what one rank has."""
        inner = share(self.intermediate_size, ranks)
        return gated_feed_forward("mlp", self.num_layers, self.hidden_size, inner, bias=self.mlp_bias)

    def guessing_parts(self) -> list[WeightPart]:
        """The first guessing layer, loaded beside the model where it guesses; embeddings and output are the model's."""
        return self._guessing_layers(min(1, self.num_guessing_layers))

    def unserved_parts(self) -> list[WeightPart]:
        """Further weights of a checkpoint, which the engine does not load with the model."""
        return self._guessing_layers(self.num_guessing_layers)

    def _guessing_layers(self, num: int) -> list[WeightPart]:
        """Of `num` layers, without their copies of the model's embeddings and output projection."""
        if not num:
            return []
        layers = self._attending(num)
        return [
            *layers.attention_parts(1),
            *layers.feed_forward_parts(1),
            WeightPart("eh_proj", num, self.hidden_size, 2 * self.hidden_size, WeightRole.PRECISE),
            vector("layernorms", (self.norms_per_layer + 3) * num, self.hidden_size),
        ]

    def _attending(self, num: int) -> "ModelConfig":
        """A model of `num` layers like those that guess: with keys and values, and with experts where there are any."""
        return replace(self, num_layers=num, recurrent=frozenset(), state=None)

    @property
    def num_parameters(self) -> int:
        return num_parameters(self.parts())

    @property
    def stored_bytes(self) -> int:
        """Bytes of the checkpoint's files without their headers."""
        each, stored, total = FLOAT_BYTES[self.dtype], self.stored, 0
        for part in (*self.parts(), *self.unserved_parts()):
            is_quantised = stored is not None and stored.takes(part)
            total += stored.stored_bytes(part) if stored is not None and is_quantised else part.weights * each
            total += part.biases * each
        return total


def parse_shape(
    fields: JsonFields,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    rms_norm_eps: float = 1e-6,
    rope_theta: float = 10000.0,
    windows: Callable[[JsonFields], tuple[int, ...]] = no_windows,
    activation: str = "silu",
    tie_word_embeddings: bool = False,
    rope_names: Mapping[str, str] = {},
    turned_share: float | None = None,
    intermediate_size: int | None = None,
) -> dict[str, Any]:
    """The fields of `ModelConfig` in the spelling of every family.

    The arguments are the family's defaults: None = as many key and value heads as query heads, a head size of hidden
    size over heads, and an `intermediate_size` that the file must give; `windows` reads the window of each layer;
    `rope_names` and `turned_share` are `parse_rope`'s. Raises ModelLoadError: ModelConfigInvalid, or
    UnsupportedArchitecture for options without a layer.
    """
    hidden_size = fields.positive_int("hidden_size")
    num_heads = fields.positive_int("num_attention_heads")
    num_kv_heads = fields.positive_int("num_key_value_heads", num_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        raise fields.invalid("num_key_value_heads", f"must divide num_attention_heads ({num_heads})")
    found = fields.text("hidden_activation") or fields.text("hidden_act") or activation
    if found != activation:
        raise refuse(f"hidden_act {found}", f"{activation} is supported")
    dtype = fields.text("dtype") or fields.text("torch_dtype") or "float32"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise refuse(f"dtype {dtype}", "supported are float32, bfloat16 and float16")
    head_dim = _head_dim(fields, head_dim, hidden_size, num_heads)
    rope = parse_rope(fields, rope_theta, names=rope_names, turned_share=turned_share)
    _check_turned(fields, rope, head_dim)
    longest = fields.positive_int("max_position_embeddings")
    if rope.kind is RopeKind.YARN:  # some files say what the model was made for first, some what it is made for now
        stretched = rope.original_max_position_embeddings * rope.factor
        if stretched > MOST:
            raise fields.invalid(
                "max_position_embeddings", f"must not be stretched to more than {MOST} by yarn's factor"
            )
        longest = max(longest, int(stretched))
    return {
        "vocab_size": fields.positive_int("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.positive_int("intermediate_size", intermediate_size),
        "num_layers": fields.positive_int("num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "windows": windows(fields),
        "max_position_embeddings": longest,
        "rms_norm_eps": fields.positive_number("rms_norm_eps", rms_norm_eps),
        "rope": rope,
        "tie_word_embeddings": fields.boolean("tie_word_embeddings", tie_word_embeddings),
        "dtype": dtype,
        "eos_token_ids": fields.token_ids("eos_token_id"),
        "quantization": parse_quantization(fields),
    }


def _head_dim(fields: JsonFields, default: int | None, hidden_size: int, num_heads: int) -> int:
    if fields.has("head_dim") or default is not None:
        head_dim = fields.positive_int("head_dim", default)
    elif hidden_size % num_heads:
        raise fields.invalid(
            "num_attention_heads", f"must divide hidden_size ({hidden_size}) when head_dim is left out"
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise fields.invalid("head_dim", "must be even: rotary positions turn pairs of elements")
    return head_dim


def _check_turned(fields: JsonFields, rope: RopeConfig, head_dim: int) -> None:
    num_turned = rope.num_turned(head_dim)
    if num_turned < 2 or num_turned % 2:
        raise fields.invalid("partial_rotary_factor", f"must leave an even part of head_dim ({head_dim})")
    if rope.kind is RopeKind.LONGROPE and {len(rope.short_factors), len(rope.long_factors)} != {num_turned // 2}:
        raise refuse(
            f"{len(rope.short_factors)} short and {len(rope.long_factors)} long factors of positions",
            f"longrope has one for each two of the {num_turned} elements of a head that are turned",
        )
