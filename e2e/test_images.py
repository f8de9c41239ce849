"""What is in the images that the pods run, and what is not: read from the archives, and tried in containers.

`PYTHONPATH=e2e python -m images build` makes the archives; without them these tests are skipped and say so.
"""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from caches import using
from images import pip_settings
from images.archive import Entry, ImageArchive
from images.build import REVISION_LABEL, UNKNOWN, revision
from images.layout import REPOSITORY, Layout
from images.recipes import BASE, RECIPES
from images.sizes import sizes, sizes_table
from images.storage import Storage

from fairlead import __version__

pytestmark = pytest.mark.kubernetes_only("local mode runs no images")

UID = 65532
SITE = "opt/fairlead/lib/python3.11/site-packages"
ENTRYPOINTS = {"engine": "fairlead-engine", "operator": "fairlead"}
OURS = {"engine": "fairlead_engine", "operator": "fairlead"}
COMPILERS = re.compile(r"(^|/)((g?cc|g\+\+|c\+\+|clang|cpp|ld|make|cargo|rustc)(-[\d.]+)?|cc1)$")
INSTALLERS = re.compile(r"(^|/)(pip[\d.]*|setuptools|pkg_resources|wheel|ensurepip|_distutils_hack)(-[^/]*)?(/|$)")


