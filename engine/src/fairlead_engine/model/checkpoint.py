"""A checkpoint's tensors: the file of each, read on demand from memory-mapped safetensors files.

Names and shapes are checked, and reads are recorded; `weights` knows the tensors' meaning. Small files of draft heads
beside a model are read whole.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from fairlead_common.models.weight_formats import decoder_name
from fairlead_engine.demo import files_below
from fairlead_engine.errors import ModelLoadError, ModelLoadReason, onnx_problem

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

WHOLE = slice(None)
"""The whole of a dimension."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Stored dtypes of weights that are not quantised."""
_DECODER = ("model.embed_tokens", "model.per_layer_", "model.layers.", "model.norm.", "lm_head.", "mtp.")
"""Beginnings of the names of a decoder's tensors, and of those of a layer that guesses."""
_WHOLE = "model."
"""Beginning of the names of a trunk's tensors in the whole model."""
VALUES_OF_WEIGHTS = ("weight", "weight_packed", "qweight")
"""Last parts of the names of tensors with a layer's numbers, in all formats."""
_UNNEEDED = ("rotary_emb.inv_freq", ".q_scale", ".k_scale", ".v_scale", ".kv_scale")
"""Older checkpoints store the rotary frequencies, which follow from the configuration; quantised checkpoints may have
scales of an 8-bit cache or of queries, computed here anew."""


class _Part(NamedTuple):
    """Place of a tensor that is stored as a part of another's rows."""

    name: str
    first: int
    num_rows: int
    """Rows of the other."""


class _Slab(NamedTuple):
    """Place of a tensor that is stacked with others."""

    name: str
    place: int
    num_slabs: int
    is_transposed: bool


