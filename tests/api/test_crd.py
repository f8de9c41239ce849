"""The generated CRD: complete, documented, structural, and its rules say what to do."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from generate_crds import FILES, PACKAGED, crd, object_schema, to_json, to_yaml

from fairlead_local import system
from fairlead_local.apiserver.cel import compile_rules
from fairlead_local.apiserver.structural import validate

ROOT = Path(__file__).parents[2]


def walk(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, child in (schema.get("properties") or {}).items():
        yield from walk(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from walk(schema[key], f"{path}[]")


def body(name: str = "dinghy", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"model": {"source": "demo://dinghy"}} | spec}


def test_the_files_are_the_generated_texts() -> None:
    written = [file.read_text(encoding="utf-8") for file in (*FILES, PACKAGED)]
    assert written == [to_yaml(), to_yaml(), to_json()], "run `make crds`"
    assert yaml.safe_load(to_yaml()) == system.crd() == crd()


def test_every_field_has_a_description() -> None:
    bare = [
        path
        for path, schema in walk(object_schema())
        if path and path != ".metadata" and not path.endswith("]") and not schema.get("description")
    ]
    assert bare == []


def test_every_node_has_a_type_as_structural_schemas_need() -> None:
    untyped = [
        path
        for path, schema in walk(object_schema())
        if "type" not in schema and not schema.get("x-kubernetes-int-or-string")
    ]
    assert untyped == []


def test_all_rules_compile() -> None:
    compile_rules(object_schema())


def test_names_columns_and_subresources() -> None:
    spec = crd()["spec"]
    (version,) = spec["versions"]
    assert spec["names"]["shortNames"] == ["llm"]
    assert spec["names"]["categories"] == ["all"]
    columns = version["additionalPrinterColumns"]
    assert [column["name"] for column in columns if not column.get("priority")] == [
        "Model", "Ready", "Desired", "Queue", "TTFT-P90", "Reason", "Age",
    ]  # fmt: skip
    assert [column["name"] for column in columns if column.get("priority")] == ["Profile", "Image", "URL"]
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


def test_nothing_is_defaulted_by_the_api_server() -> None:
    assert [path for path, schema in walk(object_schema()) if "default" in schema] == []


def test_the_examples_in_the_repository_are_valid() -> None:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") == "LLMDeployment":
                assert validate(object_schema(), document) == [], path