@pytest.fixture(scope="module", params=["engine", "operator"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def archive(name: str) -> ImageArchive:
    folder = Path(os.environ.get("FAIRLEAD_IMAGES") or Layout.default().out)
    path = folder / f"{name}.tar"
    if not path.exists():
        pytest.skip(f"There is no {path}: `PYTHONPATH=e2e python -m images build` makes it.")
    return ImageArchive(path)


@pytest.fixture(scope="module")
def image(name: str) -> ImageArchive:
    return archive(name)


def files(image: ImageArchive) -> Iterator[Entry]:
    return (entry for entry in image.entries.values() if entry.kind == tarfile.REGTYPE)


def test_the_image_says_what_it_is_and_how_it_is_run(name: str, image: ImageArchive) -> None:
    config, labels = image.config, image.config["Labels"]
    assert image.tags == [f"docker.io/fairlead/{name}:{__version__}"]
    assert config["User"] == f"{UID}:{UID}"
    assert config["Entrypoint"] == ["env", "--block-signal=TERM", ENTRYPOINTS[name]]
    assert config["StopSignal"] == "SIGTERM"
    assert set(config["ExposedPorts"]) == ({"8000/tcp"} if name == "engine" else {"8080/tcp", "8081/tcp"})
    assert labels["org.opencontainers.image.title"] == f"fairlead-{name}"
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert len(labels["org.opencontainers.image.description"]) > 10
    # Only where git knows nothing of these sources may their image say so, too.
    or_unknown = f"|{UNKNOWN}" if revision(REPOSITORY) == UNKNOWN else ""
    assert re.fullmatch(rf"[0-9a-f]{{40}}(-dirty)?{or_unknown}", labels[REVISION_LABEL])


def test_the_user_exists_and_owns_nothing(image: ImageArchive) -> None:
    assert f"fairlead:x:{UID}:{UID}:Fairlead:/tmp:/usr/sbin/nologin" in image.read("etc/passwd").decode().splitlines()
    assert [entry.path for entry in image.entries.values() if entry.uid == UID or entry.gid == UID] == []
    writable = [e.path for e in image.entries.values() if e.kind != tarfile.SYMTYPE and e.mode & 0o002]
    assert {path for path in writable if not path.startswith("dev/")} <= {"tmp", "var/tmp", "run/lock"}


def test_nothing_raises_privileges(image: ImageArchive) -> None:
    assert [entry.path for entry in files(image) if entry.mode & 0o6000] == []


def test_nothing_compiles_or_installs_packages(image: ImageArchive) -> None:
    paths = [entry.path for entry in files(image)]
    assert [path for path in paths if COMPILERS.search(path)] == []
    assert [path for path in paths if INSTALLERS.search(path)] == []
    assert [path for path in paths if path.endswith(".whl") or "/.cache/" in path or "/build/" in f"/{path}"[:7]] == []


def test_nothing_of_the_machine_that_built_it_is_left(image: ImageArchive) -> None:
    settings = pip_settings.of_this_machine()
    addresses = set(re.findall(r"https?://[^\s/@]*@?([\w.-]+)", settings.text)) - {"pypi.org"}
    told = repr(image.document)
    assert [address for address in addresses if address in told] == []
    assert [str(folder) for folder in settings.mounts if str(folder) in told] == []
    assert not re.search(r"PIP_|_proxy|_PROXY|find-links|index-url|/mnt/pip", told.replace("PYTHON", ""))
    left = [path for path in image.entries if re.search(r"(^|/)pip\.conf$|^mnt/.|^run/secrets|^build(/|$)", path)]
    assert left == []
    assert image.read("etc/apt/sources.list") == b"deb http://deb.debian.org/debian bookworm main\n"


def test_every_module_of_ours_is_there_compiled(name: str, image: ImageArchive) -> None:
    paths = {entry.path for entry in files(image)}
    ours = [path for path in paths if path.startswith((f"{SITE}/{OURS[name]}/", f"{SITE}/fairlead_common/"))]
    sources = [path for path in ours if path.endswith(".py")]
    assert len(sources) > 20
    compiled = [re.sub(r"([^/]+)\.py$", r"__pycache__/\1.cpython-311.pyc", path) for path in sources]
    assert [path for path in compiled if path not in paths] == []
    if name == "engine":
        assert f"{SITE}/fairlead_engine/demo/dinghy/model.safetensors" in paths


def test_no_package_brings_its_own_tests(image: ImageArchive) -> None:
    tests = [e.path for e in files(image) if re.match(rf"{SITE}/(torch/test|(numpy|sympy|networkx)/.*/tests)/", e.path)]
    assert tests == []


def test_the_operators_image_has_no_torch_and_the_engines_has() -> None:
    def packages(name: str) -> set[str]:
        return {path.split("/")[5] for path in archive(name).entries if path.startswith(f"{SITE}/")}

    assert not packages("operator") & {"torch", "numpy", "safetensors", "fairlead_engine"}
    assert {"torch", "numpy", "safetensors", "fairlead_engine"} <= packages("engine")
    assert "fairlead" not in packages("engine")


def test_what_dominates_the_size(name: str, image: ImageArchive, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{sizes_table(image)}")
    rows = dict(sizes(image))
    assert max(rows, key=lambda row: rows[row]) == (
        "torch" if name == "engine" else "Debian and Python's standard library"
    )


def test_images_share_what_is_below_our_packages() -> None:
    engine, operator = (archive(name).document["rootfs"]["diff_ids"] for name in ("engine", "operator"))
    assert len(engine) == len(operator) == 4
    assert engine[:2] == operator[:2]


@pytest.fixture(scope="module")
def contained(name: str) -> Iterator[list[str]]:
    """The beginning of a command line that runs a program as the image's user in the image's files."""
    archive(name)
    storage = Storage(Layout.default().storage)
    reference = RECIPES[name].reference
    if os.geteuid() != 0 or storage.identity(BASE) is None or storage.identity(reference) is None:
        pytest.skip(f"{reference} is not in this user's build cache, so no container is started from it.")
    with using(storage.folder):
        container = storage.buildah("from", "--pull-never", reference).strip()
        run = ["buildah", "run", "--isolation", "chroot", "--user", f"{UID}:{UID}", container, "--"]
        yield ["env", f"CONTAINERS_STORAGE_CONF={storage.configuration}", *run]
        storage.buildah("rm", container)


def test_it_starts_without_writing_beside_tmp(name: str, contained: list[str]) -> None:
    """An unprivileged user who owns nothing cannot write elsewhere: what starts so, starts on a read-only root."""
    program = [ENTRYPOINTS[name], "serve" if name == "engine" else "gateway", "--help"]
    started = subprocess.run([*contained, *program], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    assert f"usage: {ENTRYPOINTS[name]}" in started.stdout
    refused = subprocess.run([*contained, "touch", "/opt/fairlead/x"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0


def test_the_engine_answers_from_inside_its_image(name: str, contained: list[str]) -> None:
    if name != "engine":
        pytest.skip("The operator's image has no model.")
    program = (
        "from fairlead_engine import LLM; asked = [{'role': 'user', 'content': 'What is 2 + 3?'}]; "
        "print(LLM('demo://dinghy', device='cpu').chat(asked).text)"
    )
    answered = subprocess.run([*contained, "python", "-c", program], capture_output=True, text=True, check=False)
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.strip() == "5"


def test_sizes_can_be_printed_by_hand(name: str, image: ImageArchive) -> None:
    command = [sys.executable, "-m", "images", "sizes", str(image.path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed.rstrip() == sizes_table(image)
