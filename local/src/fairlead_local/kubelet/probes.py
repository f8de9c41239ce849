"""Questions to a container: startup, readiness and liveness probes over HTTP or TCP; and the preStop hook, an HTTP
request whose answer allows the end of the container."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import aiohttp

from fairlead_local.apiserver.status import Json
from fairlead_local.kubelet.environment import ContainerConfigError

USER_AGENT = "kube-probe/1.32"


class ProbeKind(StrEnum):
    STARTUP = "startupProbe"
    READINESS = "readinessProbe"
    LIVENESS = "livenessProbe"

    @property
    def word(self) -> str:
        """`Readiness`, the first word of events."""
        return self.value.removesuffix("Probe").capitalize()


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of one container. Times in seconds."""

    kind: ProbeKind
    scheme: str
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...]
    delay: float
    period: float
    timeout: float
    successes: int
    failures: int
    grace: float | None = None
    """Grace period of the container after a failed probe; None = the grace period of the pod."""

    async def ask(self, session: aiohttp.ClientSession) -> str | None:
        """None = success, else the problem."""
        try:
            async with asyncio.timeout(self.timeout):
                return await (self._ask_tcp() if self.scheme == "TCP" else self._ask_http(session))
        except TimeoutError:
            return f"no answer from {self.host}:{self.port} within {self.timeout:g} s"

    async def _ask_tcp(self) -> str | None:
        try:
            _, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            return f"dial tcp {self.host}:{self.port}: {_connect_problem(error)}"
        writer.close()
        return None

    async def _ask_http(self, session: aiohttp.ClientSession) -> str | None:
        url = f"http://{self.host}:{self.port}{self.path}"
        headers = {"User-Agent": USER_AGENT, "Connection": "close", **dict(self.headers)}
        try:
            async with session.get(url, headers=headers, allow_redirects=False) as response:
                return None if response.status < 400 else f"HTTP probe failed with statuscode: {response.status}"
        except aiohttp.ClientConnectorError as error:
            return f'Get "{url}": dial tcp {self.host}:{self.port}: {_connect_problem(error)}'
        except (aiohttp.ClientError, OSError) as error:
            return f'Get "{url}": {error}'


def parse_probe(container: Json, kind: ProbeKind, pod_ip: str) -> Probe | None:
    """The probe of this kind; None = the container has none. Raises ContainerConfigError."""
    spec = container.get(kind.value)
    if not spec:
        return None
    handler = spec.get("httpGet") or spec.get("tcpSocket")
    if handler is None:
        used = next((name for name in ("exec", "grpc") if name in spec), "no handler")
        raise ContainerConfigError(f"{kind.value}: local mode probes with httpGet and tcpSocket, not with {used}")
    scheme = handler.get("scheme", "HTTP") if "httpGet" in spec else "TCP"
    if scheme == "HTTPS":
        raise ContainerConfigError(f"{kind.value}: local mode probes over HTTP, not over HTTPS")
    return Probe(
        kind=kind,
        scheme=scheme,
        host=handler.get("host") or pod_ip,
        port=port_of(container, handler["port"], kind.value),
        path="/" + handler.get("path", "/").lstrip("/"),
        headers=tuple((header["name"], header["value"]) for header in handler.get("httpHeaders") or ()),
        delay=spec.get("initialDelaySeconds", 0),
        period=max(1, spec.get("periodSeconds", 10)),
        timeout=max(1, spec.get("timeoutSeconds", 1)),
        successes=spec.get("successThreshold", 1),
        failures=spec.get("failureThreshold", 3),
        grace=spec.get("terminationGracePeriodSeconds"),
    )


async def watch_probe(
    probe: Probe, session: aiohttp.ClientSession, on_turn: Callable[[bool], None], on_failure: Callable[[str], None]
) -> None:
    """Probes for ever. Calls `on_turn` with the verdict when thresholds are reached, and `on_failure` with the text of
    every failure. After an answer that took a period or longer, the next probe follows at once, as in the kubelet of
    Kubernetes."""
    await asyncio.sleep(probe.delay)
    loop, streak, verdict = asyncio.get_running_loop(), 0, None
    while True:
        began = loop.time()
        problem = await probe.ask(session)
        if problem is not None:
            on_failure(problem)
        streak = max(1, streak + 1) if problem is None else min(-1, streak - 1)
        if streak >= probe.successes and verdict is not True:
            verdict = True
            on_turn(True)
        elif streak <= -probe.failures and verdict is not False:
            verdict = False
            on_turn(False)
        await asyncio.sleep(max(0.0, began + probe.period - loop.time()))


def _connect_problem(error: OSError) -> str:
    """`connect: connection refused`"""
    return f"connect: {os.strerror(error.errno).lower()}" if error.errno else str(error)


def port_of(container: Json, port: int | str, what: str) -> int:
    """A port by number, or by the name of a port of the container. `what`: the field. Raises ContainerConfigError."""
    if isinstance(port, int) or port.isdigit():
        return int(port)
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    raise ContainerConfigError(f'{what}: no port of the container is named "{port}"')


@dataclass(frozen=True, slots=True)
class PreStop:
    """The request before SIGTERM, within the grace period of the pod."""

    url: str

    async def ask(self, session: aiohttp.ClientSession) -> str | None:
        """None = answered, else the problem; the container is ended in any case."""
        try:
            async with session.get(self.url, timeout=aiohttp.ClientTimeout(total=None)) as response:
                await response.read()
                return None if response.status < 400 else f"HTTP {response.status}"
        except (aiohttp.ClientError, OSError) as error:
            return str(error) or type(error).__name__


def parse_pre_stop(container: Json, pod_ip: str) -> PreStop | None:
    """None = no hook. Raises ContainerConfigError for hooks of other kinds."""
    lifecycle = container.get("lifecycle") or {}
    if not lifecycle:
        return None
    asked = (lifecycle.get("preStop") or {}).get("httpGet")
    if asked is None or lifecycle.get("postStart") or asked.get("scheme", "HTTP") != "HTTP":
        raise ContainerConfigError("of lifecycle hooks, local mode runs preStop with httpGet over HTTP only")
    port, path = port_of(container, asked["port"], "preStop"), "/" + asked.get("path", "/").lstrip("/")
    return PreStop(f"http://{asked.get('host') or pod_ip}:{port}{path}")
