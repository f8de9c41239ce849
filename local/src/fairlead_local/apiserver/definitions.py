"""CustomResourceDefinitions: problems that prevent serving, and the resulting resource types. Pure."""

from functools import partial
from typing import Any

from fairlead_local.apiserver import cel, selectors
from fairlead_local.apiserver.cel import InvalidRule
from fairlead_local.apiserver.resources import NAME, Column, ResourceType, ScalePaths, schema_of
from fairlead_local.apiserver.status import Json, Violation, invalid_value, required_value
from fairlead_local.apiserver.times import age, condition, conditions_of, with_condition

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Finalizer of every definition, to delete the objects before the definition."""


def problems(definition: Json) -> list[Violation]:
    """Violations that prevent serving."""
    spec, found = definition["spec"], []
    expected = f"{spec['names']['plural']}.{spec['group']}"
    if definition["metadata"]["name"] != expected:
        text = f'"{definition["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'
        found.append(invalid_value("metadata.name", text))
    if sum(bool(version["storage"]) for version in spec["versions"]) != 1:
        found.append(invalid_value("spec.versions", "must have exactly one version marked as storage version"))
    for index, version in enumerate(spec["versions"]):
        found += _version_problems(version, f"spec.versions[{index}]")
    return found


def _version_problems(version: Json, path: str) -> list[Violation]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    if not isinstance(schema, dict):
        return [required_value(f"{path}.schema.openAPIV3Schema", "schemas are required")]
    found = []
    if schema.get("type") != "object":
        found.append(invalid_value(f"{path}.schema.openAPIV3Schema.type", "must be object at the root"))
    try:
        cel.compile_rules(schema)
    except InvalidRule as error:
        found.append(invalid_value(f"{path}.schema.openAPIV3Schema.x-kubernetes-validations", str(error)))
    scale = (version.get("subresources") or {}).get("scale") or {}
    for name, text in scale.items():
        if not selectors.is_plain(text):
            found.append(
                invalid_value(f"{path}.subresources.scale.{name}", f'"{text}": should be a json path of fields')
            )
    for number, column in enumerate(version.get("additionalPrinterColumns") or ()):
        try:
            selectors.parse(column["jsonPath"])
        except ValueError as error:
            found.append(invalid_value(f"{path}.additionalPrinterColumns[{number}].jsonPath", str(error)))
    return found


def accepted(definition: Json) -> Json:
    """The definition with completed names, the cleanup finalizer, and the status of a served definition."""
    names = definition["spec"]["names"]
    names = {"singular": names["kind"].lower(), "listKind": f"{names['kind']}List", **names}
    metadata = definition["metadata"]
    if "deletionTimestamp" not in metadata:
        finalizers = metadata.get("finalizers") or []
        metadata = {**metadata, "finalizers": [*(f for f in finalizers if f != CLEANUP_FINALIZER), CLEANUP_FINALIZER]}
    status = definition.get("status") or {}
    conditions = conditions_of(definition)
    for kind, reason, text in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        conditions = with_condition(conditions, condition(kind, "True", reason, text))
    stored = status.get("storedVersions") or []
    storage = next(version["name"] for version in definition["spec"]["versions"] if version["storage"])
    return {
        **definition,
        "metadata": metadata,
        "spec": {**definition["spec"], "names": names},
        "status": {
            "conditions": conditions,
            "acceptedNames": names,
            "storedVersions": stored if storage in stored else [*stored, storage],
        },
    }


def resource_types(definition: Json) -> list[ResourceType]:
    """One type per served version, the storage version first: clients prefer the first version."""
    versions = sorted(definition["spec"]["versions"], key=lambda version: not version["storage"])
    return [_resource_type(definition["spec"], version) for version in versions if version["served"]]


def _resource_type(spec: Json, version: Json) -> ResourceType:
    names, subresources = spec["names"], version.get("subresources") or {}
    scale = subresources.get("scale")
    columns = version.get("additionalPrinterColumns")
    return ResourceType(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        namespaced=spec["scope"] == "Namespaced",
        schema=_whole_schema(version["schema"]["openAPIV3Schema"]),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=frozenset(name for name in ("status", "scale") if subresources.get(name) is not None),
        scale=ScalePaths(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath"))
        if scale
        else None,
        columns=(NAME, *map(_column, columns)) if columns else None,
        field_labels=frozenset(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ()),
        has_generation=True,
        unconditional_update=False,
        custom=True,
        singular=names.get("singular") or "",
        list_kind=names.get("listKind") or "",
    )


def _whole_schema(schema: Json) -> Json:
    """The schema of the definition plus the fields of every object; limits on metadata in the definition are kept."""
    properties, known = schema.get("properties") or {}, schema_of("ObjectMeta")
    own = (properties.get("metadata") or {}).get("properties") or {}
    fields = {name: {**field, **own.get(name, {})} for name, field in known["properties"].items()}
    text = {"type": "string"}
    whole = {"apiVersion": text, "kind": text, **properties, "metadata": {**known, "properties": fields}}
    return {**schema, "properties": whole}


def _column(column: Json) -> Column:
    cell = partial(_cell, path=column["jsonPath"], kind=column["type"])
    return Column(column["name"], cell, column["type"], column.get("priority", 0), column.get("description", ""))


def _cell(obj: Json, *, path: str, kind: str) -> Any:
    """The value of a cell; None = absent or of a type other than the type of the column, as in Kubernetes."""
    value = selectors.find(obj, path)
    match kind, value:
        case "string", _:
            return None if value is None else str(value)
        case "date", str():
            return age(value)
        case "integer", int() | float():
            return int(value)
        case ("boolean", bool()) | ("number", int() | float()):
            return value
    return None
