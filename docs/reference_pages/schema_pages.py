"""Pages of the LLMDeployment, its conditions and the operator's settings, from their schemas."""

from collections.abc import Iterator

from api_schemas import JsonSchema, schema_of
from generate_crds import object_schema

from fairlead.api import names
from fairlead.api.conditions import ConditionType, Reason
from fairlead.operator_settings import BUILT_IN_PROFILES, GpuBudget, OperatorSettings, Profile
from fairlead_engine.errors import ModelLoadReason
from reference_pages.tables import DURATIONS, default_of, described, kind_and_bounds, members, quantities, table


def llmdeployment() -> str:
    """The page of the API."""
    schema = object_schema()
    spec = ["Field", "Type", "Default", "Meaning"]
    rows = [[f"`{path}`", *kind_and_bounds(node), default_of(node, required), described(node, path)[0]]
            for path, node, required in _nodes(schema["properties"]["spec"], "spec")]  # fmt: skip
    status = [[f"`{path}`", *kind_and_bounds(node), described(node, path)[0]]
              for path, node, _ in _nodes(schema["properties"]["status"], "status")]  # fmt: skip
    rules = [list(rule) for rule in _rules(schema, "")]
    return "\n\n".join((
        f"`{names.API_VERSION}`, kind `{names.KIND}`; `kubectl get {names.SHORT_NAME}`. {DURATIONS} "
        "Defaults are the operator's and are not written into objects.",
        "## spec", table(spec, rows),
        "## Rules", "An object that breaks one of these is refused with this sentence.",
        table(["On", "Sentence"], rules),
        "## status", table(["Field", "Type", "Meaning"], status),
    ))  # fmt: skip


def conditions() -> str:
    """The page of condition types and reasons."""
    return "\n\n".join((
        "Every condition is always present. Its `message` is a sentence that says what to do where something can be "
        "done; [the first-model guide](../guides/first-model.md) reads a few.",
        "## Types", members(ConditionType, "Type"),
        "## Reasons", members(Reason, "Reason"),
        "## Reasons of an engine that could not start",
        "The engine's own word and sentence, taken over as they are: "
        + ", ".join(f"`{reason}`" for reason in ModelLoadReason)
        + ", `NotEnoughMemory`, `InvalidConfig`, `AddressUnavailable`.",
    ))  # fmt: skip


def settings() -> str:
    """The page of the operator's settings."""
    parts = [f"A YAML file; unknown keys and bad values are refused by name. {DURATIONS}"]
    for title, kind in (("Settings", OperatorSettings), ("A profile", Profile), ("A budget of GPUs", GpuBudget)):
        schema = schema_of(kind)
        rows = [[f"`{key}`", *kind_and_bounds(node), default_of(node, False), described(node, key)[0]]
                for key, node in schema["properties"].items()]  # fmt: skip
        parts += [f"## {title}", table(["Key", "Type", "Default", "Meaning"], rows)]
    built_in = [[f"`{name}`", quantities(profile.requests), quantities(profile.limits)]
                for name, profile in BUILT_IN_PROFILES.items()]  # fmt: skip
    return "\n\n".join((*parts, "## Built-in profiles", table(["Profile", "Requests", "Limits"], built_in)))


def _nodes(schema: JsonSchema, path: str) -> Iterator[tuple[str, JsonSchema, bool]]:
    """Every field below: path, schema, whether it is required."""
    for key, node in schema.get("properties", {}).items():
        yield f"{path}.{key}", node, key in schema.get("required", ())
        yield from _nodes(node, f"{path}.{key}")
        yield from _nodes(node.get("items", {}), f"{path}.{key}[]")


def _rules(schema: JsonSchema, path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"`{path}`" if path else "the object", rule["message"]
    for key, node in schema.get("properties", {}).items():
        here = f"{path}.{key}" if path else key
        yield from _rules(node, here)
        yield from _rules(node.get("items", {}), f"{here}[]")
