"""Building the apiextensions-apiserver from Debian's packages, once per set of versions, into a cache."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import debian
from caches import alone, cache
from cluster.commands import ClusterError, Progress
from debian import Package, Suite

SUITE = "sid"
"""The suite of Debian that has Kubernetes' libraries of today."""
LIBRARY = "golang-k8s-apiextensions-apiserver-dev"
"""The package with the server's source. Its version 0.36.4 is that of Kubernetes 1.36.4."""
TOOLCHAIN = "golang-go"
"""Debian's default Go: what it builds these libraries with itself."""
MAIN_PACKAGE = "k8s.io/apiextensions-apiserver"
BINARY = "apiextensions-apiserver"
_RECORD = "build.json"
_LOCK = "lock"
_SCRATCH = "building-"

Say = Callable[[str], None]
"""Takes one sentence about how far the work is."""


class BuildError(RuntimeError):
    """The server could not be built; the text holds the compiler's last words."""


@dataclass(frozen=True, slots=True)
class Build:
    """One finished build in the cache."""

    folder: Path
    kubernetes: str
    """The version of Kubernetes that the server is from, such as `1.36.4`."""

    @property
    def binary(self) -> Path:
        return self.folder / BINARY

    @classmethod
    def at(cls, folder: Path) -> Self:
        """Reads what `build` left in a folder. Raises OSError where there is nothing."""
        record = json.loads((folder / _RECORD).read_text())
        return cls(folder, record["kubernetes"])


def cache_root() -> Path:
    """Where builds are kept."""
    return cache("apiextensions")


def ready(root: Path | None = None) -> Build | None:
    """The latest build in the cache that these build instructions made; None when there is none."""
    found = (root or cache_root()).glob(f"{recipe()}-*/{_RECORD}")
    latest = max(found, key=lambda record: record.stat().st_mtime, default=None)
    return Build.at(latest.parent) if latest else None


def build(root: Path | None = None, say: Say | None = None) -> Build:
    """Builds the server from the versions that Debian has today, unless the cache has that build.

    Takes some minutes of every core and 4 GB of disk meanwhile, 80 MB afterwards. Raises BuildError or
    ClusterError. Of several processes that build at the same time, one does and the others wait for it.
    """
    root, say = root or cache_root(), say or Progress().say
    waiting = "another process builds; waiting for it"
    with alone(root / _LOCK, lambda: say(waiting)), tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=root) as scratch:
        work = Path(scratch)
        _remove_leftovers(root, work)
        suite = Suite(SUITE, _mirror(), work / "apt")
        suite.refresh()
        packages = go_packages(suite.closure([TOOLCHAIN, LIBRARY]))
        folder = root / key(packages)
        if (folder / _RECORD).exists():
            say(f"the cache has this build: {folder}")
            return Build.at(folder)
        finished = _compile(suite, packages, work, say)
        finished.rename(folder)
        say(f"built {folder}")
        return Build.at(folder)


def go_packages(packages: Sequence[Package]) -> list[Package]:
    """Of everything that would be installed, the toolchain and the Go sources: nothing else is compiled or run."""
    return [package for package in packages if package.name.startswith("golang-")]


def key(packages: Sequence[Package]) -> str:
    """The name of a build's folder: of these instructions, and of exactly these versions."""
    text = "\n".join(map(str, sorted(packages)))
    return f"{recipe()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def recipe() -> str:
    """A hash of the instructions: the text of the modules that build."""
    texts = b"".join(Path(file).read_bytes() for file in (__file__, debian.__file__))
    return hashlib.sha256(texts).hexdigest()[:12]


def kubernetes_version(packages: Sequence[Package]) -> str:
    """`1.36.4` where the library's version is `0.36.4-1`: Kubernetes' libraries count from 0, its releases from 1."""
    version = next(package.version for package in packages if package.name == LIBRARY)
    return version.partition("-")[0].replace("0.", "1.", 1)


def _mirror() -> str:
    found = debian.mirror()
    if found is None:
        raise ClusterError("apt knows no Debian mirror: `apt-get indextargets` lists no release of origin Debian")
    return found


def _compile(suite: Suite, packages: Sequence[Package], work: Path, say: Say) -> Path:
    """The folder of a finished build, below `work`."""
    say(f"fetching {len(packages)} packages of {SUITE}")
    files = suite.download(packages, work / "packages")
    say(f"unpacking {sum(file.stat().st_size for file in files) / 1e6:.0f} MB")
    debian.unpack(files, work / "root")
    finished = work / "finished"
    finished.mkdir()
    version = kubernetes_version(packages)
    say(f"compiling the apiextensions-apiserver of Kubernetes {version}")
    _go_build(work, finished / BINARY, say)
    record = {"kubernetes": version, "packages": [str(package) for package in packages]}
    (finished / _RECORD).write_text(json.dumps(record, indent=1))
    return finished


def _go_build(work: Path, binary: Path, say: Say) -> None:
    """Compiles in GOPATH mode, which takes the packages' sources as they lie and asks no network."""
    (goroot,) = (work / "root" / "usr" / "lib").glob("go-*")
    environment = os.environ | {
        "GOROOT": str(goroot),
        "GOPATH": str(work / "root" / "usr" / "share" / "gocode"),
        "GOCACHE": str(work / "gocache"),
        "GO111MODULE": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
        "GOENV": "off",
        "CGO_ENABLED": "0",
    }
    command = [str(goroot / "bin" / "go"), "build", "-trimpath", "-ldflags=-s -w", "-o", str(binary), MAIN_PACKAGE]
    nice = [found, "-n", "10"] if (found := shutil.which("nice")) else []
    with subprocess.Popen([*nice, *command], env=environment, cwd=work, stderr=subprocess.PIPE, text=True) as compiler:
        while True:
            try:
                _, words = compiler.communicate(timeout=30)
                break
            except subprocess.TimeoutExpired:
                say("compiling")
    if compiler.returncode != 0:
        raise BuildError(f"`go build {MAIN_PACKAGE}` failed: {words.strip()[-4000:]}")


def _remove_leftovers(root: Path, work: Path) -> None:
    """What builds that were killed have left: nobody else builds here now."""
    for folder in root.glob(f"{_SCRATCH}*"):
        if folder != work:
            shutil.rmtree(folder)
