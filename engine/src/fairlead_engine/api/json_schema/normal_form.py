"""A schema → an equivalent schema in keywords supported by grammars, without keywords that restrict nothing.

Rewritten are bounds of 64-bit integers and floats, unions told apart by a literal, and listed property names. Formats
that the standard calls annotations are left out.
"""

import re
from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.parse import quote

from fairlead_engine.api.json_schema import parts
from fairlead_engine.api.json_schema.parts import endless
from fairlead_engine.api.json_schema.unions import exclude_one_another, requiring, told_apart

DEEPEST = 120
"""Levels of JSON; a deeper schema is left as it is."""
ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly",
        "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "externalDocs", "xml", "x-guidance",
    }
)  # fmt: skip
"""Keywords that restrict no value, and llguidance's options, which clients may not set."""
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
NOTES = frozenset(
    {
        # the standard's, which by itself has no format checked
        "uri-reference", "uri-template", "iri", "iri-reference", "idn-email", "idn-hostname", "json-pointer",
        "relative-json-pointer", "regex", "unknown",
        # OpenAPI's, for what a string holds or how it is shown
        "binary", "byte", "base64url", "char", "commonmark", "html", "http-date", "media-range", "password",
        # pydantic's and others', for types of their languages
        "path", "file-path", "directory-path", "json-string", "multi-host-uri", "name-email", "phone", "color",
        "ipvanyaddress", "ipvanyinterface", "ipvanynetwork", "ipv4interface", "ipv4network", "ipv6interface",
        "ipv6network", "decimal",
        # Zod's: names of patterns, which mostly stand beside the format
        "base64", "cidrv4", "cidrv6", "cuid", "cuid2", "datetime", "e164", "emoji", "ends_with", "guid", "hex",
        "includes", "json_string", "jwt", "ksuid", "lowercase", "mac", "nanoid", "starts_with", "template_literal",
        "ulid", "uppercase", "url", "xid",
    }
)  # fmt: skip
"""Formats that describe a string's purpose, and are ignored."""
_HEX = "[0-9a-fA-F]"
_UUIDS = {
    f"uuid{version}": f"^{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}$"
    for version in range(1, 9)
}
"""Pydantic's formats for one kind of UUID, with the equivalent pattern."""
_LEAST_INTEGER, _MOST_INTEGER = -(2**63) + 1024, 2**63 - 1
"""Integers within a grammar's reach: the least is the first double above the least 64-bit integer."""
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains")
"""Keywords with whole numbers as values, also written as 3.0."""
_MOST_FLOAT = 3.4028234e38
"""A bound beyond a float's range is no bound."""

Rule = Callable[[dict[str, Any]], None]


def normal_form(schema: dict[str, Any], *, without_end: bool = False) -> parts.Schema:
    """`without_end`: replacement for parts that no text can meet; False parts are left out of unions."""
    if parts.depth(schema) > DEEPEST:
        return schema
    root = _Normal(schema).whole()
    if isinstance(root, bool) or not (found := endless(root)):
        return root

    def ending(part: Any) -> Any:
        if isinstance(part, bool):
            return part
        return without_end if id(part) in found else parts.changed(part, ending)

    return ending(root)  # type: ignore[no-any-return]


