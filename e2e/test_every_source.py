"""From a name to an answer, of every kind of source: Ready, with progress seen and nothing fetched for the second."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import fairlead_engine.demo
from fairlead_engine_testing.model_places import PASSWORD, model_place

DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"
PAUSE_SECONDS = 0.06
"""Before each 64 KiB: the dinghy's 7 MB take some seconds, in which the operator looks twice."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.local_only(reason="the sources are in this process, which a node's pods do not reach"),
]


@pytest.fixture
def certificates() -> Iterator[Path]:
    """Not below /tmp, where each pod has a volume of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("scheme", ["https", "s3", "gs", "az", "oci"])
def test_a_model_is_ready_from_any_source_and_downloaded_once(
    fleet, deployed: Any, name: str, scheme: str, certificates: Path
) -> None:
    files = {path.name: path.read_bytes() for path in DINGHY.iterdir() if path.is_file() and path.suffix != ".py"}
    with model_place(scheme, files, certificates) as place:
        place.server.pause_seconds = PAUSE_SECONDS
        kind = "kubernetes.io/dockerconfigjson" if scheme == "oci" else "Opaque"
        keys = dict(place.environment)
        fleet.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": keys}
        )
        deployed(name, place.source, model={"credentials": {"secretName": name}, "cache": {"node": True}})

        def progress() -> str:
            told = fleet.condition(name, "Progressing")
            return told.get("message", "") if told.get("reason") == "Downloading" else ""

        far = rf"downloading {re.escape(place.source)}: [\d.]+ of 7\.\d MB, [\d.]+ [kM]B/s, \d+ s left"
        fleet.wait("progress to be told", lambda: re.search(far, progress()))
        fleet.wait_ready(name)
        question = [{"role": "user", "content": "What is 7 plus 5?"}]
        body = {"model": name, "messages": question, "temperature": 0, "max_tokens": 16}
        assert fleet.post("/v1/chat/completions", body)["choices"][0]["message"]["content"].strip() == "12"
        num_asked = place.num_asked
        assert num_asked >= 1
        fleet.kubectl("scale", "llm", name, "--replicas=2")
        fleet.wait_ready(name, 2)
        assert place.num_asked == num_asked, "the second replica downloads nothing"
        objects = fleet.kubectl("get", "llm,deployments,pods,events", "-o", "json").stdout
        engines = [each for pod in fleet.pods(name).values() for each in fleet.processes(pod)]
        assert PASSWORD not in objects and not any(PASSWORD in environment(each) for each in engines)
    fleet.kubectl("delete", "secret", name)


def environment(process: psutil.Process) -> str:
    try:
        return str(process.environ())
    except psutil.Error:
        return ""
