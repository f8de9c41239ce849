"""A product with a weight whose columns were put into another order: its inputs are, too."""

from torch import Tensor

from fairlead_engine.model.quantization.weight_format import QuantizedLinear


class ReorderedLinear:
    """Takes each input row in the order of the weight's columns, which costs as much as copying it."""

    copies_weight = True

    def __init__(self, linear: QuantizedLinear, order: Tensor) -> None:
        """`order` int64 [in_features]: which input each of the weight's columns is for."""
        self._linear = linear
        self._order = order
        self.weight_bytes = linear.weight_bytes + order.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x.index_select(1, self._order))