class Checkpoint:
    """The tensors of one folder, in one dtype and device. A context manager. All methods raise ModelLoadError,
    naming the tensor or file."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device, *, is_text_part: bool = False) -> None:
        """Tensors of a decoder have the names of a decoder by itself; with `is_text_part` there are no others."""
        self.dtype = dtype
        self.device = device
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self._is_text_part = is_text_part
        self._stored: dict[str, str] = {}
        """Names in the files by the names here."""
        self._read: set[str] = set()
        self._orders: dict[str, Tensor] = {}
        """Orders in which the rows of each head are read: int64 [head_dim]."""
        self._parts: dict[str, _Part] = {}
        self._slabs: dict[str, _Slab] = {}
        self._open = ExitStack()

    def __enter__(self) -> "Checkpoint":
        with ExitStack() as opening:
            index = self._folder / INDEX_FILE
            if index.exists():
                self._file_of = _read_index(index)
            else:
                self._file_of = dict.fromkeys(self._file(SINGLE_FILE, opening).keys(), SINGLE_FILE)
            self._stored = {decoder_name(name): name for name in self._file_of}
            if _is_trunk(self._stored):
                self._stored = {f"{_WHOLE}{name}": stored for name, stored in self._stored.items()}
            if self._is_text_part:
                self._stored = {name: stored for name, stored in self._stored.items() if name.startswith(_DECODER)}
            self._file_of = {name: self._file_of[stored] for name, stored in self._stored.items()}
            for name in sorted(set(self._file_of.values())):
                self._file(name, opening)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def files(self) -> list[Path]:
        """Those that hold the tensors."""
        return [self._folder / name for name in sorted(set(self._file_of.values()))]

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor `name` of the given shape, as a new tensor in the checkpoint's dtype and device."""
        return self.stacked([name], [shape[0]], *shape[1:])

    def stacked(
        self,
        names: Sequence[str],
        rows: Sequence[int],
        *columns: int,
        row_parts: Sequence[slice] | None = None,
        column_part: slice = WHOLE,
    ) -> Tensor:
        """Several tensors below one another: the i-th must have shape [rows[i], *columns]. Reads only the rows
        `row_parts` of each, and only the columns `column_part`; None = all."""
        row_parts = row_parts or [WHOLE] * len(names)
        num_rows = [len(range(*part.indices(size))) for part, size in zip(row_parts, rows, strict=True)]
        width = [len(range(*column_part.indices(size))) for size in columns]
        for name, size in zip(names, rows, strict=True):
            if name in self._file_of and name not in self._parts:
                self._check_shape(name, [(size, *columns)])
        stack = torch.empty((sum(num_rows), *width), dtype=self.dtype, device=self.device)
        for name, size, part, place in zip(names, rows, row_parts, torch.split(stack, num_rows), strict=True):
            place.copy_(self._find(name, [(size, *columns)], FLOATS, (part, column_part)[: 1 + len(columns)]))
        return stack

    def stored(
        self,
        name: str,
        *shapes: tuple[int, ...],
        dtypes: Collection[torch.dtype] = FLOATS,
        rows: slice = WHOLE,
        columns: slice = WHOLE,
    ) -> Tensor:
        """The tensor `name` on our device, as stored in one of the shapes and dtypes; only `rows` and `columns`."""
        part = (rows,) if columns == WHOLE else (rows, columns)
        return self._find(name, shapes, dtypes, part).to(self.device)

    def divide(self, name: str, parts: Mapping[str, int]) -> None:
        """A layer holds several layers below one another, name → rows: makes their weights and biases available."""
        for kind in ("weight", "bias"):
            first = 0
            for part, size in parts.items():
                self._parts[f"{part}.{kind}"] = _Part(f"{name}.{kind}", first, sum(parts.values()))
                first += size

    def reorder(self, layer: str, order: Tensor) -> None:
        """Reads rows of each head of a layer's weight and bias in this order: int64 [head_dim]. Only whole heads can be
        read then."""
        self._orders |= dict.fromkeys((f"{layer}.weight", f"{layer}.bias"), order)

    def place(self, layer: str, num_rows: int) -> tuple[str, int, int]:
        """The layer whose weight contains `layer`'s, the first row there, and the number of rows."""
        part = self._parts.get(f"{layer}.weight")
        return (layer, 0, num_rows) if part is None else (part.name.removesuffix(".weight"), part.first, part.num_rows)

    def names(self) -> set[str]:
        return set(self._file_of)

    def unread(self) -> list[str]:
        """Names of tensors that are neither read nor needless."""
        return sorted(name for name in self._file_of.keys() - self._read if not name.endswith(_UNNEEDED))

    def raw(self, name: str) -> Tensor:
        """The tensor `name` as stored, in any shape and dtype, on our device."""
        self._read.add(name)
        return self._fetch(name, ()).to(self.device)

    def unstack(self, name: str, into: Sequence[str], *, is_transposed: bool) -> None:
        """The tensor `name`, if present, holds `into`, stacked in dimension 0, perhaps transposed: makes each
        available."""
        if name in self._file_of:
            for index, slab in enumerate(into):
                self._slabs[slab] = _Slab(name, index, len(into), is_transposed)

    def skip(self, name: str) -> None:
        """Lets a tensor be left over, if present."""
        self._read.add(name)

    def skip_zeros(self, name: str) -> None:
        """The same, if it holds only zeros."""
        is_left = self.has(name) and name not in self._read
        if is_left and not bool(self._fetch(name, ()).any()):
            self.skip(name)

    def has(self, name: str) -> bool:
        return name in self._file_of or name in self._slabs

    def check_all_read(self, *, unless: str | None = None) -> None:
        """Refuses tensors that were not read, except `unless`: without some weights a model computes nonsense."""
        unread = sorted(set(self._file_of) - self._read - {unless})
        unread = [name for name in unread if not name.endswith(_UNNEEDED) and 0 not in self.shape(name)]
        if unread:
            some = ", ".join(unread[:3]) + (" and others" if len(unread) > 3 else "")
            raise ModelLoadError(
                ModelLoadReason.UNEXPECTED_TENSOR,
                f"{self._folder} holds {len(unread)} tensors that its config.json does not account for: {some}. "
                "Check that config.json belongs to these weights (biases, architecture, quantisation).",
            )

    def _find(
        self,
        name: str,
        shapes: Sequence[tuple[int, ...]],
        dtypes: Collection[torch.dtype],
        part: tuple[slice, ...] = (),
    ) -> Tensor:
        if (place := self._parts.get(name)) is not None:
            rows = (part or (WHOLE,))[0].indices(shapes[0][0])
            name, part = place.name, (slice(place.first + rows[0], place.first + rows[1]), *part[1:])
            shapes = [(place.num_rows, *shape[1:]) for shape in shapes]
        if (slab := self._slabs.get(name)) is not None:
            return self._slab(slab, shapes, dtypes, part)
        if name not in self._file_of:
            raise ModelLoadError(
                ModelLoadReason.MISSING_TENSOR,
                f"{self._folder} has no tensor {name}, expected with shape {list(shapes[0])}. "
                "Check that all files of the checkpoint are there and that config.json belongs to them.",
            )
        file = self._file_of[name]
        self._check_shape(name, shapes)
        found = self._fetch(name, part)
        if found.dtype not in dtypes:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ModelLoadError(
                ModelLoadReason.CHECKPOINT_INVALID,
                f"{self._folder / file}: tensor {name} holds {str(found.dtype).removeprefix('torch.')}, and by what "
                f"config.json says it should hold {wanted}. Check that its quantization_config belongs to these "
                "weights, or use the model's unquantised checkpoint.",
            )
        self._read.add(name)
        return found

    def _check_shape(self, name: str, shapes: Sequence[tuple[int, ...]]) -> None:
        """Before anything of the tensor is read or allocated."""
        if (shape := self.shape(name)) not in shapes:
            raise ModelLoadError(
                ModelLoadReason.TENSOR_SHAPE_MISMATCH,
                f"{self._folder / self._file_of[name]}: tensor {name} should have shape {list(shapes[0])} but has "
                f"{list(shape)}. Check that config.json belongs to these weights.",
            )

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor that is there, perhaps stacked with others."""
        if (slab := self._slabs.get(name)) is not None:
            found = self.shape(slab.name)[1:]
            return found[::-1] if slab.is_transposed else found
        file = self._file_of[name]
        try:
            return tuple(self._files[file].get_slice(self._stored.get(name, name)).get_shape())
        except SafetensorError as error:
            raise ModelLoadError(
                ModelLoadReason.MISSING_TENSOR,
                f"{self._folder / file} does not hold the tensor {name} that the index places there ({error}). "
                "Fetch the checkpoint again.",
            ) from error

    def _fetch(self, name: str, part: tuple[slice, ...]) -> Tensor:
        """`part` of a tensor, which must exist and have its shape."""
        file, stored = self._files[self._file_of[name]], self._stored.get(name, name)
        whole = all(each == WHOLE for each in part)
        found: Tensor = file.get_tensor(stored) if whole else file.get_slice(stored)[part]
        return found if (order := self._orders.get(name)) is None else reordered(found, order)

    def _slab(
        self, slab: _Slab, shapes: Sequence[tuple[int, ...]], dtypes: Collection[torch.dtype], part: tuple[slice, ...]
    ) -> Tensor:
        part = (part + (WHOLE,) * len(shapes[0]))[: len(self.shape(slab.name)) - 1]
        if slab.is_transposed:
            shapes, part = [shape[::-1] for shape in shapes], part[::-1]
        stacks = [(slab.num_slabs, *shape) for shape in shapes]
        found = self._find(slab.name, stacks, dtypes, (slice(slab.place, slab.place + 1), *part)).squeeze(0)
        return found.t() if slab.is_transposed else found

    def _file(self, name: str, opening: ExitStack) -> Any:
        if name not in self._files:
            self._files[name] = opening.enter_context(_open_safetensors(self._folder / name))
        return self._files[name]


def reordered(rows: Tensor, order: Tensor) -> Tensor:
    """[heads x head_dim, ...] with the rows of each head in another order: int64 [head_dim]."""
    return rows.view(-1, len(order), *rows.shape[1:])[:, order].reshape(rows.shape)


def _open_safetensors(path: Path) -> Any:
    if not path.is_file():
        if problem := onnx_problem(files_below(path.parent)):
            raise ModelLoadError(ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"{path.parent} {problem}")
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"{path} does not exist. The engine reads weights from {SINGLE_FILE}, or from the files that {INDEX_FILE} "
            "lists; fetch what is missing, or convert the checkpoint to safetensors.",
        )
    try:
        check_readable(path)
    except OSError as error:
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"{path} cannot be read ({error.strerror}): let the user that the engine runs as read it.",
        ) from error
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"{path} cannot be read as safetensors ({error}). It is damaged or incomplete: fetch it again.",
        ) from error


def check_readable(path: Path) -> None:
    """Raises OSError with the reason where a file may not be read: safetensors would say that it does not exist."""
    with path.open("rb"):
        pass


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name → file name. File names with folders in them are refused: they could lead out of the checkpoint."""
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        named = all(isinstance(file, str) and Path(file).name == file for file in weight_map.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID, f"{path} has no usable weight_map ({error!r}); fetch it again"
        ) from error
    if not named:
        raise ModelLoadError(
            ModelLoadReason.CHECKPOINT_INVALID,
            f"{path} places tensors in files outside its folder; move all files into one folder",
        )
    return dict(weight_map)


