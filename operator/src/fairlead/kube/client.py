"""KubeClient: requests to one API server. Raw objects in and out; every call has a timeout.

Used by Reflector, Lease, operator and gateway. Knows no kinds beyond `resources`, never retries (callers know what may
be repeated), and raises KubeError for every failure.
"""

import asyncio
import base64
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from fairlead.kube.kubeconfig import KubeConfig, KubeConfigError, LoginFailed, load
from fairlead.kube.resources import Resource
from fairlead_common.http.client import HttpClient, TimeLimits, lines
from fairlead_common.http.client_connection import Connection, TransportError, cause_of
from fairlead_common.http.origin import basic_credentials, parse

JsonObject = dict[str, Any]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML, so these bodies are sent as JSON."""

TOKEN_FILE_SECONDS = 60.0
"""How long a token that was read from a file is used before the file is read again."""
RENEW_BEFORE = timedelta(seconds=30)
"""Before a login expires, it is renewed."""
PAGE_SIZE = 500
"""Objects per page of a list."""
MAX_ANSWER_BYTES = 2**30
"""More than a page of the largest possible objects."""
MAX_MESSAGE_LENGTH = 4096
"""Characters of a quoted refusal, which may repeat the whole object."""
MAX_REQUESTS = 100
"""At once, of those that end soon: watches keep nobody waiting, however many namespaces are watched."""
RECURSION_LIMIT = 12_000
"""Python's limit, for the deepest JSON of API servers: ten thousand levels. Decoders in C refuse deeper JSON; at 50,000
msgspec overflows a stack of 8 MB, which ends the process."""
_UNTYPED = "failed to create typed patch object"
PHRASES = {each.value: each.phrase for each in HTTPStatus}


class KubeError(Exception):
    """The API refused, or could not be reached.

    `status` is the HTTP status, 0 when there was no answer; `reason` is Kubernetes' CamelCase word (`NotFound`,
    `Conflict`, `Invalid`, …; `Unreachable` when there was no answer); `message` is for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({reason}, HTTP {status})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later: no answer, too many requests, or a server error. Some servers
        report malformed objects as server errors."""
        is_the_servers = self.status >= 500 and not self.message.startswith(_UNTYPED)
        return self.status == 0 or self.status == 429 or is_the_servers

    @property
    def is_final(self) -> bool:
        """Whether the object is refused for good, whoever asks."""
        return self.status in (400, 422) or self.message.startswith(_UNTYPED)


class KubeClient:
    """Use as `async with KubeClient(config) as client`, or close it. Not shared between event loops."""

    def __init__(self, config: KubeConfig, *, timeout: float = 30.0) -> None:
        """`timeout`: seconds for a whole call, unless the call says otherwise (watches last longer)."""
        self.config = config
        self.timeout = timeout
        origin, self._path = parse(config.server, config.ssl_context())
        self._origin = origin._replace(server_name=config.tls_server_name, proxy=config.proxy)
        self._http = HttpClient(max_requests=MAX_REQUESTS)
        self._watches = HttpClient(max_idle=0)
        self._token = config.token
        self._token_read = float("-inf")
        self._logging_in = asyncio.Lock()
        self._renew_at = datetime.min.replace(tzinfo=UTC)
        """When the next request has to log in first."""

    @classmethod
    async def from_environment(cls, kubeconfig: Path | None = None, context: str | None = None) -> Self:
        """KUBECONFIG, else the pod's ServiceAccount, else ~/.kube/config. Raises KubeConfigError when there is none."""
        return cls(load(kubeconfig, context))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. The client must not be used afterwards."""
        self._http.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject:
        """One object. Raises KubeError with status 404 where there is none."""
        return await self.request("GET", resource.path(namespace, name))

    async def find(self, resource: Resource, name: str, namespace: str) -> JsonObject | None:
        """One object; None where there is none."""
        try:
            return await self.get(resource, name, namespace)
        except KubeError as e:
            if e.status == 404:
                return None
            raise

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> JsonObject:
        """All pages of a list: `items`, and `metadata.resourceVersion` to watch from. Items get `apiVersion` and
        `kind`, which API servers leave out of lists."""
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        params = {name: value for name, value in selectors.items() if value} | {"limit": str(PAGE_SIZE)}
        items: list[JsonObject] = []
        more: JsonObject = {}
        while True:
            page = await self.request("GET", resource.path(namespace), params=params | more)
            if page.get("kind") != f"{resource.kind}List":  # other servers answer with objects of their own
                server = self.config.public(self.config.server)
                message = f"{server} did not answer with a list of {resource.plural}: it is no Kubernetes API"
                raise KubeError(0, "Unreachable", message)
            items += page.get("items") or ()  # Kubernetes writes an empty list as null
            if not (token := (page.get("metadata") or {}).get("continue")):
                break
            more = {"continue": token}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return page | {"items": [kind | item for item in items]}

    async def create(self, resource: Resource, obj: Mapping[str, Any]) -> JsonObject:
        """Raises KubeError with status 409 where the name is taken."""
        return await self.request("POST", resource.path(obj["metadata"].get("namespace")), body=obj)

    async def replace(self, resource: Resource, obj: Mapping[str, Any]) -> JsonObject:
        """PUT of an object read before. Raises KubeError with status 409 where it changed since."""
        metadata = obj["metadata"]
        return await self.request("PUT", resource.path(metadata.get("namespace"), metadata["name"]), body=obj)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str | None = None,
        params: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """A patch of type `content_type`; returns the new object."""
        path = resource.path(namespace, name, subresource)
        return await self.request("PATCH", path, params=params, body=body, content_type=content_type)

    async def apply(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        field_manager: str,
        *,
        force: bool = False,
        subresource: str | None = None,
    ) -> JsonObject:
        """Server-side apply: creates `obj`, or sets its fields; returns the new object.

        Fields that `field_manager` applied before and no longer names are removed. `force`: takes over other managers'
        fields, which are otherwise a KubeError with status 409. With `metadata.uid` in `obj`, only that very object is
        changed (409 otherwise).
        """
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        options: dict[str, Any] = {"content_type": APPLY_PATCH, "subresource": subresource, "params": params}
        return await self.patch(resource, name, obj, namespace, **options)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> JsonObject:
        """Deletes in the background (children follow). `uid`: only this very object. Raises KubeError with status 404
        for a missing object, 409 for another uid."""
        body: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        return await self.request("DELETE", resource.path(namespace, name), body=body)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> JsonObject:
        """Any call whose answer is one JSON object. `timeout` in seconds; None = the client's."""
        whole = self.timeout if timeout is None else timeout
        limits = TimeLimits(connect=whole, first_byte=whole, silence=whole, whole=whole)
        asked = self._answer(self._http, method, path, limits, params, body, content_type or JSON)
        async with asked as response:
            document = _decoded(await response.read(MAX_ANSWER_BYTES))
        if not isinstance(document, dict):
            message = f"{method} {self.config.server}{path} did not answer with a JSON object"
            raise KubeError(0, "Unreachable", self.config.public(message))
        return document

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        timeout_seconds: float = 300.0,
        silence_seconds: float = 90.0,
    ) -> AsyncIterator[JsonObject]:
        """Events `{"type", "object"}` since `resource_version`, bookmarks included, until the server ends the stream.

        `timeout_seconds`: after which the server should end it; `silence_seconds`: after which a silent connection
        counts as broken. Raises KubeError, with status 410 when `resource_version` is too old.
        """
        params = {"labelSelector": label_selector} if label_selector else {}
        params |= {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        params["timeoutSeconds"] = str(max(1, int(timeout_seconds)))
        limits = TimeLimits(connect=self.timeout, first_byte=silence_seconds, silence=silence_seconds)
        async with self._answer(self._watches, "GET", resource.path(namespace), limits, params) as response:
            async for line in lines(response):
                event = _decoded(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise _from_status(status, int(status.get("code") or 500))
                yield event

    @asynccontextmanager
    async def _answer(
        self,
        http: HttpClient,
        method: str,
        path: str,
        limits: TimeLimits,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> AsyncIterator[Connection]:
        """The response, unless refused. Answers that break off or cannot be understood raise KubeError, too."""
        await self._log_in()
        headers = {"accept": JSON} | self._authorization()
        document = None if body is None else json.dumps(body).encode()
        if document is not None:
            headers["content-type"] = content_type
        try:
            async with http.request(
                self._origin, method, self._path + path, limits, params=params, headers=headers, body=document
            ) as response:
                if response.status == 401:
                    self._renew_at = datetime.min.replace(tzinfo=UTC)
                if response.status >= 300:
                    raise await _refusal(response)
                yield response
        except (TransportError, TimeoutError, ValueError) as e:
            message = f"{method} {self.config.server}{path}: {cause_of(e)}"
            raise KubeError(0, "Unreachable", self.config.public(message)) from e

    async def _log_in(self) -> None:
        """Where the kubeconfig says how, and what the last login gave has expired or was refused."""
        if self.config.login is None:
            return
        async with self._logging_in:
            if datetime.now(UTC) < self._renew_at:
                return
            try:
                credential = await asyncio.to_thread(self.config.login)
                config = self.config.with_credential(credential)
                self._token, self._origin = config.token, self._origin._replace(tls=config.ssl_context())
            except (LoginFailed, KubeConfigError) as e:
                raise KubeError(0, "Unreachable", str(e)) from e
            self._http.keep_only(frozenset({self._origin}))
            expires = credential.expires or datetime.max.replace(tzinfo=UTC)
            self._renew_at = max(datetime.now(UTC), expires - RENEW_BEFORE)

    def _authorization(self) -> dict[str, str]:
        file, user = self.config.token_file, self.config.username
        if file is not None and time.monotonic() - self._token_read > TOKEN_FILE_SECONDS:
            try:
                self._token = file.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as e:
                why = e.strerror if isinstance(e, OSError) else "it is not plain text"
                raise KubeError(0, "Unreachable", f"cannot read the API token from the file {file}: {why}") from e
            if not self._token.isprintable() or not self._token:
                is_it = "has several lines" if self._token else "is empty"
                raise KubeError(0, "Unreachable", f"the file {file}, which should hold the API token, {is_it}")
            self._token_read = time.monotonic()
        if self._token is not None:
            return {"authorization": f"Bearer {self._token}"}
        if user is not None:
            pair = base64.b64encode(f"{user}:{self.config.password or ''}".encode()).decode()
            return {"authorization": f"Basic {pair}"}
        credentials = basic_credentials(self.config.server)
        return {"authorization": credentials} if credentials else {}


def _decoded(text: str | bytes) -> Any:
    """JSON of any depth: API servers take objects nested ten thousand deep, and one must not spoil a list."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
    try:
        return json.loads(text)
    finally:
        sys.setrecursionlimit(limit)


async def _refusal(response: Connection) -> KubeError:
    """In Kubernetes' own words, if it has any."""
    text = (await response.read(MAX_ANSWER_BYTES)).decode(errors="replace")
    try:
        document = _decoded(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != "Status":
        phrase = PHRASES.get(response.status, "")
        document = {"message": text.strip()[:500] or phrase, "reason": phrase.replace(" ", "")}
    return _from_status(document, response.status)


def _from_status(document: Mapping[str, Any], status: int) -> KubeError:
    message = str(document.get("message") or "no message")
    return KubeError(status, str(document.get("reason") or "Unknown"), message[:MAX_MESSAGE_LENGTH])
