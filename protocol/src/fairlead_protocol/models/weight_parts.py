"""What a model is made of, as numbers: weights of linear layers, and what else a checkpoint holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class WeightRole(StrEnum):
    """What decides in which format a weight is stored and kept."""

    LINEAR = "linear"
    """Quantised where anything is."""
    EXPERT = "expert"
    """The same, of an expert that tokens choose."""
    PRECISE = "precise"
    """Kept as floats where others lose some: routers, towers, norms."""
    RESTORED = "restored"
    """Stored as linear layers are, and kept as floats: what is multiplied in another way."""
    EMBEDDING = "embedding"
    HEAD = "head"
    """The output projection."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """`num` weights of one shape, [rows, columns] each; rows are outputs. What has no rows is a vector."""

    name: str
    """Of the layer, as checkpoints name it within its place."""
    num: int
    rows: int
    columns: int
    role: WeightRole = WeightRole.LINEAR
    bias: int = 0
    """Numbers that each has beside."""
    projections: int = 1
    """Products of one input that lie side by side in it: adapters have one each."""

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
    """`num` vectors of `size` elements, which keep their precision."""
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
    """The larger share of `size` elements that one of `ranks` ranks has."""
    return -(-size // ranks)
