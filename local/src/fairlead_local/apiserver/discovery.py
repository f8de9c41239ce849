"""What the server serves: the discovery documents under /api and /apis, and the OpenAPI v3 documents. Pure."""

import hashlib
import json

from fairlead_local.apiserver.resources import Registry, ResourceType
from fairlead_local.apiserver.status import Json, no_such_path

VERSION = {
    "major": "1",
    "minor": "32",
    "gitVersion": "v1.32.0+fairlead",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The release of the behaviour; the suffix tells people of local mode."""

OPENAPI_V2_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Of the empty `/openapi/v2`. kubectl asks about kinds that v3 does not know, and needs an answer to say so."""

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_JSON = "application/json"


def core_versions(address: str) -> Json:
    """`/api`."""
    server = {"clientCIDR": "0.0.0.0/0", "serverAddress": address}
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [server]}


def groups(registry: Registry) -> Json:
    """`/apis`."""
    named = [group(registry, name) for name in registry.versions() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}


def group(registry: Registry, name: str) -> Json:
    """`/apis/GROUP`; raises 404 for a group that is not served."""
    versions = registry.versions().get(name)
    if not versions or not name:
        raise no_such_path()
    described = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": described,
        "preferredVersion": described[0],
    }


def resources(registry: Registry, name: str, version: str) -> Json:
    """`/api/v1` and `/apis/GROUP/VERSION`; raises 404 for what is not served."""
    served = _served(registry, name, version)
    entries = [entry for resource in served for entry in _entries(resource)]
    version = served[0].api_version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}


def _served(registry: Registry, name: str, version: str) -> list[ResourceType]:
    if served := [r for r in registry if (r.group, r.version) == (name, version)]:
        return served
    raise no_such_path()


def _entries(resource: ResourceType) -> list[Json]:
    entry: Json = {
        "name": resource.plural,
        "singularName": resource.singular_name,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": _VERBS,
    }
    lists = {"shortNames": list(resource.short_names), "categories": list(resource.categories)}
    entry |= {name: words for name, words in lists.items() if words}
    entries = [entry]
    for name in sorted(resource.subresources):
        kind: Json = {"kind": resource.kind}
        if name == "scale":
            kind = {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        common = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
        entries.append(common | kind | {"verbs": ["get"] if name == "log" else ["get", "patch", "update"]})
    return entries


def openapi_index(registry: Registry) -> Json:
    """`/openapi/v3`: one document per group and version, with a hash by which clients cache it."""
    paths = {}
    for name, versions in registry.versions().items():
        for version in versions:
            path = f"apis/{name}/{version}" if name else f"api/{version}"
            digest = hashlib.sha256(json.dumps(openapi(registry, name, version), sort_keys=True).encode()).hexdigest()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest[:32].upper()}"}
    return {"paths": paths}


def openapi(registry: Registry, name: str, version: str) -> Json:
    """`/openapi/v3/api/v1` and so on: enough for `kubectl explain`, and to leave field validation to the server."""
    served, schemas = _served(registry, name, version), {}
    for each in served:
        text = each.schema.get("description") or f"{each.kind} of {each.api_version}, as local mode serves it."
        described = {"description": text, "x-kubernetes-group-version-kind": [_kind_of(each)]}
        schemas[_schema_name(each)] = {**each.schema, **described}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Fairlead local mode", "version": VERSION["gitVersion"]},
        "paths": {path: item for resource in served for path, item in _paths(resource).items()},
        "components": {"schemas": schemas},
    }


def _paths(resource: ResourceType) -> Json:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    where = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{root}{where}/{resource.plural}"
    reference = {"$ref": f"#/components/schemas/{_schema_name(resource)}"}
    return {
        collection: {"get": _operation(resource, "list", reference), "post": _operation(resource, "post", reference)},
        f"{collection}/{{name}}": {
            action: _operation(resource, action, reference) for action in ("get", "put", "patch", "delete")
        },
    }


def _operation(resource: ResourceType, action: str, reference: Json) -> Json:
    names = ("dryRun", "fieldManager", "fieldValidation", "force") if action in ("post", "put", "patch") else ()
    return {
        "operationId": f"{action}{resource.group.title().replace('.', '')}{resource.version.title()}{resource.kind}",
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in names],
        "responses": {"200": {"description": "OK", "content": {_JSON: {"schema": reference}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _kind_of(resource),
    }


def _kind_of(resource: ResourceType) -> Json:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema_name(resource: ResourceType) -> str:
    domain = ".".join(reversed(resource.group.split("."))) if resource.group else "io.k8s.api.core"
    return f"{domain}.{resource.version}.{resource.kind}"
