"""Reading a docker-archive: layers over one another, whiteouts, what the bytes are spent on."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from images.archive import ImageArchive
from images.sizes import sizes, sizes_table, spent_on

SITE = "opt/fairlead/lib/python3.11/site-packages"


def tar(files: dict[str, bytes | None]) -> bytes:
    """A tar of files; None makes a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content or b""))
    return buffer.getvalue()


def image(path: Path, *layers: dict[str, bytes | None]) -> ImageArchive:
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "c.json", "RepoTags": ["a/b:1"], "Layers": names}]
    config = {"config": {"Env": ["PATH=/bin", "EMPTY="], "User": "1:1"}, "history": []}
    files: dict[str, bytes | None] = {
        "manifest.json": json.dumps(manifest).encode(),
        "c.json": json.dumps(config).encode(),
    }
    files.update(zip(names, map(tar, layers), strict=True))
    path.write_bytes(tar(files))
    return ImageArchive(path)


def test_configuration_and_tags(tmp_path: Path) -> None:
    found = image(tmp_path / "x.tar", {"a": b"1"})
    assert found.tags == ["a/b:1"]
    assert found.environment == {"PATH": "/bin", "EMPTY": ""}
    assert found.config["User"] == "1:1"


def test_an_upper_layer_replaces_and_a_whiteout_removes(tmp_path: Path) -> None:
    found = image(
        tmp_path / "x.tar",
        {"./d": None, "./d/kept": b"1", "./d/gone": b"22", "./e": None, "./e/f": b"3"},
        {"d/kept": b"4444", "d/.wh.gone": b"", ".wh.e": b""},
    )
    assert sorted(found.entries) == ["d", "d/kept"]
    assert found.entries["d/kept"].size == 4 and found.entries["d/kept"].layer == 1
    assert found.read("d/kept") == b"4444"
    with pytest.raises(KeyError):
        found.read("d/gone")


def test_an_opaque_folder_hides_what_is_below_but_not_beside_it(tmp_path: Path) -> None:
    found = image(
        tmp_path / "x.tar",
        {"d": None, "d/old": b"1", "dd": None, "dd/other": b"1"},
        {"d": None, "d/new": b"2", "d/.wh..wh..opq": b""},
    )
    assert sorted(found.entries) == ["d", "d/new", "dd", "dd/other"]


def test_a_file_in_place_of_a_folder_takes_its_content_away(tmp_path: Path) -> None:
    found = image(tmp_path / "x.tar", {"d": None, "d/a": b"1"}, {"d": b"file"})
    assert sorted(found.entries) == ["d"]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (f"{SITE}/torch/lib/libtorch_cpu.so", "torch"),
        (f"{SITE}/torch-2.13.0+cpu.dist-info/METADATA", "torch"),
        (f"{SITE}/numpy.libs/libopenblas.so", "numpy"),
        (f"{SITE}/typing_extensions.py", "typing_extensions"),
        (SITE, "Debian and Python's standard library"),
        ("usr/lib/python3/dist-packages/site-packages/x", "Debian and Python's standard library"),
    ],
)
def test_what_bytes_are_spent_on(path: str, what: str) -> None:
    assert spent_on(path) == what


def test_sizes_add_up_and_small_ones_share_a_row(tmp_path: Path) -> None:
    big = b"x" * 6_000_000
    found = image(tmp_path / "x.tar", {f"{SITE}/torch/a": big, f"{SITE}/one.py": b"1", f"{SITE}/two.py": b"22"})
    assert sizes(found) == [("torch", 6_000_000), ("2 smaller packages", 3)]
    assert "torch                   6.0 MB  100%" in sizes_table(found)
