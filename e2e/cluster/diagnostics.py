"""Writes down what a cluster looks like, for whoever reads about a failed test later: pods, events, logs."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from cluster import kubectl
from cluster.api import Api, ApiError
from cluster.layout import Layout

_LISTED = (
    "nodes,namespaces,pods,deployments.apps,replicasets.apps,statefulsets.apps,jobs.batch,services,endpointslices,"
    "configmaps,serviceaccounts,horizontalpodautoscalers,networkpolicies,persistentvolumes,persistentvolumeclaims"
)
"""Kinds without secrets among them."""
_SECONDS_PER_COMMAND = 60


def dump(kubeconfig: Path, folder: Path) -> None:
    """Writes pods, events, descriptions and containers' logs of every namespace into `folder`, which is made.

    The logs of the components are added when the cluster is the node of this machine. What cannot be had is said in the
    file that would hold it: a dump never fails because of the cluster that it looks at.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dumper = _Dump(kubeconfig, folder)
    dumper.write("objects.txt", "get", _LISTED, "--all-namespaces", "-o", "wide", "--ignore-not-found")
    dumper.write("events.txt", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
    dumper.write("nodes.txt", "describe", "nodes")
    dumper.write("pods.txt", "describe", "pods", "--all-namespaces")
    dumper.write("pods.yaml", "get", "pods", "--all-namespaces", "-o", "yaml")
    dumper.write("llmdeployments.yaml", "get", "llmdeployments.fairlead.dev", "--all-namespaces", "-o", "yaml")
    for pod in dumper.pods():
        dumper.logs(pod)
    layout = Layout.default()
    if layout.logs.is_dir() and _same_cluster(kubeconfig, layout.kubeconfig):
        shutil.copytree(layout.logs, folder / "node", dirs_exist_ok=True)


class _Dump:
    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig, self.folder = kubeconfig, folder
        self.kubectl = kubectl.find()

    def ask(self, *arguments: str) -> str:
        """What kubectl says, its errors included."""
        if self.kubectl is None:
            return f"{kubectl.EXPLAINED}\n"
        words = [self.kubectl, "--kubeconfig", str(self.kubeconfig), *arguments]
        try:
            completed = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=_SECONDS_PER_COMMAND, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{error}\n"
        return completed.stdout

    def write(self, name: str, *arguments: str) -> None:
        (self.folder / name).write_text(self.ask(*arguments))

    def pods(self) -> list[tuple[str, str, str, int]]:
        """(namespace, pod, container, restarts) of every container that has a status."""
        template = (
            "{range .items[*]}{range .status.initContainerStatuses[*]}{.name} {.restartCount};{end}"
            "{range .status.containerStatuses[*]}{.name} {.restartCount};{end}"
            "|{.metadata.namespace} {.metadata.name}{'\\n'}{end}"
        )
        text = self.ask("get", "pods", "--all-namespaces", "-o", f"jsonpath={template}")
        return parse_containers(text)

    def logs(self, container: tuple[str, str, str, int]) -> None:
        namespace, pod, name, restarts = container
        target = self.folder / "logs" / namespace
        target.mkdir(parents=True, exist_ok=True)
        words = ("--namespace", namespace, "logs", pod, "--container", name, "--timestamps")
        (target / f"{pod}.{name}.log").write_text(self.ask(*words))
        if restarts:
            (target / f"{pod}.{name}.previous.log").write_text(self.ask(*words, "--previous"))


def parse_containers(text: str) -> list[tuple[str, str, str, int]]:
    """Reads lines of `CONTAINER RESTARTS;…|NAMESPACE POD`; other lines (kubectl's complaints) are passed over."""
    found = []
    for line in text.splitlines():
        containers, bar, pod = line.partition("|")
        if not bar or len(words := pod.split()) != 2:
            continue
        for entry in filter(None, containers.split(";")):
            name, _, restarts = entry.partition(" ")
            found.append((words[0], words[1], name, int(restarts)))
    return found


def _same_cluster(one: Path, other: Path) -> bool:
    """Whether two kubeconfigs lead to the same API server: the same kube-system namespace."""

    def identity(file: Path) -> Any:
        return Api(file).get("/api/v1/namespaces/kube-system")["metadata"]["uid"]

    if not os.access(other, os.R_OK):  # somebody else's node, or none
        return False
    try:
        return bool(identity(one) == identity(other))
    except (ApiError, OSError, KeyError, StopIteration):
        # It may be the API server itself that is down: then its own log is what matters.
        return one.resolve() == other.resolve() or one.read_text() == other.read_text()
