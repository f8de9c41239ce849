"""Words for writing OpenAPI v3 schemas, which drive validation, defaults, merging and `kubectl explain`."""

from typing import Any

from fairlead_local.apiserver.status import Json

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer", "format": "int64"}
INT32: Json = {"type": "integer", "format": "int32"}
BOOLEAN: Json = {"type": "boolean"}
TIME: Json = {"type": "string", "format": "date-time"}
QUANTITY: Json = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
INT_OR_STRING = QUANTITY
OPEN: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
"""A part that is stored as sent: this machine has nothing to do with it."""


def default(schema: Json, value: Any) -> Json:
    return {**schema, "default": value}


def described(schema: Json, text: str) -> Json:
    return {**schema, "description": text}


def choice(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def struct(*required: str, **fields: Json) -> Json:
    """An object of exactly these fields, of which `required` must be there; a trailing underscore is dropped."""
    properties = {name.rstrip("_"): schema for name, schema in fields.items()}
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def mapping(values: Json) -> Json:
    """A map from free keys, merged key by key."""
    return {"type": "object", "additionalProperties": values}


def atomic(schema: Json) -> Json:
    """A list or object that is replaced as a whole."""
    if schema.get("type") == "array":
        return {**schema, "x-kubernetes-list-type": "atomic"}
    return {**schema, "x-kubernetes-map-type": "atomic"}


def array(items: Json) -> Json:
    """A list that is replaced as a whole."""
    return {"type": "array", "items": items, "x-kubernetes-list-type": "atomic"}


def unique(items: Json) -> Json:
    """A list of different scalars, merged value by value."""
    return {"type": "array", "items": items, "x-kubernetes-list-type": "set"}


def keyed(items: Json, *keys: str) -> Json:
    """A list of objects told apart by `keys`, merged item by item; strategic merge uses the first key."""
    return {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


LABEL_SELECTOR = atomic(
    struct(
        matchLabels=mapping(STRING),
        matchExpressions=array(struct("key", "operator", key=STRING, operator=STRING, values=array(STRING))),
    )
)

CONDITION = struct(
    "type",
    "status",
    type=STRING,
    status=choice("True", "False", "Unknown"),
    observedGeneration=INTEGER,
    lastTransitionTime=TIME,
    lastUpdateTime=TIME,
    lastHeartbeatTime=TIME,
    lastProbeTime=TIME,
    reason=STRING,
    message=STRING,
)
CONDITIONS = keyed(CONDITION, "type")

OBJECT_META = struct(
    name=STRING,
    generateName=STRING,
    namespace=STRING,
    labels=mapping(STRING),
    annotations=mapping(STRING),
    finalizers=unique(STRING),
    ownerReferences=keyed(
        atomic(
            struct(
                "apiVersion",
                "kind",
                "name",
                "uid",
                apiVersion=STRING,
                kind=STRING,
                name=STRING,
                uid=STRING,
                controller=BOOLEAN,
                blockOwnerDeletion=BOOLEAN,
            )
        ),
        "uid",
    ),
    uid=STRING,
    resourceVersion=STRING,
    generation=INTEGER,
    creationTimestamp=TIME,
    deletionTimestamp=TIME,
    deletionGracePeriodSeconds=INTEGER,
    selfLink=STRING,
    managedFields=array(OPEN),
)

OBJECT_REFERENCE = atomic(
    struct(
        apiVersion=STRING,
        kind=STRING,
        namespace=STRING,
        name=STRING,
        uid=STRING,
        resourceVersion=STRING,
        fieldPath=STRING,
    )
)


def top_level(**fields: Json) -> Json:
    """The schema of a whole object: `apiVersion`, `kind`, `metadata` and the given fields."""
    return struct(apiVersion=STRING, kind=STRING, metadata=OBJECT_META, **fields)
