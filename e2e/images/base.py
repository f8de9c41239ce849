"""The base image: pulled where its registry can be reached, else made from Debian's packages with mmdebstrap.

The one that is made has what Python's official slim image has for us: bookworm, Python 3.11 as /usr/local/bin/python,
venv, certificates. It is for tests on machines without a registry; what is published is built on the official one.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import debian
from cluster import packages
from cluster.commands import ClusterError, Progress, run

from images.layout import Layout
from images.recipes import BASE
from images.storage import Storage

PROBE_SECONDS = 5.0
PULL_SECONDS = 300.0
PUBLIC_SOURCE = f"deb http://deb.debian.org/debian {packages.SUITE} main\n"
"""What a made base says about its origin, as the official one does; the mirror it came from is not mentioned."""
_PACKAGES = ("python3", "python3-venv", "ca-certificates", "usr-is-merged")
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/share/info/*")
_MERGED_USR = Path("/usr/share/mmdebstrap/hooks/merged-usr")
"""Without this hook the package usrmerge comes in, and with it 60 MB of Perl."""
_ENVIRONMENT = ("PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8")
_FINISH = f"""
rm -rf "$1"/var/log/* "$1"/var/cache/* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -sf /usr/bin/python3 "$1"/usr/local/bin/python
ln -sf /usr/bin/python3 "$1"/usr/local/bin/python3
printf '%s' '{PUBLIC_SOURCE}' > "$1"/etc/apt/sources.list
"""


def ensure_base(storage: Storage, layout: Layout, progress: Progress) -> str:
    """Sees to it that the storage has the base image; returns what identifies it."""
    present = storage.identity(BASE)
    if present is not None:
        return present
    if registry_answers(BASE) and _pull(storage, progress):
        progress.say(f"{BASE} pulled")
    else:
        _make(storage, layout, progress)
    made = storage.identity(BASE)
    if made is None:
        raise ClusterError(f"buildah does not list {BASE}, which was just made.")
    return made


def registry_answers(image: str, seconds: float = PROBE_SECONDS) -> bool:
    """Whether the image's registry can be reached, within that time: a name that never resolves must not hang us."""
    host = image.partition("/")[0]
    host = "registry-1.docker.io" if host == "docker.io" else host
    program = (
        "import sys, urllib.error, urllib.request\n"
        "try: urllib.request.urlopen(sys.argv[1])\n"
        "except urllib.error.HTTPError: pass\n"  # 401: it answers, and wants to know who asks
    )
    try:
        return (
            subprocess.run(
                [sys.executable, "-c", program, f"https://{host}/v2/"],
                capture_output=True,
                timeout=seconds,
                check=False,
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def recipe_key() -> str:
    """Sixteen hex digits that change with the way a base is made."""
    text = repr((_PACKAGES, _LEFT_OUT, _ENVIRONMENT, _FINISH, packages.SUITE))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _pull(storage: Storage, progress: Progress) -> bool:
    try:
        storage.buildah("pull", "--quiet", BASE, timeout=PULL_SECONDS)
    except ClusterError as error:
        progress.say(f"{BASE} could not be pulled, so it is made here: {str(error).splitlines()[-1]}")
        return False
    return True


def _make(storage: Storage, layout: Layout, progress: Progress) -> None:
    """From the cached root file system if there is one."""
    root = layout.bases / f"{recipe_key()}.tar"
    if not root.exists():
        progress.say(f"No registry answers: making {BASE} from Debian's packages")
        _bootstrap(root)
    container = storage.buildah("from", "scratch").strip()
    try:
        storage.buildah("add", "--quiet", container, root, "/")
        environment = [word for value in _ENVIRONMENT for word in ("--env", value)]
        storage.buildah("config", "--cmd", "python3", *environment, container)
        storage.buildah("commit", "--quiet", "--timestamp", "0", "--identity-label=false", container, BASE)
    finally:
        storage.buildah("rm", container)
    progress.say(f"{BASE} made ({root.stat().st_size / 1e6:.0f} MB)")


def _bootstrap(root: Path) -> None:
    """Writes the root file system, with times set to zero so that the same packages give the same bytes."""
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = root.with_name(f"part-{root.name}")  # mmdebstrap goes by the ending
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options += [f"--aptopt={line}" for line in apt_proxies()]
    if _MERGED_USR.is_dir():
        options.append(f"--hook-dir={_MERGED_USR}")
    run(
        "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}", *options,
        f"--customize-hook={_FINISH}", packages.SUITE, partial,
        f"deb [signed-by={debian.KEYRING}] {packages.mirror()} {packages.SUITE} main",
        env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
    )  # fmt: skip
    partial.replace(root)


def apt_proxies() -> list[str]:
    """apt's own proxy settings of this machine, one line of its configuration each."""
    dump = run("apt-config", "dump", "Acquire")
    return [line for line in dump.splitlines() if "::Proxy" in line and not line.endswith(('"";', '"DIRECT";'))]
