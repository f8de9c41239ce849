"""Debian's promtool and Prometheus: found or fetched, and run on loopback without installing a service.

`fetch` unpacks the package into the cache, so that nothing is started and nothing outside the cache is touched.
"""

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import debian
import yaml
from caches import cache

MISSING = "promtool is not installed; `python -m monitoring` (with PYTHONPATH=e2e) fetches it"
START_SECONDS = 30.0


def find(program: str) -> Path | None:
    """`promtool` or `prometheus`, from PATH or from the cache; None when it is in neither."""
    installed, cached = shutil.which(program), cache("prometheus") / "usr" / "bin" / program
    if installed:
        return Path(installed)
    return cached if cached.exists() else None


def fetch() -> None:
    """Unpacks Debian's package `prometheus` into the cache. Does nothing where there is no apt; raises ClusterError
    where it fails."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-prometheus-") as folder:
        debian.unpack(debian.download(["prometheus"], Path(folder)), cache("prometheus"))


def promtool(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs promtool in a folder, and returns what it said. `find` must have found it."""
    program = find("promtool")
    assert program is not None, MISSING
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of its API. Raises AssertionError with Prometheus' own words where it refuses."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=30) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}?{query}: {error.read().decode()}") from error
        return answer["data"]

    def values(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has at this moment."""
        result: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return result

    def has_had(self, expression: str, *, since: float, step: float) -> bool:
        """Whether an expression has had a value at any time since then (Unix time), as a graph would show it."""
        bounds = {"start": str(since), "end": str(time.time()), "step": str(step)}
        result = self.get("/api/v1/query_range", query=expression, **bounds)["result"]
        return any(value != "NaN" for series in result for _, value in series["values"])


@contextmanager
def running(folder: Path, config: Mapping[str, Any], port: int) -> Iterator[Prometheus]:
    """A Prometheus on loopback that keeps its data in the folder; stopped with the context. Raises AssertionError with
    its log where it does not start."""
    program = find("prometheus")
    assert program is not None, MISSING
    file, log = folder / "prometheus.yaml", folder / "prometheus.log"
    file.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
    arguments = [
        f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.retention.time=1h", "--log.level=warn",
    ]  # fmt: skip
    server = Prometheus(f"http://127.0.0.1:{port}")
    with log.open("w") as output, subprocess.Popen([program, *arguments], stdout=output, stderr=output) as process:
        try:
            _wait_until_ready(server, process, log)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=30)


def _wait_until_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.url}/-/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"Prometheus did not start: {log.read_text()}")
