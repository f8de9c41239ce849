"""A running fleet and the ways a person reaches it: kubectl (`homes.kubectl`), HTTP, and what may happen to it.

What is the same in every home is here. A home says how to reach the gateway, how clients load it, and how it is
disturbed; it knows no scenario.
"""

import json
import threading
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import psutil
import pytest
from streaming_load import Endpoint

from fairlead.api.pod_spec import lasting_statuses
from homes.kubectl import LABEL_LLMDEPLOYMENT, Json, Kubectl
from homes.volumes import FILL

LABEL_COMPONENT = "app.kubernetes.io/component"
ENGINE_PORT = 8000


class Load(Protocol):
    """Steady streaming load, and what its clients have seen so far."""

    @property
    def num_begun(self) -> int:
        """Streams whose first token has come."""

    @property
    def num_answers(self) -> int:
        """Requests that have ended, well or not."""

    @property
    def verdict(self) -> tuple[int, int, int]:
        """Requests that failed, streams that were cut, texts that differ: all must be 0."""

    @property
    def problems(self) -> str:
        """A few of each, for whoever reads a failed test."""


@dataclass(frozen=True)
class Served:
    """A program that serves."""

    url: str
    """Base URL, as pods reach it."""
    log: Callable[[], str]
    """What it has written."""


