"""Commands in the documentation exist: arguments parse; targets, files, chart values and paths are there."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.main import build_parser as fairlead_parser
from fairlead_engine.__main__ import build_parser as engine_parser
from fairlead_testing.documents import PAGES, ROOT, shell_blocks

MAKEFILE = (ROOT / "Makefile").read_text()
SCHEMA = json.loads((ROOT / "charts/fairlead/values.schema.json").read_text())
PATHS = [
    re.compile(re.sub(r"\\{.*?\\}", "[^/]+", re.escape(path)))
    for path in re.findall(r"`(?:[A-Z]+ )?(/[^`?{\s][^`?\s]*)", (ROOT / "docs/reference/http.md").read_text())
]
"""Of gateways and engines."""


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command, without variables that are set before it; here documents are left out."""
    text = re.sub(r"<<-?'?(\w+)'?(.*?)\n.*?\n\1$", r"\2", block.replace("\\\n", " "), flags=re.M | re.S)
    lines, pending = text.splitlines(), ""
    for line in lines:
        pending += f"{line}\n"
        lexer = shlex.shlex(pending, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quotation goes on
            continue
        pending = ""
        yield from simple(words)
    assert not pending.strip(), pending


def simple(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if not set(word) <= set("();|&"):
            if not command or command[-1] not in (">", ">>", "<"):
                command.append(word)
            else:
                del command[-1]  # with the file that it names
            continue
        while command and (re.match(r"\w+=", command[0]) or command[0] in ("env", "$", "export", "do", "if")):
            del command[0]
        if command:
            yield [each.strip("[]") for each in command if each != "…"]
        command = []


def fault(words: list[str]) -> str:
    """Why this is no command; empty = it is."""
    name, arguments = Path(words[0]).name, words[1:]
    if name in ("fairlead", "fairlead-engine"):
        return unparsed(name, arguments)
    if name == "make":
        return next(filter(None, map(unmade, arguments)), "")
    if name in ("python", "python3"):
        return unfound(arguments)
    if name == "helm":
        return unset(arguments)
    if name == "curl":
        return unserved(arguments)
    named = (
        each.partition("::")[0] for each in arguments if re.match(r"(examples|charts|e2e|tests|Dockerfile)[./]", each)
    )
    return next((f"{each} does not exist" for each in named if not (ROOT / each).exists()), "")


def unparsed(name: str, arguments: list[str]) -> str:
    if not arguments:
        return ""
    parser = fairlead_parser({arguments[0]}) if name == "fairlead" else engine_parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parser.parse_args(arguments)
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


def unmade(word: str) -> str:
    variable = re.match(r"(\w+)=", word)
    known = rf"^{word}:" if variable is None else rf"\b{variable[1]}\b"
    return "" if re.search(known, MAKEFILE, re.M) else f"the Makefile has no {word}"


def unfound(arguments: list[str]) -> str:
    if arguments[:1] == ["-P"]:
        arguments = arguments[1:]
    if arguments[:1] == ["-m"]:
        top = arguments[1].partition(".")[0]
        is_there = (ROOT / "e2e" / top).exists() or importlib.util.find_spec(top) is not None
        return "" if is_there else f"there is no module {top}"
    if not arguments or arguments[0].startswith("-"):
        return ""
    path = ROOT / arguments[0]
    if path.name == "experiments" and not (path / f"{arguments[1]}.py").exists():
        return f"there is no experiment {arguments[1]}"
    return "" if path.exists() else f"{arguments[0]} does not exist"


def unset(arguments: list[str]) -> str:
    for before, word in pairwise(arguments):
        if before in ("--set", "--set-string", "--set-json", "--set-file"):
            path = re.split(r"(?<!\\)\.", word.partition("=")[0])
            if not has_value(SCHEMA, [re.sub(r"\[\d+\]", "", each).replace("\\", "") for each in path]):
                return f"the chart has no value {'.'.join(path)}"
        if before in ("-f", "--values") and "/" in word and not (ROOT / word).exists():
            return f"{word} does not exist"
    return ""


def has_value(schema: dict[str, Any], path: list[str]) -> bool:
    while "$ref" in schema:
        schema = SCHEMA["$defs" if "$defs" in SCHEMA else "definitions"][schema["$ref"].rpartition("/")[2]]
    if not path:
        return True
    schema = schema.get("items", schema)
    inner = schema.get("properties", {}).get(path[0], schema.get("additionalProperties", "properties" not in schema))
    return inner is True or (isinstance(inner, dict) and has_value(inner, path[1:]))


def unserved(arguments: list[str]) -> str:
    urls = (
        re.match(r"(?:https?://)?(?:localhost|127\.0\.0\.1|[\w$.-]*(?:gateway|BASE_URL)[\w.-]*)(?::\d+)?(/[^?]*)", each)
        for each in arguments
    )
    return next(
        (f"nobody serves {url[1]}" for url in urls if url and not any(each.fullmatch(url[1]) for each in PATHS)), ""
    )


@pytest.mark.parametrize("page", [each for each in PAGES if shell_blocks(each)])
def test_commands_exist_with_the_arguments_that_are_shown(page: str) -> None:
    faults = [
        f"{shlex.join(each)}: {why}"
        for block in shell_blocks(page)
        for each in commands(block.text)
        if (why := fault(each))
    ]
    assert not faults, "\n".join(faults)


def test_what_does_not_exist_is_noticed() -> None:
    wrong = """
    fairlead chat --no-such-flag
    fairlead-engine serve --modle x
    make no-such-target && make test NO_SUCH=1
    python engine/benchmarks/no_such.py
    helm upgrade fairlead charts/fairlead --set gateway.noSuch=1
    curl localhost:8000/v1/nothing -d '{
      "a": 1}'
    kubectl apply -f examples/99-none.yaml
    """
    assert [bool(fault(each)) for each in commands(wrong)] == [True] * 8
