"""Parts of encoders' layers, and how they are read from a checkpoint and counted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.linear import Linear, make_linear

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}
"""By their names in `config.json`."""


def read_activation(fields: JsonFields, name: str) -> str:
    """The key in `ACTIVATIONS` of the field `name`. Raises ModelLoadError for another."""
    activation = fields.text(name) or "gelu"
    if activation not in ACTIVATIONS:
        raise refuse(f"{name} {activation}", f"supported are {', '.join(ACTIVATIONS)}")
    return activation


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalises mean and spread of each row."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class EncoderTensors:
    """Reads and counts the tensors of one model. All methods raise ModelLoadError, naming the tensor that does not
    fit."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.num_parameters = 0
        self.weight_bytes = 0

    @property
    def dtype(self) -> torch.dtype:
        return self._checkpoint.dtype

    @property
    def device(self) -> torch.device:
        return self._checkpoint.device

    def linear(self, out_features: Mapping[str, int], in_features: int, *, bias: bool = True) -> Linear:
        """One product for several projections of the same input, given as name → output size."""
        names, rows = list(out_features), list(out_features.values())
        weight = self._counted(self._checkpoint.stacked([f"{name}.weight" for name in names], rows, in_features))
        if not bias:
            return make_linear(weight)
        return make_linear(weight, self._counted(self._checkpoint.stacked([f"{name}.bias" for name in names], rows)))

    def norm(self, name: str, size: int, eps: float, *, bias: bool = True) -> LayerNorm:
        weight = self.tensor(f"{name}.weight", size)
        return LayerNorm(weight, self.tensor(f"{name}.bias", size) if bias else None, eps)

    def tensor(self, name: str, *shape: int) -> Tensor:
        return self._counted(self._checkpoint.tensor(name, *shape))

    def _counted(self, tensor: Tensor) -> Tensor:
        self.num_parameters += tensor.numel()
        self.weight_bytes += tensor.nbytes
        return tensor
