"""The page of the chart's values, from its commented `values.yaml`."""

import itertools
from collections.abc import Iterator
from typing import Any

import yaml

from reference_pages.tables import documented, quantities, table


def chart_values(text: str) -> str:
    """The page of the Helm chart's values, from its values.yaml and the comments there."""
    sections: dict[str, list[list[str]]] = {}
    for path, comment, value in commented_values(text):
        sections.setdefault(path.split(".")[0] if "." in path else "", []).append(
            [f"`{path}`", _yaml_default(value), documented(comment, f"the chart's value {path}")]
        )
    values = yaml.safe_load(text)
    profiles = [[f"`{name}`", quantities(profile.get("requests", {})), quantities(profile.get("limits", {})),
                 quantities(profile.get("nodeSelector", {})), profile.get("runtimeClassName", "")]
                for name, profile in values["profiles"].items()]  # fmt: skip
    head = ["Value", "Default", "Meaning"]
    parts = ["`charts/fairlead/values.yaml` has them all, `charts/fairlead/values.schema.json` refuses what is not "
             "here by name, and [the installation guide](../kubernetes.md) says which are worth changing."]  # fmt: skip
    for section, rows in sorted(sections.items()):
        parts += [f"## {section}" if section else "## General", table(head, rows)]
    profile_head = ["Profile", "Requests", "Limits", "Nodes", "RuntimeClass"]
    return "\n\n".join((*parts, "## The chart's profiles", table(profile_head, profiles)))


def commented_values(text: str) -> Iterator[tuple[str, str, Any]]:
    """Path, comment and default of every value of a values.yaml.

    A comment stands above its key, as indented as it. A map without a comment inside is one value.
    """
    lines = text.splitlines()

    def comment(key: yaml.ScalarNode) -> str:
        found: list[str] = []
        before = reversed(lines[: key.start_mark.line])
        for line in itertools.takewhile(lambda line: line.startswith(" " * key.start_mark.column + "# "), before):
            found.insert(0, line.strip(" #"))
        return " ".join(found)

    def walk(node: yaml.MappingNode, path: str) -> Iterator[tuple[str, str, Any]]:
        for key, value in node.value:
            here = f"{path}{key.value}"
            if isinstance(value, yaml.MappingNode) and any(comment(child) for child, _ in value.value):
                yield from walk(value, f"{here}.")
            else:
                yield here, comment(key), yaml.SafeLoader("").construct_document(value)

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from walk(root, "")


def _yaml_default(value: Any) -> str:
    """A default as it is written in YAML on one line; a long one has a table of its own."""
    written = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
    written = written.removesuffix("\n...\n").strip()
    return f"`{written}`" if len(written) <= 100 else "below"
