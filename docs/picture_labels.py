"""The pictures of the docs, what each is drawn from, and the label by which a test tells whether one is current.

    python docs/picture_labels.py PICTURE ...     # labels pictures that were drawn just now

Make targets call it after drawing. A label is the digest of what the picture was drawn from: the code that draws it,
and, of measured figures, the tables that were written in the same run.
"""

import ast
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LABEL = "Drawn by"
_SVG_LABEL = re.compile(rf"<!-- {LABEL}: (\w+) -->\n")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, or several of one kind."""

    pattern: str
    """Of paths in the docs."""
    target: str
    """The make target that draws it."""
    sources: tuple[str, ...]
    """What it is drawn from: patterns of files; `FILE.py:FUNCTION` is a function alone. Of pages the rows of tables
    count, and `{page}` is the page that has the picture's name up to a suffix."""


MACHINE = ("docs/{page}.md",)
"""Other machines cannot draw these again: it is the figures that they have to agree with."""
PICTURES = (
    Picture(
        "pictures/demo.png",
        "pictures",
        ("operator/src/fairlead/client/plot.py", "local/src/fairlead_local/demo/picture.py"),
    ),
    Picture("pictures/page.png", "pictures", ("operator/src/fairlead/web/*", "common/src/fairlead_common/web/*")),
    Picture(
        "benchmarks/routers.svg", "bench-routers", ("docs/benchmarks/routers.md", "operator/benchmarks/routers.py:draw")
    ),
    Picture("benchmarks/*-rates.svg", "bench-engine", MACHINE),
    Picture("benchmarks/*-growth-*.svg", "bench-engine", MACHINE),
    Picture(
        "benchmarks/autoscaling.svg",
        "bench-autoscaling",
        ("docs/benchmarks/autoscaling.md", "operator/src/fairlead/cli/simulate_plot.py"),
    ),
)


def pictures() -> list[Path]:
    """All that the docs have."""
    return sorted(path for path in DOCS.rglob("*") if path.suffix in (".svg", ".png", ".gif", ".jpg", ".webp"))


def known(path: Path) -> Picture:
    """What is known of a picture. Raises LookupError for one that no make target draws."""
    found = next((each for each in PICTURES if path.relative_to(DOCS).match(each.pattern)), None)
    if found is None:
        raise LookupError(f"{path.relative_to(ROOT)} is not in PICTURES of docs/picture_labels.py")
    return found


def digest(path: Path) -> str:
    """Of what draws the picture, as it is now. Raises LookupError for one that is not known, or has no sources."""
    page = re.sub(r"-(rates|growth-\w+)$", "", str(path.relative_to(DOCS).with_suffix("")))
    drawn_from = set()
    for source in known(path).sources:
        pattern, _, function = source.format(page=page).partition(":")
        files = [each for each in ROOT.glob(pattern) if each.is_file()]
        if not files:
            raise LookupError(f"{path.relative_to(ROOT)} is drawn from {pattern}, which is not there")
        drawn_from.update((file, function) for file in files)
    return hashlib.sha256(b"".join(_content(*each) for each in sorted(drawn_from))).hexdigest()


def _content(file: Path, function: str) -> bytes:
    if file.suffix == ".md":
        return "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if line[:1] == "|").encode()
    if function:
        text = file.read_text(encoding="utf-8")
        nodes = (each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef) and each.name == function)
        return (ast.get_source_segment(text, next(nodes)) or "").encode()
    return file.read_bytes()


def label_of(path: Path) -> str | None:
    """The label that a picture carries; None = it has none."""
    if path.suffix == ".svg":
        found = _SVG_LABEL.search(path.read_text(encoding="utf-8"))
        return found and found[1]
    from PIL import Image

    with Image.open(path) as image:
        return image.info.get(LABEL)


def label(path: Path) -> None:
    """Writes the label into a picture that was drawn just now."""
    if path.suffix == ".svg":
        drawn = _SVG_LABEL.sub("", path.read_text(encoding="utf-8")).rstrip()
        body = drawn.removesuffix("</svg>")
        path.write_text(f"{body}<!-- {LABEL}: {digest(path)} -->\n</svg>\n", encoding="utf-8")
        return
    from PIL import Image, PngImagePlugin

    words = PngImagePlugin.PngInfo()
    words.add_text(LABEL, digest(path))
    with Image.open(path) as image:
        image.save(path, pnginfo=words, optimize=True)


if __name__ == "__main__":
    for named in sys.argv[1:]:
        label(Path(named).resolve())
