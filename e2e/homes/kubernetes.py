"""The fleet on a Kubernetes cluster: the chart, installed by Helm into a namespace of its own, and removed again."""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from cluster import diagnostics, kubectl
from cluster.node import Node
from helm import HelmError, Release

from fairlead import __version__
from fairlead.api.names import CRD_NAME, ENGINE_IMAGE, LEASE_NAME, OPERATOR_IMAGE
from homes.cluster_load import EVERYWHERE, cluster_load
from homes.contexts import VARIABLE, context_for_tests
from homes.fleet import ENGINE_PORT, Fleet, Load, Served
from homes.gateway_access import forwarded, is_reachable
from homes.kubectl import LABEL_OURS, OURS, Json, secret
from homes.local import claim, free_port
from homes.servers import PORT, server
from homes.volumes import FOLDER, NODE_MODELS, eraser, filler, opener, volume

RELEASE = "fairlead"
KEYS_SECRET = "fairlead-e2e-keys"
CLIENT = "e2e"
"""Name of the suite's client: the Secret's entry that holds its key."""
OPERATOR = os.environ.get("FAIRLEAD_E2E_OPERATOR_IMAGE") or f"{OPERATOR_IMAGE}:{__version__}"
ENGINE = os.environ.get("FAIRLEAD_E2E_ENGINE_IMAGE") or f"{ENGINE_IMAGE}:{__version__}"
SHELL_IMAGE = os.environ.get("FAIRLEAD_E2E_SHELL_IMAGE") or "local.test/shell:1"
"""Images under test, and the one with curl in it, where the nodes have them or can pull them."""
SHELL_POD = "fairlead-e2e-shell"
TAINT = "fairlead.dev/spot-notice"
SPOT_PRIORITY = "fairlead-e2e-spot"
"""PriorityClass of the profile `spot`. Who uses the profile creates it first."""


def values(revision: int = 0) -> Json:
    """The chart's values for a node of two cores, where replicas reserve little and share what there is. `revision`:
    a change of it changes the pods of operator and gateway."""
    small = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    replica = {"requests": {"cpu": "100m", "memory": "384Mi"}, "limits": {"memory": "2Gi"}}
    program = {
        "resources": small,
        "tolerations": [{"key": TAINT, "operator": "Exists"}],
        "podAnnotations": {"fairlead.dev/e2e-revision": str(revision)},
    }
    return {
        "image": _image(OPERATOR),
        "engineImage": _image(ENGINE),
        "downloads": {"nodeFolder": f"{FOLDER}/{NODE_MODELS}"},
        "watch": {"namespaces": [KubernetesFleet.namespace]},
        "operator": program,
        "gateway": {**program, "replicas": 2},
        "auth": {"existingSecret": KEYS_SECRET},
        "profiles": {
            **dict.fromkeys(("cpu-small", "cpu-medium"), replica),
            "spot": {**replica, "priorityClassName": SPOT_PRIORITY},
        },
    }


