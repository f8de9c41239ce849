"""Every picture that people see is drawn by a make target, from the code and the figures as they are."""

import re
import subprocess
from pathlib import Path

import pytest
from picture_labels import PICTURES, ROOT, digest, known, label, label_of, pictures

REMEDY = "draw it again with `make {}`; where only its label is old, `python docs/picture_labels.py {}`"


@pytest.mark.parametrize("path", pictures(), ids=lambda path: path.name)
def test_pictures_are_drawn_from_what_there_is(path: Path) -> None:
    if path.suffix != ".svg":
        pytest.importorskip("PIL", reason="Pillow is not installed: make setup-dev")
    assert label_of(path) == digest(path), REMEDY.format(known(path).target, path.relative_to(ROOT))


def test_a_make_target_draws_each_kind() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for picture in PICTURES:
        assert re.search(rf"^{picture.target}:", makefile, re.MULTILINE), picture.target


def test_pages_show_no_picture_that_is_not_one_of_these() -> None:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shown = {
        (page.parent / name).resolve()
        for page in (ROOT / line for line in listed.splitlines())
        for name in re.findall(r"!\[[^]]*\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
        for name in filter(None, name)
    }
    assert shown and shown <= set(pictures())
    assert set(pictures()) <= shown, "nobody sees it"


def test_labels_follow_figures_and_code_and_leave_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs, code = tmp_path / "docs", tmp_path / "operator" / "benchmarks" / "routers.py"
    picture, page = docs / "benchmarks" / "routers.svg", docs / "benchmarks" / "routers.md"
    for each in (code, picture):
        each.parent.mkdir(parents=True)
    monkeypatch.setattr("picture_labels.ROOT", tmp_path)
    monkeypatch.setattr("picture_labels.DOCS", docs)
    drawn = "<?xml version='1.0'?>\n<svg>\n <g/>\n</svg>\n"
    picture.write_text(drawn)
    page.write_text("Some words.\n\n| Load | ms |\n| --- | --- |\n| one | 5 |\n")
    code.write_text("def draw():\n    return 1\n\n\ndef row():\n    return 2\n")
    assert label_of(picture) is None
    label(picture)
    label(picture)
    assert label_of(picture) == digest(picture)
    assert "".join(line for line in picture.read_text().splitlines(keepends=True) if "<!--" not in line) == drawn
    page.write_text(page.read_text().replace("Some words.", "Other words."))
    code.write_text(code.read_text().replace("return 2", "return 3"))
    assert label_of(picture) == digest(picture), "what does not draw it"
    page.write_text(page.read_text().replace("| 5 |", "| 6 |"))
    assert label_of(picture) != digest(picture)
    label(picture)
    code.write_text(code.read_text().replace("return 1", "return 4"))
    assert label_of(picture) != digest(picture)
    page.unlink()
    with pytest.raises(LookupError, match=r"drawn from docs/benchmarks/routers\.md, which is not there"):
        digest(picture)
    with pytest.raises(LookupError, match=r"new\.svg is not in PICTURES"):
        digest(docs / "new.svg")
