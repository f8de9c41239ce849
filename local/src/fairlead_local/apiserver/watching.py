"""Watches: the store's changes as one client selected them, with bookmarks, until the client's timeout or a 410."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fairlead_local.apiserver.operations import presented
from fairlead_local.apiserver.resources import ResourceType
from fairlead_local.apiserver.selectors import FieldSelector, LabelSelector
from fairlead_local.apiserver.status import Json, StatusError, bad_request
from fairlead_local.apiserver.store import Change, ChangeType, Store

BOOKMARK_SECONDS = 10.0
"""Between bookmarks on a quiet watch; to clients, a minute of silence is a broken connection."""
DEFAULT_TIMEOUT_SECONDS = 1_800.0

INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """The selection of one watch. `since`: "" and "0" begin with an ADDED of every present object."""

    resource: ResourceType
    namespace: str = ""
    labels: LabelSelector = field(default_factory=LabelSelector)
    fields: FieldSelector = field(default_factory=FieldSelector)
    since: str = ""
    bookmarks: bool = False
    initial_events: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    def selects(self, obj: Json) -> bool:
        """Whether the watch covers an object in this state."""
        metadata = obj["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        return self.labels.matches(metadata.get("labels")) and self.fields.matches(obj)

    def event(self, change: Change) -> tuple[str, Json] | None:
        """The change to this watch: an object begins to match as ADDED, and ceases to match as DELETED."""
        after = change.type is not ChangeType.DELETED and self.selects(change.object)
        before = change.previous is not None and self.selects(change.previous)
        if not after and not before:
            return None
        kind = "MODIFIED" if after and before else "ADDED" if after else "DELETED"
        return kind, presented(self.resource, change.object)


async def watch(store: Store, request: WatchRequest) -> AsyncIterator[tuple[str, Json]]:
    """Yields (type, object); an ERROR with a Status is the last. Raises 400 for a malformed `since`."""
    woken = asyncio.Event()
    name = request.resource.qualified
    unsubscribe = store.subscribe(lambda change: woken.set() if change.resource == name else None)
    try:
        cursor = parse_version(request.since)
        if not cursor or request.initial_events:
            cursor = store.version
            for obj in store.list(name):
                if request.selects(obj):
                    yield "ADDED", presented(request.resource, obj)
            if request.initial_events:
                yield "BOOKMARK", _bookmark(request.resource, cursor, INITIAL_EVENTS_END)
        async for event in _follow(store, request, cursor, woken):
            yield event
    except StatusError as error:
        yield "ERROR", error.body()
    finally:
        unsubscribe()


async def _follow(
    store: Store, request: WatchRequest, cursor: int, woken: asyncio.Event
) -> AsyncIterator[tuple[str, Json]]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + request.timeout_seconds
    while True:
        woken.clear()
        version = store.version
        for change in store.changes_since(request.resource.qualified, cursor):
            if event := request.event(change):
                yield event
        cursor = version
        remaining = deadline - loop.time()
        if remaining <= 0:
            return
        try:
            async with asyncio.timeout(min(remaining, BOOKMARK_SECONDS)):
                await woken.wait()
        except TimeoutError:
            if request.bookmarks and not woken.is_set():
                cursor = store.version
                yield "BOOKMARK", _bookmark(request.resource, cursor)


def parse_version(text: str) -> int:
    """A resourceVersion of a query; 0 = absent or any. Raises 400."""
    if text and not text.isdigit():
        raise bad_request(f"Invalid value: {text!r}: resourceVersion must be a number this server gave out")
    return int(text or 0)


def _bookmark(resource: ResourceType, version: int, annotations: dict[str, str] | None = None) -> Json:
    metadata: Json = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        metadata["annotations"] = annotations
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
