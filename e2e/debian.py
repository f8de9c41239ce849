"""Debian's packages, fetched with apt and unpacked into a folder: nothing is installed on this machine.

apt does the work (mirror, signatures, hashes, dependencies). A `Suite` has lists, caches and a package database of its
own. What is fetched for which purpose is for the callers to say: cluster, images, monitoring, oracle.
"""

import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster.commands import ClusterError, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""The keys of Debian's archive, from the package debian-archive-keyring."""
_INSTALLED = re.compile(r"^Inst (?P<name>\S+) \((?P<version>\S+) ")
_ENVIRONMENT = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """One package in one version."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}={self.version}"


class Suite:
    """A suite of a Debian archive, such as `sid`, with apt's state for it below `folder`. Errors are ClusterErrors."""

    def __init__(self, name: str, uri: str, folder: Path) -> None:
        self._name, self._uri = name, uri
        self._folder = folder.resolve()

    def refresh(self, *, sources: bool = False) -> None:
        """Fetches the lists of packages; with `sources` those of source packages, too."""
        for place in ("lists/partial", "cache/archives/partial", "sources"):
            (self._folder / place).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        signed = f"Signed-By: {KEYRING}\n" if KEYRING.exists() else ""
        types = "deb deb-src" if sources else "deb"
        text = f"Types: {types}\nURIs: {self._uri}\nSuites: {self._name}\nComponents: main\n{signed}"
        (self._folder / "sources" / "suite.sources").write_text(text)
        self._apt("apt-get", "update")

    def closure(self, names: Iterable[str]) -> list[Package]:
        """The packages with everything they depend on (recommendations excepted), in order of name."""
        lines = self._apt("apt-get", "install", "--simulate", "--no-install-recommends", *names).splitlines()
        found = [match for line in lines if (match := _INSTALLED.match(line))]
        return sorted(Package(match["name"], match["version"]) for match in found)

    def download(self, packages: Sequence[Package | str], into: Path) -> list[Path]:
        """Fetches packages, each in the version it has or else the suite's; returns their files, hashes checked."""
        into.mkdir(parents=True, exist_ok=True)
        self._apt("apt-get", "download", *map(str, packages), cwd=into)
        return _files((package if isinstance(package, str) else package.name for package in packages), into)

    def source(self, package: str, version: str, into: Path) -> None:
        """Fetches a source package's files, checked against the archive's signature. `refresh` had `sources`."""
        into.mkdir(parents=True, exist_ok=True)
        try:
            self._apt("apt-get", "source", "--download-only", f"{package}={version}", cwd=into)
        except ClusterError as error:
            offered = self._apt("apt-cache", "showsrc", "--only-source", package)
            has = ", ".join(re.findall(r"^Version: (.+)$", offered, re.MULTILINE)) or "none"
            raise ClusterError(
                f"Debian's archive does not give {package} {version} (it lists: {has}). {error}"
            ) from error

    def _apt(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        """Runs apt with options that keep it away from this machine's own state: as arguments they win over files."""
        settings = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self._folder / "sources",
            "Dir::State": self._folder,
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            "APT::Sandbox::User": "root",  # apt's own user may not write into a folder of ours
            "Acquire::Languages": "none",
        }
        options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        return run(program, *arguments, "-qq", *options, cwd=cwd, env={**os.environ, **_ENVIRONMENT})


def mirror(suite: str | None = None) -> str | None:
    """The archive that this machine's apt takes a suite's `main` from; None = that of the release it has itself."""
    words = "$(REPO_URI) $(RELEASE) $(CODENAME) $(COMPONENT)"
    of_debian = () if suite else ("Origin: Debian",)
    return mirror_of(run("apt-get", "indextargets", "--format", words, "Created-By: Packages", *of_debian), suite)


def mirror_of(targets: str, suite: str | None = None) -> str | None:
    """The first archive in lines of `URI RELEASE CODENAME COMPONENT` that has the suite itself, not its updates.

    Updates and security fixes may be on hosts that have nothing else.
    """
    for line in targets.splitlines():
        match line.split():
            case [uri, release, *codename, "main"] if suite is None or suite in (release, *codename):
                of_updates = re.search(r"security|updates", uri.rstrip("/").rsplit("/", 1)[-1])
                if not (of_updates or "/" in release or "-" in release):
                    return uri
    return None


def download_own(names: Sequence[str], into: Path) -> list[Path]:
    """Fetches packages of this machine's own release, as its apt is set up; returns their files."""
    into.mkdir(parents=True, exist_ok=True)
    run(
        "apt-get",
        "-qq",
        "-o",
        "APT::Sandbox::User=root",
        "download",
        *names,
        cwd=into,
        env={**os.environ, **_ENVIRONMENT},
    )
    return _files(names, into)


def unpack(files: Iterable[Path], into: Path) -> None:
    """Unpacks package files into a folder, without running their scripts."""
    into.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda file: run("dpkg-deb", "--extract", file, into), files))


def version(file: Path) -> str:
    """The version of a package file."""
    return run("dpkg-deb", "--field", file, "Version").strip()


def _files(names: Iterable[str], folder: Path) -> list[Path]:
    return [file for name in names for file in sorted(folder.glob(f"{name}_*.deb"))]
