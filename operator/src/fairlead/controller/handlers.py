"""All kopf handlers: indexes of seen objects, and event handlers that trigger looks.

Handlers return None; kopf then writes neither finalizers nor annotations.
"""

from collections.abc import Mapping
from typing import Any

import kopf

from fairlead.api import names
from fairlead.controller.observe import Cluster, NameClaim, name_claims
from fairlead.controller.worker import Key, WorkQueue
from fairlead.kube.client import JsonObject
from fairlead.kube.kubeconfig import KubeConfig, LoginFailed
from fairlead.kube.resources import CHILDREN, LLMDEPLOYMENTS, OPTIONAL_CHILDREN, PODS, Resource

WATCH_SECONDS = 300
"""Length of one watch request."""
OURS: Mapping[str, Any] = {names.LABEL_LLMDEPLOYMENT: kopf.PRESENT}
"""Selects the children of LLMDeployments."""


def build_registry(
    cluster: Cluster, queue: WorkQueue, config: KubeConfig, optional_kinds: tuple[Resource, ...] = ()
) -> kopf.OperatorRegistry:
    """kopf's registry, without global decorators. `optional_kinds`: of children, beside the usual ones."""
    registry = kopf.OperatorRegistry()
    ours = _selector(LLMDEPLOYMENTS)

    # The names of the indexes are the ids; `Cluster.bind` finds them among a handler's arguments.
    @kopf.index(*ours, registry=registry, id="llmdeployments")
    def llmdeployments(*, namespace: str | None, name: str, body: kopf.Body, **_: Any) -> dict[Key, JsonObject]:
        return {(namespace or "", name): _plain(body)}

    @kopf.index(*ours, registry=registry, id="name_claims")
    def claims(*, body: kopf.Body, **_: Any) -> dict[str, NameClaim]:
        return name_claims(body)

    def owned(*, namespace: str | None, body: kopf.Body, **_: Any) -> dict[Key, JsonObject]:
        return {(namespace or "", body["metadata"]["labels"][names.LABEL_LLMDEPLOYMENT]): _plain(body)}

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection_info(config)

    @kopf.on.event(*ours, registry=registry, id="on-llmdeployment")
    def on_llmdeployment(*, namespace: str | None, name: str, **indexes: Any) -> None:
        cluster.bind(indexes)
        key = (namespace or "", name)
        queue.add_all([key, *cluster.rivals_of(key), *cluster.keys_in_conflict()])

    def on_child(*, namespace: str | None, labels: Mapping[str, str], **indexes: Any) -> None:
        cluster.bind(indexes)
        queue.add((namespace or "", labels[names.LABEL_LLMDEPLOYMENT]))

    for resource in (*CHILDREN, *optional_kinds, PODS):
        index = "pods" if resource is PODS else "children"
        kopf.index(*_selector(resource), registry=registry, id=index, labels=OURS)(owned)
        kopf.on.event(*_selector(resource), registry=registry, id=f"on-{resource.plural}", labels=OURS)(on_child)
    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Server-side selectors, to stream only our children, and time limits for every request."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # Events are written by `events`, on change only
    settings.scanning.disabled = True  # else kopf watches namespaces and CRDs, for which no operator needs rights
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    for resource in (*CHILDREN, *OPTIONAL_CHILDREN, PODS):
        settings.watching.label_selectors[_selector(resource)] = names.LABEL_LLMDEPLOYMENT
    return settings


def connection_info(config: KubeConfig) -> kopf.ConnectionInfo:
    """The way of our own client to the same API server. Token files are read at each login. Raises kopf.LoginError
    where the kubeconfig's own login fails."""
    credential = None
    if config.login is not None:
        try:
            credential = config.login()
        except LoginFailed as e:
            raise kopf.LoginError(str(e)) from e
        config = config.with_credential(credential)
    return kopf.ConnectionInfo(
        server=config.server,
        proxy_url=config.proxy,
        scheme="Bearer" if config.token_file or config.token else None,
        token=config.token_file.read_text().strip() if config.token_file else config.token,
        username=config.username,
        password=config.password,
        ca_data=config.ca_data.encode() if config.ca_data else None,
        certificate_data=config.certificate_data.encode() if config.certificate_data else None,
        private_key_data=config.key_data.encode() if config.key_data else None,
        insecure=config.insecure_skip_tls_verify,
        default_namespace=config.namespace,
        expiration=credential.expires if credential else None,
    )


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _plain(body: kopf.Body) -> JsonObject:
    """Without managedFields, most of an object's weight, which nobody reads here."""
    plain = dict(body)
    plain["metadata"] = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    return plain
