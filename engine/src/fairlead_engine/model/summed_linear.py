"""A matrix product whose inputs are divided among ranks."""

from torch import Tensor

from fairlead_engine.model.linear import Linear
from fairlead_engine.model.shard import Shard


class SummedLinear:
    """A rank's product with its part of the inputs, summed over the ranks; the bias comes after."""

    copies_weight = False

    def __init__(self, part: Linear, bias: Tensor | None, shard: Shard) -> None:
        self._part = part
        self._bias = bias
        self._shard = shard

    def __call__(self, x: Tensor) -> Tensor:
        product = self._shard.sum(self._part(x))
        return product if self._bias is None else product.add_(self._bias)
