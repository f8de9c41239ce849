"""The parts of a model in bytes: weights in the files of a checkpoint and in the memory of an engine, by format, and
blocks of the KV cache.

A format without a product on the device is kept as 8-bit numbers and decoded: 4-bit weights take more than half a byte
on a GPU.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairlead_common.models.choices import DeviceKind, Quantization

_WITHIN = (
    ("language_model.model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("backbone.", "model."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)
"""Beginnings of a decoder's names in a checkpoint that reads more than text, by older and newer files, and of
Nemotron-H's → those of the decoder by itself; and of a vision tower's → those of the newest files."""


def decoder_name(name: str) -> str:
    """A tensor's or layer's name in the decoder by itself, or in a tower; names of other parts as they are."""
    for beginning, own in _WITHIN:
        if name.startswith(beginning):
            return own + name.removeprefix(beginning)
    return name


class WeightRole(StrEnum):
    """Role of a weight, which decides the formats in files and in memory."""

    LINEAR = "linear"
    """Quantised where anything is."""
    EXPERT = "expert"
    """The same, of an expert that tokens choose."""
    PRECISE = "precise"
    """Always kept as floats: towers, norms."""
    NARROW = "narrow"
    """The same, of linear layers of few outputs: routers and gates."""
    RESTORED = "restored"
    """Stored like linear layers, and kept as floats, because the product has another form."""
    SENSITIVE = "sensitive"
    """Stored and kept like linear layers, and not rounded at loading: indexers, whose errors change what is read."""
    EMBEDDING = "embedding"
    HEAD = "head"
    """The output projection."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """`num` weights of one shape, [rows, columns] each; rows are outputs. A vector has one column."""

    name: str
    """The name of the layer in checkpoints, within its place."""
    num: int
    rows: int
    columns: int
    role: WeightRole = WeightRole.LINEAR
    bias: int = 0
    """Elements of the bias of each weight."""
    projections: int = 1
    """Products of an input, side by side in the weight; adapters have a weight for each product."""

    @property
    def weights(self) -> int:
        """Numbers of the weights alone."""
        return self.num * self.rows * self.columns

    @property
    def biases(self) -> int:
        return self.num * self.bias


def num_parameters(parts: Iterable[WeightPart]) -> int:
    """Numbers of all."""
    return sum(part.weights + part.biases for part in parts)


def vector(name: str, num: int, size: int) -> WeightPart:
    """`num` vectors of `size` elements in full precision."""
    return WeightPart(name, num, size, 1, WeightRole.PRECISE)


def gated_feed_forward(
    name: str, num: int, hidden: int, inner: int, *, bias: bool = False, role: WeightRole = WeightRole.LINEAR
) -> list[WeightPart]:
    """`num` gated feed-forward layers whose inner vectors have `inner` elements on each rank."""
    return [
        WeightPart(f"{name}.gate_up_proj", num, 2 * inner, hidden, role, 2 * inner if bias else 0, projections=2),
        WeightPart(f"{name}.down_proj", num, hidden, inner, role, hidden if bias else 0),
    ] if num else []  # fmt: skip


def share(size: int, ranks: int) -> int:
    """The largest share of `size` elements on a rank of `ranks`."""
    return -(-size // ranks)


def pieces(number: int, ranks: int) -> int:
    """Projections of a weight that holds `number` things side by side, each of which the ranks divide by itself."""
    return number if ranks > 1 else 1


FLOAT_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of number formats by name."""
_INT4_GROUP = 32
"""Inputs per scale of 4-bit weights that are rounded at loading."""
_PACKED_GROUPS = (32, 64, 128, 256)
_ROWS_TOGETHER = 16
_FP8_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """How the weights of quantised linear layers are laid out."""

    name: str
    """As `engine.quantization` spells it."""
    group: int | None = None
    """Columns that share a scale; None = all."""
    block_rows: int = 1
    """Rows that share a stored scale; in memory each row has a scale."""
    stored_bits: int = 8
    has_zeros: bool = False
    """Whether memory holds a zero point beside each scale."""
    stores_zeros: bool = False
    """Whether files hold a zero point beside each scale."""
    scale_bytes: int = 2
    """Bytes of a stored scale."""
    experts_only: bool = False
    is_stored: bool = False
    """Whether the checkpoint has this format; otherwise weights are rounded during loading."""
    has_name: bool = True
    """Whether `engine.quantization` may name the stored format: not where layers differ, nor where memory holds another
    format."""
    ignored: tuple[str, ...] = ()
    """Parts of names of layers with floats."""

    def takes(self, part: WeightPart) -> bool:
        """Whether a part is quantised."""
        only_stored = (WeightRole.RESTORED, WeightRole.SENSITIVE) if self.is_stored else ()
        if part.role not in (WeightRole.LINEAR, WeightRole.EXPERT, *only_stored):
            return False
        if any(each in part.name for each in self.ignored):
            return False
        return part.role is WeightRole.EXPERT or not self.experts_only

    def num_groups(self, columns: int) -> int:
        """Scales of a row."""
        return 1 if self.group is None else -(-columns // self.group)

    def stored_bytes(self, part: WeightPart) -> int:
        """Of a part's weights in the checkpoint's files."""
        values = -(-part.weights * self.stored_bits // 8)
        scales = part.num * -(-part.rows // self.block_rows) * self.num_groups(part.columns)
        zeros = scales * self.stored_bits // 8 if self.stores_zeros else 0
        return values + scales * self.scale_bytes + zeros

    def kept_bytes(self, part: WeightPart, device: DeviceKind, float_bytes: int) -> int:
        """Of a part's weights in the engine's memory; `float_bytes`: of a number that is computed in."""
        rows, groups = part.num * part.rows, self.num_groups(part.columns)
        scales = rows * groups
        offsets = 4 * scales if self.has_zeros else 0
        match self.name:
            case "int8":
                return part.weights + rows * (12 if device is DeviceKind.CPU else 4)
            case "int4-weight-only" if device is DeviceKind.CPU and self._packs(part):
                return part.weights // 2 + 2 * scales * float_bytes
            case "fp8" if device is DeviceKind.CUDA and groups == 1 and self._is_aligned(part):
                return part.weights + 4 * rows
            case _:
                return part.weights + scales * (4 + float_bytes) + offsets

    def _packs(self, part: WeightPart) -> bool:
        fits = self.group in _PACKED_GROUPS and part.rows % _ROWS_TOGETHER == 0
        return fits and self.group is not None and part.columns % self.group == 0

    @staticmethod
    def _is_aligned(part: WeightPart) -> bool:
        return part.rows % _FP8_ALIGNMENT == 0 and part.columns % _FP8_ALIGNMENT == 0


ROUNDED: Mapping[str, WeightLayout] = {
    Quantization.INT8: WeightLayout("int8"),
    Quantization.INT8_WEIGHT_ONLY: WeightLayout("int8-weight-only"),
    Quantization.INT4_WEIGHT_ONLY: WeightLayout("int4-weight-only", group=_INT4_GROUP),
    Quantization.FP8: WeightLayout("fp8"),
}
"""Formats of weights that are rounded at loading."""


BYTES_PER_SCALE = 4
"""Of the scale that each head of a token has in a cache of 8-bit numbers."""


def block_bytes(
    num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, number_bytes: int, *,
    has_scales: bool, has_values: bool, num_indexed: int = 0, index_dim: int = 0,
) -> int:  # fmt: skip
    """Bytes of one block of `block_size` tokens, all layers together. `has_values`: whether values are stored beside
    keys; in latent attention values are a part of keys. `num_indexed`: layers with an index key of `index_dim` elements
    beside each token's own. Layers with a window hold whole contexts, too."""
    scale = BYTES_PER_SCALE if has_scales else 0
    heads = (2 if has_values else 1) * num_layers * num_kv_heads * (head_dim * number_bytes + scale)
    return block_size * (heads + num_indexed * (index_dim * number_bytes + scale))