class Fleet(Kubectl, ABC):
    """A fleet that runs, from the outside."""

    home: ClassVar[str]
    """As the option `--home` names it."""
    system_namespace = "fairlead-system"
    """Of operator and gateways."""

    gateway: str
    """Base URL at which the gateway answers the tests."""
    public_url: str
    """Base URL that the fleet tells its users: `status.url` starts with it."""
    api_key: str = ""
    """What clients must send; empty = nothing."""

    # -- what runs --

    def pods(self, name: str) -> dict[str, Json]:
        """The engine pods of an LLMDeployment, by name."""
        listing = self.get("pods", "", "-l", f"{LABEL_LLMDEPLOYMENT}={name}")
        return {pod["metadata"]["name"]: pod for pod in listing["items"]}

    def num_running(self, name: str) -> int:
        """Containers of an LLMDeployment's pods that run, those of pods that are being deleted included."""
        statuses = [each for pod in self.pods(name).values() for each in lasting_statuses(pod)]
        return sum("running" in each.get("state", {}) for each in statuses)

    def num_restarts(self, pod: str, namespace: str = "") -> int:
        """How often the containers of a pod were started again, sidecars among them. `namespace`: empty = the
        scenarios'."""
        found = self.get("pod", pod, "-n", namespace or self.namespace)
        return sum(each["restartCount"] for each in lasting_statuses(found))

    def system_pods(self, component: str) -> dict[str, Json]:
        """The pods of `operator` or `gateway`, by name."""
        listing = self.get("pods", "", "-n", self.system_namespace, "-l", f"{LABEL_COMPONENT}={component}")
        return {pod["metadata"]["name"]: pod for pod in listing["items"]}

    def download_progress(self, name: str) -> str:
        """How far the download of an LLMDeployment's model is, as it is told; empty while there is none."""
        told = self.condition(name, "Progressing")
        return str(told["message"]) if told.get("reason") == "Downloading" else ""

    def state(self) -> str:
        system = ("-n", self.system_namespace, "--tail=40")
        logs = [
            self.kubectl("logs", f"deployment/fairlead-{component}", *system, check=False).stdout
            for component in ("operator", "gateway")
        ]
        return "\n".join([super().state(), *logs])

    def dump(self, folder: Path) -> None:
        """Writes what explains a failure into the folder: objects, events, logs."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.txt").write_text(self.state())

    # -- HTTP --

    @property
    def headers(self) -> dict[str, str]:
        """What a client of this fleet sends."""
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"content-type": "application/json", **key}

    def reached(self, url: str) -> str:
        """A URL that the fleet tells its users, as the tests reach it."""
        assert url.startswith(self.public_url), f"{url} does not start with {self.public_url}"
        return self.gateway + url.removeprefix(self.public_url)

    def request(self, url: str, body: Json, **headers: str) -> urllib.request.Request:
        """A POST with everything that a client must send."""
        content = json.dumps(body).encode()
        return urllib.request.Request(url, content, {**self.headers, **headers}, method="POST")

    def post(self, path: str, body: Json, **headers: str) -> Json:
        """The JSON answer of the gateway. `path`: with its leading slash."""
        with urllib.request.urlopen(self.request(self.gateway + path, body, **headers), timeout=120) as reply:
            answer: Json = json.load(reply)
            return answer

    def refusal(self, path: str, body: Json, **headers: str) -> tuple[int, Json, dict[str, str]]:
        """Status, body and headers of an answer that must be an error."""
        with pytest.raises(urllib.error.HTTPError) as refused:
            self.post(path, body, **headers)
        with refused.value as reply:
            return reply.code, json.load(reply), {name.lower(): value for name, value in reply.headers.items()}

    def adds_up(self, model: str) -> bool:
        """Whether the dinghy behind this name does what it has learnt."""
        question = {"role": "user", "content": "What is 7 plus 5?"}
        body = {"model": model, "messages": [question], "temperature": 0, "max_tokens": 16}
        return bool(self.post("/v1/chat/completions", body)["choices"][0]["message"]["content"].strip() == "12")

    def endpoint(self, model: str) -> Endpoint:
        """A model behind this fleet's gateway, for streaming."""
        return Endpoint(self.gateway, model, self.api_key)

    def engine_running(self, name: str) -> int:
        """Requests that the engines of an LLMDeployment run at this moment."""
        total = 0
        for pod in self.pods(name).values():
            lines = self.engine_get(pod, "/metrics").splitlines()
            total += sum(int(float(line.split()[-1])) for line in lines if line.startswith("vllm:num_requests_running"))
        return total

    @abstractmethod
    def engine_get(self, pod: Json, path: str) -> str:
        """What an engine pod answers to a GET on its own port."""

    @abstractmethod
    def steady_load(self, model: str, num_clients: int = 6) -> AbstractContextManager[Load]:
        """Load from before the block to after it, held to the texts of an undisturbed run before this block, or before
        an earlier one of the same model; its verdict is final afterwards."""

    def wait_for_answers(self, load: Load, more: int = 12) -> None:
        """Until so many more answers have come: the load runs, and has run since whatever was done just before."""
        goal = load.num_answers + more
        self.wait(f"{more} more answers\n{load.problems}", lambda: load.num_answers >= goal)

    def wait_for_a_stream(self, load: Load) -> None:
        """Until another stream has just begun, and has nearly all of its answer before it."""
        before = load.num_begun
        self.wait(f"a stream to begin\n{load.problems}", lambda: load.num_begun > before)

    # -- what servers can do --

    def fill_claim(self, name: str, folder: str, manifest: Json | None = None) -> None:
        """`write_claim`, with the dinghy's files in `folder`."""
        self.write_claim(name, FILL, [folder], manifest)

    @abstractmethod
    def write_claim(self, name: str, program: str, arguments: Sequence[str], manifest: Json | None = None) -> None:
        """Creates the PersistentVolumeClaim `name` and has a program write onto it, with the engine's Python: `python
        -c program ROOT arguments…`. `manifest`: the claim, unless it is to be a small one."""

    @abstractmethod
    def remove_claim(self, name: str) -> None:
        """Deletes the claim and what it held."""

    @abstractmethod
    def keeping_models_on_nodes(self) -> AbstractContextManager[None]:
        """Within the block nodes have room for models that engines download (`model.cache.node`)."""

    @abstractmethod
    def serving(
        self, name: str, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> AbstractContextManager["Served"]:
        """Within the block a program serves HTTP where the fleet's pods reach it: `python -c program HOST PORT
        arguments…` with the engine's Python, in a pod of that name where there are pods with any program."""

    # -- disturbances --

    def restart_operator(self) -> None:
        """`kubectl rollout restart` of the operator, to its end."""
        self._rollout("operator")

    def roll_gateways(self) -> None:
        """`kubectl rollout restart` of the gateways, until the old ones have finished their streams and are gone."""
        before = set(self.system_pods("gateway"))
        self._rollout("gateway")
        self.wait("the old gateways to be gone", lambda: not before & set(self.system_pods("gateway")))

    def _rollout(self, component: str) -> None:
        self.kubectl("rollout", "restart", f"deployment/fairlead-{component}", "-n", self.system_namespace)
        self.wait_rolled_out(component)

    def wait_rolled_out(self, component: str) -> None:
        """Until every pod of `operator` or `gateway` is there, of the newest kind, and ready."""
        deployment, where = f"deployment/fairlead-{component}", ("-n", self.system_namespace)
        self.kubectl("rollout", "status", deployment, *where, f"--timeout={self.patience:.0f}s", timeout=300)

    def kill(self, pod: Json) -> None:
        """SIGKILL to every process of a pod's container, as when memory runs out. Skips where the node's processes are
        not visible from here."""
        found = self.processes(pod)
        if not found:
            pytest.skip("the node's processes are not visible from here, so none of them can be killed")
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:  # its parent took it along
                continue

    @abstractmethod
    def processes(self, pod: Json) -> Sequence[psutil.Process]:
        """The processes that run a pod's containers, as far as this machine sees them and this user may touch them."""


def environment(process: psutil.Process) -> dict[str, str]:
    """Of a process; empty where it is gone, or not to be seen."""
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def in_threads(number: int, work: Callable[[int], None]) -> list[threading.Thread]:
    """Starts so many threads; each is told its number."""
    threads = [threading.Thread(target=work, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    return threads
