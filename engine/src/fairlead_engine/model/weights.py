"""From a checkpoint's tensors to the shared layers, under most families' names.

A family's `build` chooses its layers; names, shapes and left-over tensors are checked here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairlead_common.models.model_config import ModelConfig, QueryNorm
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.kernels.attention.scoring import Scoring
from fairlead_engine.kernels.expert_product import ExpertWeights
from fairlead_engine.kernels.gates import SILU, Gate
from fairlead_engine.kernels.norm_rope_store import HeadNorm
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.checkpoint import VALUES_OF_WEIGHTS, WHOLE, Checkpoint
from fairlead_engine.model.classifier import Classifier
from fairlead_engine.model.decoder import Decoder, TokenEmbedding
from fairlead_engine.model.guessing_layer import GuessingLayer
from fairlead_engine.model.layers import (
    Attention,
    AttentionLayer,
    CentredNorm,
    DecoderLayer,
    Experts,
    FeedForward,
    GatedFeedForward,
    GroupedExperts,
    LayerNorms,
    ProjectionNorm,
    RMSNorm,
    SparseExperts,
)
from fairlead_engine.model.linear import Linear, PlainLinear, SideBySideLinear, SummedLinear, make_linear
from fairlead_engine.model.lora.adapter_slots import AdapterSlots
from fairlead_engine.model.quantization.quantized_weight import QuantizedWeight, WeightFormat
from fairlead_engine.model.quantization.source import WeightSource
from fairlead_engine.model.recurrent import GatedAttention
from fairlead_engine.model.rope import RotaryEmbedding, halves_of_pairs
from fairlead_engine.model.shard import ALONE, Shard, scaled
from fairlead_engine.model.vision_tower import VisionTower
from fairlead_engine.model.weight_stack import (
    ExpertProjections,
    WeightStack,
    decodes_within,
    groups_experts,
    put_together,
)

_STACKED = {"weight": "", "bias": "_bias", "blocks": "_blocks", "scales": "_scales", "weight_scale_inv": "_scale_inv"}
"""Parts of a layer, and the ends of their names where the parts of several layers are stacked."""
_HEAD = "lm_head"
_SCORE = "score"
_MOST_ROUNDED = 2**24
"""Elements of a weight that are floats at a time: 64 MiB in float32; rounding takes a few times as much."""


class NormNames(NamedTuple):
    """Names of a layer's normalisations; None = absent (`LayerNorms`)."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


BEFORE_BOTH = NormNames()


class OuterNames(NamedTuple):
    """Names of tensors beside the layers."""

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"


_OUTER = OuterNames()


class AttentionNames(NamedTuple):
    """Names of tensors in a layer's attention."""

    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"


_ATTENTION = AttentionNames()
_TURNED_NORMS = AttentionNames(query_norm="query_layernorm", key_norm="key_layernorm")


_OfEach = tuple[Sequence[Mapping[str, int]], int, bool, Sequence[slice], slice]
"""Argument of `_of_all`."""
Watch = Callable[[Sequence[str], Linear, bool], Linear]
"""Gets the checkpoint's names of a linear layer's weights, the layer, and whether it is sensitive."""


class GuessingNames(NamedTuple):
    """Names in a checkpoint of a layer for multi-token prediction: the decoder layer, and what is around it."""

    field: str
    """Of `config.json`, which promises the layer."""
    layer: str
    join: str
    embedding_norm: str
    hidden_norm: str
    final_norm: str

    def check(self, tensors: Iterable[str]) -> None:
        """Raises ModelLoadError where these are all tensors of a checkpoint, and the layer is not among them."""
        if not any(name.startswith(f"{self.join}.") for name in tensors):
            raise ModelLoadError(
                ModelLoadReason.MISSING_TENSOR,
                f"config.json promises layers that guess ({self.field}), and the checkpoint has none: there is no "
                f"tensor {self.join}.weight. Fetch a checkpoint with them, or leave out speculative-method.",
            )


