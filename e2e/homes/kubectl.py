"""An API server as a person reaches it: kubectl, and patience. Knows nothing of what runs there."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from fairlead.api.names import CRD_NAME

Json = dict[str, Any]

CRD = Path(__file__).parents[2] / "crds/llmdeployments.fairlead.dev.yaml"
LABEL_LLMDEPLOYMENT = "fairlead.dev/llmdeployment"
LABEL_OURS = "fairlead.dev/e2e"
"""On what the suite itself created on a cluster, and so may delete."""
OURS = {LABEL_OURS: "true"}
AGAIN_SECONDS = 0.5
"""Until a command that is kept running is begun anew."""


def secret(name: str, **data: str) -> Json:
    """A Secret of the suite's."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": OURS}, "stringData": data}


class Kubectl:
    """kubectl in one namespace of one cluster, and LLMDeployments as it shows them."""

    patience: ClassVar[float]
    """Seconds a scenario waits before it fails with what it saw last; nothing is asserted about speed."""
    poll_seconds: ClassVar[float] = 0.2
    """Time between two looks at what is waited for."""
    namespace = "default"
    """Of the scenarios' LLMDeployments."""

    kubeconfig: Path
    program: str
    """kubectl itself, as `cluster.kubectl` finds it for this API server."""

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as a person would; fails the test with kubectl's own words unless `check` is off."""
        completed = subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin, capture_output=True, text=True, timeout=timeout or self.patience,
        )  # fmt: skip
        if check and completed.returncode != 0:
            pytest.fail(f"kubectl {' '.join(arguments)}: {completed.stdout}{completed.stderr}")
        return completed

    def kubectl_command(self, *arguments: str) -> list[str]:
        """The command line that reaches this API server."""
        return [self.program, "--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace, *arguments]

    def get(self, kind: str, name: str = "", *options: str) -> Json:
        """An object, or a list of them."""
        arguments = [kind, *([name] if name else []), *options, "-o", "json"]
        found: Json = json.loads(self.kubectl("get", *arguments).stdout)
        return found

    def exists(self, kind: str, name: str) -> bool:
        """Whether there is such an object."""
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").stdout)

    def apply(self, *manifests: Json, check: bool = True, namespace: str = "") -> subprocess.CompletedProcess[str]:
        """`kubectl apply -f -`."""
        where = ["-n", namespace] if namespace else []
        return self.kubectl("apply", *where, "-f", "-", stdin=yaml.safe_dump_all(manifests), check=check)

    def merge(self, name: str, spec: Json, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Changes what is given of the LLMDeployment's spec; None takes a field away."""
        return self.kubectl("patch", "llm", name, "--type=merge", "-p", json.dumps({"spec": spec}), check=check)

    def events(self, name: str) -> str:
        """The LLMDeployment's Events, as a person lists them."""
        return self.kubectl("events", "--for", f"llm/{name}").stdout

    def delete(self, kind: str, name: str = "", *options: str) -> None:
        """Deletes what may be there, without waiting for it to be gone."""
        self.kubectl("delete", kind, *([name] if name else []), "--ignore-not-found", "--wait=false", *options)

    def condition(self, name: str, kind: str) -> Json:
        """The LLMDeployment's condition of that type; empty while it has none."""
        return _condition(self.get("llm", name).get("status", {}), kind)

    def wait(self, what: str, probe: Callable[[], Any], patience: float | None = None) -> Any:
        """Polls until `probe` gives something true; on failure shows what there is. On a slow machine what is on its
        way takes longer: it is waited for until nothing has moved for half the patience (or pytest's timeout ends it).
        """
        patience, started, moving = patience or self.patience, time.monotonic(), ""
        look_at = started + patience / 2
        while not (seen := probe()):
            if time.monotonic() > look_at:
                before, moving = moving, self.moving()
                waited = time.monotonic() - started
                if waited > patience and moving == before:
                    pytest.fail(f"waited {waited:.0f} s for {what}\n{self.state()}")
                look_at = time.monotonic() + patience / 2
            time.sleep(self.poll_seconds)
        return seen

    def moving(self) -> str:
        """What changes where LLMDeployments and pods are on their way, and not where they only work."""
        found = self.kubectl("get", "llm,pods", "-o", "json", check=False)
        return json.dumps([_stage(item) for item in json.loads(found.stdout or "{}").get("items", [])])

    def wait_condition(self, name: str, kind: str, status: str, *reasons: str) -> Json:
        """Until the condition has that status, for one of the reasons if any are given."""

        def probe() -> Json | None:
            condition = self.condition(name, kind)
            matches = condition.get("status") == status and (not reasons or condition.get("reason") in reasons)
            return condition if matches else None

        found: Json = self.wait(f"{name}: {kind}={status} {' or '.join(reasons)}", probe)
        return found

    def wait_ready(self, name: str, replicas: int = 1) -> None:
        """Until so many replicas answer, no fewer and no more."""

        def is_ready() -> bool:  # by one look: each is a process, beside engines that start
            status = self.get("llm", name).get("status", {})
            return status.get("readyReplicas") == replicas and _condition(status, "Ready").get("status") == "True"

        self.wait(f"{name} to have {replicas} ready replicas", is_ready)

    def children(self, name: str) -> list[str]:
        """Everything that carries the deployment's label."""
        kinds = "deployments,replicasets,pods,services,configmaps"
        return self.kubectl("get", kinds, "-l", f"{LABEL_LLMDEPLOYMENT}={name}", "-o", "name").stdout.split()

    # -- the cluster --

    def claim_namespace(self, name: str) -> None:
        """Creates a namespace of the suite's. Ends the run where somebody else created it."""
        found = self.kubectl("get", "namespace", name, "-o", "json", check=False)
        if found.returncode == 0:
            if LABEL_OURS not in json.loads(found.stdout)["metadata"].get("labels", {}):
                pytest.exit(f"the namespace {name} exists and is not the suite's: leaving it alone", 3)
            return
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": OURS}})

    def apply_crd(self) -> bool:
        """Creates or replaces the suite's CRD. Returns whether it was created.

        Ends the run where somebody else created it: there may be LLMDeployments of theirs, and the suite deletes all.
        """
        found = self.kubectl("get", "crd", CRD_NAME, "-o", "json", check=False)
        exists = found.returncode == 0
        if exists and LABEL_OURS not in json.loads(found.stdout)["metadata"].get("labels", {}):
            pytest.exit(f"the CRD {CRD_NAME} exists and is not the suite's: leaving the cluster alone", 3)
        crd = yaml.safe_load(CRD.read_text())
        crd["metadata"]["labels"] = {**crd["metadata"].get("labels", {}), **OURS}
        self.kubectl("replace" if exists else "create", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(crd))
        # It is a moment before the server answers for its objects.
        self.wait(f"{CRD_NAME} to be served", lambda: self.kubectl("get", CRD_NAME, check=False).returncode == 0)
        return not exists

    def token(self, namespace: str, account: str) -> str:
        """A token of a ServiceAccount, as the kubelet asks for one."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = self.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(request)).stdout
        return str(json.loads(answer)["status"]["token"])

    def mounts_images(self) -> bool:
        """Whether the API server keeps image volumes: by default it does from Kubernetes 1.35 on."""
        image = {"reference": "local.test/none:1"}
        container = {"name": "none", "image": "local.test/none:1"}
        spec = {"containers": [container], "volumes": [{"name": "image", "image": image}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fairlead-e2e-image"}, "spec": spec}
        asked = ("create", "--dry-run=server", "--validate=ignore", "-o", "json", "-f", "-")
        made = json.loads(self.kubectl(*asked, stdin=json.dumps(pod)).stdout)
        return any("image" in volume for volume in made["spec"].get("volumes", []))

    def server_and_runtime(self) -> tuple[str, str]:
        """The API server's version, such as `1.37.2`, and the container runtime of the first node."""
        told = json.loads(self.kubectl("get", "--raw", "/version").stdout)["gitVersion"].removeprefix("v")
        runtime = self.get("nodes")["items"][0]["status"]["nodeInfo"]["containerRuntimeVersion"]
        return told, runtime.replace("://v", " ").replace("://", " ")

    def state(self) -> str:
        """What a person would look at first when something is wrong."""
        commands = [
            ("get", "llm,deployments,pods", "-A", "-o", "wide"),
            ("get", "llm", "-A", "-o", "yaml"),
            ("get", "events", "-A"),
        ]
        return "\n".join(self.kubectl(*command, check=False).stdout for command in commands)


@contextmanager
def kept_running(command: Sequence[str], hear: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Within the block the command runs, begun anew whenever it has ended. `hear`: each line that it prints."""
    ended = threading.Event()
    current: list[subprocess.Popen[str]] = []

    def keep() -> None:
        while not ended.is_set():
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                current[:] = [process]
                if ended.is_set():
                    process.terminate()
                for line in process.stdout or ():
                    hear(line.strip())
            ended.wait(AGAIN_SECONDS)

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        for process in current:
            process.terminate()
        keeper.join()


def _stage(item: Json) -> list[Any]:
    status = item.get("status", {})
    conditions = [[each.get(key) for key in ("type", "status", "reason")] for each in status.get("conditions", [])]
    containers = [
        [each["name"], *each.get("state", {})]
        for kind in ("initContainerStatuses", "containerStatuses")
        for each in status.get(kind, [])
    ]
    counts = [status.get(name) for name in ("phase", "replicas", "readyReplicas", "desiredReplicas")]
    deleted = item["metadata"].get("deletionTimestamp")
    return [item["kind"], item["metadata"]["name"], deleted, counts, conditions, containers]


def _condition(status: Json, kind: str) -> Json:
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})
