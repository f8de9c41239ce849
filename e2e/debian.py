"""Debian's packages, fetched with apt and unpacked into a folder: nothing is installed on this machine.

apt does the work (mirror, signatures, hashes). What is fetched for which purpose is for the callers to say: cluster,
images, monitoring.
"""

import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.commands import ClusterError, run

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""The keys of Debian's archive, from the package debian-archive-keyring."""
ENVIRONMENT = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
"""Of every apt command."""


def mirror(suite: str) -> str | None:
    """The archive that this machine's apt takes a suite's `main` from; None where its sources do not list the suite."""
    words = "$(REPO_URI) $(RELEASE) $(CODENAME) $(COMPONENT)"
    return mirror_of(run("apt-get", "indextargets", "--format", words, "Created-By: Packages"), suite)


def mirror_of(targets: str, suite: str) -> str | None:
    """The first archive in lines of `URI RELEASE CODENAME COMPONENT` that has the suite itself, not its updates.

    Updates and security fixes may be on hosts that have nothing else.
    """
    for line in targets.splitlines():
        match line.split():
            case [uri, release, *codename, "main"] if suite in (release, *codename):
                of_updates = re.search(r"security|updates", uri.rstrip("/").rsplit("/", 1)[-1])
                if not (of_updates or "/" in release or "-" in release):
                    return uri
    return None


def download(names: Sequence[str], into: Path) -> list[Path]:
    """Fetches packages of this machine's release, as its apt is set up; returns their files. Raises ClusterError.

    apt's lists of packages are fetched first where they are missing or name files that the mirror has no more.
    """
    into.mkdir(parents=True, exist_ok=True)
    command = ("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *names)
    try:
        run(*command, cwd=into, env=ENVIRONMENT)
    except ClusterError:
        run("apt-get", "-qq", "update", env=ENVIRONMENT)
        run(*command, cwd=into, env=ENVIRONMENT)
    return [file for name in names for file in sorted(into.glob(f"{name}_*.deb"))]


def unpack(files: Iterable[Path], into: Path) -> None:
    """Unpacks package files into a folder, without running their scripts."""
    into.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda file: run("dpkg-deb", "--extract", file, into), files))


def version(file: Path) -> str:
    """The version of a package file."""
    return run("dpkg-deb", "--field", file, "Version").strip()
