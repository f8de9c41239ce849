"""What can be said of the Dockerfiles without building them."""

import re
import subprocess
import sys

import pytest
from images.layout import REPOSITORY
from images.recipes import BASE

from fairlead import __version__

DOCKERFILES = ("Dockerfile.engine", "Dockerfile.operator")


def text(name: str) -> str:
    return (REPOSITORY / name).read_text()


def stages(name: str) -> dict[str, str]:
    """Name of stage → its instructions, in order."""
    parts = re.split(r"^FROM \S+ AS (\w+)$", text(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_base_is_pinned_and_can_be_pinned_to_the_byte(name: str) -> None:
    assert f"\nARG BASE={BASE}\n" in text(name)
    froms = re.findall(r"^FROM (\S+)", text(name), re.MULTILINE)
    assert set(froms) - {*stages(name), "system_${VARIANT}"} == {"${BASE}${BASE_DIGEST}"}


def test_only_the_variant_for_cuda_has_a_compiler() -> None:
    assert not stages("Dockerfile.engine")["system_cpu"].strip()
    assert "install -qy --no-install-recommends gcc" in stages("Dockerfile.engine")["system_cuda"]
    assert re.search(r"^FROM system_\$\{VARIANT\} AS runtime$", text("Dockerfile.engine"), re.MULTILINE)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_new_version_of_ours_leaves_the_layer_with_dependencies_as_it_is(name: str) -> None:
    """Our versions are in the pyproject files: what they ask for is copied into that stage, never they themselves."""
    copied = re.findall(r"^COPY (.+) \S+$", stages(name)["dependencies"], re.MULTILINE)
    assert copied == ["requirements/constraints.txt", "--from=requirements /build/image.txt"]
    assert "third_party.py" in stages(name)["requirements"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_secrets_are_for_stages_that_are_thrown_away(name: str) -> None:
    last = stages(name)["runtime"]
    assert "secret" not in last and "pip.conf" not in last and "PIP_" not in last
    assert "--mount=type=secret,id=pip.conf" in stages(name)["dependencies"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_image_says_the_version_of_the_code(name: str) -> None:
    assert f"\nARG VERSION={__version__}\n" in text(name)


def test_both_images_make_the_same_system_layer() -> None:
    """So a node that has the one does not fetch the other's again."""
    ours, theirs = (stages(name)["runtime"].partition("ENV ")[0] for name in DOCKERFILES)
    assert ours == theirs and "perm /6000" in ours


@pytest.mark.parametrize("name", DOCKERFILES)
def test_pins_are_not_repeated(name: str) -> None:
    assert not re.search(r"(?<![A-Z_])\b(?!fairlead)[a-z][\w-]*==\d", text(name))
    constrained = {
        line.partition("==")[0] for line in text("requirements/constraints.txt").splitlines() if "==" in line
    }
    building = [line for line in text("requirements/image-build.txt").splitlines() if not line.startswith("#")]
    assert building and all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in building)
    assert constrained.isdisjoint(line.partition("==")[0] for line in building)


def third_party(*arguments: str) -> list[str]:
    command = [sys.executable, "requirements/third_party.py", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()


def test_third_party_leaves_out_our_own_and_adds_extras() -> None:
    engine = third_party("common", "engine")
    assert any(line.startswith("torch") for line in engine) and any(line.startswith("jinja2") for line in engine)
    assert not any(line.startswith("fairlead") for line in engine)
    assert [line for line in third_party("--extra", "cuda", "common", "engine") if line not in engine] == [
        "triton==3.7.1; sys_platform == 'linux'"
    ]
    assert not any("torch" in line for line in third_party("common", "operator"))


def test_the_engine_can_download_from_buckets() -> None:
    """Without a library of its own an init container would say what to install, which nobody can."""
    assert text("Dockerfile.engine").count("--extra buckets") == 2  # one for each variant
    assert [line for line in third_party("--extra", "buckets", "engine") if line not in third_party("engine")]
    assert '"./engine[buckets]"' in text("Makefile")


def test_the_gateway_can_serve_grpc() -> None:
    assert "--extra buckets --extra grpc common operator" in text("Dockerfile.operator")
    assert '"./operator[plot,logins,grpc]"' in text("Makefile")


def test_every_requirement_of_the_images_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in text("requirements/constraints.txt").splitlines() if "==" in line}
    wanted = third_party("--extra", "buckets", "--extra", "grpc", "common", "engine", "operator")
    names = {re.match(r"[\w.-]+", line).group().lower().replace("_", "-") for line in wanted}  # type: ignore[union-attr]
    assert names <= pinned


def test_the_build_context_has_what_is_needed_and_little_else() -> None:
    kept = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    assert "*" in text(".dockerignore").splitlines()
    assert kept == {"requirements"} | {
        f"{package}/{part}"
        for package in ("common", "engine", "operator")
        for part in ("pyproject.toml", "README.md", "src")
    }
    assert all((REPOSITORY / path).exists() for path in kept)
