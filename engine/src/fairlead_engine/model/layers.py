"""The layers of a decoder, as plain callables over the flattened tokens of a step.

Layers hold weights only: the tokens, and the places of their keys and values, come with each call. Operations other
than matrix products are in `kernels/`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fairlead_common.models.model_config import QueryGrowth
from fairlead_engine.kernels.attention.backend import AttentionBackend, LayerCache
from fairlead_engine.kernels.attention.chosen_keys import StepChoice
from fairlead_engine.kernels.attention.scoring import PLAIN, Scoring
from fairlead_engine.kernels.expert_product import ExpertWeights, gated_product, weighted_product
from fairlead_engine.kernels.gates import SILU, Gate, silu_mul, squared_relu
from fairlead_engine.kernels.norm_rope_store import HeadNorm, HeadTurn
from fairlead_engine.kernels.recurrence import StateRows
from fairlead_engine.kernels.rms_norm import add_rms_norm, rms_norm
from fairlead_engine.kernels.routes import ExpertRouting, find_routes, route_top_k, weighted_routes
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.lora.adapted_layers import AdaptedRows
from fairlead_engine.model.lora.expert_adapters import ExpertAdapters, ExpertSlots
from fairlead_engine.model.shard import Shard


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The tokens of one step, all sequences flattened one after the other."""

    token_ids: Tensor
    """int32 [tokens]."""
    positions: Tensor
    """int64 [tokens]: place of each token in its sequence."""
    logit_rows: Tensor
    """int64 [rows]: tokens whose logits are wanted."""
    backend: AttentionBackend[Any, Any]
    attention: Any
    """What the backend prepared for this step."""
    adapted: AdaptedRows | None = None
    """Tokens with adapters; None = none."""
    adapted_reads: AdaptedRows | None = None
    """The same among `logit_rows`."""
    given: "GivenEmbeddings | None" = None
    """Embeddings of tokens without their own; None = all tokens have their own."""
    states: StateRows | None = None
    """Of recurrent layers; None = there are none."""
    places: Tensor | None = None
    """int64 [3, tokens]: time, row and column for rotations, or [tokens] if all are equal; None = `positions`."""
    choice: StepChoice = field(default_factory=StepChoice)
    """Of layers that choose the keys they attend to."""


class GivenEmbeddings(NamedTuple):
    """Embeddings from elsewhere, in place of some tokens' own, and perhaps vectors for later layers."""

    rows: Tensor
    """int64 [given]: rows of these tokens."""
    embeddings: Tensor
    """[given, (1 + later layers) x hidden]: what is behind the embedding is added to the stream behind the first layer,
    the second, and so on (DeepStack, arXiv 2406.04334)."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines of a step's positions, each [tokens, 1, rotated elements of a head]."""

    cosines: Tensor
    sines: Tensor