class KubernetesFleet(Fleet):
    """A release of the chart, with two gateways and a key."""

    home = "kubernetes"
    patience = 240.0
    poll_seconds = 0.5
    shell_image = SHELL_IMAGE
    spot_priority = SPOT_PRIORITY

    def __init__(self, kubeconfig: Path, program: str, node: Node | None = None) -> None:
        """`kubeconfig`: complete in itself, with one context. `program`: kubectl. `node`: None = of somebody else."""
        self.kubeconfig = kubeconfig
        self.program = program
        self.node = node
        self.api_key = secrets.token_urlsafe(24)
        self.gateway = ""  # known once there is a Service
        self.public_url = f"http://{RELEASE}-gateway.{self.system_namespace}"
        self.release = Release(kubeconfig, name=RELEASE, namespace=self.system_namespace)
        self._revision = 0
        self._has_shell = False

    # -- up and down --

    def install(self) -> None:
        """The Secret of keys and the chart."""
        for namespace in (self.system_namespace, self.namespace):  # the load's pod needs it where it runs
            self.apply(secret(KEYS_SECRET, **{CLIENT: self.api_key}), namespace=namespace)
        self._revision = int(time.time())  # so that gateways of an earlier run start anew, with this key
        states = self._states()
        if "deployed" in states:
            self.release.upgrade(values(self._revision))
            return
        if states:  # of an install that failed, which cannot be upgraded
            self.release.uninstall()
        self.release.install(values(self._revision), crds=False)

    def _states(self) -> set[str]:
        """Of the revisions that an earlier run left."""
        try:
            return {state for _, state in self.release.history()}
        except HelmError:
            return set()

    @contextmanager
    def reaching_the_gateway(self) -> Iterator[None]:
        """Sets `gateway`."""
        service = self.get("service", f"{RELEASE}-gateway", "-n", self.system_namespace)["spec"]
        port = int(service["ports"][0]["port"])
        if is_reachable(service["clusterIP"], port, within=15.0):  # a tunnel's first request is lost when its pod goes
            self.gateway = f"http://{service['clusterIP']}:{port}"
            yield
            return
        local_port = free_port()
        command = self.kubectl_command("--namespace", self.system_namespace)
        with forwarded(command, f"service/{RELEASE}-gateway", local_port, port):
            self.wait("the tunnel to the gateway", lambda: is_reachable("127.0.0.1", local_port), 30)
            self.gateway = f"http://127.0.0.1:{local_port}"
            yield

    def remove_leftovers(self) -> None:
        """What scenarios and earlier runs left in the scenarios' namespace."""
        self.kubectl("delete", "llm", "--all", "--wait=true", check=False)
        self.delete("pods,configmaps,persistentvolumeclaims,persistentvolumes", "", "-l", LABEL_OURS)
        self.wait("engines to go", lambda: not self.get("pods", "", "-l", "fairlead.dev/llmdeployment")["items"])

    def remove(self) -> None:
        """Uninstalls the chart and deletes its namespace and the CRD."""
        self.remove_leftovers()
        self.release.uninstall()
        self.delete("secret", KEYS_SECRET)
        self.kubectl("delete", "namespace", self.system_namespace, "--timeout=300s", timeout=320)
        self.kubectl("delete", "crd", CRD_NAME, "--timeout=60s")

    def dump(self, folder: Path) -> None:
        diagnostics.dump(self.kubeconfig, folder)

    # -- how scenarios reach it --

    def engine_get(self, pod: Json, path: str) -> str:
        address = pod["status"]["podIP"]
        host = f"[{address}]" if ":" in address else address
        script = f"import urllib.request as u; print(u.urlopen('http://{host}:{ENGINE_PORT}{path}').read().decode())"
        return self.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", script).stdout

    def steady_load(self, model: str, num_clients: int = 6) -> AbstractContextManager[Load]:
        return cluster_load(
            self, model, url=self.public_url, image=OPERATOR,
            secret=(KEYS_SECRET, CLIENT), num_clients=num_clients,
        )  # fmt: skip

    def shell(self, *command: str) -> str:
        """What a command prints in a pod of the scenarios' namespace, such as curl."""
        if not self._has_shell:
            self.apply(_shell_pod())
            self.kubectl("wait", "--for=condition=Ready", f"pod/{SHELL_POD}", "--timeout=120s")
            self._has_shell = True
        return self.kubectl("exec", SHELL_POD, "--", *command).stdout

    def write_claim(self, name: str, program: str, arguments: Sequence[str], manifest: Json | None = None) -> None:
        manifest = manifest or claim(name)
        nodes = self.get("nodes")["items"]
        classes = self.get("storageclasses")["items"]
        self.apply(volume(manifest, self.namespace, nodes[0], classes), manifest)
        pod = filler(name, ENGINE, program, arguments)
        self.apply(pod)
        self._finished(pod["metadata"]["name"])

    def remove_claim(self, name: str) -> None:
        self.delete("pvc", name)
        self.delete("pv", f"{self.namespace}-{name}")
        pod = eraser(f"{self.namespace}-{name}", ENGINE, self.get("nodes")["items"][0])
        self.apply(pod)
        self._finished(pod["metadata"]["name"])

    @contextmanager
    def keeping_models_on_nodes(self) -> Iterator[None]:
        self._on_every_node(opener)
        yield
        self._on_every_node(eraser)

    def _on_every_node(self, made: Callable[[str, str, Json], Json]) -> None:
        """Runs a pod after the other to its end."""
        for node in self.get("nodes")["items"]:
            pod = made(NODE_MODELS, ENGINE, node)
            self.apply(pod)
            self._finished(pod["metadata"]["name"])

    @contextmanager
    def serving(
        self, name: str, program: str, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> Iterator[Served]:
        self.apply(server(name, ENGINE, program, arguments, environment))
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s")
        address = self.get("pod", name)["status"]["podIP"]
        try:
            yield Served(f"http://{address}:{PORT}", lambda: self.kubectl("logs", name).stdout)
        finally:
            self.kubectl("delete", "pod", name, "--wait=false")

    def _finished(self, pod: str) -> None:
        """Waits for a pod to succeed, and deletes it."""

        def phase() -> str:
            return str(self.get("pod", pod).get("status", {}).get("phase"))

        self.wait(f"the pod {pod} to end", lambda: phase() in ("Succeeded", "Failed"))
        assert phase() == "Succeeded", self.kubectl("logs", pod, check=False).stdout
        self.kubectl("delete", "pod", pod)

    def processes(self, pod: Json) -> Sequence[psutil.Process]:
        uid = str(pod["metadata"]["uid"])
        marks = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
        found = []
        for process in psutil.process_iter():
            try:
                cgroups = Path(f"/proc/{process.pid}/cgroup").read_text()
                may_touch = os.access(f"/proc/{process.pid}/environ", os.R_OK)
                if may_touch and any(mark in cgroups for mark in marks) and process.name() != "pause":
                    found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def wait_leading(self) -> None:
        """Until an operator has renewed its Lease once more."""
        began = self._renewed()
        self.wait("an operator to hold the Lease", lambda: self._renewed() > began)

    def _renewed(self) -> datetime:
        spec = self.get("lease", LEASE_NAME, "-n", self.system_namespace)["spec"]
        return datetime.fromisoformat(spec["renewTime"])

    # -- disturbances that need a cluster --

    def evict(self, pod: Json) -> None:
        """Asks for the eviction as `kubectl drain` does, again while a disruption budget says no."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        metadata = {"name": name, "namespace": namespace}
        eviction = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"

        def allowed() -> bool:
            asked = self.kubectl("create", "--raw", path, "-f", "-", stdin=eviction, check=False)
            assert asked.returncode == 0 or "disruption budget" in asked.stderr, asked.stderr
            return asked.returncode == 0

        self.wait(f"the eviction of {name} to be allowed", allowed)

    def upgrade(self) -> None:
        """`helm upgrade` with values that change the pods of operator and gateways, until all old ones are gone."""
        before = {*self.system_pods("operator"), *self.system_pods("gateway")}
        self._revision += 1
        self.release.upgrade(values(self._revision))
        self.wait(
            "the pods of before the upgrade to be gone",
            lambda: not before & {*self.system_pods("operator"), *self.system_pods("gateway")},
        )

    @contextmanager
    def tainted(self, nodes: set[str]) -> Iterator[None]:
        """Nodes about to be taken away, as a spot notice marks them: only operator and gateways tolerate it."""
        for node in nodes:
            self.kubectl("taint", "node", node, f"{TAINT}=now:NoExecute", "--overwrite")
        try:
            yield
        finally:
            for node in nodes:
                self.kubectl("taint", "node", node, f"{TAINT}:NoExecute-", check=False)


def _image(reference: str) -> Json:
    repository, _, tag = reference.rpartition(":")
    return {"repository": repository, "tag": tag}


def _shell_pod() -> Json:
    container = {
        "name": "shell", "image": SHELL_IMAGE, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "infinity"],
    }  # fmt: skip
    spec: dict[str, Any] = {
        "containers": [container], "terminationGracePeriodSeconds": 0, "tolerations": EVERYWHERE,
        "automountServiceAccountToken": False,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": SHELL_POD, "labels": OURS}, "spec": spec}


def own_kubeconfig(program: str, source: Path | None, chosen: str | None, target: Path) -> str:
    """Writes a kubeconfig with one context that is meant for tests, complete in itself. Returns the context's name.

    `program`: kubectl. `source`: None = what KUBECONFIG says. Raises NotForTests.
    """
    command = [program, *(["--kubeconfig", str(source)] if source else [])]
    viewed = subprocess.run([*command, "config", "view", "-o", "json"], capture_output=True, text=True, check=True)
    context = context_for_tests(json.loads(viewed.stdout), chosen)
    flat = subprocess.run(
        [*command, "config", "view", "--raw", "--flatten", "--minify", "--context", context],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    target.touch(mode=0o600)
    target.write_text(flat.stdout)
    return context


@contextmanager
def own_node() -> Iterator[Node]:
    """A node of this machine that has the images. One that is up already stays up."""
    from cluster.commands import Progress
    from images.build import build
    from images.layout import Layout
    from images.recipes import DEFAULT_IMAGES

    archives = build(DEFAULT_IMAGES, Layout.default(), None, Progress())
    with Node() as node:
        for archive in archives.values():
            node.load_image(archive)
        yield node


@contextmanager
def kubernetes_fleet(
    folder: Path, environment: Mapping[str, str], out: Path, *, keep: bool = False
) -> Iterator[KubernetesFleet]:
    """Installed, and removed again. `folder`: for the kubeconfig. `environment`: KUBECONFIG and FAIRLEAD_E2E_CONTEXT;
    without the former a node is started here. `out`: for what explains a failed install. `keep`: leave it installed,
    for the next run to take over. Raises NoKubectl and NotForTests."""
    with ExitStack() as stack:
        node = None if environment.get("KUBECONFIG") else stack.enter_context(own_node())
        program = kubectl.require(of_node=kubectl.is_ours(environment.get("KUBECONFIG")))
        kubeconfig = folder / "kubeconfig"
        own_kubeconfig(program, node.kubeconfig if node else None, environment.get(VARIABLE), kubeconfig)
        fleet = KubernetesFleet(kubeconfig, program, node)
        stack.enter_context(fleet.release)
        fleet.claim_namespace(fleet.system_namespace)
        fleet.apply_crd()
        try:
            fleet.remove_leftovers()
            try:
                fleet.install()
            except HelmError:
                fleet.dump(out / "install")
                raise
            with fleet.reaching_the_gateway():
                yield fleet
        finally:
            if not keep and not (node and node.started_here):  # a node that goes takes everything with it
                fleet.remove()
