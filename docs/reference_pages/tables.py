"""What pages of the reference are made of: tables, and texts that are refused by name where there are none."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from api_schemas import JsonSchema

from fairlead_common.settings import docstrings

DURATIONS = "Durations are written as `500ms`, `30s`, `10m`; sizes as `512Mi`, `2Gi`."


class Undocumented(Exception):
    """Something that people can see or set has no text."""


def members(kind: Any, title: str) -> str:
    """The table of an enum's members."""
    texts = docstrings(kind)
    return table([title, "Meaning"], [[f"`{member}`", documented(texts.get(member.name), member)] for member in kind])


def kind_and_bounds(node: JsonSchema) -> list[str]:
    """What may be written, in a word or two."""
    if "enum" in node:
        return [" · ".join(f"`{value}`" for value in node["enum"])]
    if "x-kubernetes-int-or-string" in node:
        return ["quantity"]
    if node.get("type") == "array":
        return [f"list of {kind_and_bounds(node['items'])[0]}s"]
    if "additionalProperties" in node:
        return [f"map to {kind_and_bounds(node['additionalProperties'])[0]}"]
    if node.get("type") == "string" and "ms" in node.get("pattern", ""):
        return ["duration"]
    least, most = node.get("minimum"), node.get("maximum")
    if least is None:
        return [node["type"]]
    return [f"{node['type']}, {least} or more" if most is None else f"{node['type']}, {least} to {most}"]


def described(node: JsonSchema, what: str) -> tuple[str, str]:
    """What a description says: the meaning, and the default ("" = none)."""
    text = documented(node.get("description"), what)
    match = re.fullmatch(r"(.+?)[;.]?\s*(?:[Dd]efault: |None = )(.+?)\.?", text, re.DOTALL)
    meaning, default = (match[1], match[2]) if match else (text, "")
    return meaning[0].upper() + meaning[1:].rstrip(".") + ".", default


def default_of(node: JsonSchema, required: bool) -> str:
    return "*required*" if required else described({"description": "?"} | node, "")[1]


def with_default(text: str | None, default: Any, what: str) -> list[str]:
    """Default and meaning of a flag: the value itself, or what its text says of None."""
    meaning, says = described({"description": text}, what)
    if default is None or not isinstance(default, int | float | str):
        return [says or ("" if default is None else "*required*"), meaning]
    written = f"{default:g}" if isinstance(default, float) else str(default)
    written = written.lower() if isinstance(default, bool) else written
    return [f"`{written}`", meaning]


def quantities(quantities: Any) -> str:
    return ", ".join(f"{name} {quantity}" for name, quantity in quantities.items())


def documented(text: str | None, what: Any) -> str:
    """The text. Raises Undocumented, naming what lacks one."""
    if not text or not text.strip():
        raise Undocumented(f"{what} has no description: write one beside it, in the code")
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
