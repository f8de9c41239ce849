"""Tars, unpacked without trust: plain files needed for serving, below one folder, within bounds."""

import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from fairlead_engine.sources.remote import Packing, RemoteFile, unsupported
from fairlead_engine.sources.selection import check_path, model_folder

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdError, ZstdFile
else:
    from backports.zstd import ZstdError, ZstdFile

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst")
"""Of archives' names; the first bytes tell the compression."""
MOST_MEMBERS = {Packing.ARCHIVE: 10_000, Packing.LAYER: 200_000}
"""A layer may hold a whole system around a model."""
EXPANSION = 10
"""Largest ratio of unpacked to archive size: weights hardly compress, bombs do."""
SMALL = 64 << 20
"""Bytes allowed for any archive, however small."""
LARGEST_HEADER = 64 << 10
"""Bytes of an extended header, which tarfile reads into memory: names and times take a few hundred."""
_COPY_BYTES = 1 << 20
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""Start of a frame, or of a skippable frame, which some compressors write first (RFC 8878)."""
_REMOVED = ".wh."
"""Prefix of the name of a file that a layer removes."""
_ALL_REMOVED = ".wh..wh..opq"
"""Name in a folder whose content a layer removes."""
_EXTENDED = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


@dataclass(frozen=True, slots=True)
class Member:
    """A plain file in an archive, or a fetched file outside of archives."""

    place: Path
    """Of the archive, or of the file."""
    info: tarfile.TarInfo | None
    size: int


def opened(files: Iterable[RemoteFile], folder: Path, source: str) -> dict[str, Member]:
    """Content of a source's fetched files, by path below the folder with `config.json`. `folder`: of the fetched files;
    `source`: for messages. Raises DownloadError."""
    found: dict[str, Member] = {}
    for file in files:
        place = folder / file.path
        if file.packing is None:
            check_path(file.path)
            found[file.path] = Member(place, None, place.stat().st_size)
            continue
        for path, info in _members(place, f"{file.path} of {source}", file.packing):
            if info is None:
                for each in [each for each in found if f"{each}/".startswith(path) and found[each].place != place]:
                    del found[each]
            else:
                found[path] = Member(place, info, info.size)
    top = model_folder(found)
    return {path.removeprefix(top): member for path, member in found.items() if path.startswith(top)}


def unpack(chosen: Mapping[str, Member], target: Path) -> None:
    """Writes the chosen members below `target`; files outside of archives are moved there, last. Raises OSError."""
    for place in sorted({member.place for member in chosen.values() if member.info is not None}):
        # In the archive's order: a compressed one is read from its start for each step back.
        inside = [(m.info.offset_data, path, m.info) for path, m in chosen.items() if m.info and m.place == place]
        with _tar(place) as archive:
            for _, path, info in sorted(inside, key=lambda each: each[0]):
                content = archive.extractfile(info)
                assert content is not None, "only plain files are chosen"
                with content, _made(target / path).open("wb") as file:
                    while chunk := content.read(_COPY_BYTES):
                        file.write(chunk)
    for path, member in chosen.items():
        if member.info is None:
            member.place.rename(_made(target / path))


def _members(path: Path, name: str, packing: Packing) -> Iterator[tuple[str, tarfile.TarInfo | None]]:
    """Plain files by name. None = removes the file of this name from earlier layers, or with a trailing '/' the whole
    folder."""
    bound, most, total = path.stat().st_size * EXPANSION + SMALL, MOST_MEMBERS[packing], 0
    try:
        with _tar(path, _BoundedInfo) as archive:
            for count, member in enumerate(archive, 1):
                total += member.size
                if count > most or total > bound:
                    raise unsupported(f"{name} unpacks to more than {most} files or {bound} bytes")
                if member.isdir():
                    continue
                inner = member.name.removeprefix("./")
                if not member.isfile():
                    if packing is Packing.ARCHIVE:
                        problem = f"has {member.name[:200]!r}, which is a link or a device: pack plain files"
                        raise unsupported(f"{name} {problem}")
                    continue
                check_path(inner)
                folder, _, last = inner.rpartition("/")
                if packing is Packing.LAYER and last.startswith(_REMOVED):
                    gone = folder if last == _ALL_REMOVED else f"{folder}/{last.removeprefix(_REMOVED)}".lstrip("/")
                    yield (f"{gone}/" if gone else ""), None
                else:
                    yield inner, member
    except (tarfile.TarError, ZstdError, EOFError, OSError, ValueError, RecursionError) as error:
        raise unsupported(f"{name} is no tar that can be read ({type(error).__name__}): pack it again") from error


@contextmanager
def _tar(path: Path, info: type[tarfile.TarInfo] = tarfile.TarInfo) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as file:
        is_zstd = _ZSTD.match(file.read(4)) is not None
    if not is_zstd:
        with tarfile.open(path, tarinfo=info) as archive:
            yield archive
        return
    with ZstdFile(path) as content, tarfile.open(fileobj=content, mode="r:", tarinfo=info) as archive:
        yield archive


class _BoundedInfo(tarfile.TarInfo):
    """Refuses endless chains of headers, and headers read into memory whole."""

    def _proc_member(self, archive: Any) -> Any:
        if self.type in _EXTENDED and self.size > LARGEST_HEADER:
            raise tarfile.ReadError("header too large")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        return super()._proc_member(archive)  # type: ignore[misc]

    def _refuse_sparse(self, *_: object) -> NoReturn:
        """Weights have no holes, and maps of holes have no bound."""
        raise tarfile.ReadError("sparse file")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
