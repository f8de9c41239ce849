"""What the bytes of an image are spent on. Pure: from the image's entries to a table."""

from collections import Counter
from pathlib import PurePosixPath

from images.archive import ImageArchive

SMALL_BYTES = 5_000_000
"""What is smaller is added up as one row."""
_OURS = ("opt", "fairlead")
_DEPTH = len(PurePosixPath("opt/fairlead/lib/python3.11/site-packages").parts)
_SYSTEM = "Debian and Python's standard library"


def spent_on(path: str) -> str:
    """The row that a file's bytes count for: a Python package, or the system below it."""
    parts = PurePosixPath(path).parts
    if parts[:2] != _OURS or len(parts) <= _DEPTH:
        return _SYSTEM
    package = parts[_DEPTH]
    # numpy.libs belongs to numpy, and so do its bytecode and its metadata.
    return package.removesuffix(".libs").removesuffix(".dist-info").split("-")[0].removesuffix(".py").lower()


def sizes(image: ImageArchive) -> list[tuple[str, int]]:
    """What for, bytes: the greatest first, the small ones together at the end. Only what a container can see counts."""
    total: Counter[str] = Counter()
    for entry in image.entries.values():
        total[spent_on(entry.path)] += entry.size
    rows = [(name, size) for name, size in total.most_common() if size >= SMALL_BYTES]
    rest = [size for size in total.values() if size < SMALL_BYTES]
    return rows + ([(f"{len(rest)} smaller packages", sum(rest))] if rest else [])


def sizes_table(image: ImageArchive) -> str:
    """The same for reading, with the size of the archive and of each layer."""
    rows = sizes(image)
    width = max(len(name) for name, _ in rows)
    whole = sum(size for _, size in rows)
    lines = [f"{', '.join(image.tags)}: {whole / 1e6:.0f} MB visible"]
    lines += [f"  {name:<{width}}  {size / 1e6:7.1f} MB  {size / whole:4.0%}" for name, size in rows]
    layers = " + ".join(f"{size / 1e6:.0f}" for size in image.layer_bytes)
    return "\n".join([*lines, f"  layers (uncompressed, base first): {layers} MB"])
