"""The indexer of DeepSeek-V3.2 (arXiv 2512.02556): narrow heads beside those of latent attention, which choose the
tokens that a query attends to. The cache holds an index key of each token beside its own key.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.kernels.attention.chosen_keys import ChosenKeys, IndexQuery, choose_keys, flat_slots
from fairlead_engine.kernels.norm_rope_store import rotate
from fairlead_engine.model.layers import ForwardInput, Rotation
from fairlead_engine.model.linear import Linear

_NORM_EPS = 1e-6
"""Of keys, as transformers has it."""


@dataclass(frozen=True, slots=True)
class KeyNorm:
    """Normalisation of index keys, float32: weights and what is added, each [index_dim]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, keys: Tensor) -> Tensor:
        """keys [tokens, index_dim] → the same shape."""
        return layer_norm(keys.float(), self.weight.shape, self.weight, self.bias, _NORM_EPS).to(keys.dtype)


@dataclass(frozen=True, slots=True)
class KeyIndexer:
    """A layer's indexer, whole on every rank: all ranks choose the same tokens."""

    query: Linear
    """Narrower vectors of queries → heads of the index's queries, side by side."""
    key: Linear
    """[tokens, hidden] → [tokens, index_dim]."""
    key_norm: KeyNorm
    weigh: Linear
    """[tokens, hidden] → weights of the heads [tokens, index heads]."""
    num_heads: int
    rotary_dim: int
    """First elements of queries and keys that are rotated."""
    is_interleaved: bool
    """Whether neighbours are rotated together; else each element with its partner half of `rotary_dim` further."""
    num_chosen: int
    """Most tokens that a query attends to."""

    @property
    def size(self) -> int:
        """Elements that `vectors` returns for a token."""
        return (self.num_heads + 1) * len(self.key_norm.weight) + self.num_heads

    def vectors(self, x: Tensor, narrow: Tensor) -> Tensor:
        """x [tokens, hidden] and the narrower vectors of its queries → heads of queries, the key, and the heads'
        weights side by side [tokens, size]; before rotation."""
        heads = torch.cat((self.query(narrow), self.key_norm(self.key(x))), 1).view(len(x), self.num_heads + 1, -1)
        if self.is_interleaved:
            turned, rest = heads.tensor_split([self.rotary_dim], 2)
            heads = torch.cat((turned[..., ::2], turned[..., 1::2], rest), 2)
        return torch.cat((heads.flatten(1), self.weigh(x)), 1)

    def choose(self, vectors: Tensor, step: ForwardInput, rotation: Rotation, cache: LayerCache) -> ChosenKeys | None:
        """Stores the keys in `vectors` [tokens, size]; the chosen tokens of each row, None = all."""
        assert cache.index is not None, "the cache was made without an index of this layer"
        if step.choice.view is None:
            step.choice.view = step.backend.view(cache, step.attention)
        index, view = flat_slots(cache.index), step.choice.view
        heads, weights = torch.split(vectors, [vectors.shape[1] - self.num_heads, self.num_heads], 1)
        turned = rotate(heads.reshape(len(vectors), self.num_heads + 1, -1), rotation.cosines, rotation.sines)
        index.put(0, view.slots, turned[:, -1])
        return choose_keys(IndexQuery(turned[:, :-1], weights), index, view.groups, self.num_chosen)
