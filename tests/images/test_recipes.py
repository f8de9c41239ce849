"""What an image is built from, and the key that says whether it must be built again."""

import shutil
from pathlib import Path

import pytest
from images.layout import REPOSITORY, Layout
from images.recipes import DEFAULT_IMAGES, RECIPES

from fairlead import __version__


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of all files that the engine's image depends on."""
    for path in RECIPES["engine"].files(REPOSITORY):
        copy = tmp_path / path.relative_to(REPOSITORY)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    return tmp_path


@pytest.mark.parametrize(
    "changed",
    [
        "Dockerfile.engine",
        ".dockerignore",
        "requirements/constraints.txt",
        "requirements/image-build.txt",
        "requirements/third_party.py",
        "common/src/fairlead_common/wire/blocks.py",
        "engine/pyproject.toml",
        "engine/src/fairlead_engine/demo/dinghy/model.safetensors",
    ],
)
def test_the_key_changes_with_every_input(checkout: Path, changed: str) -> None:
    before = RECIPES["engine"].key(checkout, "base")
    with (checkout / changed).open("ab") as stream:
        stream.write(b"\n")
    assert RECIPES["engine"].key(checkout, "base") != before


def test_the_key_changes_with_a_new_file_and_with_a_new_name(checkout: Path) -> None:
    keys = [RECIPES["engine"].key(checkout, "base")]
    source = checkout / "engine/src/fairlead_engine/errors.py"
    shutil.copyfile(source, source.with_name("other.py"))
    keys.append(RECIPES["engine"].key(checkout, "base"))
    source.with_name("other.py").rename(source.with_name("another.py"))
    keys.append(RECIPES["engine"].key(checkout, "base"))
    assert len(set(keys)) == 3


def test_the_key_changes_with_base_and_variant(checkout: Path) -> None:
    keys = {RECIPES[name].key(checkout, base) for name in ("engine", "engine-cuda") for base in ("one", "other")}
    assert len(keys) == 4


def test_bytecode_and_times_do_not_change_the_key(checkout: Path) -> None:
    before = RECIPES["engine"].key(checkout, "base")
    cache = checkout / "engine/src/fairlead_engine/__pycache__"
    cache.mkdir()
    (cache / "errors.cpython-311.pyc").write_bytes(b"x")
    (checkout / "engine/src/fairlead_engine/errors.py").touch()
    assert RECIPES["engine"].key(checkout, "base") == before


def test_an_image_does_not_depend_on_the_other_ones_code() -> None:
    folders = {path.relative_to(REPOSITORY).parts[0] for path in RECIPES["operator"].files(REPOSITORY)}
    assert folders == {"Dockerfile.operator", ".dockerignore", "requirements", "common", "operator"}


def test_tags_carry_the_version_and_references_their_registry() -> None:
    assert RECIPES["engine"].tag == f"fairlead/engine:{__version__}"
    assert RECIPES["engine"].reference == f"docker.io/fairlead/engine:{__version__}"
    assert RECIPES["engine-cuda"].tag == f"fairlead/engine:{__version__}-cuda"
    assert RECIPES["shell"].reference == "local.test/shell:1"
    assert set(DEFAULT_IMAGES) < set(RECIPES)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path))
    assert Layout.default().storage == tmp_path / "images" / "storage"
    monkeypatch.delenv("FAIRLEAD_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Layout.default().out == tmp_path / "home/.cache/fairlead/images/out"
