"""`docs/reference/` is what the code says: no setting, metric, field or reason goes undocumented."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import generate_openapi
import generate_reference
import pytest
from reference_pages.chart_page import chart_values, commented_values
from reference_pages.metrics_page import series
from reference_pages.tables import Undocumented, described, members

from fairlead_common.settings import docstrings
from fairlead_engine.__main__ import build_parser

DOCS = Path(__file__).parent.parent / "docs"


def test_the_gateways_openapi_document_is_the_engines_with_what_the_gateway_adds() -> None:
    assert generate_openapi.FILE.read_text(encoding="utf-8") == generate_openapi.text(), "run `make reference`"


def test_every_page_is_the_generated_text() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "reference").iterdir()}
    assert written == generate_reference.pages(), "run `make reference`"


def test_every_flag_of_every_command_of_the_engine_stands_on_a_page() -> None:
    pages = generate_reference.pages()
    sections = dict(re.findall(r"^## (\S+)$(.*?)(?=^## |\Z)", pages["engine-commands.md"], re.DOTALL | re.MULTILINE))
    [commands] = [each for each in build_parser()._actions if each.dest == "command"]
    assert commands.choices is not None
    for name, parser in dict(commands.choices).items():  # type: ignore[call-overload]
        text = sections.pop(name, None) or pages["engine-flags.md"]
        written = set(re.findall(r"--[a-z][a-z-]*[a-z]", text)) | {"--help", "--config"}
        flags = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
        assert {flag for flag in flags if not flag.startswith("--no-")} <= written, name
    assert not sections


def test_help_is_printed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for argument, status in (("--help", 0), ("--nope", 2)):
        monkeypatch.setattr("sys.argv", ["generate_reference.py", argument])
        with pytest.raises(SystemExit) as ended:
            generate_reference.main()
        assert ended.value.code == status
        assert "usage: generate_reference.py" in "".join(capsys.readouterr())
    assert list(tmp_path.iterdir()) == []


def test_the_pages_go_to_the_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_reference, "pages", lambda: {"page.md": "text\n"})
    generate_reference.main([str(tmp_path / "new" / "folder")])
    assert (tmp_path / "new" / "folder" / "page.md").read_text() == "text\n"


class Sail(StrEnum):
    """An enum with a member that nobody described."""

    JIB = "jib"
    """The one in front."""
    MAIN = "main"


def test_what_has_no_text_is_refused_by_name() -> None:
    with pytest.raises(Undocumented, match="main has no description"):
        members(Sail, "Sail")
    with pytest.raises(Undocumented, match=r"spec\.sails has no description"):
        described({"type": "integer"}, "spec.sails")
    with pytest.raises(Undocumented, match="boats_total has no description"):
        series("# HELP boats_total \n# TYPE boats_total counter\nboats_total 1.0\n")
    with pytest.raises(Undocumented, match="crews has no sample"):
        series("# HELP crews Crews.\n# TYPE crews gauge\n")


def test_defaults_are_told_apart_from_the_meaning() -> None:
    assert described({"description": "How many. Default: 3."}, "x") == ("How many.", "3")
    assert described({"description": "Which host; None = all."}, "x") == ("Which host.", "all")
    assert described({"description": "Where the files are."}, "x") == ("Where the files are.", "")


CHART_VALUES = """
# All of it.
gateway:
  # How many,
  # at least two.
  replicas: 2
  # A map is one value.
  labels: {a: b}
bare: 1
"""


def test_values_of_the_chart_are_documented_by_the_comments_above_them() -> None:
    assert list(commented_values(CHART_VALUES)) == [
        ("gateway.replicas", "How many, at least two.", 2),
        ("gateway.labels", "A map is one value.", {"a": "b"}),
        ("bare", "", 1),
    ]
    with pytest.raises(Undocumented, match="value bare has no description"):
        chart_values(CHART_VALUES)


@dataclass
class Boat:
    """A docstring of the class is nobody's field."""

    length: float
    """In metres,
    over all."""
    name: str
    crew: int = 0
    """People."""


def test_docstrings_of_fields_and_members_are_one_line_each() -> None:
    assert docstrings(Boat) == {"length": "In metres, over all.", "crew": "People."}
    assert docstrings(Sail) == {"JIB": "The one in front."}