class Rotations(NamedTuple):
    """For most layers, and for local layers; the same in most models."""

    everywhere: Rotation
    local: Rotation


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Normalises the residual stream after adding a layer's output, or a layer's output alone."""

    weight: Tensor
    eps: float

    def alone(self, x: Tensor) -> Tensor:
        """x [..., size], normalised."""
        return rms_norm(x, self.weight, self.eps)

    def __call__(self, update: Tensor | None, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised sum and the sum, each [rows, hidden]; the update is None before the first layer, and may be in
        parts [rows, parts, hidden]."""
        if update is None:
            return self.alone(stream), stream
        return add_rms_norm(update, stream, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class CentredNorm(RMSNorm):
    """The same with the mean subtracted first, and perhaps with a bias, computed in float32."""

    bias: Tensor | None = None

    def alone(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return layer_norm(x.float(), x.shape[-1:], self.weight.float(), bias, self.eps).to(x.dtype)

    def __call__(self, update: Tensor | None, stream: Tensor) -> tuple[Tensor, Tensor]:
        if update is not None:
            stream = stream + (update if update.dim() == 2 else update.sum(1))
        return self.alone(stream), stream


class FeedForward(Protocol):
    """A layer's part that treats each token by itself: x [rows, hidden] → the same shape."""

    @property
    def waits_for_device(self) -> bool:
        """Whether the host reads intermediate results, which forbids a capture."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GatedFeedForward:
    """down(silu(gate(x)) * up(x)), with gate and up in one product; `combine` may replace silu."""

    gate_up: Linear
    down: Linear
    combine: Callable[[Tensor], Tensor] | None = None
    """Gate and up, in the weight's order [rows, 2 x size], → [rows, size]; None = `silu_mul`."""
    waits_for_device: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.down((self.combine or silu_mul)(self.gate_up(x)))


@dataclass(frozen=True, slots=True)
class ScaledOutputs:
    """A feed-forward with a factor of its outputs."""

    feed_forward: GatedFeedForward
    factor: float
    waits_for_device: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.feed_forward(x) * self.factor


@dataclass(frozen=True, slots=True)
class UngatedFeedForward:
    """down(relu(up(x))²), or with another activation."""

    up: Linear
    down: Linear
    activation: Callable[[Tensor], Tensor] = squared_relu
    waits_for_device: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


@dataclass(frozen=True, slots=True)
class Passing:
    """Stands for the feed-forward of a layer without: x [rows, hidden] as it is."""

    waits_for_device: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True, slots=True)
class SparseExperts:
    """Each token goes through its few best experts, whose outputs are added, weighted by the router."""

    router: Linear
    experts: tuple[FeedForward, ...]
    routing: ExpertRouting
    shard: Shard
    """The rank's part of each expert."""
    slots: ExpertSlots | None = None
    """Of the experts' adapters; None = without."""
    waits_for_device: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return self.routed(x, self.router(x))

    def routed(self, x: Tensor, logits: Tensor, each: int = 1) -> Tensor:
        """Sorts rows by expert: each is one product. Adds a token's experts in fixed order, whatever the batch.
        `logits`: the router's [rows, experts]; `each`: rows of a token."""
        if not len(x):
            return x
        weights, experts = route_top_k(logits, self.routing)
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=len(self.experts)).tolist()
        rows = order // self.routing.num_chosen
        slots = None if self.slots is None else self.slots.of_rows(len(x), each)
        of_parts = [None] * len(counts) if slots is None else torch.split(slots[rows], counts)
        parts = zip(self.experts, torch.split(x[rows], counts), of_parts, strict=True)
        computed = torch.cat([self._computed(*part) for part in parts if len(part[1])])
        outputs = torch.empty_like(computed).index_copy_(0, order, computed)
        return self.shard.sum((outputs.view(*weights.shape, -1) * weights.unsqueeze(-1).to(x.dtype)).sum(1))

    def _computed(self, expert: FeedForward, part: Tensor, slots: Tensor | None) -> Tensor:
        """`slots`: of the adapters of the part's rows; None = none has any."""
        if self.slots is not None:
            self.slots.choose(slots)
        return expert(part)


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """`SparseExperts` without routes on the host, for a device that the host runs ahead of."""

    router: Linear
    gate_up: ExpertWeights
    down: ExpertWeights
    routing: ExpertRouting
    shard: Shard
    gate: Gate = SILU
    adapters: ExpertAdapters | None = None
    waits_for_device: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.routed(x, self.router(x))

    def routed(self, x: Tensor, logits: Tensor, each: int = 1) -> Tensor:
        """As `SparseExperts.routed`."""
        return self.shard.sum(self._parts(x, logits, each).sum(1))

    def parts(self, x: Tensor) -> Tensor:
        """Outputs of each token's experts [rows, experts per token, hidden], of this rank."""
        return self._parts(x, self.router(x))

    def _parts(self, x: Tensor, logits: Tensor, each: int = 1) -> Tensor:
        if not len(x):
            return x.new_empty(0, self.routing.num_chosen, x.shape[1])
        rounds = self.gate_up.rounds_by_rows or self.down.rounds_by_rows
        routing, adapters = self.routing, self.adapters
        if routing.is_known_to_products:
            routes = find_routes(logits, routing, x, rounds)
        else:
            routes, routing = weighted_routes(logits, routing, x, rounds)
        pairs = None if adapters is None else adapters.pairs(routes, each)
        if adapters is None or pairs is None:
            return weighted_product(gated_product(x, self.gate_up, routes, self.gate), self.down, routes, routing)
        within = gated_product(x, self.gate_up, routes, self.gate, adapters.before_gate(x, pairs))
        outputs = weighted_product(within, self.down, routes, routing)
        return outputs.add_(adapters.behind_gate(within, pairs, routes.scores, routing))


Experts = SparseExperts | GroupedExperts


