"""What stays in the build cache and what goes, with the real buildah: images are made from nothing, in a moment."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from caches import using
from images.storage import Storage

pytestmark = [
    pytest.mark.skipif(shutil.which("buildah") is None, reason="buildah is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="buildah mounts and changes owners: it needs root"),
]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    storage = Storage(tmp_path / "storage")
    yield storage
    for mount in (tmp_path / "storage").glob("layers/overlay"):  # which buildah leaves mounted on itself
        subprocess.run(["umount", str(mount)], check=False, capture_output=True)


def build(storage: Storage, tag: str, *lines: str) -> str:
    """An image of as many layers as lines, built as the real ones are; its id."""
    context = storage.folder.parent / "context"
    context.mkdir(exist_ok=True)
    (context / "file").write_text(tag)
    (context / "Dockerfile").write_text("\n".join(("FROM scratch", *lines)))
    storage.buildah("bud", "--quiet", "--isolation", "chroot", "--layers", "--tag", tag, context)
    return str(storage.identity(tag))


def identities(storage: Storage) -> set[str]:
    return set(storage.buildah("images", "--all", "--quiet", "--no-trunc").split())


LOWER, UPPER, CHANGED = "COPY file /lower", "COPY file /upper", "COPY file /changed"


def test_what_a_tag_leads_to_stays_and_what_it_left_goes(storage: Storage) -> None:
    old = build(storage, "local.test/a:1", LOWER, UPPER)
    before = identities(storage)
    new = build(storage, "local.test/a:1", LOWER, CHANGED)
    assert {old.removeprefix("sha256:")} <= {each.removeprefix("sha256:") for each in identities(storage)}
    removed = storage.remove_dangling()
    assert removed == [f"image {old.removeprefix('sha256:')[:12]}"]
    assert storage.identity("local.test/a:1") == new
    left = identities(storage)
    assert len(left) == len(before) == 2, "the layer that both have is still there, for the next build"


def test_a_container_that_a_killed_build_left_goes(storage: Storage) -> None:
    build(storage, "local.test/a:1", LOWER)
    container = storage.buildah("from", "--pull-never", "local.test/a:1").strip()
    assert container in storage.buildah("containers", "--noheading")
    (removed,) = storage.remove_dangling() or []
    assert removed.startswith("container ")
    assert container not in storage.buildah("containers", "--noheading")
    assert storage.remove_dangling() == []


def test_while_containers_are_used_nothing_goes(storage: Storage) -> None:
    build(storage, "local.test/a:1", LOWER)
    build(storage, "local.test/a:1", UPPER)
    before = identities(storage)
    with using(storage.folder):
        assert storage.remove_dangling() is None
    assert identities(storage) == before
    assert storage.remove_dangling()
