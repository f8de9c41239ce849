"""The oracle's two processes, etcd and the API server, in one folder: started, awaited and ended."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
from cluster.processes import Process, stop

from oracle.certificates import Certificates

START_SECONDS = 90.0
"""How long one process may take until it answers; it is a second or two on an idle machine."""
_DISABLED_ADMISSION = (
    "NamespaceLifecycle,MutatingAdmissionPolicy,MutatingAdmissionWebhook,"
    "ValidatingAdmissionPolicy,ValidatingAdmissionWebhook"
)
"""Every admission plugin of the generic server: each asks the core API, which nobody serves here."""


class OracleError(RuntimeError):
    """The oracle did not come up; the text says which process, and its last words."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports that were free a moment ago."""

    etcd: int
    peers: int
    server: int


def free_ports() -> Ports:
    """Three ports that nobody listens on. All are held at once while they are chosen, so they differ."""
    probes = [socket.socket() for _ in range(3)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = Ports(*(int(probe.getsockname()[1]) for probe in probes))
    for probe in probes:
        probe.close()
    return ports


def etcd_command(binary: str, folder: Path, ports: Ports) -> list[str]:
    """etcd on loopback, with a log that is not flushed: nothing here outlives the machine."""
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.peers}"
    options = {
        "name": "oracle",
        "data-dir": folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"oracle={peer}",
        "logger": "zap",
        "log-level": "warn",
    }
    return [binary, "--unsafe-no-fsync", *(f"--{name}={value}" for name, value in options.items())]


def server_command(binary: Path, folder: Path, ports: Ports, certificates: Certificates, kubeconfig: Path) -> list[str]:
    """The API server on loopback. Who shows a certificate of system:masters may do everything, everybody else nothing.

    `kubeconfig` is its own: it wants a core API to ask about tokens, rights and webhooks, and never needs the answer.
    """
    options = {
        "etcd-servers": f"http://127.0.0.1:{ports.etcd}",
        "bind-address": "127.0.0.1",
        "secure-port": ports.server,
        "tls-cert-file": certificates.server.certificate,
        "tls-private-key-file": certificates.server.key,
        "client-ca-file": certificates.authority,
        "authentication-skip-lookup": "true",
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "kubeconfig": kubeconfig,
        "disable-admission-plugins": _DISABLED_ADMISSION,
        "enable-priority-and-fairness": "false",
        "v": "1",
    }
    return [str(binary), *(f"--{name}={value}" for name, value in options.items())]


def start(name: str, command: Sequence[str], folder: Path, *, outlive: bool) -> "subprocess.Popen[bytes]":
    """Starts a process whose words go into `<folder>/<name>.log`. Unless it may `outlive` us, it dies when we do."""
    bound = ["setpriv", "--pdeathsig", "KILL", "--"] if not outlive and shutil.which("setpriv") else []
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [*bound, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )


def await_answer(name: str, process: "subprocess.Popen[bytes]", folder: Path, answers: Callable[[], bool]) -> None:
    """Waits until `answers` is true. Raises OracleError when the process ends first, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not answers():
        if process.poll() is not None:
            raise OracleError(f"{name} ended with code {process.returncode}: {last_words(name, folder)}")
        if time.monotonic() > deadline:
            raise OracleError(f"{name} did not answer within {START_SECONDS:g} s: {last_words(name, folder)}")
        time.sleep(0.05)


def last_words(name: str, folder: Path) -> str:
    """The end of a process's log."""
    return (folder / f"{name}.log").read_text(errors="replace").strip()[-2000:]


def accepts_connections(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def end(pids: Iterable[int]) -> None:
    """Ends processes one after the other, the politer way first. Those that are gone already are fine."""
    stop(process for process in map(Process.of, pids) if process is not None)


def end_children(children: "Sequence[subprocess.Popen[bytes]]") -> None:
    """As `end`, for processes that this one has started."""
    end(child.pid for child in children)
    for child in children:
        child.wait()


def works_in(pid: int, folder: Path) -> bool:
    """Whether a process lives and has this working folder, as those of `start` have."""
    try:
        return Process.of(pid) is not None and Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
    except OSError:
        return False


def etcd_binary(folder: Path) -> str:
    """etcd of this machine, else of its own release of Debian, unpacked into `folder`. Raises ClusterError."""
    installed = shutil.which("etcd") or shutil.which("etcd", path=str(folder / "usr" / "bin"))
    if installed:
        return installed
    folder.mkdir(parents=True, exist_ok=True)
    debian.unpack(debian.download_own(["etcd-server"], folder), folder)
    found = shutil.which("etcd", path=str(folder / "usr" / "bin"))
    if found is None:
        raise OracleError("Debian's package etcd-server has no usr/bin/etcd")
    return found
