"""Dense modules of sentence-transformers: products that a pooled vector goes through before it is scaled."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fairlead_common.models.json_fields import JsonFields
from fairlead_engine.model.checkpoint import Checkpoint
from fairlead_engine.model.encoders.parts import Activation, EncoderTensors
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.task import DENSE, module_folder, module_kind, sentence_modules

_ACTIVATIONS: Mapping[str, Activation] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}
"""By the names of torch's classes."""
_POOLED = "sentence_embedding"


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """One module's."""

    folder: Path
    in_features: int
    out_features: int
    has_bias: bool
    activation: str


@dataclass(frozen=True, slots=True)
class VectorProjection:
    """A model's modules, one after the other."""

    modules: tuple[tuple[Linear, Activation], ...]
    dtype: torch.dtype
    """Of the weights."""
    num_parameters: int
    weight_bytes: int

    def __call__(self, vectors: Tensor) -> Tensor:
        """float32 [rows, hidden] → float32 [rows, size of the vectors]."""
        vectors = vectors.to(self.dtype)
        for dense, activation in self.modules:
            vectors = activation(dense(vectors))
        return vectors.float()


def read_dense(folder: Path, size: int) -> tuple[DenseConfig, ...]:
    """The dense modules of a model with pooled vectors of `size` elements. Raises ModelLoadError."""
    found: list[DenseConfig] = []
    for module in sentence_modules(folder) or ():
        if module_kind(module) == DENSE:
            found.append(_read_module(module_folder(folder, module), size))
            size = found[-1].out_features
    return tuple(found)


def _read_module(folder: Path, size: int) -> DenseConfig:
    fields = JsonFields.read(folder / "config.json")
    if fields.positive_int("in_features") != size:
        raise fields.invalid("in_features", f"must be {size}, the size of the vectors that it is given")
    for name in ("module_input_name", "module_output_name"):
        if (fields.text(name) or _POOLED) != _POOLED:
            raise fields.unsupported(name, f"modules read and write {_POOLED}")
    named = fields.text("activation_function")
    if named is None:  # null means none, and without the field it is the tanh of the oldest files
        named = "Identity" if fields.names("activation_function") else "Tanh"
    activation = named.rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise fields.unsupported("activation_function", f"supported are {', '.join(_ACTIVATIONS)}")
    return DenseConfig(
        folder=folder,
        in_features=size,
        out_features=fields.positive_int("out_features"),
        has_bias=fields.boolean("bias", True),
        activation=activation,
    )


def load_dense(configs: tuple[DenseConfig, ...], dtype: torch.dtype, device: torch.device) -> VectorProjection | None:
    """Reads the weights; None = there is no module. Raises ModelLoadError."""
    if not configs:
        return None
    modules, num_parameters, weight_bytes = [], 0, 0
    for config in configs:
        with Checkpoint(config.folder, dtype, device) as checkpoint:
            tensors = EncoderTensors(checkpoint)
            dense = tensors.linear({"linear": config.out_features}, config.in_features, bias=config.has_bias)
            checkpoint.check_all_read()
        modules.append((dense, _ACTIVATIONS[config.activation]))
        num_parameters += tensors.num_parameters
        weight_bytes += tensors.weight_bytes
    return VectorProjection(tuple(modules), dtype, num_parameters, weight_bytes)