def read_tensors(folder: Path, files: Sequence[str], what: str) -> dict[str, Tensor]:
    """Name → tensor, on the host, of the first present file: safetensors, or torch's own format with nothing but
    tensors. Raises ModelLoadError; `what` the folder should hold."""
    file = next((folder / name for name in files if (folder / name).is_file()), None)
    if file is None:
        raise refused(folder, what, f"there is none of {', '.join(files)}")
    try:
        read = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
        return {str(name): tensor for name, tensor in read.items()}
    except Exception as error:  # safetensors and torch raise many kinds
        raise refused(folder, what, f"{file.name} cannot be read ({error})") from error


def refused(folder: Path, what: str, problem: str) -> ModelLoadError:
    """The error for a folder without the expected contents `what`; the caller raises it."""
    return ModelLoadError(ModelLoadReason.CHECKPOINT_INVALID, f"{folder} has no {what}: {problem}")


def _is_trunk(names: Collection[str]) -> bool:
    """Whether these are the names of a decoder saved without its output projection, as embedders are published."""
    beginnings = ("embed_tokens.", "layers.", "norm.")
    return "embed_tokens.weight" in names and all(name.startswith(beginnings) for name in names)


def lacks_projection(folder: Path) -> bool:
    """Whether a folder's safetensors have no output projection. Raises ModelLoadError."""
    with Checkpoint(folder, torch.float32, torch.device("cpu")) as checkpoint:
        return not any(checkpoint.has(f"lm_head.{part}") for part in VALUES_OF_WEIGHTS)
