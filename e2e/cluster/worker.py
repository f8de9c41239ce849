"""containerd, kubelet and kube-proxy: their settings and command lines, all inside the node's own namespaces."""

import json
from pathlib import Path
from typing import Any

from cluster.layout import CLUSTER_DOMAIN, NAME, NODE_ADDRESS, POD_CIDR, Layout
from cluster.programs import PAUSE_IMAGE, Binaries

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""As the node sees it; on the host it lies below the state folder's root/run."""


def write_configuration(layout: Layout, binaries: Binaries) -> None:
    """Writes every settings file of the worker's components into `layout.configuration`."""
    folder = layout.configuration
    (folder / "cni").mkdir(parents=True, exist_ok=True)
    (folder / "containerd.toml").write_text(_containerd(folder, binaries))
    for name, content in {
        "cni/10-bridge.conflist": _bridge(),
        "kubelet.yaml": _kubelet(layout),
        "kube-proxy.yaml": _kube_proxy(layout),
    }.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "resolv.conf").write_text(f"nameserver {NODE_ADDRESS}\n")


def commands(layout: Layout, binaries: Binaries) -> dict[str, list[str | Path]]:
    """The command line of each component, by its name."""
    folder = layout.configuration
    return {
        "containerd": [binaries.program("containerd"), f"--config={folder}/containerd.toml"],
        "kubelet": [
            binaries.program("kubelet"), f"--config={folder}/kubelet.yaml",
            f"--kubeconfig={layout.pki}/kubelet.kubeconfig", f"--hostname-override={NAME}", f"--node-ip={NODE_ADDRESS}",
            f"--cgroup-root=/{NAME}", "--register-node=true", "--v=2",
        ],
        "kube-proxy": [binaries.program("kube-proxy"), f"--config={folder}/kube-proxy.yaml", "--v=2"],
    }  # fmt: skip


def _containerd(folder: Path, binaries: Binaries) -> str:
    return f"""version = 3
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{folder}/registries"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # root in a container of its own may lack the capability to lower it
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{binaries.program("runc")}"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{binaries.cni_plugins}"]
    conf_dir = "{folder}/cni"
"""


def _bridge() -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": POD_CIDR}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}


def _kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "failCgroupV1": False,  # the preflight asks for version 1
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{layout.pki}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{layout.pki}/kubelet-server.key",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [NODE_ADDRESS],
        "resolvConf": f"{layout.configuration}/resolv.conf",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "oomScoreAdj": 0,  # lowering it needs a capability that root may lack
        "maxOpenFiles": 20000,  # the machine's hard limit may be lower than the default of a million
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        # Images are loaded by hand and cannot be pulled again, so none may be collected.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
        },
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "2s",
    }  # fmt: skip


def _kube_proxy(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": POD_CIDR,
        "hostnameOverride": NAME,
        "oomScoreAdj": 0,
        "clientConnection": {"kubeconfig": f"{layout.pki}/kube-proxy.kubeconfig"},
        # Sizing connection tracking is the whole machine's business.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
