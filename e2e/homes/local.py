"""The fleet on this machine alone: `fairlead local up`, started and stopped by the real command."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import streaming_load

from fairlead_local.detaching import owned_fleet
from homes.fleet import ENGINE_PORT, Fleet, Load, Served, environment
from homes.kubectl import Json

COMMAND_SECONDS = 120.0
VLLM_IMAGE = "vllm/vllm-openai"
LLAMA_IMAGE = "ghcr.io/ggml-org/llama.cpp"
SGLANG_IMAGE = "lmsysorg/sglang"
"""Fakes of them stand in."""
HOSTILE_IMAGE = "example.com/hostile-engine"
"""An engine that tells of blocks without end."""


def fairlead(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs the `fairlead` command."""
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments],
        capture_output=True, text=True, timeout=COMMAND_SECONDS, **options,
    )  # fmt: skip


def free_port() -> int:
    """A port of the loopback interface that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalFleet(Fleet):
    """Local mode with two gateways; needs no key."""

    home = "local"
    patience = 120.0

    def __init__(self, folder: Path, gateway: str, program: str) -> None:
        """`folder`: the fleet's data folder. `gateway`: base URL. `program`: kubectl."""
        self.folder = folder
        self.program = program
        self.kubeconfig = folder / "kubeconfig"
        self.gateway = self.public_url = gateway
        self._texts: dict[str, dict[str, str]] = {}
        """What each model that was loaded answered before anything disturbed it; no disturbance may change it."""

    def engine_get(self, pod: Json, path: str) -> str:
        with closing(http.client.HTTPConnection(pod["status"]["podIP"], ENGINE_PORT, timeout=10)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def steady_load(self, model: str, num_clients: int = 6) -> AbstractContextManager[Load]:
        endpoint = self.endpoint(model)
        if model not in self._texts:
            self._texts[model] = streaming_load.undisturbed(endpoint)
        return streaming_load.steady_load(endpoint, self._texts[model], num_clients=num_clients)

    def write_claim(self, name: str, program: str, arguments: Sequence[str], manifest: Json | None = None) -> None:
        root = self.folder / "volumes" / self.namespace / name
        root.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-c", program, str(root), *arguments], check=True, timeout=COMMAND_SECONDS)
        self.apply(manifest or claim(name))

    def remove_claim(self, name: str) -> None:
        self.delete("pvc", name)
        shutil.rmtree(self.folder / "volumes" / self.namespace / name, ignore_errors=True)

    def keeping_models_on_nodes(self) -> AbstractContextManager[None]:
        return nullcontext()  # local mode always does, in `DIR/models`

    @contextmanager
    def serving(
        self, name: str, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Iterator[Served]:
        port, log = free_port(), self.folder / f"{name}.log"
        command = [sys.executable, "-c", program, "127.0.0.1", str(port), *arguments]
        with (
            log.open("wb") as written,
            subprocess.Popen(command, stdout=written, stderr=written, env={**os.environ, **environment}) as process,
        ):
            try:
                yield Served(f"http://127.0.0.1:{port}", log.read_text)
            finally:
                process.kill()

    def processes(self, pod: Json) -> Sequence[psutil.Process]:
        """Those whose environment or record says so: the operator's pod is not told its own name."""
        name = pod["metadata"]["name"]
        records = [json.loads(path.read_text()) for path in (self.folder / "run").glob("*.json")]
        pids = {record["pid"] for record in records if name in record["name"].split("/")}
        return [
            process
            for process in psutil.process_iter()
            if process.pid in pids or environment(process).get("POD_NAME") == name
        ]


def claim(name: str) -> Json:
    """A small PersistentVolumeClaim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


@contextmanager
def local_fleet(folder: Path, program: str) -> Iterator[LocalFleet]:
    """Up until the end of the block, or of this process. `program`: kubectl."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    fakes = {VLLM_IMAGE: "fake_vllm", LLAMA_IMAGE: "fake_llama", SGLANG_IMAGE: "fake_sglang"}
    fakes[HOSTILE_IMAGE] = "hostile_engine"
    stand_ins = [f"--stand-in={image}={sys.executable} -m fairlead_testing.{fake}" for image, fake in fakes.items()]
    with owned_fleet(folder, ["--gateways", "2", *stand_ins], write=lambda text: print(text, end="")) as fleet:
        yield LocalFleet(folder, fleet.gateway, program)
