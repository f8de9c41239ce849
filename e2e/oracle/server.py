"""`Oracle`: a running apiextensions-apiserver with its etcd, either for a `with` block or until `stop`."""

import json
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from caches import alone, using

from oracle import processes
from oracle.build import Build, cache_root
from oracle.certificates import Certificates, make_certificates
from oracle.entries import obtain
from oracle.verdicts import DEFINITIONS

DEFAULT_STATE = Path("/var/tmp/fairlead-oracle")
"""Where `python -m oracle up` keeps its run; $FAIRLEAD_ORACLE_STATE says otherwise."""
_RECORD = "oracle.json"


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the one oracle that `python -m oracle up` starts."""
    return Path(environment.get("FAIRLEAD_ORACLE_STATE") or DEFAULT_STATE)


@dataclass(frozen=True, slots=True)
class Oracle:
    """A server that runs. It serves CustomResourceDefinitions and their objects, in any namespace, and nothing else."""

    url: str
    """Base URL, without a trailing slash."""
    kubernetes: str
    """The version of Kubernetes that it is from, such as `1.36.4`."""
    folder: Path
    pids: tuple[int, ...]
    """Of its processes, in the order in which they end."""

    @classmethod
    @contextmanager
    def up(cls) -> Iterator["Oracle"]:
        """Builds what the cache lacks and runs it in a temporary folder; when the block ends, nothing is left.

        Raises build.BuildError, ClusterError or processes.OracleError.
        """
        made = obtain()
        with using(made.folder), tempfile.TemporaryDirectory(prefix="fairlead-oracle-") as folder:
            oracle, children = _launch(made, Path(folder), outlive=False)
            try:
                yield oracle
            finally:
                processes.end_children(children)

    def client(self) -> httpx.Client:
        """An HTTP client of the administrator; close it."""
        context = ssl.create_default_context(cafile=self.folder / "certificates" / "authority.crt")
        mine = self.folder / "certificates" / "administrator.crt"
        context.load_cert_chain(mine, mine.with_suffix(".key"))
        return httpx.Client(base_url=self.url, verify=context, trust_env=False, timeout=30.0)

    def is_healthy(self) -> bool:
        """Whether it serves definitions, asked as the administrator."""
        try:
            with self.client() as client:
                return client.get(DEFINITIONS).status_code == 200
        except httpx.HTTPError:
            return False

    def curl(self) -> str:
        """A curl command line of the administrator, which lists the definitions."""
        folder = self.folder / "certificates"
        mine = f"--cert {folder / 'administrator.crt'} --key {folder / 'administrator.key'}"
        return f"curl --cacert {folder / 'authority.crt'} {mine} {self.url}{DEFINITIONS}"


def _launch(made: Build, folder: Path, *, outlive: bool) -> "tuple[Oracle, list[subprocess.Popen[bytes]]]":
    """Starts etcd and then the server in `folder`. With `outlive` they survive this process.

    Raises processes.OracleError or ClusterError, with nothing left running.
    """
    ports = processes.free_ports()
    url = f"https://127.0.0.1:{ports.server}"
    certificates = make_certificates(folder / "certificates")
    kubeconfig = _write_kubeconfig(folder, url, certificates)
    etcd = processes.etcd_command(processes.etcd_binary(made.folder / "etcd"), folder, ports)
    server = processes.server_command(made.binary, folder, ports, certificates, kubeconfig)
    children: list[subprocess.Popen[bytes]] = []
    try:
        children.append(processes.start("etcd", etcd, folder, outlive=outlive))
        processes.await_answer("etcd", children[0], folder, lambda: processes.accepts_connections(ports.etcd))
        children.insert(0, processes.start("server", server, folder, outlive=outlive))
        oracle = Oracle(url, made.kubernetes, folder, tuple(child.pid for child in children))
        processes.await_answer("server", children[0], folder, oracle.is_healthy)
    except BaseException:
        processes.end_children(children)
        raise
    return oracle, children


def start_in_background(folder: Path) -> Oracle:
    """Starts an oracle that goes on after this process, or returns the one that runs in this folder already."""
    made = obtain()
    with _alone(), using(made.folder):
        running = recorded(folder)
        if running and all(processes.works_in(pid, folder) for pid in running.pids):
            return running
        _clear(folder, running)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            oracle, _ = _launch(made, folder, outlive=True)
        except BaseException:
            shutil.rmtree(folder)
            raise
        record = {"url": oracle.url, "kubernetes": oracle.kubernetes, "pids": oracle.pids}
        (folder / _RECORD).write_text(json.dumps(record))
        return oracle


def stop(folder: Path) -> bool:
    """Ends the oracle that `start_in_background` left in a folder and removes the folder; False where there is none."""
    with _alone():
        running = recorded(folder)
        _clear(folder, running)
    return running is not None


def recorded(folder: Path) -> Oracle | None:
    """What `start_in_background` wrote down about the oracle in a folder, running or not."""
    try:
        record = json.loads((folder / _RECORD).read_text())
    except FileNotFoundError:
        return None
    return Oracle(record["url"], record["kubernetes"], folder, tuple(record["pids"]))


def _clear(folder: Path, running: Oracle | None) -> None:
    """Ends only processes that work in this folder: a recorded number may be somebody else's by now."""
    if running is None:
        return
    processes.end([pid for pid in running.pids if processes.works_in(pid, folder)])
    shutil.rmtree(folder)


def _alone() -> AbstractContextManager[None]:
    """One process at a time starts or ends an oracle that stays. The lock is with the builds: `stop` leaves nothing."""
    return alone(cache_root() / "run.lock", lambda: None)


def _write_kubeconfig(folder: Path, url: str, certificates: Certificates) -> Path:
    """What the server itself calls a core API with. There is none; it is its own. JSON, which is YAML too."""
    user = {
        "client-certificate": str(certificates.administrator.certificate),
        "client-key": str(certificates.administrator.key),
    }
    cluster = {"server": url, "certificate-authority": str(certificates.authority)}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "oracle", "cluster": cluster}],
        "users": [{"name": "administrator", "user": user}],
        "contexts": [{"name": "oracle", "context": {"cluster": "oracle", "user": "administrator"}}],
        "current-context": "oracle",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content, indent=1))
    return path