class Weights:
    """Makes layers and counts parameters. Raises ModelLoadError, naming the file or tensor that does not fit."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        source: WeightSource,
        shard: Shard = ALONE,
        watch: Watch | None = None,
        slots: AdapterSlots | None = None,
        head_format: WeightFormat | None = None,
        *,
        guesses: bool = False,
    ) -> None:
        """`source`: format of each linear layer. `shard`: the part to make. `watch`: replaces linear layers. `slots`:
        of adapters; None = without. `head_format`: rounding of the output projection. `guesses`: whether a layer of the
        checkpoint that guesses a token further is wanted."""
        self.guesses = guesses
        self._watch = watch
        self._head_format = head_format
        self._checkpoint = checkpoint
        self.shard = shard
        self._source = source
        self.slots = slots
        self._config = config
        self._num_parameters = 0
        self._weight_bytes = 0

    def decoder(
        self,
        attention: Callable[[str], AttentionLayer] | None = None,
        feed_forward: Callable[[str], FeedForward] | None = None,
        norms: NormNames = BEFORE_BOTH,
        guessing: GuessingNames | None = None,
        vision: VisionTower | None = None,
        kind: type[DecoderLayer] = DecoderLayer,
        outer: OuterNames = _OUTER,
        finished: Callable[[str, DecoderLayer], DecoderLayer] = lambda prefix, layer: layer,
        embed: Callable[[TokenEmbedding], TokenEmbedding] = lambda embedding: embedding,
    ) -> Decoder:
        """The whole model; `attention` and `feed_forward` make a layer's part, given the layer's name; None = the usual
        part, from the configuration. No tensor may be left over. `guessing`: the layer that guesses, made where it is
        wanted; `vision`: the tower for its images; `kind`: of all layers. `finished` gives a layer what it has besides,
        and `embed` the embedding."""
        if guessing is not None and self.guesses:
            guessing.check(self._checkpoint.names())
        config, words, local = self._config, self.shard.part(self._config.vocab_size), self._config.local_rope
        tokens = embed(self.table(outer.embedding, config.vocab_size, config.hidden_size, scale=config.embedding_scale))
        embedding = tokens.weight

        def usual(prefix: str) -> FeedForward:
            return self.feed_forward(f"{prefix}.mlp")

        attend, feed = attention or self.attention, feed_forward or usual

        def layer(prefix: str) -> DecoderLayer:
            own = (None if name is None else self.norm(f"{prefix}.{name}", config.hidden_size) for name in norms)
            made = kind(norms=LayerNorms(*own), attention=attend(prefix), feed_forward=feed(prefix))
            return finished(prefix, made)

        layers = tuple(layer(f"model.layers.{index}") for index in range(config.num_layers))
        final_norm = self.norm(outer.final_norm, config.hidden_size)
        if not config.task.labels:
            final_norm.weight.mul_(config.logit_scale)
        classifier = self._classifier() if config.task.labels else None
        is_tied = config.tie_word_embeddings
        head = self._head(embedding if is_tied else None, words) if classifier is None else classifier.projection
        beside = None if guessing is None or not self.guesses else _guessing_layer(self, guessing, layer)
        self._checkpoint.check_all_read(unless=f"{_HEAD}.weight" if is_tied else None)
        return Decoder(
            config=config,
            embedding=tokens,
            rotary=RotaryEmbedding(config.rope, config.rotary_dim, self.device),
            local_rotary=None if local is None else RotaryEmbedding(local, config.local_rotary_dim, self.device),
            layers=layers,
            final_norm=final_norm,
            head=head,
            shard=self.shard,
            slots=self.slots,
            num_parameters=self._num_parameters,
            weight_bytes=self._weight_bytes,
            vision=vision,
            classifier=classifier,
            guessing=beside,
        )

    def table(self, name: str, num_tokens: int, size: int, *, scale: float) -> TokenEmbedding:
        """A vector of `size` elements for each token, of which each rank has some; `scale` is rounded as they are."""
        words = self.shard.part(num_tokens)
        weight = self._checkpoint.stacked([f"{name}.weight"], [num_tokens], size, row_parts=[words])
        self._count(weight, num_tokens * size)
        return TokenEmbedding(weight, words.start, self.shard, float(torch.tensor(scale, dtype=weight.dtype)))

    def _classifier(self) -> Classifier:
        """Replaces the output projection; whole on every rank. Raises ConfigError."""
        if self._head_format is not None:
            raise ConfigError("head_quantization", "is set, and a classifier has no output projection", "leave it out")
        return Classifier(
            dense=None,
            activation=torch.tanh,
            projection=self.linear(
                {_SCORE: len(self._config.task.labels)}, self._config.hidden_size, is_sensitive=True
            ),
            outcome=self._config.outcome,
            dtype=self._checkpoint.dtype,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        return self._checkpoint.dtype

    @property
    def device(self) -> torch.device:
        return self._checkpoint.device

    def patch_embedding(self, name: str, out_features: int, *patch: int, bias: bool = False) -> Linear:
        """A convolution without overlap of its `patch`es: a product of whole patches."""
        weight, offset = self.plain(f"{name}.weight", out_features, *patch).flatten(1), None
        if bias:
            offset = self.plain(f"{name}.bias", out_features)
        return make_linear(weight, offset)

    def plain(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape that belongs to no linear layer, whole on every rank."""
        found = self._checkpoint.tensor(name, *shape)
        self._count(found, found.numel())
        return found

    def _head(self, embedding: Tensor | None, words: slice) -> Linear:
        """The output projection to these words; `embedding`: the one it is tied to."""
        vocab_size, has_bias, bias = self._config.vocab_size, self._config.head_bias, None
        if embedding is None and self._head_format is None:
            projection = {_HEAD: vocab_size}
            return self.linear(
                projection, self._config.hidden_size, bias=has_bias, is_sensitive=True, row_parts=[words]
            )
        if has_bias:
            bias = self._checkpoint.stacked([f"{_HEAD}.bias"], [vocab_size], row_parts=[words])
            self._count(bias, vocab_size)
        if self._head_format is not None:
            return self._rounded_head(self._head_format, embedding, bias, words)
        assert embedding is not None
        head = make_linear(embedding, bias)
        self._weight_bytes += embedding.nbytes * head.copies_weight
        return head

    def _rounded_head(
        self, weight_format: WeightFormat, weight: Tensor | None, bias: Tensor | None, words: slice
    ) -> Linear:
        """`_head` in `weight_format`; `weight`: the tied embedding. Raises ConfigError for a quantised projection."""
        hidden, vocab_size = self._config.hidden_size, self._config.vocab_size
        if weight is None:
            if self._format_of(_HEAD, True) is not None:
                problem = "the checkpoint's output projection is quantised already"
                raise ConfigError("head_quantization", problem, "leave it out to serve it as it is stored")
            weight = self._checkpoint.stacked([f"{_HEAD}.weight"], [vocab_size], hidden, row_parts=[words])
            self._num_parameters += vocab_size * hidden
        parts = [weight_format.quantize(part) for part in torch.split(weight, max(1, _MOST_ROUNDED // hidden))]
        head = weight_format.linear(QuantizedWeight.stacked(parts), bias, self._checkpoint.dtype)
        self._weight_bytes += head.weight_bytes
        return head

    def attention(
        self, prefix: str, *, is_fused: bool = False, name: str = "self_attn", names: AttentionNames = _ATTENTION
    ) -> Attention:
        """A layer's attention, from the configuration. `is_fused`: its projections are stored as one, `qkv_proj`.
        `name`: of the part within the layer; `names`: in that part."""
        config, layer = self._config, layer_index(prefix)
        prefix = f"{prefix}.{name}"
        heads, kv_heads = self.shard.part(config.num_heads), self.shard.key_heads(config.num_kv_heads)
        query_part, kv_part = scaled(heads, config.head_dim), scaled(kv_heads, config.head_dim)
        asked_part = scaled(query_part, 1 + config.gates_attention)  # a head's gate lies behind its query
        query_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        asked = (1 + config.gates_attention) * query_size
        projections = {f"{prefix}.q_proj": asked, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size}
        if is_fused:
            self.divide(f"{prefix}.qkv_proj", projections)
        if config.are_pairs_adjacent:
            order = halves_of_pairs(config.head_dim, config.rope.num_turned(config.head_dim))
            for turned in (f"{prefix}.q_proj", f"{prefix}.k_proj"):
                self._checkpoint.reorder(turned, order)
                if self.slots is not None:
                    self.slots.orders[turned] = order
        projection_norm = None
        if config.query_norm is QueryNorm.PROJECTIONS:
            norms = (
                self.norm(f"{prefix}.{names.query_norm}", query_size, query_part),
                self.norm(f"{prefix}.{names.key_norm}", kv_size, kv_part),
            )
            projection_norm = ProjectionNorm(*norms, self.shard)
        sinks = None
        if config.has_sinks:
            sinks = self._checkpoint.tensor(f"{prefix}.sinks", config.num_heads)[heads]
            self._count(sinks, config.num_heads)
            sinks = sinks.float()
        return (GatedAttention if config.gates_attention else Attention)(
            qkv=self.linear(
                projections, config.hidden_size, bias=config.qkv_bias, row_parts=[asked_part, kv_part, kv_part]
            ),
            output=self.linear(
                {f"{prefix}.{names.output}": config.hidden_size},
                query_size,
                bias=config.output_bias,
                column_part=query_part,
            ),
            head_norm=_head_norm(self, prefix, layer, names),
            num_heads=heads.stop - heads.start,
            num_kv_heads=kv_heads.stop - kv_heads.start,
            head_dim=config.head_dim,
            scoring=Scoring(config.window(layer), config.soft_cap, sinks, config.are_windows_aligned),
            query_scale=config.query_scale,
            is_local=config.is_local(layer),
            projection_norm=projection_norm,
            query_growth=config.query_growth if layer in config.unturned or not config.unturned else None,
        )

    def feed_forward(
        self,
        prefix: str,
        *,
        inner: int | None = None,
        bias: bool = False,
        combine: Callable[[Tensor], Tensor] | None = None,
        fused: str | None = None,
        gate: str = "gate_proj",
        up: str = "up_proj",
        down: str = "down_proj",
    ) -> GatedFeedForward:
        """The gated feed-forward below `prefix`; `inner` None = the configuration's width. `gate`, `up` and `down`:
        names of its projections; `fused`: of gate and up where they are stored as one."""
        hidden, inner = self._config.hidden_size, inner or self._config.intermediate_size
        part = self.shard.part(inner)
        gate_up = {f"{prefix}.{gate}": inner, f"{prefix}.{up}": inner}
        if fused is not None:
            self.divide(f"{prefix}.{fused}", gate_up)
        return GatedFeedForward(
            gate_up=self.linear(gate_up, hidden, bias=bias, row_parts=[part, part]),
            down=self.linear({f"{prefix}.{down}": hidden}, inner, bias=bias, column_part=part),
            combine=combine,
        )

    def experts(
        self,
        prefix: str,
        num_experts: int,
        routing: ExpertRouting,
        *,
        inner: int | None = None,
        router: str = "gate",
        gate: str = "gate_proj",
        up: str = "up_proj",
        down: str = "down_proj",
        are_sides_swapped: bool = False,
        activation: Gate = SILU,
    ) -> Experts:
        """The experts below `prefix` and their `router`; `gate`, `up` and `down`: names of an expert's projections.
        `are_sides_swapped`: as in `expert_layer`."""
        hidden = self._config.hidden_size
        routes = self.linear({f"{prefix}.{router}": num_experts}, hidden, is_sensitive=True, adapts=True)
        inner = inner or self._config.intermediate_size
        part = self.shard.part(inner)
        names = [f"{prefix}.experts.{index}" for index in range(num_experts)]
        projections = [ExpertProjections({f"{x}.{gate}": inner, f"{x}.{up}": inner}, f"{x}.{down}") for x in names]
        return self.expert_layer(
            routes, routing, projections, inner, row_parts=[part, part], gate=activation,
            are_sides_swapped=are_sides_swapped,
        )  # fmt: skip

    def expert_layer(
        self,
        router: Linear,
        routing: ExpertRouting,
        experts: Sequence[ExpertProjections],
        inner: int,
        *,
        row_parts: Sequence[slice],
        bias: bool = False,
        gate: Gate = SILU,
        are_sides_swapped: bool = False,
    ) -> Experts:
        """The layer of these experts, `inner` wide; `row_parts`: this rank's outputs of `gate`. `are_sides_swapped`: by
        adapters (`ExpertModule`)."""
        hidden, part = self._config.hidden_size, self.shard.part(inner)
        ups: _OfEach = [each.gate_up for each in experts], hidden, bias, row_parts, WHOLE
        downs: _OfEach = [{each.down: hidden} for each in experts], inner, bias, [WHOLE], part
        adapters = None
        if self.slots is not None:
            adapters = self.slots.adapted_experts(
                ups[0], downs[0], (hidden, inner), row_parts, part, are_sides_swapped=are_sides_swapped
            )
        gate_up = self._of_all(*ups)
        down = None if gate_up is None else self._of_all(*downs)
        if gate_up is not None and down is not None:
            for product, (layers, in_features, *_) in ((gate_up, ups), (down, downs)):
                self._weight_bytes += product.num_bytes
                self._num_parameters += sum(sum(layer.values()) for layer in layers) * (in_features + bias)
            return GroupedExperts(router, gate_up, down, routing, self.shard, gate, adapters)
        each = []
        for index, (up_names, down_name) in enumerate(zip(ups[0], downs[0], strict=True)):
            first = self.linear(up_names, hidden, bias=bias, row_parts=row_parts, sums=False, adapts=False)
            second = self.linear(down_name, inner, bias=bias, column_part=part, sums=False, adapts=False)
            if adapters is not None:
                first, second = adapters.adapted(index, first, second)
            each.append(GatedFeedForward(gate_up=first, down=second, combine=gate.__call__))
        slots = None if adapters is None else adapters.slots
        return SparseExperts(router, tuple(each), routing, self.shard, slots)

    def _of_all(
        self,
        layers: Sequence[Mapping[str, int]],
        in_features: int,
        bias: bool,
        row_parts: Sequence[slice],
        column_part: slice,
    ) -> ExpertWeights | None:
        """Weights of a layer of each expert, with the arguments of `linear`; None where one is not a single piece."""
        formats = {self._format_of(name, False) for layer in layers for name in layer}
        if len(formats) > 1 or self._watch is not None or not groups_experts(self._checkpoint.device):
            return None
        names = [name for layer in layers for name in layer]
        rows = [size for layer in layers for size in layer.values()]
        parts = list(row_parts) * len(layers)
        offset = None
        if bias:
            offset = self._checkpoint.stacked([f"{name}.bias" for name in names], rows, row_parts=parts)
            offset = offset.view(len(layers), -1)
            if column_part != WHOLE and self.shard.rank:
                offset = None  # or each rank would add it
        (weight_format,) = formats
        if weight_format is None:
            weights = self._checkpoint.stacked(
                [f"{name}.weight" for name in names], rows, in_features, row_parts=parts, column_part=column_part
            )
            return ExpertWeights(weights.view(len(layers), len(weights) // len(layers), -1), bias=offset)
        if not decodes_within(weight_format, self._checkpoint.device):
            return None
        each = (
            self._groups(dict.fromkeys(layer, weight_format), layer, in_features, row_parts, column_part)
            for layer in layers
        )
        integers = put_together(each, len(layers))
        return None if integers is None else integers._replace(bias=offset, row_format=weight_format.row_format)

    def linear(
        self,
        out_features: Mapping[str, int],
        in_features: int,
        *,
        bias: bool = False,
        is_sensitive: bool = False,
        row_parts: Sequence[slice] | None = None,
        column_part: slice = WHOLE,
        sums: bool = True,
        adapts: bool | None = None,
    ) -> Linear:
        """One product for several projections of the same input, given as name → output size.

        `is_sensitive`: stays precise where others are rounded, as a router and the output do. `row_parts`: this rank's
        outputs of each; `column_part`: its inputs, whose products the ranks sum, unless the caller does, as with
        experts. `adapts`: whether adapters may change it; None = unless it is sensitive.
        """
        names, rows = list(out_features), list(out_features.values())
        offset = None
        if bias:
            offset = self._checkpoint.stacked([f"{name}.bias" for name in names], rows, row_parts=row_parts)
            self._count(offset, sum(rows))
        is_summed = self.shard.size > 1 and column_part != WHOLE and sums
        is_part = self.shard.size > 1 and column_part != WHOLE
        own_offset = None if is_summed or (is_part and self.shard.rank) else offset  # or each rank would add it
        formats = {name: self._format_of(name, is_sensitive) for name in names}
        linear: Linear
        if not any(formats.values()):
            weight = self._checkpoint.stacked(
                [f"{name}.weight" for name in names], rows, in_features, row_parts=row_parts, column_part=column_part
            )
            self._count(weight, sum(rows) * in_features)
            linear = make_linear(weight, own_offset)
        else:
            parts = row_parts or [WHOLE] * len(names)
            groups = self._groups(formats, out_features, in_features, parts, column_part)
            linear, num_bytes = _side_by_side(groups, own_offset, self.dtype)
            self._weight_bytes += num_bytes
            self._num_parameters += sum(rows) * in_features
        if self.slots is not None and (not is_sensitive if adapts is None else adapts):
            parts = row_parts or [WHOLE] * len(names)
            linear = self.slots.adapted(linear, out_features, in_features, parts, column_part, is_optional=is_sensitive)
        made = SummedLinear(linear, offset, self.shard) if is_summed else linear
        if self._watch is None:
            return made
        stored = dict.fromkeys(self._checkpoint.place(name, 0)[0] for name in names)
        return self._watch(list(stored), made, is_sensitive)

    def divide(self, name: str, parts: Mapping[str, int], *, are_adapted: bool = False) -> None:
        """Several projections are stored as one; `are_adapted`: adapters have them apart."""
        self._checkpoint.divide(name, parts)
        if self.slots is not None and not are_adapted:
            self.slots.fuse(name, parts)

    def pieces(self, name: str, parts: Sequence[tuple[int, slice]]) -> tuple[dict[str, int], list[slice]]:
        """Arguments of `linear`, `out_features` and `row_parts`, for a projection that holds several things below one
        another: rows of each, and this rank's. One rank has it whole; ranks have a weight of adapters for each."""
        if self.shard.size == 1:
            return {name: sum(size for size, _ in parts)}, [WHOLE]
        sizes = {f"{name}.{index}": size for index, (size, _) in enumerate(parts)}
        self.divide(name, sizes)
        return sizes, [part for _, part in parts]

    def _groups(
        self,
        formats: Mapping[str, WeightFormat | None],
        out_features: Mapping[str, int],
        in_features: int,
        row_parts: Sequence[slice],
        column_part: slice,
    ) -> list[WeightStack]:
        """Weights of projections of one input, neighbours of one format stacked into one product."""
        stacks: list[WeightStack] = []
        for (name, size), rows in zip(out_features.items(), row_parts, strict=True):
            weight_format = formats[name]
            weight: QuantizedWeight | Tensor
            if weight_format is None:
                weight = self._checkpoint.stacked(
                    [f"{name}.weight"], [size], in_features, row_parts=[rows], column_part=column_part
                )
            else:
                weight = self._part_of(name, size, in_features, rows, column_part)
            if not stacks or not stacks[-1].takes(weight_format, weight):
                stacks.append(WeightStack(weight_format, []))
            stacks[-1].weights.append(weight)
        return stacks

    def _part_of(self, name: str, size: int, in_features: int, rows: slice, columns: slice) -> QuantizedWeight:
        """Reads and rounds some rows at a time and keeps the columns: as floats, one weight of a large model takes as
        much as a rank's part of several layers. Raises ConfigError where ranks would divide columns with one scale."""
        first, end, _ = rows.indices(size)
        stored, above, num_stored = self._checkpoint.place(name, size)
        first, end = first + above, end + above
        num_rows = max(1, _MOST_ROUNDED // in_features)
        parts = [slice(at, min(at + num_rows, end)) for at in range(first, max(end, first + 1), num_rows)]
        kept = []
        for part in parts:
            weight = self._source.read(self._checkpoint, stored, (num_stored, in_features), part)
            try:
                kept.append(weight.columns(*columns.indices(in_features)[:2]))
            except ValueError as error:
                problem = f"is {self.shard.size}, which divides columns of {name} that have one scale: {error}"
                raise ConfigError("tensor_parallel_size", problem, "lower it, or take other weights") from error
        return QuantizedWeight.stacked(kept)

    def _format_of(self, name: str, is_sensitive: bool) -> WeightFormat | None:
        return self._source.format_of(self._checkpoint, self._checkpoint.place(name, 0)[0], is_sensitive)

    def unstack(self, name: str, layers: Sequence[str], *, is_transposed: bool) -> None:
        """One tensor holds the weights of these layers, and others their biases and parts of quantised weights: makes
        each available under its layer's name. `is_transposed`: floats are [in_features, out_features]."""
        self._checkpoint.skip(f"{name}_activation_scale")  # measured once for all: errs more than one for each token
        for kind, end in _STACKED.items():
            of_layers = [f"{layer}.{kind}" for layer in layers]
            self._checkpoint.unstack(f"{name}{end}", of_layers, is_transposed=is_transposed and kind == "weight")

    def unstack_experts(
        self,
        layer: str,
        num_experts: int,
        inner: int,
        *,
        gate_up: str = "experts.gate_up_proj",
        down: str = "experts.down_proj",
        is_transposed: bool | None = None,
    ) -> None:
        """All experts' projections are stored as two tensors, floats [experts, rows, columns] with outputs as rows or,
        with `is_transposed`, inputs; None = in some files. Makes each available under the expert's name."""
        each = [f"{layer}.experts.{index}" for index in range(num_experts)]
        if not self._checkpoint.has(f"{layer}.{gate_up}"):
            return
        if is_transposed is None:  # both are looked at: a side may be as long as another
            ups, downs = (self._checkpoint.shape(f"{layer}.{name}") for name in (gate_up, down))
            is_transposed = ups[2:] == (2 * inner,) and downs[1:2] == (inner,)
        for stored, name in ((gate_up, "gate_up_proj"), (down, "down_proj")):
            self.unstack(f"{layer}.{stored}", [f"{one}.{name}" for one in each], is_transposed=is_transposed)
        for one in each:
            self.divide(f"{one}.gate_up_proj", {f"{one}.gate_proj": inner, f"{one}.up_proj": inner})

    def dequantized(self, name: str, out_features: int, in_features: int, rows: slice) -> Tensor:
        """A layer's weight as floats [rows, in_features], for other products; neither rounded nor adapted."""
        weight_format = self._format_of(name, True)
        if weight_format is None:
            weight = self._checkpoint.stacked([f"{name}.weight"], [out_features], in_features, row_parts=[rows])
        else:
            stored = self._part_of(name, out_features, in_features, rows, WHOLE)
            weight = stored.dequantized().to(self._checkpoint.dtype)
        self._count(weight, out_features * in_features)
        if self._watch is not None:
            self._watch([name], PlainLinear(weight), True)
        return weight

    def offsets(self, name: str, *shape: int, is_rounded: bool = False, parts: Iterable[slice] = (WHOLE,)) -> Tensor:
        """float32 of this shape, or with `is_rounded` in the activations' dtype; some files have a dimension of 1
        before. `parts`: this rank's rows."""
        dtype = self.dtype if is_rounded else torch.float32
        offsets = self._checkpoint.stored(name, shape, (1, *shape)).to(dtype).view(shape)
        own = torch.cat([offsets[part] for part in parts]) if shape else offsets
        self._count(own, offsets.numel())
        return own

    def has(self, layer: str) -> bool:
        """Whether the checkpoint has a weight of this layer."""
        return any(self._checkpoint.has(f"{layer}.{values}") for values in VALUES_OF_WEIGHTS)

    def skip(self, prefix: str) -> None:
        """Lets tensors with such names be left over."""
        for name in self._checkpoint.names():
            if name.startswith(prefix):
                self._checkpoint.skip(name)

    def norm(
        self, name: str, size: int, part: slice = WHOLE, *, eps: float | None = None, offset: float | None = None
    ) -> RMSNorm:
        """`part`: this rank's part. `eps`, `offset`: None = the configuration's."""
        weight = self._checkpoint.tensor(f"{name}.weight", size)[part]
        if offset := self._config.norm_offset if offset is None else offset:
            weight = (weight.float() + offset).to(weight.dtype)
        self._count(weight, size)
        eps = self._config.rms_norm_eps if eps is None else eps
        if not self._config.are_norms_centred:
            return RMSNorm(weight, eps)
        bias = None
        if self._config.have_norms_bias:
            bias = self._checkpoint.tensor(f"{name}.bias", size)[part]
            self._count(bias, size)
        return CentredNorm(weight, eps, bias)

    def layer_norm(self, name: str, size: int, *, eps: float) -> CentredNorm:
        """With a bias, whatever the configuration says of the decoder's."""
        return CentredNorm(self.plain(f"{name}.weight", size), eps, self.plain(f"{name}.bias", size))

    def _count(self, tensor: Tensor, num_parameters: int) -> None:
        """Counts a tensor that is this rank's part of `num_parameters`."""
        self._num_parameters += num_parameters
        self._weight_bytes += tensor.nbytes


def layer_index(prefix: str) -> int:
    return int(prefix.rpartition(".")[2])


def _head_norm(weights: Weights, attention: str, layer: int, names: AttentionNames) -> HeadNorm | None:
    config, kind = weights._config, weights._config.query_norm
    if kind is QueryNorm.LENGTHS and layer not in config.unturned:
        ones = torch.ones(config.head_dim, dtype=weights.dtype, device=weights.device)
        return HeadNorm(ones, ones, config.rms_norm_eps, is_last=True)
    if kind not in (QueryNorm.HEADS, QueryNorm.TURNED_HEADS):
        return None
    names = _TURNED_NORMS if kind is QueryNorm.TURNED_HEADS else names
    query, key = (weights.norm(f"{attention}.{name}", config.head_dim) for name in (names.query_norm, names.key_norm))
    return HeadNorm(query.weight, key.weight, config.rms_norm_eps, is_last=kind is QueryNorm.TURNED_HEADS)


def _side_by_side(stacks: Sequence[WeightStack], bias: Tensor | None, dtype: torch.dtype) -> tuple[Linear, int]:
    """One product after the other, and the bytes of the weights."""
    sizes = [stack.num_rows for stack in stacks]
    biases = [None] * len(stacks) if bias is None else torch.split(bias, sizes)
    linears, total = [], 0
    for stack, offset in zip(stacks, biases, strict=True):
        linear, num_bytes = stack.linear(offset, dtype)
        total += num_bytes
        linears.append(linear)
    return (linears[0] if len(linears) == 1 else SideBySideLinear(linears)), total


def _guessing_layer(weights: Weights, names: GuessingNames, layer: Callable[[str], DecoderLayer]) -> GuessingLayer:
    """Its bytes count, and its parameters do not: they are none of the model's. No adapter changes it."""
    hidden, slots, counted = weights._config.hidden_size, weights.slots, weights._num_parameters
    weights.slots = None
    found = GuessingLayer(
        embedding_norm=weights.norm(names.embedding_norm, hidden),
        hidden_norm=weights.norm(names.hidden_norm, hidden),
        join=weights.linear({names.join: hidden}, 2 * hidden, is_sensitive=True),
        layer=layer(names.layer),
        final_norm=weights.norm(names.final_norm, hidden),
    )
    weights.slots, weights._num_parameters = slots, counted
    return found