@dataclass(frozen=True, slots=True)
class ScaledInputs:
    """Experts with scores that are factors of their inputs, not of their outputs (Llama 4)."""

    experts: Experts
    """Their routing takes one expert of a row, with a weight of 1."""
    routing: ExpertRouting
    """Of tokens."""

    @property
    def waits_for_device(self) -> bool:
        return self.experts.waits_for_device

    def __call__(self, x: Tensor) -> Tensor:
        """A row for each token and expert goes through the experts as a token of its own."""
        logits = self.experts.router(x)
        scores, chosen = route_top_k(logits, self.routing)
        scaled = (x.unsqueeze(1) * scores.unsqueeze(2).to(x.dtype)).flatten(0, 1)
        only = logits.new_full((len(scaled), logits.shape[1]), float("-inf")).scatter_(1, chosen.view(-1, 1), 0.0)
        outputs = self.experts.routed(scaled, only, self.routing.num_chosen)
        return outputs.view(len(x), self.routing.num_chosen, x.shape[1]).sum(1)


@dataclass(frozen=True, slots=True)
class LatentExperts:
    """Experts that read and write narrower vectors, chosen by the whole ones (Nemotron-H)."""

    narrow: Linear
    experts: Experts
    widen: Linear

    @property
    def waits_for_device(self) -> bool:
        return self.experts.waits_for_device

    def __call__(self, x: Tensor) -> Tensor:
        return self.widen(self.experts.routed(self.narrow(x), self.experts.router(x)))


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """Routed experts, and an expert for all tokens, perhaps weighted by a gate."""

    chosen: Experts | ScaledInputs | LatentExperts
    shared: FeedForward
    gate: Linear | None = None
    """[rows, hidden] → [rows, 1]; None = its weight is 1."""
    factor: float = 1.0
    """Of the sum."""

    @property
    def waits_for_device(self) -> bool:
        return self.chosen.waits_for_device

    def __call__(self, x: Tensor) -> Tensor:
        shared = self.shared(x)
        found = self.chosen(x) + (shared if self.gate is None else self.gate(x).sigmoid() * shared)
        return found if self.factor == 1.0 else found * self.factor


@dataclass(frozen=True, slots=True)
class ProjectionNorm:
    """Normalises all query heads as one row and all key heads as one, however many ranks share them."""

    query: RMSNorm
    key: RMSNorm
    shard: Shard

    def __call__(self, x: Tensor) -> Tensor:
        """x [tokens, queries, keys and values side by side] → the same shape."""
        sizes = len(self.query.weight), len(self.key.weight)
        query, key, value = torch.split(x, [*sizes, x.shape[1] - sum(sizes)], dim=1)
        if self.shard.size == 1:
            return torch.cat((self.query.alone(query), self.key.alone(key), value), dim=1)
        # Ranks have parts of one size, so that the mean over a row is that over the ranks' means.
        means = torch.stack([part.float().square().mean(-1) for part in (query, key)])
        means = self.shard.sum(means) / self.shard.size
        parts = [
            (part.float() * (mean + norm.eps).rsqrt().unsqueeze(1)).to(x.dtype) * norm.weight
            for part, mean, norm in zip((query, key), means, (self.query, self.key), strict=True)
        ]
        return torch.cat((*parts, value), dim=1)


class AttentionLayer(Protocol):
    """A layer's part in which tokens meet: `attend`; `heads` before and `output` after treat each token by itself."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        """Number and size of the heads that `heads` returns for a token."""

    @property
    def attended_size(self) -> int:
        """Elements that `attend` returns for a token."""

    @property
    def output(self) -> Callable[[Tensor], Tensor]:
        """[rows, attended_size] → the layer's update [rows, hidden]."""

    def heads(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] → input of the backend [tokens, *heads_shape]."""

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: Any) -> Tensor:
        """[tokens, *heads_shape] → [tokens, attended_size]. `cache`: a `LayerCache`, `StateCache` or `JointCache`."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the paged cache, with query, key and value in one product."""

    qkv: Linear
    output: Linear
    head_norm: HeadNorm | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scoring: Scoring = PLAIN
    query_scale: float = 1.0
    """Of queries, beside the scale by the size of a head."""
    is_local: bool = False
    """Whether rotations are those of local layers."""
    projection_norm: ProjectionNorm | None = None
    query_growth: QueryGrowth | None = None

    @property
    def heads_shape(self) -> tuple[int, int]:
        return self.num_heads + 2 * self.num_kv_heads, self.head_dim

    @property
    def attended_size(self) -> int:
        return self.num_heads * self.head_dim

    def heads(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] → heads of queries, keys and values side by side [tokens, all heads, head_dim]."""
        projected = self.qkv(x)
        if self.projection_norm is not None:
            projected = self.projection_norm(projected)
        return projected.view(-1, *self.heads_shape)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache) -> Tensor:
        """`heads` → the heads' outputs side by side [tokens, heads x head_dim]; `output` comes after."""
        rotation = rotations.local if self.is_local else rotations.everywhere
        turn = HeadTurn(self.num_kv_heads, self.num_kv_heads, rotation.cosines, rotation.sines, self.head_norm)
        query = step.backend.store(heads, turn, cache, step.attention)
        if self.query_scale != 1.0:
            query = query * self.query_scale
        if self.query_growth is not None:
            query = grown(query, self.query_growth, step.positions)
        return step.backend.attend(query, cache, step.attention, self.scoring).flatten(1)