def without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without annotations, which may be long or the only difference between schemas."""
    if parts.depth(schema) > DEEPEST:
        return schema
    passed_over = ANNOTATIONS - _pointed(schema) - {"discriminator"}

    def stripped(part: Any) -> Any:
        if isinstance(part, bool):
            return part
        return parts.changed({name: value for name, value in part.items() if name not in passed_over}, stripped)

    return stripped(schema)  # type: ignore[no-any-return]


def _pointed(root: dict[str, Any]) -> frozenset[str]:
    references = [node["$ref"] for node in parts.within(root) if isinstance(node.get("$ref"), str)]
    return frozenset(segment for each in references for segment in parts.segments(each))


class _Normal:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        references = [node["$ref"] for node in parts.within(root) if isinstance(node.get("$ref"), str)]
        self._pointed = _pointed(root)
        """Names in references' paths, which must stay in place."""
        self._requiring: dict[tuple[str, str], str] = {}
        """By reference and property: name of the schema with the property required."""
        self._more: dict[str, Any] = {}
        """Definitions added by `_with`."""
        self._rules = _RULES if self._is_plain(references) else _RULES_BESIDE_OTHERS

    def _is_plain(self, references: list[str]) -> bool:
        """Whether no reference goes by a schema's name, and nothing depends on evaluated properties and items."""
        told = ("unevaluatedProperties", "unevaluatedItems")
        asks = any(name in node and not _asks_nothing(node[name]) for node in parts.within(self._root) for name in told)
        return not asks and all(parts.is_pointer(each) for each in references)

    def whole(self) -> parts.Schema:
        root = self.form(self._root)
        if self._more and isinstance(root, dict):
            root["$defs"] = {**self._definitions(root), **self._more}
        return root  # type: ignore[no-any-return]

    def _definitions(self, root: dict[str, Any]) -> dict[str, Any]:
        found = root.get("$defs")
        return found if isinstance(found, dict) else {}

    def form(self, schema: Any) -> Any:
        """The normal form of a part."""
        if isinstance(schema, bool):
            return schema
        node = parts.changed(schema, self.form)
        self._one_of(node, schema)
        names = node.get("propertyNames")
        if isinstance(names, dict) and names.keys() == {"$ref"}:
            named = parts.target(self._root, names["$ref"])
            holds_none = isinstance(named, dict) and "$ref" not in named and parts.within(named) == [named]
            node["propertyNames"] = self.form(named) if holds_none else names
        for rule in self._rules:
            rule(node)
        for name in node.keys() & ANNOTATIONS - self._pointed:
            del node[name]
        return False if node.get("not") in (True, {}) and "not" in node else node

    def _one_of(self, node: dict[str, Any], schema: dict[str, Any]) -> None:
        """As `anyOf`, where that means the same."""
        schemas, told = node.get("oneOf"), schema.get("discriminator")
        if not isinstance(schemas, list) or not schemas or "oneOf" in self._pointed:
            return
        tag = told.get("propertyName") if isinstance(told, dict) else None
        if isinstance(tag, str) and told_apart(schemas, tag, self._root):
            schemas = [self._with(each, tag) for each in schemas]  # OpenAPI has it required
        elif len(schemas) > 1 and not exclude_one_another(schemas, self._root):
            return
        del node["oneOf"]
        _also(node, "anyOf", schemas)

    def _with(self, schema: Any, tag: str) -> Any:
        """The schema, or the target of its reference, with a property required."""
        if "$ref" not in schema:
            return requiring(schema, tag)
        whole = parts.target(self._root, schema["$ref"])
        if not isinstance(whole, dict) or requiring(whole, tag) is whole:
            return schema
        key = (schema["$ref"], tag)
        if key not in self._requiring:
            taken = {*self._definitions(self._root), *self._more}
            name = self._requiring[key] = next(each for number in count() if (each := f"tagged-{number}") not in taken)
            self._more[name] = True  # the name is taken
            self._more[name] = self.form(requiring(whole, tag))
        return {"$ref": f"#/$defs/{self._requiring[key]}"}


def _also(node: dict[str, Any], name: str, value: Any) -> None:
    """Adds a keyword, also where the schema has that keyword already."""
    if name not in node:
        node[name] = value
    elif isinstance(node.get("allOf", []), list):
        node["allOf"] = [*node.get("allOf", []), {name: value}]


def _asks_nothing(schema: Any) -> bool:
    return schema is True or schema == {}


# -- rules: each changes a schema whose parts have been changed --------------------------------------------------------


def _empty(node: dict[str, Any]) -> None:
    """Leaves out keywords with a value that restricts nothing."""
    for name in _COUNTS:
        if isinstance(value := node.get(name), float) and value.is_integer():
            node[name] = int(value)
    for name in ("minItems", "minLength", "minProperties"):
        if node.get(name) == 0 and node[name] is not False:
            del node[name]
    for name, value in (("uniqueItems", False), ("not", False), ("$recursiveAnchor", False)):
        if node.get(name) is value:
            del node[name]
    if node.get("uniqueItems") is True and node.get("maxItems") in (0, 1):
        del node["uniqueItems"]


def _unasked(node: dict[str, Any]) -> None:
    """Leaves out keywords that allow all further properties and items."""
    for name in ("unevaluatedProperties", "unevaluatedItems", "additionalItems"):
        if name in node and _asks_nothing(node[name]):
            del node[name]


def _dialect(node: dict[str, Any]) -> None:
    """Leaves out the name of an unknown dialect, and escapes a reference's characters outside of URIs."""
    if "$schema" in node and not re.match(r"https?://json-schema\.org/draft", str(node["$schema"])):
        del node["$schema"]
    if isinstance(node.get("$ref"), str):
        node["$ref"] = quote(node["$ref"], safe="#%/~:?@!$&'()*+,;=-._")


def _dependencies(node: dict[str, Any]) -> None:
    """Leaves out dependencies that are always met."""
    required: list[Any] = node["required"] if isinstance(node.get("required"), list) else []
    for name in ("dependentRequired", "dependentSchemas", "dependencies"):
        if not isinstance(found := node.get(name), dict):
            continue
        node[name] = {
            key: value
            for key, value in found.items()
            if not (all(each in required for each in value) if isinstance(value, list) else _asks_nothing(value))
        }
        if not node[name]:
            del node[name]


