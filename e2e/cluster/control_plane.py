"""etcd, API server, controller-manager and scheduler: their certificates and their command lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import pki
from cluster.layout import API_SERVICE_ADDRESS, CLUSTER_DOMAIN, NAME, POD_CIDR, SERVICE_CIDR, Layout
from cluster.programs import Binaries

LOOPBACK = "127.0.0.1"
ORDER = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


@dataclass(frozen=True)
class Endpoints:
    """Where the control plane listens: an address of the API server, and the ports that are free there."""

    address: str
    api_port: int = 6443
    etcd_port: int = 2379
    etcd_peer_port: int = 2380

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.api_port}"

    @property
    def etcd(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"


USERS: Mapping[str, tuple[str, str]] = {
    "admin": ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kubelet": (f"system:node:{NAME}", "system:nodes"),
    "kube-proxy": ("system:kube-proxy", ""),
    # Every version binds this name to a role that may list and watch Services and EndpointSlices. (That of kube-dns may
    # not read EndpointSlices before 1.37.)
    "dns": ("system:kube-proxy", ""),
}
"""Who has a kubeconfig, with the user and group that RBAC sees."""


def make_pki(layout: Layout, endpoints: Endpoints) -> None:
    """Makes authorities, certificates and kubeconfigs in `layout.pki`, and the administrator's kubeconfig."""
    folder = layout.pki
    authority, front_proxy = pki.Authority(folder), pki.Authority(folder, "front-proxy-ca")
    authority.create()
    front_proxy.create()
    front_proxy.client("front-proxy-client", "front-proxy-client")
    service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
    addresses = sorted({endpoints.address, "127.0.0.1", API_SERVICE_ADDRESS})
    authority.server("apiserver", "kube-apiserver", addresses, ["localhost", *service])
    authority.client("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters")
    authority.server("kubelet-server", NAME, [endpoints.address], [NAME])
    pki.signing_key(folder, "sa")
    for name, (user, group) in USERS.items():
        pair = authority.client(name, user, group)
        pki.write_kubeconfig(folder / f"{name}.kubeconfig", endpoints.server, authority, user, pair)
    pki.write_kubeconfig(
        layout.kubeconfig, endpoints.server, authority, "admin", pki.Pair(folder / "admin.crt", folder / "admin.key")
    )


def commands(layout: Layout, binaries: Binaries, endpoints: Endpoints) -> dict[str, list[str | Path]]:
    """The command line of each component, by its name."""
    return {
        "etcd": _etcd(layout, binaries, endpoints),
        "kube-apiserver": _api_server(layout.pki, binaries, endpoints),
        "kube-controller-manager": _controller_manager(layout.pki, binaries),
        "kube-scheduler": [
            binaries.program("kube-scheduler"), f"--kubeconfig={layout.pki}/kube-scheduler.kubeconfig",
            "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false", "--v=1",
        ],
    }  # fmt: skip


def _etcd(layout: Layout, binaries: Binaries, endpoints: Endpoints) -> list[str | Path]:
    peer = f"http://127.0.0.1:{endpoints.etcd_peer_port}"
    return [
        binaries.program("etcd"), "--name=default", f"--data-dir={layout.etcd}",
        f"--listen-client-urls={endpoints.etcd}", f"--advertise-client-urls={endpoints.etcd}",
        f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # nothing here outlives the run
        "--logger=zap", "--log-level=warn",
    ]  # fmt: skip


def _api_server(folder: Path, binaries: Binaries, endpoints: Endpoints) -> list[str | Path]:
    # On loopback nobody reaches it through a Service, and it may not be a Service's endpoint.
    reconciler = "none" if endpoints.address == LOOPBACK else "lease"
    return [
        binaries.program("kube-apiserver"), f"--etcd-servers={endpoints.etcd}",
        f"--bind-address={endpoints.address}", f"--secure-port={endpoints.api_port}",
        f"--advertise-address={endpoints.address}", f"--endpoint-reconciler-type={reconciler}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--tls-cert-file={folder}/apiserver.crt", f"--tls-private-key-file={folder}/apiserver.key",
        f"--client-ca-file={folder}/ca.crt", "--anonymous-auth=true", "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
        f"--service-account-key-file={folder}/sa.pub", f"--service-account-signing-key-file={folder}/sa.key",
        f"--service-account-issuer=https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        f"--kubelet-certificate-authority={folder}/ca.crt", "--kubelet-preferred-address-types=InternalIP,Hostname",
        f"--kubelet-client-certificate={folder}/apiserver-kubelet.crt",
        f"--kubelet-client-key={folder}/apiserver-kubelet.key",
        # The aggregation layer: APIServices' backends are reached by their pods' addresses, as this very server.
        f"--requestheader-client-ca-file={folder}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder}/front-proxy-client.crt",
        f"--proxy-client-key-file={folder}/front-proxy-client.key", "--enable-aggregator-routing=true",
        "--shutdown-delay-duration=0s", "--v=1",
    ]  # fmt: skip


def _controller_manager(folder: Path, binaries: Binaries) -> list[str | Path]:
    return [
        binaries.program("kube-controller-manager"), f"--kubeconfig={folder}/kube-controller-manager.kubeconfig",
        "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false",
        "--use-service-account-credentials=true", f"--service-account-private-key-file={folder}/sa.key",
        f"--root-ca-file={folder}/ca.crt", f"--cluster-signing-cert-file={folder}/ca.crt",
        f"--cluster-signing-key-file={folder}/ca.key", "--allocate-node-cidrs=false", f"--cluster-cidr={POD_CIDR}",
        # A test that waits for a HorizontalPodAutoscaler waits seconds, not minutes.
        "--horizontal-pod-autoscaler-sync-period=5s", "--horizontal-pod-autoscaler-downscale-stabilization=10s",
        "--pvclaimbinder-sync-period=2s", "--kube-api-qps=100", "--kube-api-burst=200", "--v=1",
    ]  # fmt: skip
