"""What belongs to an LLMDeployment, as an API server has it, and whether anybody writes to it."""

import time
from collections.abc import Callable
from typing import Any

from homes.kubectl import LABEL_LLMDEPLOYMENT, Json, Kubectl

OWNED = "deployments,services,configmaps,networkpolicies"
"""Kinds of which the operator makes one or more for each LLMDeployment, on any server."""


def listed(server: Kubectl, kinds: str, name: str) -> list[Json]:
    """The objects of these kinds that carry the LLMDeployment's label."""
    items: list[Json] = server.get(kinds, "", "-l", f"{LABEL_LLMDEPLOYMENT}={name}")["items"]
    return items


def versions(objects: list[Json]) -> dict[str, str]:
    """Kind and name → version, which every write changes."""
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"] for each in objects}


def events(server: Kubectl, name: str) -> list[Json]:
    """Those about the LLMDeployment."""
    about = f"involvedObject.kind=LLMDeployment,involvedObject.name={name}"
    items: list[Json] = server.get("events", "", "--field-selector", about)["items"]
    return items


def everything(server: Kubectl, name: str) -> dict[str, str]:
    """The versions of the LLMDeployment, of what the operator makes for it, and of what is told of it."""
    return versions([server.get("llm", name), *listed(server, OWNED, name), *events(server, name)])


def stands_still(server: Kubectl, seen: Callable[[], Any], seconds: float, patience: float = 30.0) -> Any:
    """What has not changed for so long; whoever writes without end never lets it come to that."""
    last, since, deadline = seen(), time.monotonic(), time.monotonic() + patience
    while time.monotonic() - since < seconds:
        if (now := seen()) != last:
            last, since = now, time.monotonic()
        assert time.monotonic() < deadline, f"it changes on and on: {last}\n{server.state()}"
        time.sleep(server.poll_seconds)
    return last
