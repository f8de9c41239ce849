"""The programs of a node, one folder of the cache for each version of Kubernetes.

Kubernetes and containerd come from ready archives in the folder `$FAIRLEAD_KUBERNETES`, checked against SHA256SUMS
beside this file, or are built from Go modules (recipe/build.sh) where that variable is unset and Go is present. runc,
the CNI plugins and the pause program come from packages of this machine's Debian.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import debian
from caches import alone, cache

from cluster import archive, packages
from cluster.commands import ClusterError, Progress, run

ARCHIVES_VARIABLE = "FAIRLEAD_KUBERNETES"
"""Environment variable: the folder with the ready archives."""
VERSION_VARIABLE = "FAIRLEAD_KUBERNETES_VERSION"
"""Environment variable: the version of Kubernetes to run, such as 1.36 or 1.36.3; unset or empty: the newest."""
CONTAINERD = "2.2.9"
GO = (1, 26)
"""The oldest Go that builds the newest Kubernetes here."""
PAUSE_IMAGE = "local.test/pause:1"
COMPANIONS = ("runc", "containernetworking-plugins", "catatonit")
"""Debian packages whose programs run beside Kubernetes' own; unpacked into the cache, never installed."""

KEPT_SECONDS = 30 * 86400.0
"""How long an entry of the cache stays after it was asked for last."""

_RECORD = "build.json"
"""In an entry: the versions of its programs. Its time is that of the last use."""
_HERE = Path(__file__).parent
_SUMS = _HERE / "SHA256SUMS"
_RECIPE = (Path(__file__), _SUMS, _HERE / "archive.py", _HERE / "recipe/build.sh", _HERE / "recipe/main.go")
"""What the cache's key depends on, besides version and architecture."""
_VERSION = re.compile(r"kubernetes-(\d+)\.(\d+)\.(\d+)-")


@dataclass(frozen=True)
class Binaries:
    """What a node runs: a finished entry of the cache."""

    folder: Path

    @property
    def version(self) -> str:
        """The version of Kubernetes, such as `1.36.3`."""
        return self.folder.name.partition("-")[0]

    def program(self, name: str) -> Path:
        """A program by its name: of Kubernetes, containerd, pause, or one of the companions (runc)."""
        for place in (self.folder / "bin", self.folder / "debian/usr/sbin"):
            if (place / name).exists():
                return place / name
        raise FileNotFoundError(f"{self.folder} holds no program {name}")

    @property
    def search_path(self) -> str:
        """A PATH that finds every program of the node, then the system's."""
        return ":".join([f"{self.folder}/bin", f"{self.folder}/debian/usr/sbin", packages.FINDABLE_PATH])

    @property
    def cni_plugins(self) -> Path:
        return self.folder / "debian/usr/lib/cni"

    @property
    def pause_archive(self) -> Path:
        return self.folder / "pause.tar"


def ready_versions() -> list[str]:
    """The versions of Kubernetes that SHA256SUMS has an archive of, oldest first."""
    found = {tuple(map(int, match.groups())) for match in _VERSION.finditer(_SUMS.read_text())}
    return [".".join(map(str, version)) for version in sorted(found)]


def chosen_version(wanted: str | None = None) -> str:
    """The full version that `wanted` means (None: `$FAIRLEAD_KUBERNETES_VERSION`): the newest ready one that begins so.

    A full version that no archive is known of is returned as it is: it can be built. Raises ClusterError.
    """
    name = VERSION_VARIABLE if wanted is None else "version"
    wanted = os.environ.get(VERSION_VARIABLE) or "" if wanted is None else wanted
    ready = [version for version in ready_versions() if f"{version}.".startswith(f"{wanted}." if wanted else "")]
    if ready:
        return ready[-1]
    if re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        return wanted
    raise ClusterError(
        f"{name}={wanted}: no archive is known of it. Ready are {', '.join(ready_versions())}; "
        "any other is named in full (1.35.1, say) and built with Go."
    )


def cache_root() -> Path:
    return cache("kubernetes")


