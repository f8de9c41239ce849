"""The Pod Security Standard `restricted`, checked on pod specs. Pure: for servers without its admission plugin, and for
manifests that no server has seen.

Source: kubernetes.io/docs/concepts/security/pod-security-standards (v1.36). `hardening_violations` asks for two things
more: a read-only root file system, and a service-account token only where it is said.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]

VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
SAFE_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_syncookies",
    }
)
SECCOMP = frozenset({"RuntimeDefault", "Localhost"})


def pod_spec(manifest: Object) -> Object | None:
    """The pod spec of a Pod or of whatever has a pod template; None for anything else."""
    spec: Object = manifest.get("spec") or {}
    if manifest["kind"] == "Pod":
        return spec
    if manifest["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    template: Object | None = spec.get("template")
    return None if template is None else template["spec"]


def restricted_violations(spec: Object) -> list[str]:
    """A sentence for everything in a pod spec that `restricted` forbids; empty = admitted."""
    return [*_pod_violations(spec), *(found for one in _containers(spec) for found in _container_violations(spec, one))]


def hardening_violations(spec: Object) -> list[str]:
    """What we ask of our own pods beyond `restricted`."""
    found = [] if "automountServiceAccountToken" in spec else ["automountServiceAccountToken is not said"]
    for container in _containers(spec):
        if not (container.get("securityContext") or {}).get("readOnlyRootFilesystem"):
            found.append(f"{container['name']}: its root file system can be written")
    return found


def _containers(spec: Object) -> list[Object]:
    return [one for kind in ("initContainers", "containers", "ephemeralContainers") for one in spec.get(kind) or []]


def _pod_violations(spec: Object) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field} is on"
    for volume in spec.get("volumes") or []:
        if not VOLUMES & set(volume):
            yield f"volume {volume['name']} is of a kind that is not allowed"
    for sysctl in (spec.get("securityContext") or {}).get("sysctls") or []:
        if sysctl["name"] not in SAFE_SYSCTLS:
            yield f"sysctl {sysctl['name']} is not safe"


def _container_violations(spec: Object, container: Object) -> Iterator[str]:
    name = container["name"]
    pod, own = spec.get("securityContext") or {}, container.get("securityContext") or {}
    capabilities = own.get("capabilities") or {}
    if own.get("privileged"):
        yield f"{name}: is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: may escalate privileges"
    if "ALL" not in (capabilities.get("drop") or []):
        yield f"{name}: does not drop ALL capabilities"
    if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield f"{name}: adds capabilities"
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"{name}: may run as root"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield f"{name}: runs as root"
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in SECCOMP:
        yield f"{name}: has no seccomp profile"
    if (own.get("procMount") or "Default") != "Default":
        yield f"{name}: has a procMount"
    if any(port.get("hostPort") for port in container.get("ports") or []):
        yield f"{name}: has a host port"
