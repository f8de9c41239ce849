"""A virtual environment for engines that are not ours: made once, each package by itself, so that one that cannot be
installed stops nobody else.

It sees this environment's packages behind its own, as torch is too big to have twice.
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "peers.txt"
SLOW_BUILDS = ("llama-cpp-python",)
"""They are compiled here, which takes longer than a quick benchmark."""


def python(folder: Path) -> Path:
    """The environment's interpreter."""
    return folder / "bin" / "python"


def prepare(folder: Path, *, slow_builds: bool) -> dict[str, str]:
    """Installs what is not there yet. Package → why it is missing."""
    if not python(folder).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        shared = folder / "lib" / version / "site-packages" / "shared.pth"
        shared.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    missing = {}
    for line in REQUIREMENTS.read_text().splitlines():
        requirement = line.partition("#")[0].strip()
        package = re.split("[=<>]", requirement)[0]
        if not requirement or installed(folder, package):
            continue
        if package in SLOW_BUILDS and not slow_builds:
            missing[package] = "it is compiled for some ten minutes, which a quick benchmark leaves out"
            continue
        print(f"installing {requirement}", file=sys.stderr, flush=True)
        done = subprocess.run(
            [str(python(folder)), "-m", "pip", "install", "--disable-pip-version-check", "-q", requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            errors = [text for text in done.stderr.splitlines() if "error" in text.lower()] or ["pip failed"]
            missing[package] = errors[-1].strip()[:160]
    return missing


def installed(folder: Path, package: str) -> bool:
    """Whether this very environment has it."""
    code = f"import importlib.metadata as m; m.version({package!r})"
    return subprocess.run([str(python(folder)), "-c", code], capture_output=True, check=False).returncode == 0
