"""Path, query, headers and body of a request, parsed for the verbs. Pure; raises `StatusError` for the unreadable."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from fairlead_local.apiserver import protobuf
from fairlead_local.apiserver.admission import FieldValidation
from fairlead_local.apiserver.operations import WriteOptions
from fairlead_local.apiserver.resources import Registry, ResourceType
from fairlead_local.apiserver.status import (
    Json,
    bad_request,
    no_such_path,
    not_implemented,
    unsupported_media_type,
)

_UNSUPPORTED = {
    "exec": "kubectl exec: containers are processes of this machine, so look at them with its own tools",
    "attach": "kubectl attach: read the output with kubectl logs",
    "portforward": "kubectl port-forward: pods listen on addresses of this machine (kubectl get pods -o wide)",
    "proxy": "kubectl proxy to pods and services: pods listen on addresses of this machine",
    "eviction": "evictions: delete the pod instead",
    "ephemeralcontainers": "ephemeral containers",
    "token": "service account tokens",
    "binding": "binding by other schedulers",
}


class ReplyShape(StrEnum):
    """The form in which the client wants objects back."""

    OBJECT = "object"
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"


class PatchType(StrEnum):
    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The target of a path. Empty `name` = a collection; empty `namespace` = all namespaces."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def parse_target(registry: Registry, parts: list[str]) -> RequestTarget:
    """From the segments below `/api` or `/apis`; raises 404 where nothing is served."""
    if parts[:2] == ["api", "v1"] and len(parts) > 2:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    resource = registry.get(group, version, rest[0])
    if (
        len(rest) > 3
        or bool(namespace) > resource.namespaced
        or (len(rest) > 1 and resource.namespaced > bool(namespace))
    ):
        raise no_such_path()
    subresource = rest[2] if len(rest) > 2 else ""
    finalizes = resource.plural == "namespaces" and subresource == "finalize"
    if subresource and subresource not in resource.subresources and not finalizes:
        if not resource.custom and subresource in _UNSUPPORTED:
            raise not_implemented(_UNSUPPORTED[subresource])
        raise no_such_path()
    return RequestTarget(resource, namespace, *rest[1:])


def shape(accept: str) -> ReplyShape:
    """From the Accept header: clients name a Table or bare metadata first, and JSON after."""
    for choice in accept.split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        wanted = dict(parameter.partition("=")[::2] for parameter in parameters)
        if kind in ("application/json", "*/*", "application/*") and wanted.get("v", "v1") == "v1":
            name = wanted.get("as", "").removesuffix("List")
            return ReplyShape(name) if name in (ReplyShape.TABLE, ReplyShape.PARTIAL) else ReplyShape.OBJECT
    return ReplyShape.OBJECT


def write_options(query: Mapping[str, str], user_agent: str, subresource: str) -> WriteOptions:
    """Raises 400 for values no API server knows."""
    manager = query.get("fieldManager") or user_agent.partition("/")[0] or "unknown"
    validation = query.get("fieldValidation") or FieldValidation.WARN
    if validation not in list(FieldValidation):
        raise bad_request(f'fieldValidation: Unsupported value: "{validation}": supported: Ignore, Strict, Warn')
    return WriteOptions(
        manager=manager[:128],
        dry_run=dry_run(query),
        validation=FieldValidation(validation),
        subresource=subresource,
    )


def dry_run(query: Mapping[str, str]) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
    return value == "All"


def is_true(query: Mapping[str, str], name: str) -> bool:
    """A boolean of the query; `watch` and `watch=1` count too."""
    return query.get(name, "false").lower() in ("", "1", "true", "t")


def decode_body(content_type: str, body: bytes) -> Json:
    """An object in JSON or YAML, or in protobuf for a few kinds. Raises 415 for other types; the text for other
    protobuf names a command that works."""
    kind = content_type.partition(";")[0].strip()
    if kind == "application/vnd.kubernetes.protobuf":
        try:
            return protobuf.decode(body)
        except protobuf.NotRead as error:
            known = ", ".join(each for _, each in protobuf.KINDS)
            raise unsupported_media_type(
                f"local mode reads JSON and YAML, and protobuf of {known} as `kubectl create` sends it: {error}. Add "
                "`--dry-run=client -o yaml` to the command and pipe that to `kubectl apply -f -`"
            ) from error
    if kind not in ("", "application/json", "application/yaml", "application/octet-stream"):
        raise unsupported_media_type(f"the body of the request is of type {kind}; local mode reads JSON and YAML")
    document = decode_yaml(body) if kind == "application/yaml" else decode_json(body)
    if not isinstance(document, dict):
        raise bad_request("the body of the request is not an object")
    return document


def decode_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise bad_request(f"the body of the request is not JSON: {error}") from error


def decode_yaml(body: bytes) -> Any:
    """JSON too: it is YAML."""
    try:
        return json.loads(body)
    except ValueError:
        pass  # the rest of YAML
    try:
        return yaml.load(body, Loader=_JsonLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise bad_request(f"the body of the request is not YAML: {error}") from error


class _JsonLoader(yaml.SafeLoader):
    """YAML with JSON's types: a time stays a text."""


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def positive_int(query: Mapping[str, str], name: str) -> int | None:
    """A whole number of the query; None = absent. Raises 400 for other texts."""
    text = query.get(name)
    if text is None or text == "":
        return None
    if not text.isdigit():
        raise bad_request(f"{name}: Invalid value: {text!r}: must be a whole number, not below 0")
    return int(text)
