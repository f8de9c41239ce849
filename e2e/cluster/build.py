"""Builds Kubernetes 1.20.2 from Debian's source package, once per machine, into a cache that what it depends on names.

The one complete Kubernetes source among Debian's packages is bookworm's; its vendored modules make it buildable without
any other download. This file's own text is part of the cache's key: to change the recipe is to build anew.
"""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import archive, packages
from cluster.commands import Progress, run

VERSION = "1.20.2"
SOURCE_VERSION = "1.20.5+really1.20.2-1.1+deb12u1"
GO = "1.19"
PAUSE_IMAGE = "local.test/pause:1"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
COMPANIONS = ("etcd-server", "containerd", "runc", "containernetworking-plugins")
"""Debian packages whose programs run beside Kubernetes' own; unpacked into the cache, never installed."""
TOOLCHAIN = (f"golang-{GO}-go", f"golang-{GO}-src", "golang-github-modern-go-reflect2-dev")

_HERE = Path(__file__).parent
_RECIPE = (Path(__file__), _HERE / "pause.go", _HERE / "archive.py")


@dataclass(frozen=True)
class Binaries:
    """What a node runs: a finished entry of the cache."""

    folder: Path

    def program(self, name: str) -> Path:
        """A program by its name: Kubernetes' own, pause, or one of the companions (etcd, containerd, ctr, runc)."""
        for place in (self.folder / "bin", self.folder / "debian/usr/bin", self.folder / "debian/usr/sbin"):
            if (place / name).exists():
                return place / name
        raise FileNotFoundError(f"{self.folder} holds no program {name}")

    @property
    def search_path(self) -> str:
        """A PATH that finds every program of the node, then the system's."""
        own = (self.folder / "bin", self.folder / "debian/usr/bin", self.folder / "debian/usr/sbin")
        return ":".join([*map(str, own), packages.FINDABLE_PATH])

    @property
    def cni_plugins(self) -> Path:
        return self.folder / "debian/usr/lib/cni"

    @property
    def pause_archive(self) -> Path:
        return self.folder / "pause.tar"


def cache_root() -> Path:
    """Where built clusters are kept: `$FAIRLEAD_CACHE`, else ~/.cache/fairlead, and `kubernetes` in it."""
    return Path(os.environ.get("FAIRLEAD_CACHE") or Path.home() / ".cache/fairlead") / "kubernetes"


