"""The subresources `scale` (an autoscaling/v1 Scale of any scalable object) and `log` (the output of a container)."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from pathlib import Path

from aiohttp import web

from fairlead_local.apiserver import requests, selectors
from fairlead_local.apiserver.operations import Operations, WriteOptions
from fairlead_local.apiserver.requests import RequestTarget
from fairlead_local.apiserver.resources import ResourceType, ScalePaths
from fairlead_local.apiserver.status import (
    STALE,
    Json,
    bad_request,
    conflict,
    internal_error,
    invalid_value,
    method_not_allowed,
    not_implemented,
)


def read_scale(operations: Operations, resource: ResourceType, namespace: str, name: str) -> Json:
    """The object's Scale. Raises 500 for a custom object that has no replicas, as API servers do."""
    paths, obj = resource.scale, operations.get(resource, namespace, name)
    assert paths is not None
    if resource.custom and selectors.find(obj, paths.spec_replicas) is None:
        raise internal_error(f'the spec replicas field "{paths.spec_replicas}" does not exist')
    return _scale_of(paths, obj)


def edit_scale(
    operations: Operations,
    resource: ResourceType,
    namespace: str,
    name: str,
    change: Callable[[Json], Json],
    options: WriteOptions,
) -> Json:
    """Writes the changed Scale's `spec.replicas` into the object; raises 409 for a Scale of another state."""
    paths, live = resource.scale, operations.get(resource, namespace, name)
    assert paths is not None
    wanted = change(_scale_of(paths, live))
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        text = f"{replicas}: must be a whole number greater than or equal to 0"
        raise resource.invalid(name, invalid_value("spec.replicas", text))
    asked = (wanted.get("metadata") or {}).get("resourceVersion")
    if asked and asked != live["metadata"]["resourceVersion"]:
        raise conflict(resource.qualified, name, STALE)

    def set_replicas(obj: Json) -> Json:
        obj = deepcopy(obj)
        selectors.place(obj, paths.spec_replicas, replicas)
        return obj

    return _scale_of(paths, operations.edit(resource, namespace, name, set_replicas, options).object)


def _scale_of(paths: ScalePaths, obj: Json) -> Json:
    metadata = obj["metadata"]
    status: Json = {"replicas": selectors.find(obj, paths.status_replicas) or 0}
    selector = selectors.find(obj, paths.selector) if paths.selector else _selector_text(obj)
    if selector:
        status["selector"] = selector
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata[field] for field in kept if field in metadata},
        "spec": {"replicas": selectors.find(obj, paths.spec_replicas) or 0},
        "status": status,
    }


def _selector_text(obj: Json) -> str:
    """A workload's selector in the form query strings use."""
    selector = obj.get("spec", {}).get("selector")
    if not isinstance(selector, dict):
        return ""
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    words = {"In": "in", "NotIn": "notin"}
    for expression in selector.get("matchExpressions") or ():
        key, operator = expression["key"], expression["operator"]
        if operator in words:
            terms.append(f"{key} {words[operator]} ({','.join(expression.get('values') or ())})")
        else:
            terms.append(key if operator == "Exists" else f"!{key}")
    return ",".join(terms)


FOLLOW_SECONDS = 0.1
"""Between two looks at a followed log."""
_CHUNK_BYTES = 65_536


LogSource = Callable[[Json, str, bool], tuple[Path, Callable[[], bool]] | None]
"""Pod, container, whether the previous run → the log, and whether the process still writes; None = no such run."""


async def stream_log(
    request: web.Request, operations: Operations, source: LogSource | None, target: RequestTarget
) -> web.StreamResponse:
    """Plain text; raises 400 before the first run of the container."""
    if request.method != "GET":
        raise method_not_allowed()
    query = request.query
    for name in ("sinceSeconds", "sinceTime", "timestamps"):
        if query.get(name, "false") != "false":
            raise not_implemented(f"{name} for logs: lines are kept as the program wrote them, without their times")
    pod = operations.get(target.resource, target.namespace, target.name)
    container = _container(pod, query.get("container", ""))
    previous = requests.is_true(query, "previous")
    found = source(pod, container, previous) if source is not None else None
    if found is None:
        name = pod["metadata"]["name"]
        if "previous" in query:
            raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
        status = pod.get("status") or {}
        statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        waiting = next(((s.get("state") or {}).get("waiting") or {} for s in statuses if s["name"] == container), {})
        reason = waiting.get("reason") or "ContainerCreating"
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {reason}')
    tail, limit = (requests.positive_int(query, name) for name in ("tailLines", "limitBytes"))
    follow = requests.is_true(query, "follow")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    async for chunk in _read(*found, tail, follow):
        await response.write(chunk if limit is None else chunk[:limit])
        if limit is not None:
            limit -= len(chunk)
            if limit <= 0:
                break
    return response


async def _read(path: Path, writing: Callable[[], bool], tail: int | None, follow: bool) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        if tail is not None:
            yield b"".join(deque(file, min(tail, sys.maxsize)))
        while True:
            alive = follow and writing()  # before the read, which then includes the last words
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
            if not alive:
                return
            await asyncio.sleep(FOLLOW_SECONDS)


def _container(pod: Json, name: str) -> str:
    names = [container["name"] for container in pod["spec"]["containers"]]
    init = [container["name"] for container in pod["spec"].get("initContainers") or ()]
    if not name and len(names) == 1:
        return str(names[0])
    if not name:
        raise bad_request(
            f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: {names}"
        )
    if name not in (*names, *init):
        raise bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")
    return name
