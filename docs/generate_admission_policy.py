"""Writes the table of `fairlead.api.author_rules` as CEL, for the chart's ValidatingAdmissionPolicy.

The expression of a rule gives what it refuses, as text; empty = nothing. What has another shape than the rule's path
says ends in an error of the expression, and so in a refusal. Settings are variables of the policy.

`make crds` calls it, and `tests/api/test_author_rules.py` compares.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fairlead.api.author_rules import IMAGE_REST, NUMBER, RULES, SOURCE_REST, AuthorRule, Likeness, RulePart

FILE = Path(__file__).parent.parent / "charts" / "fairlead" / "files" / "admission-policy.yaml"
_TEMPLATE = "template.spec"
_RAW = "valueFrom"


def validations() -> dict[str, list[dict[str, str]]]:
    """`variables` and `validations` of the policy, without the variables that are settings."""
    variables = [{"name": _variable(index), "expression": _expression(rule)} for index, rule in enumerate(RULES)]
    checked = [
        {
            "expression": f"variables.{_variable(index)} == ''",
            "message": rule.general,
            "messageExpression": f"{_text(rule.before)} + variables.{_variable(index)} + {_text(rule.after)}",
        }
        for index, rule in enumerate(RULES)
    ]
    return {"variables": variables, "validations": checked}


def _variable(index: int) -> str:
    return f"refused{index}"


def _expression(rule: AuthorRule) -> str:
    return _collected(rule, "object.spec", rule.path.split("."), "")


def _collected(rule: AuthorRule, above: str, path: Sequence[str], walked: str) -> str:
    """What is refused of the value `above` that `path`; `walked`: how the value was reached."""
    if not path:
        return _here(rule, above)
    field, walked = path[0].removesuffix("[]"), f"{walked}.{path[0]}".removeprefix(".")
    value = f"{above}.{field}"
    is_raw = walked.startswith(f"{_TEMPLATE}.") or f".{_RAW}." in f"{walked}."
    if path[0].endswith("[]"):
        item = f"v{walked.count('[]')}"
        inner = _of_an_object(_collected(rule, item, path[1:], walked), item, is_checked=is_raw and len(path) > 1)
        inner = f"{value}.map({item}, {inner}).filter(s, s != '').join(', ')"
    else:
        inner = _of_an_object(_collected(rule, value, path[1:], walked), value, is_checked=is_raw and len(path) > 1)
    null = f" && {value} != null" if is_raw else ""  # API servers keep them where any field may stand
    return f"(has({value}){null} ? {inner} : '')"


def _of_an_object(inner: str, value: str, *, is_checked: bool) -> str:
    """To CEL, a text has no fields and that is no error."""
    return f"(type({value}) == map ? {inner} : 'no object')" if is_checked else inner


def _here(rule: AuthorRule, value: str) -> str:
    if rule.part is RulePart.SWITCH:
        return f"({value} && !variables.{rule.setting} ? \"'true'\" : '')"
    if rule.part is RulePart.KEYS:
        return f"{value}.filter(k, !{_is_allowed(rule, 'k')}).map(k, {_quoted('k')}).join(', ')"
    return f"({_is_allowed(rule, value)} ? '' : {_quoted(value)})"


def _is_allowed(rule: AuthorRule, text: str) -> str:
    if rule.never:
        return f"(type({text}) == string && !({text} in {_list(rule.never)}))"
    entries = _list(rule.always) if rule.always or not rule.setting else ""
    if rule.with_switch:
        entries = f"({entries} + (variables.{rule.setting} ? {_list(rule.with_switch)} : []))"
    elif rule.setting:
        entries = f"({entries} + variables.{rule.setting})" if entries else f"variables.{rule.setting}"
    found = f"{entries}.exists(e, {_ALIKE[rule.likeness].format(text=text)})"
    return f"({text}.matches('{NUMBER}') || {found})" if rule.likeness is Likeness.ARGUMENT else found


_ALIKE = {
    Likeness.NAME: "e.endsWith('*') ? {text}.startsWith(e.substring(0, size(e) - 1)) && !{text}.contains('..') : "
    "{text} == e",
    Likeness.IMAGE: "{text}.startsWith(e) && !{text}.contains('..') && "
    f"(e.endsWith('/') || {{text}}.substring(size(e)).matches('{IMAGE_REST}'))",
    Likeness.SOURCE: "{text}.startsWith(e) && (e.endsWith('://') || !{text}.contains('%')) && "
    f"(e.endsWith('/') || {{text}}.substring(size(e)).matches('{SOURCE_REST}'))",
    Likeness.ARGUMENT: "e == '*' || {text} == e || {text}.startsWith(e + '=')",
}


def _quoted(text: str) -> str:
    return f'"\'" + {text} + "\'"'


def _text(value: str) -> str:
    return json.dumps(value)


def _list(values: Sequence[Any]) -> str:
    return "[" + ", ".join(f"'{each}'" for each in values) + "]"


def text() -> str:
    """The file."""
    head = "# Made from operator/src/fairlead/api/author_rules.py by `make crds`. Not to be edited.\n"
    return head + yaml.safe_dump(validations(), sort_keys=False, width=10_000)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