def _condition(node: dict[str, Any]) -> None:
    """Resolves `if`, `then` and `else` where one alone decides."""
    if "if" not in node:
        node.pop("then", None)
        node.pop("else", None)
        return
    then, other = node.get("then", True), node.get("else", True)
    if _asks_nothing(node["if"]) or node["if"] is False:
        asked = other if node["if"] is False else then
        for name in ("if", "then", "else"):
            node.pop(name, None)
        if not _asks_nothing(asked):
            both = node.get("allOf", [])
            node["allOf"] = [*both, asked] if isinstance(both, list) else both
    elif _asks_nothing(then) and _asks_nothing(other):
        for name in ("if", "then", "else"):
            node.pop(name, None)


def _contains(node: dict[str, Any]) -> None:
    """`contains` where every item is meant, or none."""
    if "contains" not in node:
        node.pop("minContains", None)
        node.pop("maxContains", None)
        return
    least = node.get("minContains", 1)
    if not isinstance(least, int) or isinstance(least, bool) or "maxContains" in node:
        return
    if least == 0 or _asks_nothing(node["contains"]):
        node.pop("minContains", None)
        del node["contains"]
        if least and _is_number(node.get("minItems", 0)):
            node["minItems"] = max(least, node.get("minItems", 0))


_APPLIED = ("allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef", "contains")


def _unevaluated(node: dict[str, Any]) -> None:
    """Turns unevaluated into additional properties and items where nothing else evaluates."""
    if any(name in node for name in _APPLIED):
        return
    if "unevaluatedProperties" in node:
        value = node.pop("unevaluatedProperties")
        node.setdefault("additionalProperties", value)
    if "unevaluatedItems" in node:
        value = node.pop("unevaluatedItems")
        node.setdefault("additionalItems" if isinstance(node.get("items"), list) else "items", value)


def _format(node: dict[str, Any]) -> None:
    """Leaves out annotations, a name for the pattern beside it, and formats of non-strings."""
    name, is_of_strings = node.get("format"), "string" in parts.types(node)
    if is_of_strings and (not isinstance(name, str) or name in FORMATS):
        return
    if not is_of_strings or name in NOTES or isinstance(node.get("pattern"), str):
        node.pop("format", None)
    elif name in _UUIDS:
        del node["format"]
        node["pattern"] = _UUIDS[name]


def _bounds(node: dict[str, Any]) -> None:
    """Bounds as of draft 6, without bounds implied by the type."""
    for name, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool):
            is_exclusive = node.pop(exclusive)
            if is_exclusive and name in node:
                node[exclusive] = node.pop(name)
        for each in (name, exclusive):
            if each in node and _is_number(node[each]):
                _bound(node, each, name)


def _bound(node: dict[str, Any], keyword: str, inclusive: str) -> None:
    value, is_least = node[keyword], inclusive == "minimum"
    if parts.types(node) - {"null"} == {"integer"}:
        if is_least and value <= -(2**63):
            del node[keyword]
            node.setdefault(inclusive, _LEAST_INTEGER)
        elif not is_least and value >= 2**63 - 1:
            del node[keyword]
            node.setdefault(inclusive, _MOST_INTEGER)
    elif value <= -_MOST_FLOAT if is_least else value >= _MOST_FLOAT:
        del node[keyword]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _property_names(node: dict[str, Any]) -> None:
    """Rewrites property names given as any text, as a list, or as a pattern without named properties."""
    if "propertyNames" not in node:
        return
    names = node["propertyNames"]
    if _asks_nothing(names) or (isinstance(names, dict) and names.keys() <= {"type"} and _takes_strings(names)):
        del node["propertyNames"]
    elif isinstance(names, dict) and _takes_strings(names) and "patternProperties" not in node:
        listed = _listed(names)
        if listed is not None:
            del node["propertyNames"]
            known, others = node.get("properties", {}), node.get("additionalProperties", True)
            if isinstance(known, dict):
                allowed = {name: known.get(name, others) for name in listed}
                node["properties"] = {name: schema for name, schema in allowed.items() if schema is not False}
                node["additionalProperties"] = False
        elif names.keys() <= {"type", "pattern"} and isinstance(names["pattern"], str) and not node.get("properties"):
            del node["propertyNames"]
            node["patternProperties"] = {names["pattern"]: node.get("additionalProperties", True)}
            node["additionalProperties"] = False


def _takes_strings(names: dict[str, Any]) -> bool:
    return "string" in parts.types(names)


def _listed(names: dict[str, Any]) -> list[str] | None:
    """The names, if listed and not restricted further."""
    if not names.keys() <= {"type", "enum"} and not names.keys() <= {"type", "const"}:
        return None
    found = [names["const"]] if "const" in names else names.get("enum")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else None


_RULES_BESIDE_OTHERS: tuple[Rule, ...] = (
    _empty, _dialect, _dependencies, _unevaluated, _format, _bounds, _property_names,
)  # fmt: skip
_RULES = (*_RULES_BESIDE_OTHERS, _unasked, _condition, _contains)
