"""What holds of every kind of source, by processes: killed and gone on with, once for two, damaged, on a full disk; and
what the guide says of each."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead_common.wire.model_sources import folder_name
from fairlead_engine.sources.models_folder import ModelsFolder, read_manifest
from fairlead_engine_testing.certificates import make_certificate
from fairlead_engine_testing.downloads import contents, staged_bytes
from fairlead_engine_testing.file_server import Listening
from fairlead_engine_testing.model_places import PASSWORD, SCHEMES, Place, model_place

pytestmark = pytest.mark.slow
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "model-sources.md"
MODEL = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": random.Random(3).randbytes(30_000),
    "model.safetensors": random.Random(4).randbytes(3_000_000),
}
SIZE = sum(map(len, MODEL.values()))
NUM_KILLS = 4
NUM_ENDS = 6
"""Processes whose connections end with them, any of which could be aborted by that."""
LIMITED = (
    "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (900_000, 900_000)); "
    "from fairlead_engine.__main__ import program; program()"
)


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Listening:
    """With a certificate that only the Secret's `ca.crt` vouches for."""
    return Listening(certificate=make_certificate(tmp_path_factory.mktemp("certificate"), "127.0.0.1"))


@pytest.fixture(params=SCHEMES)
def place(request: pytest.FixtureRequest, listening: Listening) -> Iterator[Place]:
    with model_place(request.param, MODEL, listening) as place:
        yield place


def start(place: Place, models: Path, *program: str) -> "subprocess.Popen[str]":
    command = [sys.executable, *(program or ("-m", "fairlead_engine")), "download", place.source, "--to", str(models)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_"))}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**environment, **place.environment})


def ended(process: "subprocess.Popen[str]") -> str:
    """What it said; the password is not in it."""
    output, errors = process.communicate()
    assert PASSWORD not in output + errors
    return errors


def fetched_bytes(errors: str) -> int:
    return sum(map(int, re.findall(r"fetched_bytes=(\d+)", errors)))


def test_killed_at_any_moment_it_goes_on(place: Place, tmp_path: Path) -> None:
    place.server.pause_seconds = 0.05
    moments, staging, had = random.Random(place.source), ModelsFolder(tmp_path).staging(place.source), 0
    for _ in range(NUM_KILLS):
        process, target = start(place, tmp_path), had + moments.randrange(0, 500_000)
        while process.poll() is None and staged_bytes(staging) <= target:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert staged_bytes(staging) >= had  # what was there stays
        had = staged_bytes(staging)
    place.server.pause_seconds = 0.0
    process = start(place, tmp_path)
    errors = ended(process)
    assert process.returncode == 0, errors
    assert contents(tmp_path / folder_name(place.source)) == MODEL
    assert 0 < fetched_bytes(errors) == SIZE - had


def test_two_processes_download_once(place: Place, tmp_path: Path) -> None:
    place.server.pause_seconds = 0.05
    processes = [start(place, tmp_path) for _ in range(2)]
    errors = "".join(map(ended, processes))
    assert [process.returncode for process in processes] == [0, 0], errors
    assert contents(tmp_path / folder_name(place.source)) == MODEL and fetched_bytes(errors) == SIZE
    assert errors.count("waiting for it") == 1


def test_a_flipped_byte_is_refused_by_name_and_a_full_disk_loses_nothing(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "another"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"is here")
    place.server.flipped.add("model.safetensors")
    refused = start(place, tmp_path)
    errors = ended(refused)
    assert refused.returncode == 1 and "DigestMismatch" in errors and "model.safetensors of" in errors
    assert not (tmp_path / folder_name(place.source)).exists()
    place.server.flipped.clear()
    full = start(place, tmp_path, "-c", LIMITED)
    errors = ended(full)
    assert full.returncode == 1 and "NoSpace" in errors and "make room" in errors
    kept = staged_bytes(ModelsFolder(tmp_path).staging(place.source))
    assert kept > 0 and contents(other) == {"model.safetensors": b"is here"}
    process = start(place, tmp_path)
    errors = ended(process)
    assert process.returncode == 0 and fetched_bytes(errors) == SIZE - kept
    assert contents(tmp_path / folder_name(place.source)) == MODEL


def test_a_certificate_that_nobody_vouches_for_is_refused(place: Place, tmp_path: Path) -> None:
    trusting = dict(place.environment)
    if "ca.crt" not in trusting:
        pytest.skip("registries on this machine are spoken to without TLS")
    place.environment = {name: value for name, value in trusting.items() if name != "ca.crt"}
    processes = [start(place, tmp_path / str(number)) for number in range(NUM_ENDS)]
    for process, errors in [(process, ended(process)) for process in processes]:
        assert "is not trusted: put the one that signed it into the Secret's ca.crt" in errors
        assert process.returncode == 1  # whatever its connections still do
    place.environment = trusting | {"ca.crt": "no certificate"}
    process = start(place, tmp_path)
    errors = ended(process)
    assert process.returncode == 1 and "ca.crt holds no certificate in PEM" in errors


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_the_guide_says_to_pull_is_pulled(scheme: str, listening: Listening, tmp_path: Path) -> None:
    """With this machine's address for those that are no one's."""
    commands = re.findall(rf"^fairlead models pull ({scheme}://[^\s`]*barge[^\s`]*)", GUIDE.read_text(), re.MULTILINE)
    assert len(commands) == 1
    with model_place(scheme, MODEL, listening) as place:
        assert re.sub(r"(models|registry)\.example\.com", place.source.split("/")[2], commands[0]) == place.source
        environment = {**os.environ, **place.environment, "FAIRLEAD_MODELS_FOLDER": str(tmp_path / "models")}
        command = [sys.executable, "-m", "fairlead", "models", "pull", place.source]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        assert contents(Path(done.stdout.strip())) == MODEL
        manifest = read_manifest(Path(done.stdout.strip()))
        assert manifest is not None and manifest.source == place.source
