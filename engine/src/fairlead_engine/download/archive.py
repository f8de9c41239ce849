"""A tar, unpacked without trust: plain files that serving needs, below one folder, and not more bytes than bounded."""

import tarfile
from pathlib import Path, PurePosixPath

from fairlead_engine.download.remote import DownloadError, RemoteFile
from fairlead_engine.download.selection import check_path
from fairlead_protocol.downloads import DownloadFailure

MOST_MEMBERS = 10_000
EXPANSION = 10
"""Times an archive's size that its members may have together: weights hardly compress, bombs do."""
SMALL = 64 << 20
"""Bytes that any archive may have, however small it is."""
_COPY_BYTES = 1 << 20


def members(path: Path, name: str) -> dict[str, tarfile.TarInfo]:
    """The plain files in an archive, by their path below the folder that has `config.json`, which may be any in it.
    `name`: of the archive, for messages. Raises DownloadError."""
    bound, total, found = path.stat().st_size * EXPANSION + SMALL, 0, dict[str, tarfile.TarInfo]()
    try:
        with tarfile.open(path) as archive:
            for count, member in enumerate(archive, 1):
                if member.isfile():
                    check_path(inner := member.name.removeprefix("./"))
                    found[inner] = member
                elif not member.isdir():
                    raise _unfit(name, f"has {member.name[:200]!r}, which is a link or a device: pack plain files")
                total += member.size
                if count > MOST_MEMBERS or total > bound:
                    raise _unfit(name, f"unpacks to more than {MOST_MEMBERS} files or {bound} bytes")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise _unfit(name, f"is no tar that can be read ({type(error).__name__}): pack it again") from error
    configs = sorted((PurePosixPath(each) for each in found if PurePosixPath(each).name == "config.json"), key=_depth)
    top = "" if not configs or configs[0].parent == PurePosixPath() else f"{configs[0].parent}/"
    return {each.removeprefix(top): member for each, member in found.items() if each.startswith(top)}


def unpack(path: Path, chosen: dict[str, RemoteFile], found: dict[str, tarfile.TarInfo], target: Path) -> None:
    """Writes the chosen members below `target`. Raises OSError."""
    with tarfile.open(path) as archive:
        for inner in chosen:
            to = target / inner
            to.parent.mkdir(parents=True, exist_ok=True)
            content = archive.extractfile(found[inner])
            assert content is not None, "only plain files are chosen"
            with content, to.open("wb") as file:
                while chunk := content.read(_COPY_BYTES):
                    file.write(chunk)


def _depth(path: PurePosixPath) -> tuple[int, str]:
    return len(path.parts), str(path)


def _unfit(name: str, problem: str) -> DownloadError:
    return DownloadError(DownloadFailure.SOURCE_NOT_SUPPORTED, f"{name} {problem}")
