"""The preStop hook of a container: an HTTP request that is answered when the container may be asked to end."""

from dataclasses import dataclass
from typing import Any

import aiohttp

from fairlead_local.kubelet.environment import ContainerConfigError
from fairlead_local.kubelet.probes import ProbeRefused, port_of

Container = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreStop:
    """What is asked before SIGTERM. How long that may take is the pod's grace period."""

    url: str

    async def ask(self, session: aiohttp.ClientSession) -> str | None:
        """None when it was answered, else what was wrong: the container is ended all the same."""
        try:
            async with session.get(self.url, timeout=aiohttp.ClientTimeout(total=None)) as response:
                await response.read()
                return None if response.status < 400 else f"HTTP {response.status}"
        except (aiohttp.ClientError, OSError) as error:
            return str(error) or type(error).__name__


def parse_pre_stop(container: Container, pod_ip: str) -> PreStop | None:
    """None where there is none. Raises ConfigError for hooks of other kinds."""
    lifecycle = container.get("lifecycle") or {}
    if not lifecycle:
        return None
    asked = (lifecycle.get("preStop") or {}).get("httpGet")
    if asked is None or lifecycle.get("postStart") or asked.get("scheme", "HTTP") != "HTTP":
        raise ContainerConfigError("of lifecycle hooks, local mode runs preStop with httpGet over HTTP only")
    try:
        port = port_of(container, asked["port"], "preStop")
    except ProbeRefused as error:
        raise ContainerConfigError(str(error)) from error
    path = "/" + asked.get("path", "/").lstrip("/")
    return PreStop(f"http://{asked.get('host') or pod_ip}:{port}{path}")
