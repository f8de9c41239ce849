"""The experiments' command line: what the docs quote is accepted, and the core's own steps are measured as they are."""

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "engine" / "benchmarks" / "experiments"


@pytest.fixture
def parser_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    from harness import parser_of

    return parser_of


def test_commands_in_the_docs_are_accepted(parser_of: Any) -> None:
    pages = [path.read_text().replace("\\\n", " ") for path in sorted((ROOT / "docs").rglob("*.md"))]
    commands = [each for page in pages for each in re.findall(r"engine/benchmarks/experiments ([^\n`#]+)", page)]
    named = {name for name, *_ in map(shlex.split, commands)}
    assert named == set(re.findall(r'^    "(\w+)":', (FOLDER / "__main__.py").read_text(), re.MULTILINE))
    for name, *flags in map(shlex.split, commands):
        module = import_module(name)
        parser_of(name, module.__doc__, module.run).parse_args(flags)


def test_core_steps_measures_every_part_of_a_step() -> None:
    small = ("--seqs", "4", "--blocks", "200", "--prompt", "32", "--output", "8", "--steps", "30", "--json")
    done = subprocess.run(
        [sys.executable, str(FOLDER), "core_steps", *small], capture_output=True, text=True, check=True
    )
    parts = {row.pop("part"): row for row in json.loads(done.stdout)}
    assert {"schedule", "prepare", "commit", "outputs", "send", "python"} <= parts.keys()
    assert all(row["p50"] > 0 for row in parts.values())


def test_device_steps_times_first_tokens_and_decodes_with_tiny_shapes_on_any_machine() -> None:
    flags = ("--tiny", "--sampled", "--models", "0.6b", "--json")
    done = subprocess.run(
        [sys.executable, str(FOLDER), "device_steps", *flags], capture_output=True, text=True, check=True
    )
    copy, first, *decodes = json.loads(done.stdout)
    assert copy["tokens/s"] > 0 and first["step ms"] > 0
    assert [row["sequences"] for row in decodes] == [1, 3]
    assert all(row["share"] > 0 and row["host ms"] > 0 for row in decodes)