def cache_key() -> str:
    """A name for all that the build depends on: versions, the recipe's own text, the architecture."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in _RECIPE:
        content = file.read_bytes()
        digest.update(b"%s\0%d\0%s" % (file.name.encode(), len(content), content))
    return f"{VERSION}-{digest.hexdigest()[:16]}"


def built() -> Binaries | None:
    """The finished build for the present recipe, or None."""
    folder = cache_root() / cache_key()
    return Binaries(folder) if folder.is_dir() else None


def build(progress: Progress) -> Binaries:
    """Returns the cached build, making it first where there is none: minutes of all cores, 3 GB of disk for a while."""
    installed = packages.install(packages.TOOLS)
    if installed:
        progress.say(f"installed {', '.join(installed)}")
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root / ".lock", progress):
        if found := built():
            progress.say(f"Kubernetes {VERSION} is in the cache: {found.folder}")
            return found
        for stale in root.glob(".building-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(dir=root, prefix=".building-") as name:
            finished = _Build(Path(name), progress).make()
            target = root / cache_key()
            finished.rename(target)
    progress.say(f"Kubernetes {VERSION} is built: {target}")
    return Binaries(target)


@contextmanager
def _lock(file: Path, progress: Progress) -> Iterator[None]:
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("another process builds Kubernetes; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class _Build:
    """One build in a temporary folder; `make` tells the order."""

    def __init__(self, work: Path, progress: Progress) -> None:
        self.work, self.progress = work, progress
        self.tools = work / "toolchain"
        self.gopath = work / "gopath"
        self.source = self.gopath / "src/k8s.io/kubernetes"
        self.out = work / "out"

    def make(self) -> Path:
        """Builds everything and returns the folder that becomes the cache's entry."""
        packages.install(packages.BUILD_TOOLS)
        self.progress.say(f"building Kubernetes {VERSION} from Debian's source package")
        self.out.mkdir()
        debian = packages.Archive(self.work / "apt")
        versions = debian.unpack(COMPANIONS, self.out / "debian")
        self._keep_only_what_runs(self.out / "debian")
        versions |= debian.unpack(TOOLCHAIN, self.tools)
        self.progress.say("unpacked etcd, containerd, runc, CNI plugins and Go from Debian's packages")
        self._fetch_source(debian)
        self.progress.say("source unpacked and patched")
        self._generate_openapi()
        self.progress.say("OpenAPI definitions generated")
        self._compile()
        self.progress.say(f"compiled {', '.join(PROGRAMS)}")
        self._pause_image()
        facts = {"kubernetes": SOURCE_VERSION, **versions, "seconds": round(self.progress.elapsed_seconds)}
        (self.out / "build.json").write_text(json.dumps(facts, indent=2) + "\n")
        return self.out

    @staticmethod
    def _keep_only_what_runs(root: Path) -> None:
        for part in ("etc", "lib", "var", "usr/share"):
            shutil.rmtree(root / part, ignore_errors=True)

    def _fetch_source(self, debian: packages.Archive) -> None:
        downloads = self.work / "source"
        debian.source("kubernetes", SOURCE_VERSION, downloads)
        (original,) = downloads.glob("kubernetes_*.orig.tar.gz")
        (changes,) = downloads.glob("kubernetes_*.debian.tar.xz")
        self.source.mkdir(parents=True)
        run("tar", "-xzf", original, "--strip-components=1", "-C", self.source)
        with tarfile.open(changes) as patches:
            patches.extractall(downloads, filter="data")
        folder = downloads / "debian/patches"
        for name in (folder / "series").read_text().split():
            run("patch", "-s", "-p1", "-d", self.source, stdin=(folder / name).read_text())
        self._replace_reflect2()

    def _replace_reflect2(self) -> None:
        """The vendored 1.0.1 crashes under Go ≥ 1.18 on the first custom resource; Debian's package is 1.0.2."""
        vendored = self.source / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(vendored)
        shutil.copytree(self.tools / "usr/share/gocode/src/github.com/modern-go/reflect2", vendored)
        (vendored / "go.mod").unlink(missing_ok=True)

    def _go(self, *arguments: str | Path, cwd: Path | None = None) -> None:
        go = self.tools / f"usr/lib/go-{GO}/bin/go"
        environment = {
            "PATH": f"{go.parent}:{packages.FINDABLE_PATH}",
            "HOME": str(self.work),
            "GOPATH": str(self.gopath),
            "GOCACHE": str(self.work / "gocache"),
            "GOTMPDIR": str(self._folder("gotmp")),
            "GO111MODULE": "off",  # the vendor folder is read in GOPATH mode; -mod=vendor refuses it
            "CGO_ENABLED": "0",
        }
        run(go, *arguments, cwd=cwd or self.source, env=environment)

    def _folder(self, name: str) -> Path:
        (self.work / name).mkdir(exist_ok=True)
        return self.work / name

    def _generate_openapi(self) -> None:
        """Writes pkg/generated/openapi/zz_generated.openapi.go, which the source package does not have."""
        generator = self.work / "openapi-gen"
        self._go("build", "-o", generator, "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        run(
            generator, "--logtostderr", "-i", ",".join(self._packages_with_definitions()),
            "-p", "k8s.io/kubernetes/pkg/generated/openapi", "-O", "zz_generated.openapi",
            "-h", "hack/boilerplate/boilerplate.generatego.txt", "--output-base", self.gopath / "src",
            "-r", self.work / "openapi-violations.txt",
            cwd=self.source,
            env={
                "PATH": f"{self.tools}/usr/lib/go-{GO}/bin:{packages.FINDABLE_PATH}", "HOME": str(self.work),
                "GOPATH": str(self.gopath), "GOCACHE": str(self.work / "gocache"), "GO111MODULE": "off",
            },
        )  # fmt: skip

    def _packages_with_definitions(self) -> list[str]:
        """The Go packages that ask for OpenAPI definitions, by the names they have in GOPATH mode."""
        left_out = ("/sample-apiserver/", "/code-generator/", "/sample-controller/", "/generated/openapi/")
        found = set()
        for top in ("staging/src/k8s.io", "pkg", "cmd"):
            for file in (self.source / top).rglob("*.go"):
                if file.name.endswith("_test.go") or any(part in str(file) for part in left_out):
                    continue
                if "+k8s:openapi-gen=" in file.read_text(errors="replace"):
                    found.add(str(file.parent.relative_to(self.source)))
        return sorted(f"k8s.io/kubernetes/{name.replace('staging/src/', 'vendor/', 1)}" for name in found)

    def _compile(self) -> None:
        major, minor, _ = VERSION.split(".")
        stamps = {
            "gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "archive",
            "gitCommit": f"debian-{SOURCE_VERSION}", "buildDate": "2021-01-13T00:00:00Z",
        }  # fmt: skip
        holders = ("component-base/version", "client-go/pkg/version")
        flags = ["-s", "-w"]
        for holder in holders:
            flags += [f"-X k8s.io/kubernetes/vendor/k8s.io/{holder}.{key}={value}" for key, value in stamps.items()]
        targets = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
        self._go(
            "build", "-trimpath", "-tags", "providerless", "-ldflags", " ".join(flags),
            "-o", f"{self._folder('out')}/bin/", *targets,
        )  # fmt: skip

    def _pause_image(self) -> None:
        program = self.out / "bin/pause"
        self._go("build", "-trimpath", "-ldflags", "-s -w", "-o", program, _HERE / "pause.go")
        archive.write_program_image(program, PAUSE_IMAGE, self.out / "pause.tar")
        subprocess.run([self.out / "bin/kubelet", "--version"], check=True, stdout=subprocess.DEVNULL)
