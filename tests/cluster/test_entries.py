"""Kubernetes in the cache: a new build takes older ones with it."""

from pathlib import Path

import pytest
from cluster import build, entries
from cluster.build import Binaries
from cluster.commands import Progress


def test_a_new_build_takes_older_ones_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAIRLEAD_CACHE", str(tmp_path))
    root = tmp_path / "kubernetes"

    def finish(name: str) -> Binaries:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "build.json").touch()
        return Binaries(root / name)

    monkeypatch.setattr(build, "build", lambda progress: finish(build.cache_key()))
    finish("1.20.2-old"), finish("1.20.2-older")
    assert entries.obtain(Progress()) == Binaries(root / build.cache_key())
    assert len(list(root.glob("1.20.2-*"))) == 2
    assert capsys.readouterr().err.count(f"removed an older build: {root / '1.20.2-old'}") == 1
    finish("1.20.2-older"), finish("1.20.2-old")
    entries.obtain(Progress())  # which finds the build, and so removes nothing
    assert len(list(root.glob("1.20.2-*"))) == 3
