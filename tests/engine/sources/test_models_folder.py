"""A models folder on odd file systems: without locks, without rights, and one that is not there."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead_common.wire.downloads import DownloadFailure
from fairlead_engine.sources.downloader import DownloadOrders, download
from fairlead_engine.sources.models_folder import ModelManifest, ModelsFolder, hold_model, is_held
from fairlead_engine.sources.remote import DownloadError
from fairlead_engine.sources.reporting import Reporter

SOURCE = "hf://acme/dinghy"


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP])
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", flock)


def put(models: ModelsFolder) -> Path:
    models.prepare()
    models.staging(SOURCE).mkdir()
    manifest = ModelManifest(source=SOURCE, revision="a", bytes=2, files=[], downloaded_at="2026-01-01T00:00:00+00:00")
    models.complete(SOURCE, manifest)
    return models.model(SOURCE)


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    models = ModelsFolder(tmp_path)
    models.prepare()
    with pytest.raises(DownloadError) as caught, models.try_lock(SOURCE):
        pass
    assert caught.value.reason == DownloadFailure.FOLDER_NOT_WRITABLE
    assert str(tmp_path) in caught.value.message and "has no locks" in caught.value.message


@pytest.mark.usefixtures("without_locks")
def test_where_nothing_can_be_held_engines_serve_and_nothing_goes(tmp_path: Path) -> None:
    models = ModelsFolder(tmp_path)
    folder = put(models)
    held = hold_model(folder)
    assert held is not None
    with held:
        assert is_held(folder, 0.0) and not models.remove(folder) and folder.exists()
    with pytest.raises(DownloadError):
        models.make_room(10, 1, SOURCE)


class _Killed(BaseException):
    """Stands for the end of a process."""


def test_a_model_is_never_lost_between_the_old_one_and_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when the old one lies aside and the new one not yet in its place, with a source that is gone since."""
    models = ModelsFolder(tmp_path)
    put(models)
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path == models.staging(SOURCE):
            raise _Killed
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(Path, "rename", killed)
        put(models)
    assert models.manifest(SOURCE) is None
    folder = asyncio.run(download(DownloadOrders(SOURCE, models), Reporter(SOURCE)))
    assert folder == models.model(SOURCE) and models.manifest(SOURCE) is not None


def prune(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "fairlead_engine", "prune-models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--all"], ["--size-limit", "1Gi"], [SOURCE]])
def test_a_folder_that_is_not_there_has_no_models(tmp_path: Path, arguments: list[str]) -> None:
    done = prune(*arguments, "--in", str(tmp_path / "missing"))
    assert done.stdout == f"no models in {tmp_path / 'missing'}\n" and not done.stderr
    assert done.returncode == (1 if SOURCE in arguments else 0)
    assert not (tmp_path / "missing").exists()


def test_a_folder_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(DownloadError) as caught:
        ModelsFolder(tmp_path).prepare()
    assert caught.value.reason == DownloadFailure.FOLDER_NOT_WRITABLE
    assert f"cannot be written (Permission denied): let this user (id {os.geteuid()})" in caught.value.message
