"""A container image archive (docker-archive) of one static program, or of files, written without a container tool."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """This machine's architecture in the words of container images: amd64, arm64."""
    return GO_ARCHITECTURES.get(platform.machine(), platform.machine())


def write_program_image(program: Path, tag: str, target: Path, arguments: Sequence[str] = ()) -> None:
    """Writes `target`, an image named `tag` whose only file is `/NAME` of `program`; it runs that with `arguments`."""
    entrypoint = [f"/{program.name}", *arguments]
    _write_image({program.name: (program.read_bytes(), 0o755)}, tag, target, {"Entrypoint": entrypoint})


def write_folder_image(folder: Path, name: str, tag: str, target: Path) -> None:
    """Writes `target`, an image named `tag` that runs nothing and holds the files of a folder, below `/name`."""
    files = {
        f"{name}/{file.relative_to(folder)}": (file.read_bytes(), 0o644)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    _write_image(files, tag, target, {})


def _write_image(files: dict[str, tuple[bytes, int]], tag: str, target: Path, runs: Mapping[str, object]) -> None:
    layer = _tar(files)
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": runs,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    text = json.dumps(config, sort_keys=True).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [tag], "Layers": ["layer.tar"]}]
    parts = {name: (text, 0o644), "layer.tar": (layer, 0o644), "manifest.json": (json.dumps(manifest).encode(), 0o644)}
    target.write_bytes(_tar(parts))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """An uncompressed tar of files given as (content, mode), root's and without times, so it is always the same."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
