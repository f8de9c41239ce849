"""`.bin`, `.pt` and `.pth`: weights that torch pickled, rewritten as safetensors.

A pickle is a program. torch's reader for tensors alone (`weights_only`) parses the pickle; a pickle with any
other call is refused by the name of the call, and not run. The tensors' total size is compared with the file's size
before anything is written. Files are mapped into memory one at a time: a model may be larger than the memory.
"""

import json
import pickle
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources.remote import DownloadError

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = frozenset({".bin", ".pt", ".pth"})
_TARGET = ".converted"
"""Folder for the new files, inside the model's."""
_INDEX = re.compile(r"pytorch_model\.(bin|pt|pth)\.index\.json")
_WRAPPERS = ("state_dict", "model")
"""Trainers' keys of a model's tensors, beside other keys."""
_ASKED_FOR = re.compile(r"GLOBAL ([\w.]+)")
"""Torch's message about a call in a pickle."""
_EXPANSION = 2
"""Most bytes of tensors per byte of file: tied tensors are written twice, bombs a thousand times."""
_SLACK_BYTES = 1 << 20


def pickled_files(folder: Path) -> list[Path]:
    """Files directly in the folder that `convert` rewrites."""
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())


def pickled_folders(model: Path) -> list[Path]:
    """A model's folder, and those of its modules, as far as they have such files."""
    folders = [model, *sorted(path for path in model.iterdir() if path.is_dir())]
    return [folder for folder in folders if pickled_files(folder)]


def convert(folder: Path) -> None:
    """Rewrites the pickled weights of a folder in place, and deletes them. Runs in a thread. Raises DownloadError."""
    from fairlead_engine.model.safetensors_writer import SafetensorsWriter

    files, target = pickled_files(folder), folder / _TARGET
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    try:
        writer, weight_map, file_of = SafetensorsWriter(target), _weight_map(folder), dict[str, str]()
        for path in files:
            for name, tensor in _tensors(path, weight_map, file_of):
                writer.add(name, tensor)
            writer.flush()
        for name, file in (weight_map or {}).items():
            if name not in file_of:
                raise _failed(file, f"does not hold {name!r}, which its index places there")
        if not file_of:
            raise _failed(files[0].name, "holds no tensors")
        writer.finish()
        for path in target.iterdir():
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    for path in [*files, *_indexes(folder)]:
        path.unlink()


def _tensors(
    path: Path, weight_map: Mapping[str, str] | None, file_of: dict[str, str]
) -> Iterator[tuple[str, "Tensor"]]:
    """The tensors of one file, noted in `file_of`. Raises DownloadError."""
    for name, tensor in _read(path).items():
        if weight_map is not None and weight_map.get(name, path.name) != path.name:
            continue
        if name in file_of:
            raise _failed(path.name, f"holds {name!r}, and so does {file_of[name]}: merge the files, or index them")
        file_of[name] = path.name
        yield name, tensor


def _read(path: Path) -> dict[str, "Tensor"]:
    """The tensors of one file, without shared memory. Raises DownloadError."""
    import torch

    is_mapped = zipfile.is_zipfile(path)
    if is_mapped:
        _check_stored(path)
    try:
        with warnings.catch_warnings(action="ignore"):  # of unusual ways to pickle, which are read or refused below
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except Exception as error:  # torch raises any type for damaged files
        asked = _ASKED_FOR.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        kind = type(error).__name__
        what = f"is a pickle that calls {asked[1][:100]}" if asked else f"is no file of torch's weights ({kind})"
        raise _failed(path.name, f"{what}; nothing of it was run") from None
    tensors = _named_tensors(path, loaded)
    # A tensor may claim to repeat one number, and a file to repeat one tensor a thousand times.
    size, total = path.stat().st_size, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > size * _EXPANSION + _SLACK_BYTES:
        raise _failed(path.name, f"has {size} bytes, and says that its tensors have {total}")
    return _apart(tensors)


def _check_stored(path: Path) -> None:
    """Refuses compressed entries: torch does not compress."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise _failed(path.name, f"is a damaged archive ({type(error).__name__})") from None
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise _failed(path.name, "is compressed, which torch's weights are not")


def _named_tensors(path: Path, loaded: Any) -> dict[str, "Tensor"]:
    import torch

    if isinstance(loaded, Mapping):
        loaded = next((loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)), loaded)
    if not isinstance(loaded, Mapping):
        raise _failed(path.name, f"holds a {type(loaded).__name__}, not tensors by name")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise _failed(path.name, f"holds a {type(tensor).__name__} under {str(name)[:100]!r}, not a tensor")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.is_meta:
            raise _failed(path.name, f"holds {name[:100]!r} in a form that safetensors has not ({tensor.dtype})")
    return {name: tensor.detach() for name, tensor in loaded.items()}


def _apart(tensors: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Copies tensors that share memory, as tied weights do."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return apart


def _indexes(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if _INDEX.fullmatch(path.name)]


def _weight_map(folder: Path) -> dict[str, str] | None:
    """Tensor → file, by the index; None = no index. Raises DownloadError."""
    for path in _indexes(folder):
        try:
            weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
            names = list(weight_map.values())
            if all(isinstance(name, str) and PurePosixPath(name).name == name for name in names):
                missing = sorted({name for name in names if not (folder / name).is_file()})
                if missing:
                    raise _failed(path.name, f"names {missing[0]!r}, which the source does not have")
                return dict(weight_map)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise _failed(path.name, "has no weight_map with names of files beside it")
    return None


def _failed(file: str, problem: str) -> DownloadError:
    return DownloadError(
        DownloadFailure.CONVERSION_FAILED,
        f"{file} {problem}: name a source that has the model as safetensors, or write it so where you trust the file",
    )
