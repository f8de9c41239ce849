"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one short vector of each token, and
every head's key and value are linear functions of the vector.

These functions are *absorbed*: a query is mapped to the vectors' space, instead of all vectors to the query's, and the
result is mapped from there to the heads' values. The remainder is attention of many query heads to one key head, whose
values are a part of keys: any backend computes it. With an indexer (`key_index.py`) a query sees some tokens only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairlead_common.models.model_config import QueryGrowth
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.attention.chosen_keys import attend_chosen
from fairlead_engine.kernels.attention.scoring import PLAIN
from fairlead_engine.kernels.norm_rope_store import HeadTurn
from fairlead_engine.model.key_index import KeyIndexer
from fairlead_engine.model.layers import ForwardInput, RMSNorm, Rotations, grown
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.lora.adapted_layers import AdaptedHeads


@dataclass(frozen=True, slots=True)
class LowRankQuery:
    """Queries by way of a narrower vector."""

    norm: RMSNorm
    up: Linear


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """An `AttentionLayer` of this rank's heads. A head in the cache is [rotated elements, latent]."""

    down: Linear
    """x → queries, or their narrower vectors, the latent, and the rotated elements of all keys, side by side."""
    low_rank: LowRankQuery | None
    """None = `down` computes queries themselves."""
    latent_norm: RMSNorm
    key_up: Tensor
    """[heads, elements of a key that are not rotated, latent]."""
    value_up: Tensor
    """[heads, latent, elements of a value]."""
    project: Linear
    """All heads' values → the layer's update."""
    rotary_dim: int
    is_interleaved: bool
    """Whether neighbours are rotated together; else each element with its partner half of `rotary_dim` further."""
    query_scale: float
    """Of queries, beside the scale by the size of a head in the cache."""
    query_growth: QueryGrowth | None = None
    """None = queries do not grow with their positions."""
    indexer: KeyIndexer | None = None
    """None = a query sees all earlier tokens, or those that the layer before has chosen."""
    shares_choice: bool = False
    """Whether queries see the tokens that the layer before has chosen."""
    adapters: AdaptedHeads | None = None
    """Of the layer that `key_up` and `value_up` are; None = without."""

    @property
    def heads_shape(self) -> tuple[int, int]:
        num, size = self._own_shape
        return (num, size) if self.indexer is None else (1, num * size + self.indexer.size)

    @property
    def _own_shape(self) -> tuple[int, int]:
        """Number and size of the heads without the indexer's."""
        return len(self.key_up) + 1, self.rotary_dim + self.key_up.shape[2]

    @property
    def attended_size(self) -> int:
        return len(self.key_up) * self.key_up.shape[2]

    def heads(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] → heads of queries and the key head side by side [tokens, heads + 1, size]; with an
        indexer flat, and its vectors behind them."""
        num_heads, num_plain, num_latent = self.key_up.shape
        projected = self.down(x)
        latent_first = projected.shape[1] - num_latent - self.rotary_dim
        query, latent, turned = torch.split(projected, [latent_first, num_latent, self.rotary_dim], dim=1)
        narrow = query if self.low_rank is None else self.low_rank.norm.alone(query)
        query = narrow if self.low_rank is None else self.low_rank.up(narrow)
        queries = query.view(len(x), num_heads, num_plain + self.rotary_dim)
        plain, turned_query = torch.split(queries, [num_plain, self.rotary_dim], dim=2)
        heads = x.new_empty(len(x), *self._own_shape)
        heads[:, :-1, : self.rotary_dim] = self._halves(turned_query)
        heads[:, -1, : self.rotary_dim] = self._halves(turned)
        absorbed = torch.bmm(plain.transpose(0, 1), self.key_up)
        if self.adapters is not None:
            self.adapters.add_to_queries(absorbed, plain.transpose(0, 1))
        heads[:, :-1, self.rotary_dim :] = absorbed.transpose(0, 1)
        heads[:, -1, self.rotary_dim :] = self.latent_norm.alone(latent)
        if self.indexer is None:
            return heads
        return torch.cat((heads.flatten(1), self.indexer.vectors(x, narrow)), 1).unsqueeze(1)

    def attend(self, heads: Tensor, step: ForwardInput, rotations: Rotations, cache: LayerCache) -> Tensor:
        """`heads` → each head's mixture of latents, side by side [tokens, heads x latent]."""
        rotation = rotations.everywhere
        if self.indexer is not None:
            own, vectors = heads.squeeze(1).tensor_split([heads.shape[2] - self.indexer.size], 1)
            heads = own.reshape(len(own), *self._own_shape)
            step.choice.chosen = self.indexer.choose(vectors, step, rotation, cache)
        turn = HeadTurn(1, 0, rotation.cosines, rotation.sines, None)
        query = step.backend.store(heads, turn, cache, step.attention) * self.query_scale
        if self.query_growth is not None:
            query = grown(query, self.query_growth, step.positions)
        chosen = step.choice.chosen if self.indexer is not None or self.shares_choice else None
        if chosen is not None:
            return attend_chosen(query, cache, chosen).flatten(1)
        return step.backend.attend(query, cache, step.attention, PLAIN).flatten(1)

    def output(self, attended: Tensor) -> Tensor:
        """The mixtures of any rows → the layer's update [rows, hidden]."""
        found = attended.view(len(attended), *self.value_up.shape[:2]).transpose(0, 1)
        values = torch.bmm(found, self.value_up)
        if self.adapters is not None:
            self.adapters.add_to_values(values, found)
        return self.project(values.transpose(0, 1).flatten(1))

    def _halves(self, turned: Tensor) -> Tensor:
        """[..., rotary_dim] with the first elements of all pairs before the second ones, as `norm_rope` takes them.
        Queries and keys have the same order: their products stay the same."""
        if not self.is_interleaved:
            return turned
        return turned.reshape(*turned.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)