def cache_key(version: str) -> str:
    """The name of a version's folder: the version, and a hash of the recipe and the architecture."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in _RECIPE:
        content = file.read_bytes()
        digest.update(b"%s\0%d\0%s" % (file.name.encode(), len(content), content))
    return f"{version}-{digest.hexdigest()[:16]}"


def cached(version: str | None = None) -> Binaries | None:
    """The finished entry of a version (None: of the chosen one) for the present recipe; None where there is none."""
    folder = cache_root() / cache_key(version or chosen_version())
    return Binaries(folder) if folder.is_dir() else None


def origin(version: str) -> str:
    """Where the programs of a version are to come from, as a sentence. Raises ClusterError where from nowhere."""
    folder = os.environ.get(ARCHIVES_VARIABLE)
    if folder:
        for name in archive_names(version):
            if not (Path(folder) / name).is_file():
                raise ClusterError(f"${ARCHIVES_VARIABLE} is {folder}, which holds no {name}.")
        return f"archives in {folder}"
    if (go := _go_version()) >= GO:
        return f"Go {go[0]}.{go[1]}, which builds it from modules"
    raise ClusterError(
        f"Kubernetes {version} is not in the cache, ${ARCHIVES_VARIABLE} names no folder of ready programs, and there "
        f"is no Go ≥ {GO[0]}.{GO[1]} on PATH to build it: set one of them up, or set KUBECONFIG to a test cluster."
    )


def archive_names(version: str) -> tuple[str, str]:
    """The archives of Kubernetes and of containerd for this architecture."""
    platform_name = f"linux-{archive.architecture()}.tar.xz"
    return f"kubernetes-{version}-{platform_name}", f"containerd-{CONTAINERD}-{platform_name}"


def obtain(progress: Progress, version: str | None = None) -> Binaries:
    """Returns the cache's entry of a version (None: of the chosen one), which is made where there is none.

    Ready archives are unpacked in seconds; a build takes minutes of all cores. Entries that nobody has asked for in a
    month go. Raises ClusterError.
    """
    version = version or chosen_version()
    if installed := packages.install(packages.TOOLS):
        progress.say(f"installed {', '.join(installed)}")
    root = cache_root()
    with alone(root / ".lock", lambda: progress.say("waiting for another process")):
        _remove_unused(root, progress)
        if found := cached(version):
            (found.folder / _RECORD).touch()
            progress.say(f"Kubernetes {version} is in the cache: {found.folder}")
            return found
        for stale in root.glob(".making-*"):
            shutil.rmtree(stale)
        with tempfile.TemporaryDirectory(dir=root, prefix=".making-") as name:
            made = _make(version, Path(name), progress)
            entry = root / cache_key(version)
            made.rename(entry)
    progress.say(f"Kubernetes {version} is ready: {entry}")
    return Binaries(entry)


def _remove_unused(root: Path, progress: Progress) -> None:
    """Removes entries of any recipe that nobody has asked for in a month. No node runs for that long."""
    for record in root.glob(f"*/{_RECORD}"):
        if time.time() - record.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(record.parent)
            progress.say(f"removed what nobody has used in a month: {record.parent}")


def _make(version: str, work: Path, progress: Progress) -> Path:
    """Makes an entry below `work`, and returns its folder."""
    out = work / "out"
    out.mkdir()
    progress.say(f"Kubernetes {version} comes from {origin(version)}")
    folder = os.environ.get(ARCHIVES_VARIABLE)
    for name in archive_names(version):
        source = Path(folder) / name if folder else _build(name, work)
        if folder:
            verify(source)
        with tarfile.open(source) as unpacked:
            unpacked.extractall(out, filter="data")
    files = debian.download(COMPANIONS, work / "packages")
    debian.unpack(files, out / "debian")
    (out / "debian/usr/bin/catatonit").rename(out / "bin/pause")
    archive.write_program_image(out / "bin/pause", PAUSE_IMAGE, out / "pause.tar", ["-P"])
    facts = {"kubernetes": version, "containerd": CONTAINERD}
    facts |= {name: debian.version(file) for name, file in zip(COMPANIONS, files, strict=True)}
    (out / _RECORD).write_text(json.dumps(facts, indent=2) + "\n")
    return out


def verify(file: Path) -> None:
    """Raises ClusterError unless SHA256SUMS has the file's name with the sum that it has."""
    sums = {name: digest for digest, name in map(str.split, _SUMS.read_text().splitlines())}
    with file.open("rb") as content:
        actual = hashlib.file_digest(content, "sha256").hexdigest()
    if file.name not in sums:
        raise ClusterError(f"{_SUMS} has no sum for {file.name}; this one has {actual}.")
    if sums[file.name] != actual:
        raise ClusterError(f"{file} is not the archive that {_SUMS} names: its SHA-256 is {actual}.")


def _build(name: str, work: Path) -> Path:
    """Builds the archive of that name from Go modules."""
    what, version, *_ = name.split("-")
    run(_HERE / "recipe/build.sh", what, version, work, env={**os.environ, "TMPDIR": str(work)})
    return work / name


def _go_version() -> tuple[int, int]:
    """Major and minor version of the Go on PATH; (0, 0) where there is none."""
    if shutil.which("go") is None:
        return 0, 0
    told = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    match = re.match(r"go(\d+)\.(\d+)", told)
    return (int(match[1]), int(match[2])) if match else (0, 0)