def grown(query: Tensor, growth: QueryGrowth, positions: Tensor) -> Tensor:
    """Queries [tokens, heads, size] with the factors of their positions [tokens]."""
    steps = ((positions + growth.first) // growth.every).float()
    return (query * (1.0 + growth.weight * steps.log1p()).view(-1, 1, 1)).to(query.dtype)


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """A layer's normalisations: of the stream before its two parts, and of each part's output; None = absent."""

    before_attention: RMSNorm | None
    after_attention: RMSNorm | None
    before_feed_forward: RMSNorm | None
    after_feed_forward: RMSNorm | None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention, then feed-forward, which add to the residual stream. Tokens meet in attention alone."""

    norms: LayerNorms
    attention: AttentionLayer
    feed_forward: FeedForward

    def before_attention(self, update: Tensor | None, stream: Tensor) -> tuple[Tensor, Tensor]:
        """update and stream [tokens, hidden] → the attention's heads [tokens, all heads, head_dim], and the stream."""
        seen, stream = _joined(self.norms.before_attention, update, stream)
        return self.attention.heads(seen), stream

    def after_attention(self, attended: Tensor, stream: Tensor) -> tuple[Tensor | None, Tensor]:
        """The next update, in parts where experts computed it [tokens, parts, hidden], and the stream, each [tokens,
        hidden], or with fewer rows if fewer were given; without an update the stream has all."""
        update = _alone(self.norms.after_attention, self.attention.output(attended))
        seen, stream = _joined(self.norms.before_feed_forward, update, stream)
        return self._fed_forward(seen), stream

    def _fed_forward(self, seen: Tensor) -> Tensor:
        """The next normalisation sums the parts, unless the layer's own normalisation or the ranks' sum comes first."""
        feed_forward, norm = self.feed_forward, self.norms.after_feed_forward
        if norm is None and isinstance(feed_forward, GroupedExperts) and feed_forward.shard.size == 1:
            return feed_forward.parts(seen)
        return _alone(norm, feed_forward(seen))


@dataclass(frozen=True, slots=True)
class SingleLayer(DecoderLayer):
    """Attention or a feed-forward; `Apart` and `Passing` stand for the missing part."""

    def after_attention(self, attended: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        return self._fed_forward(self.attention.output(attended)), stream


@dataclass(frozen=True, slots=True)
class Apart:
    """Stands for the attention of a layer without: tokens do not meet (`AttentionLayer`)."""

    hidden_size: int

    @property
    def heads_shape(self) -> tuple[int, int]:
        return 1, self.hidden_size

    @property
    def attended_size(self) -> int:
        return self.hidden_size

    def heads(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: None) -> Tensor:
        return heads.squeeze(1)

    def output(self, attended: Tensor) -> Tensor:
        """[rows, hidden], as it is."""
        return attended


@dataclass(frozen=True, slots=True)
class ParallelLayer(DecoderLayer):
    """Attention and feed-forward of the same normalised stream, which add to the stream together."""

    def after_attention(self, attended: Tensor, stream: Tensor) -> tuple[Tensor | None, Tensor]:
        seen, _ = _joined(self.norms.before_attention, None, stream)
        return self.attention.output(attended) + self.feed_forward(seen), stream


def _joined(norm: RMSNorm | None, update: Tensor | None, stream: Tensor) -> tuple[Tensor, Tensor]:
    """The stream plus the update, normalised for the next part, and unchanged."""
    if norm is not None:
        return norm(update, stream)
    if update is not None:
        stream = stream + (update if update.dim() == 2 else update.sum(1))
    return stream, stream


def _alone(norm: RMSNorm | None, update: Tensor) -> Tensor:
    return update if norm is None else norm.alone(update)
