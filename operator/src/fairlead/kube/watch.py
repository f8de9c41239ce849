"""Reflector: a local copy of one kind of object, kept up to date by list and watch.

Used wherever objects are followed without kopf (the gateway's fleet, the operator's gateways, `fairlead top`).
Level-triggered users read `store` when `on_change` fires. Broken connections and refusals never raise: the reflector
backs off, goes on, and keeps its copy. Users judge how long a refusal may last.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from fairlead.kube.backoff import Backoff
from fairlead.kube.client import JsonObject, KubeClient, KubeError
from fairlead.kube.resources import Resource

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""Namespace (empty for cluster-wide kinds) and name."""
OnChange = Callable[[str, JsonObject], None]
"""Called with `ADDED`, `MODIFIED` or `DELETED` and the object, after the store has changed. Must not block."""

FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 15.0
STABLE_SECONDS = 10.0
"""A watch of this length resets the back-off, even after a bad end."""
REFUSALS = (403, 404)
"""Answers for places that do not exist for us."""


def key_of(obj: Mapping[str, Any]) -> Key:
    """Where an object is kept in a store."""
    metadata = obj["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


@dataclass(eq=False)
class Reflector:
    """`run()` it as a task and await `synced` before trusting `store` to be complete.

    `namespace`: None = all. `label_selector`: None = every object. `on_answer`: called after lists and refusals.
    `sleep` waits out the back-off.
    """

    client: KubeClient
    resource: Resource
    _: KW_ONLY
    namespace: str | None = None
    label_selector: str | None = None
    on_change: OnChange = lambda *_: None
    on_answer: Callable[[], None] = lambda: None
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep

    def __post_init__(self) -> None:
        self.store: dict[Key, JsonObject] = {}
        self.synced = asyncio.Event()
        """Set once the first list is in the store; stays set while a broken connection is being repaired."""
        self.refused_since: float | None = None
        """Begin of the API server's refusals, on the event loop's clock; None = none. Silence changes nothing."""
        self._resource_version: str | None = None

    async def run(self) -> None:
        """Follows the objects until cancelled."""
        backoff = Backoff(FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS, sleep=self.sleep)
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                if self._resource_version is None:
                    await self._list()
                await self._watch()
                backoff.reset()
            except KubeError as e:
                if e.status == 410 or (e.status != 0 and not e.may_pass):
                    self._resource_version = None  # too old, or the server does not want it: only a list can tell
                if clock() - started > STABLE_SECONDS:
                    backoff.reset()
                is_known = e.status == 410 or (e.status in REFUSALS and self.refused_since is not None)
                log = logger.debug if is_known else logger.warning
                log("watching %s: %s; again in %.1f s", self.resource.plural, e, backoff.seconds)
                if e.status in REFUSALS:
                    self.refused_since = clock() if self.refused_since is None else self.refused_since
                    self.on_answer()
                await backoff.pause()

    async def _list(self) -> None:
        document = await self.client.list(self.resource, self.namespace, label_selector=self.label_selector)
        fresh = {key_of(obj): obj for obj in document["items"]}
        for key in [key for key in self.store if key not in fresh]:
            self._remove(key, self.store[key])
        for key, obj in fresh.items():
            self._keep(key, obj)
        self._resource_version = document["metadata"]["resourceVersion"]
        self.synced.set()
        self.refused_since = None
        self.on_answer()

    async def _watch(self) -> None:
        assert self._resource_version is not None
        stream = self.client.watch(
            self.resource,
            self.namespace,
            resource_version=self._resource_version,
            label_selector=self.label_selector,
            timeout_seconds=random.uniform(240, 360),  # so that reconnects of many clients do not march in step
        )
        async for event in stream:
            obj = event["object"]
            if event["type"] in ("ADDED", "MODIFIED"):
                self._keep(key_of(obj), obj)
            elif event["type"] == "DELETED":
                self._remove(key_of(obj), obj)
            self._resource_version = obj["metadata"]["resourceVersion"]

    def _keep(self, key: Key, obj: JsonObject) -> None:
        known = self.store.get(key)
        self.store[key] = obj
        if known is None:
            self._tell("ADDED", obj)
        elif known["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._tell("DELETED", known)  # deleted and created again while we looked away
            self._tell("ADDED", obj)
        elif known["metadata"].get("resourceVersion") != obj["metadata"].get("resourceVersion"):
            self._tell("MODIFIED", obj)

    def _remove(self, key: Key, obj: JsonObject) -> None:
        if self.store.pop(key, None) is not None:
            self._tell("DELETED", obj)

    def _tell(self, event_type: str, obj: JsonObject) -> None:
        try:
            self.on_change(event_type, obj)
        except Exception:
            logger.exception("a follower of %s failed on %s", self.resource.plural, event_type)
